"""Processes are forked from one that has loaded what they need: who they are, and what happens where that one is gone or of no use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from gnnkit import GraphLoader, GraphStore
from tests.backends.setups import environment, is_gone, loader_of, workers
from tests.helpers.batches import same
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Linux forks children of another process")]


def fork_servers(pid: int | None = None) -> list[psutil.Process]:
    """Those of a process, or of this one."""
    return [
        child
        for child in psutil.Process(pid).children()
        if "gnnkit.runtime.fork_server" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE
    ]


def private_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_full_info().uss)


@pytest.mark.core
def test_processes_are_this_ones_children_and_show_what_they_are() -> None:
    with loader_of("Colocated-2") as loader:
        list(loader)
        for rank, pid in workers(loader).items():
            process = psutil.Process(pid)
            assert process.ppid() == os.getpid() and os.getsid(pid) == pid
            assert process.cmdline()[1:3] == ["-m", "gnnkit.cluster.worker"] and process.cmdline()[-2] == str(rank)
            assert private_bytes(pid) < 0.8 * process.memory_info().rss, "modules are shared"
        (server,) = fork_servers()
        assert server.num_threads() == 1
    assert fork_servers() == [server], "the next loader's processes are forked from it, too"


def test_servers_have_one_of_their_own() -> None:
    with loader_of("", backend=GraphStore(num_servers=1)) as loader:
        list(loader)
        (server,) = [child for child in psutil.Process().children() if "gnnkit.cluster.serving" in child.cmdline()]
        (own,) = fork_servers(server.pid)
        (worker,) = [child for child in server.children() if "gnnkit.cluster.worker" in child.cmdline()]
        server.kill()
        assert wait_until(lambda: is_gone(own.pid) and is_gone(worker.pid))


@pytest.mark.parametrize("before", [True, False], ids=["before it is asked", "while it is asked"])
def test_one_that_is_killed_is_replaced(before: bool) -> None:
    with loader_of("Colocated-1") as loader:
        wanted = list(loader)
    (server,) = fork_servers()
    if before:
        server.kill()
        assert wait_until(lambda: is_gone(server.pid))
    else:
        server.suspend()
        threading.Timer(0.3, server.kill).start()
    with loader_of("Colocated-1") as loader:
        for batch, one in zip(loader, wanted, strict=True):
            same(batch, one)
        (other,) = fork_servers()
        assert other.pid != server.pid


@pytest.mark.slow(seconds=25)
def test_one_that_stands_still_is_replaced() -> None:
    with loader_of("Colocated-1") as loader:
        list(loader)
    (server,) = fork_servers()
    server.suspend()
    with loader_of("Colocated-1") as loader:
        assert sum(batch.batch_size for batch in loader) > 0
    assert wait_until(lambda: is_gone(server.pid))


_SCRIPT = """
import os, platform, sys
{first}
import psutil, torch
from torch_geometric.data import Data
from gnnkit import Colocated, GraphLoader
data = Data(x=torch.ones(100, 4), edge_index=torch.arange(200).reshape(2, 100) % 100)
with GraphLoader.from_pyg(data, num_neighbors=[3], batch_size=10, backend=Colocated(2), progress=False) as loader:
    print(sum(batch.batch_size for batch in loader))
    for child in psutil.Process().children():
        print(" ".join(child.cmdline()[1:3]))
    {last}
"""


def lines_of(tmp_path: Path, first: str = "", last: str = "") -> list[str]:
    words = [sys.executable, "-W", "ignore", "-c", _SCRIPT.format(first=first, last=last)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environment())
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.stdout.split("\n")[:-1]


def test_where_the_system_cannot_fork_like_that_processes_are_started(tmp_path: Path) -> None:
    assert lines_of(tmp_path, "platform.machine = lambda: 'strange'") == ["100", *["-m gnnkit.cluster.worker"] * 2]


def test_where_it_does_not_come_up_processes_are_started(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nif 'gnnkit.runtime.fork_server' in sys.orig_argv: os._exit(3)\n")
    assert lines_of(tmp_path, "sys.path.insert(0, os.getcwd())") == ["100", *["-m gnnkit.cluster.worker"] * 2]


def test_it_ends_with_the_process_that_it_is_for(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, last="print(*[child.pid for child in psutil.Process().children()], flush=True); os.kill(os.getpid(), 9)")
    assert sorted(lines[1:-1]) == ["-m gnnkit.cluster.worker", "-m gnnkit.cluster.worker", "-m gnnkit.runtime.fork_server"]
    pids = [int(word) for word in lines[-1].split()]
    assert len(pids) == 3 and wait_until(lambda: all(map(is_gone, pids)))


def test_a_forked_process_has_one_of_its_own() -> None:
    """One that the user forks from his own, such as a worker of a data loader."""
    with loader_of("Colocated-1") as loader:
        list(loader)
    read, write = os.pipe()
    (server,) = fork_servers()
    pid = os.fork()
    if pid == 0:
        try:
            with loader_of("Colocated-1") as own:
                os.write(write, f"{sum(batch.batch_size for batch in own)} {fork_servers()[0].ppid() == os.getpid()}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    assert said.endswith(" True"), said
    assert fork_servers() == [server]
    with loader_of("Colocated-1") as loader:
        assert isinstance(loader, GraphLoader) and said == f"{sum(batch.batch_size for batch in loader)} True"
