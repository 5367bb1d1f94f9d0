"""Processes that die, stop, fail or are slow: always an answer within seconds, and the loader works again afterwards."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnnkit
from gnnkit import BuildOptions, Colocated, GraphLoader, GraphStore, InProcess, Store
from gnnkit.errors import BatchTimeout, MemoryLimitError, PlanError, SamplingError, StartTimeout, StoreError, WorkerDied
from gnnkit.runtime.graph_memory import graph_nbytes
from gnnkit.runtime.limits import start_memory
from tests.backends.setups import FAULT_S, descendants, is_gone, loader_of, workers
from tests.helpers.batches import digest, same
from tests.helpers.graphs import homogeneous_source, random_edges, stored
from tests.helpers.machine import ROOT, in_time
from tests.helpers.system import pretend_free_memory
from tests.helpers.waiting import HANG_S, wait_until
from tests.loader.graphs import NUM_NODES, make, plain, seeds

EVERYTHING = list(range(NUM_NODES))

# With deadlines as short as these, a busy machine makes a healthy process late enough to be warned of; tests of the warning ask for it.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:waiting for :RuntimeWarning")]


@pytest.fixture
def loader() -> Iterator[GraphLoader]:
    with loader_of("Colocated-2", batch_timeout_s=3.0) as opened:
        yield opened


def drain(iterator: Iterator[Any], pause_s: float = 0.0) -> list[Any]:
    found = []
    for batch in iterator:
        found.append(batch)
        time.sleep(pause_s)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
@pytest.mark.core
def test_a_worker_is_killed(loader: GraphLoader, number: signal.Signals) -> None:
    held = list(loader)[:4]
    copies = [batch.x.clone() for batch in held]
    iterator = iter(loader)
    next(iterator)
    pid = workers(loader)[1]
    started = time.monotonic()
    os.kill(pid, number)
    assert wait_until(lambda: is_gone(pid))
    with pytest.raises(WorkerDied) as caught:
        drain(iterator)
    assert in_time(time.monotonic() - started, FAULT_S)
    text = str(caught.value)
    assert f"process 1 (pid {pid}) was killed by {number.name}" in text and "worker-1.log" in text
    if number == signal.SIGKILL:
        assert "memory" in text and " MB when it was last seen" in text
    if number == signal.SIGSEGV:
        assert "Fatal Python error: Segmentation fault" in text  # the end of the log
    assert "loader.resume()" in (caught.value.hint or "")
    assert sorted(seeds(loader)) == EVERYTHING  # the process was started again
    assert pid not in workers(loader).values() and len(workers(loader)) == 2
    assert all(batch.x.equal(copy) for batch, copy in zip(held, copies, strict=True))


def test_a_broken_epoch_is_taken_up_where_it_broke(loader: GraphLoader) -> None:
    with loader_of("inprocess") as reference:
        wanted = list(reference)
    iterator = iter(loader)
    found = [next(iterator) for _ in range(3)]
    os.kill(workers(loader)[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        for batch in iterator:
            found.append(batch)
            time.sleep(0.05)
    found += list(loader.resume())
    assert len(found) == len(wanted)
    for batch, other in zip(found, wanted, strict=True):
        same(batch, other)


def test_every_worker_is_killed_between_epochs(loader: GraphLoader) -> None:
    list(loader)
    for use in (lambda: sorted(seeds(loader)) == EVERYTHING, lambda: len(loader.peek().input_id) == 7):
        for pid in workers(loader).values():
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda pid=pid: is_gone(pid))
        assert use()


def kill_soon(pids: list[int]) -> None:
    """Stops processes, so that nothing more comes of them, and kills them while somebody waits."""

    def kill() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.3, kill).start()


@pytest.mark.parametrize("use", [lambda loader: drain(iter(loader)), lambda loader: loader.sample([1])])
def test_a_loader_that_failed_can_be_forgotten(use: Callable[[GraphLoader], Any]) -> None:
    """Nobody keeps the error, whose frames hold the loader."""
    loader = loader_of("Colocated-2")
    pids = list(workers(loader).values())
    kill_soon(pids)
    with pytest.raises(WorkerDied):
        use(loader)
    assert wait_until(lambda: all(is_gone(pid) for pid in pids))
    assert sorted(seeds(loader)) == EVERYTHING
    pids = list(workers(loader).values())
    del loader
    gc.collect()
    assert len(pids) == 2 and all(is_gone(pid) for pid in pids)


def test_restarts_leave_the_stream_unchanged() -> None:
    with loader_of("inprocess") as reference, loader_of("", backend=Colocated(2, max_restarts=2)) as loader:
        for rank in (0, 1):
            iterator, wanted = iter(loader), iter(reference)
            same(next(iterator), next(wanted))
            os.kill(workers(loader)[rank], signal.SIGKILL)
            with pytest.warns(RuntimeWarning, match=rf"process {rank} .* SIGKILL.*\({rank + 1} of max_restarts=2\)") as warned:
                for batch in iterator:
                    same(batch, next(wanted))
                    time.sleep(0.02)
            assert len(warned) == 1 and next(wanted, None) is None
            assert wait_until(lambda: len(workers(loader)) == 2)
        iterator = iter(loader)
        next(iterator)
        os.kill(workers(loader)[0], signal.SIGKILL)
        with pytest.raises((WorkerDied, StartTimeout)):  # the latter where it was still being started again
            drain(iterator, 0.05)


def test_a_stopped_worker(loader: GraphLoader) -> None:
    list(loader)
    iterator = iter(loader)
    next(iterator)
    pid = workers(loader)[0]
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(BatchTimeout) as caught:
        drain(iterator)
    took = time.monotonic() - started
    assert took > 2.5 and in_time(took, 3 + FAULT_S)
    text = str(caught.value)
    assert f"process 0 (pid {pid}) is stopped" in text and "was last seen" in text and "epoch 1, step" in text
    os.kill(pid, signal.SIGCONT)
    drain(iterator)  # the wait can be taken up again
    assert sorted(seeds(loader)) == EVERYTHING


def test_a_stopped_worker_does_not_keep_the_others_from_working() -> None:
    """Nor does it keep the loader from closing."""
    loader = loader_of("Colocated-2", batch_timeout_s=1.0)
    os.kill(workers(loader)[0], signal.SIGSTOP)
    with pytest.raises(BatchTimeout):
        list(loader)
    assert sorted(seeds(loader)) == EVERYTHING  # it still has its share of the epoch before, so it gets nothing new
    started = time.monotonic()
    loader.close()
    assert in_time(time.monotonic() - started, 0.5)


def test_a_slow_batch_is_not_a_timeout(broken: Any) -> None:
    broken("sitecustomize", _HOOK.format(condition="len(calls) == 2", effect="spin(2.5)"))
    with loader_of("inprocess") as reference, loader_of("Colocated-1", batch_timeout_s=0.6) as loader:
        with pytest.warns(RuntimeWarning, match=r"waiting for epoch 0, step 1 .* is running .* sampling step 1 for") as warned:
            for batch, wanted in zip(loader, reference, strict=True):
                same(batch, wanted)
        assert sum("step 1 " in str(one.message) for one in warned) == 1  # a busy machine may make other batches late, too


# Errors in a worker -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a module in front of the import path of processes that are started from now on."""

    def put(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)

    return put


def test_an_exception_while_starting(broken: Any) -> None:
    broken("platformdirs", "raise RuntimeError('no folders today')")
    started = time.monotonic()
    with pytest.raises(StartTimeout, match="RuntimeError: no folders today") as caught:
        loader_of("Colocated-2")
    assert in_time(time.monotonic() - started, 10)
    assert "platformdirs.py" in str(caught.value.__cause__)


def test_a_worker_that_cannot_even_begin(broken: Any) -> None:
    broken("numpy", "import os, sys; print('no numbers', file=sys.stderr); os._exit(3)")
    with pytest.raises(StartTimeout, match="ended with status 3 while it was starting") as caught:
        loader_of("Colocated-2")
    assert "no numbers" in str(caught.value)


def test_a_worker_that_never_gets_ready(broken: Any) -> None:
    broken("numpy", "import time; time.sleep(60)")
    started = time.monotonic()
    with pytest.raises(StartTimeout, match=r"process 0 \(pid \d+\) was not ready after 1 s"):
        loader_of("Colocated-1", start_timeout_s=1.0)
    assert in_time(time.monotonic() - started, 1 + FAULT_S)


_SLOW_COMPILER = """
import time
from numba.core.dispatcher import Dispatcher

compile, calls = Dispatcher.compile, []

def slow(self, signature):
    calls.append(1)
    if len(calls) <= 6:
        time.sleep(2)
    return compile(self, signature)

Dispatcher.compile = slow
"""


@pytest.mark.slow(seconds=15)
def test_a_worker_that_compiles_for_long_is_waited_for(broken: Any) -> None:
    """Twelve seconds in all, and two for each kernel."""
    broken("sitecustomize", _SLOW_COMPILER)
    started = time.monotonic()
    with loader_of("Colocated-1", start_timeout_s=8.0) as loader:
        assert time.monotonic() - started > 8
        assert sorted(seeds(loader)) == EVERYTHING


# Changes a kernel in processes that are started from now on.
_HOOK = """
import time
import gnnkit.sampling.batch_writer as fill

kernel, calls = fill.fill, []

def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

def changed(*args):
    calls.append(1)
    if {condition}:
        {effect}
    return kernel(*args)

fill.fill = changed
"""


def test_an_exception_in_one_batch(broken: Any) -> None:
    broken("sitecustomize", _HOOK.format(condition="len(calls) == 3", effect="1 / 0"))
    with loader_of("Colocated-1") as loader:
        iterator = iter(loader)
        with pytest.raises(SamplingError, match="sampling step 2 failed: ZeroDivisionError: division by zero") as caught:
            drain(iterator)
        assert loader.stats().batches == 2
        assert "in changed" in str(caught.value.__cause__)
        assert sorted(seeds(loader)) == EVERYTHING


def store_of(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    x, splits = rng.standard_normal((NUM_NODES, 8)).astype(np.float32), {"train": np.arange(NUM_NODES)}
    source = homogeneous_source(random_edges(rng, NUM_NODES, NUM_NODES, 700), NUM_NODES, splits=splits, x=x)
    stored(source, folder / "store", BuildOptions())
    return folder / "store"


def on_store(path: Path, **options: Any) -> GraphLoader:
    options = {"num_neighbors": [-1], "batch_size": 7, "progress": False, "backend": Colocated(2), "memory_budget": 0, **options}
    return GraphLoader.from_store(path, **options)


def test_a_damaged_store_fails_in_the_batch_that_meets_it(tmp_path: Path) -> None:
    path = store_of(tmp_path)
    indices = path / "part0/edges/node__to__node/indices.npy"
    stored = np.load(indices, mmap_mode="r+")
    stored[-1] = NUM_NODES + 5
    stored.flush()
    with on_store(path, shuffle=False) as loader:
        found = []
        with pytest.raises(StoreError, match="damaged") as caught:
            for batch in loader:
                found.append(batch)
        assert "Traceback" in str(caught.value.__cause__)
        assert len(found) > 5 and loader.stats().batches == len(found)


def test_a_store_that_is_gone(tmp_path: Path) -> None:
    from gnnkit import Store

    path = store_of(tmp_path)
    opened = Store.open(path)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="store"):
        on_store(path)
    from gnnkit.loader.planned import open_store

    graph = open_store(opened)  # opened before it was moved: only the processes miss it
    with on_store(tmp_path / "elsewhere", backend="inprocess") as loader:
        plan = loader.plan
    with pytest.raises(StoreError, match="store") as caught:
        GraphLoader(_at(plan, path), graph, lambda event: None)
    assert "Traceback" in str(caught.value.__cause__)


def _at(plan: Any, path: Path) -> Any:
    from dataclasses import replace

    return replace(plan, store=replace(plan.store, path=str(path)), backend=Colocated(2).to_json())


def test_a_store_whose_file_is_cut_while_it_is_mapped(tmp_path: Path) -> None:
    path = store_of(tmp_path)
    with on_store(path) as loader:
        next(iter(loader))
        iterator = iter(loader)
        os.truncate(path / "part0/nodes/node/x.npy", 0)
        with pytest.raises(WorkerDied, match="SIGBUS") as caught:
            drain(iterator)
        assert "verify" in (caught.value.hint or "")


# A store beside those that are cut while threads read them; then a file of somebody else's is.
CUT_FILES = """
import os, sys
import numpy as np
from gnnkit import GraphLoader, InProcess
from gnnkit.errors import StoreError

whole, large, *cuts = sys.argv[1:]
options = dict(num_neighbors=[5, 5], batch_size=8, input_nodes=None, memory_budget=0, progress=False)
with GraphLoader.from_store(large, backend=InProcess(1), **{**options, "batch_size": 2000}) as loader:
    os.truncate(large + "/part0/nodes/node/x.npy", 4096)
    try:
        next(iter(loader))
    except StoreError as error:
        print(str(error).splitlines()[0])
with GraphLoader.from_store(whole, backend=InProcess(1), **options) as other:
    for cut, name in zip(cuts[::2], cuts[1::2]):
        with GraphLoader.from_store(cut, backend=InProcess(2), **options) as loader:
            next(iter(loader))
            os.truncate(os.path.join(cut, name), 4096)
            for read in (lambda: [list(loader) for _ in range(3)], lambda: list(loader), lambda: loader.sample([0, 1])):
                try:
                    read()
                except StoreError as error:
                    print(str(error).splitlines()[0])
    print(sum(batch.batch_size for batch in other), flush=True)
with open(whole + "/other", "wb") as file:
    file.write(bytes(1 << 16))
mapped = np.memmap(whole + "/other")
os.truncate(whole + "/other", 0)
mapped.sum()
"""


def test_stores_whose_files_are_cut_while_threads_read_them(tmp_path: Path) -> None:
    """An error that names it, also for batches after it; other loaders go on, and other programs' faults are theirs as before."""
    rng = np.random.default_rng(2)
    for name, width in {"whole": 64, "large": 1100}.items():  # several threads gather the rows of a first batch of more than 8 MB
        x = rng.standard_normal((2000, width)).astype(np.float32)
        stored(homogeneous_source(random_edges(rng, 2000, 2000, 20_000), 2000, x=x), tmp_path / name, BuildOptions())
    paths, words = [], [str(tmp_path / "whole"), str(tmp_path / "large")]
    for name in ("x", "indptr"):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        (path,) = (tmp_path / name).glob(f"part0/*/**/{name}.npy")
        paths.append(path)
        words += [str(tmp_path / name), str(path.relative_to(tmp_path / name))]
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", CUT_FILES, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    *errors, count = done.stdout.splitlines()
    paths = [tmp_path / "large/part0/nodes/node/x.npy", *(path for path in paths for _ in range(3))]
    assert errors == [f"{path} was cut short while it was mapped, or its disk failed" for path in paths], done
    assert count == "2000"
    assert done.returncode == -signal.SIGBUS and "Fatal Python error: Bus error" in done.stderr, done


# Limits -----------------------------------------------------------------------------------------------------------------------


# In a process of its own: only root may raise a hard limit again.
FEW_FILES = """
import os, resource
from gnnkit import Colocated
from gnnkit.errors import PlanError
from tests.loader.graphs import make

with make() as loader:
    for limit in ("soft", "hard"):
        few = len(os.listdir("/proc/self/fd")) + 20
        hard = few if limit == "hard" else resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        try:
            with loader.for_split(None, backend=Colocated(2)) as other:
                print(limit, len(list(other)))
        except PlanError as error:
            print(limit, error)
"""


def test_few_file_descriptors() -> None:
    """The soft limit is raised; what the system does not allow is an error."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", FEW_FILES], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert re.match(r"soft \d+\nhard .*need 32 file descriptors; \d+ of the \d+ allowed(?s:.*)ulimit", done.stdout), done


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_free_memory(monkeypatch, 50 << 20)
    with pytest.raises(MemoryLimitError, match="2 sampling processes need about"):
        loader_of("Colocated-2")


@pytest.fixture(scope="module")
def large_graph(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """48 MB, of which batches read little; a sixteenth, 3 MB, is to stay in memory."""
    rng, num_nodes = np.random.default_rng(0), 60_000
    data = Data(x=torch.rand(num_nodes, 200), edge_index=torch.from_numpy(random_edges(rng, 2000, 2000, 40_000)))
    return gnnkit.partition(data, 1, out=tmp_path_factory.mktemp("large") / "store")


@pytest.mark.parametrize("backend", [Colocated(2), GraphStore(num_servers=1)])
def test_too_little_memory_for_the_graph_s_pages(large_graph: Store, monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """Processes alone would fit; beside them a mapped graph would be read again and again."""
    processes, mapped = start_memory(2, 1, large_graph.schema), round(graph_nbytes(large_graph.arrays()) / 1e6)
    pretend_free_memory(monkeypatch, processes + 2_000_000)
    said = rf"2 sampling .* {processes / 1e6:.0f} MB, and the graph about 3 MB .* \({mapped} MB\).*; {processes / 1e6 + 2:.0f} MB are free"
    with pytest.raises(MemoryLimitError, match=f"{said}(?s:.*)InProcess"):
        GraphLoader.from_store(
            large_graph.path, num_neighbors=[3], input_nodes=None, batch_size=32, backend=backend, memory_budget=0, progress=False
        )


def test_rings_leave_memory_to_the_graph_s_pages(large_graph: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have fewer slots; where not even two fit, it is an error with figures. Batches are the same."""
    store, free, kept = large_graph, [10**12], graph_nbytes(large_graph.arrays()) // 16
    options: dict[str, Any] = {"num_neighbors": [5, 5], "batch_size": 64, "memory_budget": 0, "progress": False}
    options["input_nodes"] = torch.arange(640)
    # Processes take their memory first: it is there until they are.
    pretend_free_memory(monkeypatch, lambda: free[0] if descendants() else 10**12)
    with GraphLoader.from_store(store.path, backend=InProcess(1), **options) as loader:
        wanted = digest(loader)

    def epoch(free_slots: float) -> int:
        """The slots of a loader's ring where there is memory for so many."""
        free[0] = kept + int(free_slots * size)
        with GraphLoader.from_store(store.path, backend=Colocated(2), **options) as loader:
            assert digest(loader) == wanted
            return int(loader.status().details["slots"])

    with GraphLoader.from_store(store.path, backend=Colocated(2), **options) as loader:
        loader.peek()
        size, most = loader.status().details["slot_bytes"], loader.status().details["slots"]
    assert [epoch(count) for count in (2 * most, 9, 2)] == [most, 4, 2]
    with pytest.raises(MemoryLimitError, match=r"2 batches .*, and the graph about 3 MB .*(?s:.*)InProcess"):
        epoch(1.9)


def test_a_log_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(PlanError, match=r"log_dir=.*cannot be written"):
        loader_of("", backend=Colocated(1, log_dir=str(occupied / "logs")))
    for name in ("GNNKIT_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(occupied))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(occupied))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # the next in line
    with loader_of("Colocated-1"):
        assert any((tmp_path / "gnnkit" / "runs").iterdir())
    monkeypatch.setenv("XDG_STATE_HOME", str(occupied))
    monkeypatch.setattr("tempfile.tempdir", str(occupied))
    with pytest.raises(PlanError, match="no folder for the logs"):
        loader_of("Colocated-1")


def test_a_channel_that_is_small() -> None:
    data = plain()
    with make(data) as reference:
        wanted = list(reference)
    with make(data, backend=Colocated(2, channel_size="16KB", worker_concurrency=4)) as loader:
        for _ in range(2):
            loader.set_epoch(0)
            assert loader.status().details["slots"] == 2
            for batch, other in zip(loader, wanted, strict=True):
                same(batch, other)
    with pytest.raises(PlanError, match="channel_size=1024 does not hold two batches"):
        make(data, backend=Colocated(2, channel_size=1024))


def test_batches_larger_than_a_slot() -> None:
    """The first batches are small, the last ones are not; the next epoch has larger slots."""
    hub = torch.stack([torch.arange(3000), torch.full((3000,), 2999)])
    data = Data(x=torch.rand(3000, 50), edge_index=hub)
    with (
        make(data, num_neighbors=[-1], batch_size=100) as reference,
        make(data, num_neighbors=[-1], batch_size=100, backend=Colocated(2)) as loader,
    ):
        sizes = []
        for _ in range(3):
            held = list(loader)
            for batch, wanted in zip(held, reference, strict=True):
                same(batch, wanted)
            sizes.append(loader.status().details["slot_bytes"])
        assert sizes[0] < 100_000 < sizes[1] == sizes[2]


# The user's side ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_process_group() -> Iterator[None]:
    """What is sent to the process group reaches this process and its children, and not whoever runs the tests."""
    before = os.getpgrp()
    if before != os.getpid():
        os.setpgid(0, 0)
    try:
        yield
    finally:
        if before != os.getpid():
            os.setpgid(0, before)


@pytest.fixture
def process_group() -> Iterator[None]:
    with own_process_group():
        yield


@pytest.mark.usefixtures("process_group")
@pytest.mark.core
def test_an_interrupt_reaches_the_waiting_loop_only(loader: GraphLoader) -> None:
    list(loader)
    before = workers(loader)
    for epoch in range(1, 4):
        iterator = iter(loader)
        next(iterator)
        for pid in before.values():
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(KeyboardInterrupt):
            # Begun in here, for a busy machine may take longer to come to the loop.
            threading.Timer(0.3, os.killpg, (os.getpgrp(), signal.SIGINT)).start()
            drain(iterator)
        for pid in before.values():
            os.kill(pid, signal.SIGCONT)
        loader.set_epoch(epoch)
        assert sorted(seeds(loader)) == EVERYTHING
    assert workers(loader) == before


def test_a_long_pause_with_a_full_ring(loader: GraphLoader) -> None:
    """Longer than ``batch_timeout_s``, which counts only while the loader waits."""
    iterator = iter(loader)
    found = [next(iterator)]
    time.sleep(4.0)
    found += drain(iterator)
    assert sorted(seeds(found)) == EVERYTHING


def test_closing_while_another_thread_waits() -> None:
    from gnnkit.errors import LoaderClosed

    loader = loader_of("Colocated-1")
    iterator = iter(loader)
    next(iterator)
    os.kill(workers(loader)[0], signal.SIGSTOP)
    caught: list[BaseException] = []

    def use() -> None:
        try:
            drain(iterator)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    time.sleep(0.2)
    loader.close()
    thread.join(HANG_S)
    assert [type(error) for error in caught] == [LoaderClosed]
