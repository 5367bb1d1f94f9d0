"""Opening, closing, forgetting; and that the user's process stays as it was."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnnkit import GraphLoader, InProcess
from gnnkit.errors import BatchTimeout, LoaderClosed, SamplingError
from tests.helpers.machine import in_time
from tests.helpers.waiting import wait_until
from tests.helpers.watched import Watched
from tests.loader.graphs import NUM_NODES, make, plain, seeds

pytestmark = pytest.mark.slow


def samplers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gnnkit-sampler")]


def comes_true_with_collections(condition: Callable[[], bool]) -> bool:
    return wait_until(lambda: (gc.collect(), condition())[1])


def test_close_ends_every_thread_and_may_be_repeated() -> None:
    loader = make(backend=InProcess(num_threads=3))
    assert len(samplers()) == 3
    next(iter(loader))
    loader.close()
    assert samplers() == []
    loader.close()
    with loader:
        pass


def test_with_closes_also_when_it_fails() -> None:
    with pytest.raises(ZeroDivisionError), make() as loader:
        next(iter(loader))
        _ = 1 / 0
    assert samplers() == []
    with pytest.raises(LoaderClosed):
        iter(loader)


USES: dict[str, Any] = {
    "iter": iter,
    "peek": lambda loader: loader.peek(),
    "sample": lambda loader: loader.sample([1]),
    "for_split": lambda loader: loader.for_split("valid"),
}


@pytest.mark.parametrize("use", USES)
def test_use_after_close(use: str) -> None:
    loader = make()
    loader.close()
    with pytest.raises(LoaderClosed, match="closed") as caught:
        USES[use](loader)
    assert caught.value.hint


def test_what_still_answers_after_close() -> None:
    with make() as loader:
        list(loader)
    assert len(loader) == 15 and loader.epoch == 0 and loader.stats().batches == 15
    assert "closed" in repr(loader) and loader.state_dict()["epoch"] == 1


def test_closing_in_the_middle_of_an_epoch_from_another_thread() -> None:
    loader = make(batch_size=1, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    closer = threading.Thread(target=loader.close)
    with pytest.raises(LoaderClosed):
        closer.start()
        while True:
            for _ in iterator:
                pass
            iterator = iter(loader)
    closer.join()
    assert samplers() == []


@pytest.mark.parametrize("what", ["fresh", "in an epoch", "with held batches", "failed"])
@pytest.mark.core
def test_a_forgotten_loader_ends_its_threads(what: str) -> None:
    loader = make(backend=InProcess(num_threads=2), transform=(lambda batch: 1 / 0) if what == "failed" else None)
    held: list[Any] = []
    if what == "failed":
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))
    elif what != "fresh":
        iterator = iter(loader)
        held.append(next(iterator))
        del iterator
    reference = weakref.ref(loader)
    del loader
    if what != "with held batches":
        held.clear()
    assert comes_true_with_collections(lambda: reference() is None and not samplers())


def test_an_iterator_keeps_its_loader() -> None:
    iterator = iter(make())
    gc.collect()
    assert len(seeds(iterator)) == NUM_NODES
    del iterator
    assert comes_true_with_collections(lambda: not samplers())


def test_a_thread_without_memory_for_its_scratch_says_so() -> None:
    def refuse() -> None:
        raise MemoryError("no scratch")

    loader = make(backend=Watched(1, refuse))
    for use in (list, lambda loader: loader.peek()):
        with pytest.raises(SamplingError, match="MemoryError: no scratch"):
            use(loader)
    loader.close()
    assert samplers() == []


def test_an_error_while_sampling_is_raised_with_its_cause() -> None:
    divisor = 0
    with make(backend=Watched(1, lambda: 1 / divisor)) as loader:
        for use in (list, lambda loader: loader.peek()):
            with pytest.raises(SamplingError, match="ZeroDivisionError") as caught:
                use(loader)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
        divisor = 1
        assert sorted(seeds(loader)) == list(range(NUM_NODES))


def test_a_wait_has_an_end() -> None:
    release = threading.Event()
    with make(batch_timeout_s=0.2, backend=Watched(1, lambda: release.wait(60))) as loader:
        iterator = iter(loader)
        started = time.monotonic()
        with pytest.raises(BatchTimeout, match=r"0\.2 s") as caught:
            next(iterator)
        took = time.monotonic() - started
        assert took >= 0.2 and in_time(took, 5)
        assert caught.value.hint and "batch_timeout_s" in caught.value.hint
        release.set()
        found = []
        while len(found) < 15:  # the wait can be taken up again, and nothing is lost
            try:
                found.append(next(iterator))
            except BatchTimeout:
                continue
        assert seeds(found) == list(range(NUM_NODES))


def test_a_batch_that_is_being_sampled_is_waited_for() -> None:
    """On threads as on processes: the deadline is for those that stand still."""
    slow = 0

    def spin() -> None:
        nonlocal slow
        slow += 1
        until = time.thread_time() + (1.5 if slow == 3 else 0)
        while time.thread_time() < until:
            pass

    with make(batch_timeout_s=0.3, backend=Watched(1, spin)) as loader, pytest.warns(RuntimeWarning, match="a thread is sampling it"):
        assert seeds(loader) == list(range(NUM_NODES))


def test_many_loaders_at_once_and_one_after_another() -> None:
    data = plain()
    loaders = [make(data, shuffle=True, seed=seed) for seed in range(8)]
    for group in zip(*loaders, strict=True):
        assert len(group) == 8
    for loader in loaders:
        loader.close()
    for _ in range(30):
        with make(data) as loader:
            next(iter(loader))
    assert samplers() == []


_SURROUNDINGS = """
import faulthandler, json, logging, multiprocessing, os, random, signal, sys, threading, warnings
import numpy as np
import torch, torch_geometric, numba, psutil, filelock, platformdirs
from torch_geometric.data import Data, HeteroData

def surroundings():
    return {
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "torch seed": [torch.initial_seed(), torch.get_rng_state().sum().item()],
        "torch settings": [str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
                           torch.multiprocessing.get_sharing_strategy()],
        "numpy": [str(np.random.get_state()), str(np.geterr()), np.get_printoptions()["precision"]],
        "random": hash(random.getstate()),
        "numba threads": numba.get_num_threads(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "niceness": os.nice(0),
        "environment": dict(os.environ),
        "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGPIPE)],
        "timers": signal.getitimer(signal.ITIMER_REAL),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "folder": os.getcwd(),
        "path": sys.path,
        "hooks": [str(sys.excepthook), str(sys.unraisablehook), str(threading.excepthook), str(sys.displayhook)],
        "warnings": [str(f) for f in warnings.filters],
        "logging": [logging.root.level, len(logging.root.handlers), logging.root.manager.disable],
        "threads": [t.name for t in threading.enumerate()],
        "children": [p.pid for p in psutil.Process().children() if "gnnkit.runtime.fork_server" not in p.cmdline()],
        "connections": len(psutil.Process().net_connections("inet")),
        "umask": [os.umask(0o22), os.umask(0o22)][1],
        "recursion": sys.getrecursionlimit(),
        "modules that reach out": sorted({"ogb", "graphlearn_torch", "torch.distributed.rpc.api", "wandb"} & set(sys.modules)),
        "collector": __import__("gc").get_threshold(),
    }

numba.get_num_threads()  # the first call sets how many threads OpenMP has, torch's too
rng = np.random.default_rng(0)
before = json.dumps(surroundings())
import gnnkit
from gnnkit import GraphLoader, InProcess
imported = json.dumps(surroundings())
data = Data(x=torch.zeros(500, 8), edge_index=torch.from_numpy(rng.integers(0, 500, (2, 3000))))
with GraphLoader.from_pyg(data, num_neighbors=[4, 4], batch_size=50, shuffle=True, backend=InProcess(2), progress=False) as loader:
    for _ in range(3):
        for batch in loader:
            pass
    loader.peek(), loader.sample([1, 2]), repr(loader), loader._repr_mimebundle_(), loader.state_dict()
    next(iter(loader))
after = json.dumps(surroundings())
print(json.dumps([json.loads(before), json.loads(imported), json.loads(after)]))
"""


def test_the_users_process_stays_as_it_was(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _SURROUNDINGS], capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before, imported, after = json.loads(done.stdout)
    assert imported == before
    assert after == before
    assert not done.stderr and not list(tmp_path.iterdir())


_EXIT = """
import torch
from torch_geometric.data import Data
from gnnkit import GraphLoader, InProcess

data = Data(x=torch.zeros(20000, 64), edge_index=torch.randint(0, 20000, (2, 400000)))
loader = GraphLoader.from_pyg(data, num_neighbors=[15, 10], batch_size=256, shuffle=True, backend=InProcess(num_threads=2), progress=False)
batch = next(iter(loader))
print("done", flush=True)
"""


@pytest.mark.core
def test_a_script_that_forgets_to_close_ends_cleanly_and_at_once() -> None:
    """Threads are in the middle of a kernel when the interpreter goes."""
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", _EXIT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "done\n"
        started = time.monotonic()
        assert process.wait(60) == 0
        assert in_time(time.monotonic() - started, 30)
        assert process.stderr.read() == ""


_FORK = """
import os, sys
import torch
from torch_geometric.data import Data
from gnnkit import GraphLoader

data = Data(x=torch.arange(500.0).view(-1, 1).repeat(1, 300), edge_index=torch.randint(0, 500, (2, 3000)))
loader = GraphLoader.from_pyg(data, num_neighbors=[4, 4], batch_size=50, progress=False)
list(loader)
held = [batch for batch, _ in zip(loader, range(4))]
values = [batch.x.clone() for batch in held]
child = os.fork()
if child == 0:
    del held  # what a child drops is its own copy's: the parent's batches and blocks know nothing of it
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert all(batch.x.equal(x) for batch, x in zip(held, values))
assert sum(batch.batch_size for batch in loader) == 500
assert all(batch.x.equal(x) for batch, x in zip(held, values))
print("same")
"""


def test_a_forked_child_drops_batches_without_harm() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _FORK], capture_output=True, text=True, timeout=240)
    assert done.stdout == "same\n", done.stderr


def test_two_loaders_share_one_graph() -> None:
    data = plain()
    with GraphLoader.from_pyg(data, num_neighbors=[2], progress=False, input_nodes="train") as train, train.for_split("valid") as valid:
        assert train.pipeline.graph is valid.pipeline.graph
