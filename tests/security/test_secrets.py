"""The token: in memory and in files of mode 0600, and nowhere that others, or the user's own exports and crashes, could show it."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import gnnkit
from gnnkit import GraphLoader, GraphStore, GraphStoreServers, Store, serve
from tests.cluster.hosts.setups import OPTIONS
from tests.cluster.serving.networked import family
from tests.cluster.serving.setups import ANSWER_S, server_pids
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until

TOKEN = "5eecre7-0f-these-tests-0nly"


@pytest.fixture(scope="module")
def servers(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraphStoreServers]:
    """A server on the network, and the environment that says its token, as a job has it."""
    logs = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNNKIT_TOKEN", TOKEN)
        with serve(store, 1, address=f"127.0.0.1:{free_port('127.0.0.1')}", progress=False, log_dir=logs) as handle:
            handle.wait(ANSWER_S)
            yield handle


@pytest.mark.slow
@pytest.mark.core
def test_no_process_shows_the_token_or_leaves_it_in_a_core_file(servers: GraphStoreServers, store: Store) -> None:
    """Neither the servers and their workers nor what a loader starts, on whatever way: ``ps``, /proc, ``gcore`` at a crash."""
    backend = GraphStore(address=servers.address, join_timeout_s=ANSWER_S)
    with GraphLoader.from_store(store.path, backend=backend, progress=False, **OPTIONS) as loader:
        assert len(list(loader)) == 8
        children = [process for process in family() if process.pid != os.getpid()]
        assert len(children) >= 3, children
        for child in children:
            assert TOKEN not in " ".join(child.cmdline())
            assert TOKEN.encode() not in Path(f"/proc/{child.pid}/environ").read_bytes()
            (limit,) = re.findall(r"Max core file size +(\d+)", Path(f"/proc/{child.pid}/limits").read_text())
            assert int(limit) <= 1, "a core file could be written, or handed to whoever collects them"
        plan = json.dumps(loader.plan.to_json())
    logs = [path.read_text(errors="replace") for path in Path(str(servers.spec.log_dir)).rglob("*.log")]
    assert logs and not [text for text in [*logs, plan, repr(loader), str(servers), repr(servers.spec)] if TOKEN in text]


def test_a_server_that_crashes_leaves_no_core_file(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serve(store, 1, token=TOKEN, progress=False, log_dir=tmp_path / "logs") as handle:
        handle.wait(ANSWER_S)
        (pid,) = server_pids(handle).values()
        os.kill(pid, signal.SIGSEGV)
        assert wait_until(lambda: handle.state != "ready", ANSWER_S)
    assert not [path for path in tmp_path.rglob("*core*") if path.is_file()]


def listening(pid: int) -> set[str]:
    """Addresses that a process listens on, of all families."""
    return {each.laddr.ip for each in psutil.Process(pid).net_connections("inet") if each.status == psutil.CONN_LISTEN}


@pytest.mark.slow
def test_what_launch_listens_on(store: Store) -> None:
    """Ranks on one host meet on the loopback interface; gloo, which they are joined by, takes no other one either."""

    def train(loader: Any, ctx: Any) -> list[str]:
        import psutil
        import torch
        import torch.distributed as dist

        total = torch.ones(1)
        dist.all_reduce(total)
        assert int(total) == 2
        found = psutil.Process().net_connections("inet")
        return sorted({each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN})

    with GraphLoader.from_store(store.path, progress=False, **OPTIONS) as loader:
        run = gnnkit.launch(train, loader, num_procs=2)
        found = listening(os.getpid())
        for addresses in run.results():
            found |= set(addresses)
    assert found <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"} and found, found
