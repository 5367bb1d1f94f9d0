"""Processes live as long as their loader and its process, and leave nothing behind; the user's process stays as it was."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.backends.setups import FAULT_S, descendants, environment, is_gone, loader_of, run_script, workers
from tests.helpers.machine import QUICK, in_time
from tests.helpers.waiting import wait_until
from tests.loader.test_lifetime import _SURROUNDINGS

pytestmark = pytest.mark.slow

RUNS = "runs"


def held_memory() -> int:
    """Bytes of our shared blocks that this process still maps."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:gnnkit-" in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            total += end - start
    return total


def test_a_cell_that_is_run_again_and_again() -> None:
    """With a graph of its own each time; ``tests/ui`` has one with a store, in a kernel."""
    gc.collect()
    before, counts = held_memory(), []
    for _ in range(5):
        loader = loader_of("Colocated-1")
        iterator = iter(loader)
        next(iterator)
        repr(loader)
        gc.collect()
        counts.append((len(os.listdir("/proc/self/fd")), len(descendants()), held_memory()))
    assert len({count[1] for count in counts}) == 1
    assert counts[-1][0] <= counts[2][0] and counts[-1][2] <= counts[2][2]
    del loader, iterator
    gc.collect()
    assert not descendants() and held_memory() <= before


@pytest.mark.core
def test_closing_is_quick_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path))
    with loader_of("Colocated-2") as loader:
        iterator = iter(loader)
        next(iterator)
        (folder,) = (tmp_path / RUNS).iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        record = json.loads((folder / "run.json").read_text())
        assert {child["pid"] for child in record["children"]} == set(workers(loader).values()) == descendants()
        started = time.monotonic()
    assert in_time(time.monotonic() - started, 0.5)
    assert not descendants() and not list((tmp_path / RUNS).iterdir())


def test_workers_know_neither_torch_nor_the_network_and_share_memory() -> None:
    before = set(sys.modules)  # other tests may have been here
    with loader_of("Colocated-2") as loader:
        list(loader)
        assert "graphlearn_torch" not in set(sys.modules) - before
        for pid in workers(loader).values():
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "libtorch" not in maps and "torch/_C" not in maps and "llvmlite" in maps
            assert not psutil.Process(pid).net_connections("inet")
            assert os.getsid(pid) == pid != os.getsid(0)
        assert not psutil.Process().net_connections("inet")
        # The ring and the graph exist once: memory is shared, not copied.
        blocks: dict[tuple[str, bool], set[int]] = {}
        for pid in (os.getpid(), *workers(loader).values()):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "memfd:gnnkit-graph" in line or "memfd:gnnkit-ring" in line:
                    blocks.setdefault((line.split()[-2], "ring" in line), set()).add(pid)
        assert sorted(is_ring for _, is_ring in blocks) == [False, True]
        assert all(len(pids) == 3 for pids in blocks.values())


def test_the_users_process_stays_as_it_was(tmp_path: Path) -> None:
    script = _SURROUNDINGS.replace("InProcess", "Colocated")
    assert "backend=Colocated(2)" in script
    done = run_script(script, tmp_path, timeout_s=240)
    assert done.returncode == 0, done.stderr
    before, imported, after = json.loads(done.stdout)
    assert imported == before
    assert after == before
    assert not done.stderr and [path.name for path in tmp_path.iterdir()] == ["script.py"]


# Scripts that forget to close, are killed, fork ---------------------------------------------------------------------------------

_HEAD = """
import os, sys, time
import torch
from torch_geometric.data import Data
from gnnkit import GraphLoader, Colocated

torch.manual_seed(0)
data = Data(x=torch.arange(500.0).view(-1, 1).repeat(1, 300), edge_index=torch.randint(0, 500, (2, 3000)))
loader = GraphLoader.from_pyg(
    data, num_neighbors=[4, 4], batch_size=10, backend=Colocated(2), progress=False, transform=lambda batch: batch
)
iterator = iter(loader)
batch = next(iterator)
pids = [str(pid) for pid in loader.status().details["pids"].values()]
"""


def test_a_script_without_a_main_guard_that_forgets_to_close(tmp_path: Path) -> None:
    done = run_script(_HEAD + "print(*pids, flush=True)", tmp_path, GNNKIT_HOME=os.environ["GNNKIT_HOME"])
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) == 2  # the script ran once: no process imported it again
    assert all(is_gone(int(pid)) for pid in done.stdout.split())


_WAIT = """
if "fork" in sys.argv:
    child = os.fork()  # keeps every descriptor open
    if child == 0:
        time.sleep(60)
        os._exit(0)
    pids.append(str(child))
if "stopped" in sys.argv:
    os.kill(int(pids[0]), 19)
print(*pids, flush=True)
while True:
    for batch in iterator:
        pass
    iterator = iter(loader)
"""


@pytest.mark.parametrize("how", ["fork", "stopped"])
def test_a_parent_that_is_killed(tmp_path: Path, how: str) -> None:
    """With a fork that keeps every descriptor open, and with one worker that is stopped beside one that works."""
    path = tmp_path / "script.py"
    path.write_text(_HEAD + _WAIT)
    process = subprocess.Popen([sys.executable, "-W", "ignore", str(path), how], stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    process.kill()
    process.wait()
    started = time.monotonic()
    try:
        assert len(pids) == (3 if how == "fork" else 2)
        assert wait_until(lambda: all(is_gone(pid) for pid in pids[:2]))
        assert in_time(time.monotonic() - started, FAULT_S)
        assert how != "fork" or not is_gone(pids[2])
    finally:
        if how == "fork":
            os.kill(pids[2], signal.SIGKILL)
        process.stdout.close()
    with loader_of("Colocated-1"):  # which finds what the killed one left of itself
        assert not [folder for folder in (Path(os.environ["GNNKIT_HOME"]) / RUNS).iterdir() if folder.name.startswith(f"{process.pid}-")]


_FORK = """
from gnnkit.errors import LoaderClosed
held = [batch] + [b for _, b in zip(range(20), iterator)]
values = [b.x.clone() for b in held]
child = os.fork()
if child == 0:
    del held, batch  # what a child drops is its own: the parent's slots know nothing of it
    try:
        next(iterator)
        os._exit(3)
    except LoaderClosed:
        pass
    loader.close()
    del loader, iterator
    sys.exit(0)  # runs what was registered for the end
assert os.waitpid(child, 0)[1] == 0
assert all(b.x.equal(x) for b, x in zip(held, values))
assert 10 * len(held) + sum(b.batch_size for b in iterator) == 500
assert sum(b.batch_size for b in loader) == 500
assert all(b.x.equal(x) for b, x in zip(held, values))
print("same")
"""


def test_a_fork_of_the_parent_that_exits(tmp_path: Path) -> None:
    done = run_script(_HEAD + _FORK, tmp_path)
    assert (done.stdout, done.returncode) == ("same\n", 0), done.stderr


_CLOCK = """
first = sum(b.batch_size for b in iterator)
for seconds in (366 * 86400, -366 * 86400):
    iterator = iter(loader)
    held = [next(iterator) for _ in range(5)]
    open(os.environ["CLOCK_SHIFT"], "w").write(str(seconds))
    assert abs(time.time() - os.stat(os.environ["CLOCK_SHIFT"]).st_mtime) > 365 * 86400  # it did jump
    assert sum(b.batch_size for b in held) + sum(b.batch_size for b in iterator) == 500
    assert sum(b.batch_size for b in loader) == 500
    with loader.for_split(None, backend=Colocated(1)) as other:  # looks at what other runs have left
        assert sum(b.batch_size for b in other) == 500
assert [str(pid) for pid in loader.status().details["pids"].values()] == pids
print("on time")
"""
# Every process's clock is off by what a file says, from the moment at which it is written.
_SHIFTED = """
from __future__ import annotations
import os, time
_time = time.time

def shifted():
    try:
        return _time() + float(open(os.environ["CLOCK_SHIFT"]).read() or 0)
    except OSError:
        return _time()

time.time = shifted
time.time_ns = lambda: int(shifted() * 1e9)
"""


def test_a_clock_that_jumps(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        _SHIFTED + Path(QUICK, "sitecustomize.py").read_text().partition("from __future__ import annotations")[2]
    )
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    done = run_script(_HEAD + _CLOCK, tmp_path, timeout_s=240, PYTHONPATH=path, CLOCK_SHIFT=str(tmp_path / "shift"))
    assert (done.stdout, done.returncode) == ("on time\n", 0), done.stderr


@pytest.mark.gpu
def test_cuda_is_in_use_already() -> None:
    import torch

    torch.cuda.init()
    kept = torch.ones(1000, device="cuda")
    with loader_of("inprocess") as reference, loader_of("Colocated-2", device="cuda") as loader:
        for _ in range(2):
            for batch, wanted in zip(loader, reference, strict=True):
                assert batch.x.is_cuda and batch.x.cpu().equal(wanted.x) and batch.edge_index.cpu().equal(wanted.edge_index)
        for pid in workers(loader).values():
            assert "nvidia" not in Path(f"/proc/{pid}/maps").read_text()
    assert float(kept.sum()) == 1000


_SHM = """
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize <= 1 << 16
assert sum(b.batch_size for b in loader) == 500
print("enough")
"""


@pytest.mark.netns
def test_the_size_of_dev_shm_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_HEAD + _SHM)
    command = "mount -t tmpfs -o size=64k none /dev/shm && exec " + f"'{sys.executable}' -W ignore script.py"
    user = [] if os.geteuid() == 0 else ["-r"]
    done = subprocess.run(
        ["unshare", *user, "-m", "sh", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.stdout == "enough\n", done.stderr
