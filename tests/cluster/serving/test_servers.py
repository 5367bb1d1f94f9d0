"""Servers from a notebook and from the command line: their handle, their deaths, and what is left of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import gnnkit
from gnnkit import GraphStoreServers, Store, serve
from gnnkit.errors import LoaderClosed, PlanError, StoreError, WorkerDied
from gnnkit.serving import run_in_foreground
from tests.backends.setups import environment, is_gone
from tests.cluster.serving.setups import FAULT_S, Caller, Trainer, blocks_of, expected_batches, hear, server_pids, worker_pids
from tests.helpers.command import run
from tests.helpers.leaks import descendants
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow

START_S = 120.0


def all_pids(servers: GraphStoreServers) -> set[int]:
    return {*server_pids(servers).values(), *worker_pids(servers).values()}


def visited(servers: GraphStoreServers, count: int) -> bool:
    return bool(servers.status()["visits"] == count)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# The handle -------------------------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_serve_returns_at_once_and_tells_when_it_is_ready(store: Store) -> None:
    told: list[Any] = []
    with gnnkit.serve(store.path, 1, progress=False) as servers:
        assert servers.status()["state"] == "joining" and servers.store == str(store.path)
        servers.wait(events=told.append)
        assert servers.ready and servers.status()["state"] == "ready"
        pids = all_pids(servers)
        assert len(pids) == 2 and not any(map(is_gone, pids))
    assert servers.status()["state"] == "stopped"
    assert wait_until(lambda: all(map(is_gone, pids)), FAULT_S)
    servers.stop()
    with pytest.raises(LoaderClosed, match="were stopped"):
        servers.wait()
    assert not Path(servers.folder).exists()
    assert (told[-1].stage, told[-1].label, told[-1].done) == ("start", "servers", 1)


def test_status_logs_and_what_is_shown(pair: GraphStoreServers) -> None:
    status = pair.status()
    assert [server["state"] for server in status["servers"]] == ["ready", "ready"]
    assert (status["state"], status["restarts"], status["store"]) == ("ready", 0, pair.store)
    assert status["address"] == pair.address == f"unix:{pair.folder}"
    assert pair.token_file is not None and pair.token_file.stat().st_mode & 0o777 == 0o600
    assert pair.token_file.read_text().strip() == pair.token and pair.folder.stat().st_mode & 0o777 == 0o700
    shown = repr(pair), str(pair._repr_mimebundle_()), pair._repr_html_(), json.dumps(status), pair.logs(0)
    assert "GraphStoreServers" in shown[0] and "(ready)" in shown[0] and "2 of 2 ready" in shown[1] and "<" in shown[2]
    assert not any(pair.token in text for text in shown)
    with Caller(pair, 1) as caller:
        caller.join(client="somebody", name="a test of logs")
        assert wait_until(lambda: "somebody" in pair.logs(1)) and "a test of logs" not in pair.logs(0)
    assert "sampling process 0 of server 1" in pair.logs(1)
    with pytest.raises(PlanError, match="server 5"):
        pair.logs(5)


def test_the_token_is_in_no_command_line_or_environment(pair: GraphStoreServers) -> None:
    for pid in (os.getpid(), *all_pids(pair)):
        assert pair.token not in Path(f"/proc/{pid}/cmdline").read_text()
        assert pid == os.getpid() or pair.token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    record = json.loads((pair.folder / "run.json").read_text())
    assert {child["pid"] for child in record["children"]} == set(server_pids(pair).values()) and pair.token not in json.dumps(record)


def test_one_host_listens_nowhere(pair: GraphStoreServers) -> None:
    for pid in all_pids(pair):
        assert not psutil.Process(pid).net_connections("inet")
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "libarrow_flight" not in maps and "libtorch" not in maps
        assert os.getsid(pid) == pid  # an interrupt of the notebook is not theirs


def test_servers_share_one_copy_of_the_graph(pair: GraphStoreServers) -> None:
    assert wait_until(lambda: all(server["graph_bytes"] for server in pair.status()["servers"]), START_S)
    blocks = [blocks_of(pid, "gnnkit-graph") for pid in all_pids(pair)]
    assert wait_until(lambda: all(blocks_of(pid, "gnnkit-graph") == blocks[0] for pid in all_pids(pair)), FAULT_S)
    assert len(blocks[0]) == 1 and blocks[0].isdisjoint(blocks_of(os.getpid(), "gnnkit-graph"))


def test_two_notebooks_serve_the_same_store(pair: GraphStoreServers, store: Store) -> None:
    with serve(store, 1, progress=False) as other:
        other.wait()
        assert other.folder != pair.folder and other.token != pair.token and other.ready and pair.ready
        with Caller(other) as caller:
            assert caller.join(token=pair.token).kind == "refused"
    assert pair.ready


def test_servers_that_are_started_one_by_one_in_one_folder(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "servers"
    with serve(store, 2, rank=0, address=f"unix:{folder}", progress=False) as zero:
        with serve(store, 2, rank=1, address=folder, progress=False) as one:
            assert zero.address == one.address == f"unix:{folder}" and zero.token == one.token
            for servers in (zero, one):
                servers.wait()
            with Caller(one, 0) as caller, Caller(zero, 1) as other:
                assert [each.join().body["rank"] for each in (caller, other)] == [0, 1]
            again = serve(store, 2, rank=1, address=folder, progress=False)
            with again, pytest.raises(PlanError, match="another process is server 1"):
                again.wait()
            assert one.ready
            with Caller(one, 1) as caller:
                assert caller.join().kind == "welcome"
        with Caller(zero, 0) as caller:
            assert caller.join().kind == "welcome"
        with pytest.raises(PlanError, match="have another token"):
            serve(store, 2, rank=1, address=folder, token="quite another token", progress=False)
    assert folder.is_dir() and not list(folder.glob("*.sock"))


# Wrong input ------------------------------------------------------------------------------------------------------------------


def test_a_store_that_is_missing_or_damaged(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        serve(tmp_path / "nothing")
    damaged = shutil.copytree(store.path, tmp_path / "damaged")
    victim = next(path for path in sorted(damaged.rglob("*x*.npy" if list(damaged.rglob("*x*.npy")) else "*")) if path.is_file())
    os.truncate(victim, victim.stat().st_size // 2)
    with serve(damaged, 1, progress=False) as servers:
        with pytest.raises(StoreError, match=re.escape(victim.name)):
            servers.wait()
        assert servers.state == "degraded" and victim.name in servers.status()["servers"][0]["error"]
        assert victim.name in repr(servers)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"num_servers": 0}, "num_servers must be a whole number of at least 1"),
        ({"workers_per_server": "two"}, "workers_per_server"),
        ({"rank": 0}, "rank=0 without an address"),
        ({"rank": 2, "address": "10.0.0.1:7000"}, "rank=2, and there are 2 servers"),
        ({"rank": 1, "address": "127.0.0.1:0"}, "server 0's port is not known"),
        ({"interface": "lo"}, "interface is given, and servers without a network address"),
        ({"placement": "partition"}, "placement is given"),
        ({"address": "10.0.0.1"}, "10.0.0.1"),
        ({"address": ("10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3")}, "3 addresses for 2 servers"),
        ({"token": "short"}, "at least 16"),
        ({"placement": "everywhere"}, "placement"),
        ({"join_timeout_s": 0}, "join_timeout_s"),
        ({"start_timeout_s": float("nan")}, "start_timeout_s"),
        ({"tls_cert": "cert.pem"}, "only one is given"),
        ({"tls_cert": "no.pem", "tls_key": "no.pem"}, "cannot be read"),
        ({"stop_with_last_client": -1}, "stop_with_last_client"),
        ({"stop_with_last_client": "many"}, "stop_with_last_client"),
        ({"log_dir": "/proc/nowhere"}, "log_dir"),
        ({"progress": "loud"}, "loud"),
    ],
)
def test_words_that_cannot_be(store: Store, words: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PlanError, match=re.escape(complaint)):
        serve(store, **words)


def test_a_folder_that_others_can_open_is_refused(store: Store, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PlanError, match="open to other users"):
        serve(store, address=f"unix:{tmp_path}")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "token").write_text("a token that others can read")
    (private / "token").chmod(0o644)
    with pytest.raises(PlanError, match="others can read it"):
        serve(store, address=f"unix:{private}")


# Deaths -------------------------------------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_and_revived(store: Store) -> None:
    with serve(store, progress=False) as servers:
        servers.wait()
        victim, workers = server_pids(servers)[1], worker_pids(servers)
        with Caller(servers, 1) as caller:
            assert caller.join(client="a visitor").kind == "welcome"
            kill(victim)
            with pytest.raises(EOFError):
                hear(caller.wire)
        assert wait_until(lambda: servers.state == "degraded", FAULT_S)
        assert wait_until(lambda: is_gone(workers[1, 0]), FAULT_S) and not is_gone(workers[0, 0])
        facts = servers.status()["servers"][1]
        assert facts["state"] == "gone" and facts["pid"] is None
        said = f"server 1 (pid {victim}) was killed by SIGKILL"
        assert said in facts["error"] and "client a visitor" in facts["error"]  # the end of its log
        with pytest.raises(WorkerDied, match=re.escape(said)):
            servers.wait()
        assert "degraded" in repr(servers) and said in repr(servers)
        servers.revive()
        servers.wait()
        assert servers.ready and server_pids(servers)[1] != victim
        with Caller(servers, 1) as caller:
            assert caller.join().kind == "welcome"
        assert "client a visitor" in servers.logs(1)  # the log is appended to
    shutil.rmtree(servers.folder)  # kept, because its logs were named


def test_max_restarts_brings_servers_and_workers_back(store: Store) -> None:
    with serve(store, 1, max_restarts=1, progress=False) as servers:
        servers.wait()
        server, worker = server_pids(servers)[0], worker_pids(servers)[0, 0]
        trainer = Trainer(servers)
        kill(worker)
        lost = hear(trainer.wire, "lost").body
        assert lost["worker"] == 0 and f"sampling process 0 of server 0 (pid {worker}) was killed by SIGKILL" in lost["error"]["message"]
        trainer.worker.close()
        trainer.meet(hear(trainer.wire, "worker"))
        assert trainer.worker_pid != worker and wait_until(lambda: servers.ready, FAULT_S)
        assert servers.status()["servers"][0]["restarts"] == 1
        again = trainer.worker_pid
        kill(again)
        hear(trainer.wire, "lost")
        assert wait_until(lambda: servers.state == "degraded", FAULT_S)
        assert f"sampling process 0 of server 0 (pid {again}) was killed by SIGKILL" in repr(servers)
        with pytest.raises(WorkerDied, match=f"pid {again}"):
            servers.wait()
        # Whoever needs it has it started again.
        trainer.worker.close()
        trainer.wire.send("enlist")
        trainer.meet(hear(trainer.wire, "worker"))
        assert trainer.worker_pid != again and wait_until(lambda: servers.ready, FAULT_S)
        plan, _ = expected_batches(store)
        trainer.open(1, plan)
        trainer.ask(1, 0)
        trainer.batch()
        trainer.close()
        kill(server)
        assert wait_until(lambda: servers.ready and server_pids(servers)[0] != server, START_S)
        assert servers.status()["restarts"] == 1
        kill(server_pids(servers)[0])
        assert wait_until(lambda: servers.state == "degraded", FAULT_S)
        with pytest.raises(WorkerDied):
            servers.join()
    shutil.rmtree(servers.folder)


def test_servers_end_with_their_last_client(store: Store) -> None:
    """The last of two: one that comes and goes alone changes nothing."""
    with serve(store, 1, stop_with_last_client=2, progress=False) as servers:
        servers.wait()
        pids = all_pids(servers)
        for number in (1, 2):
            assert servers.state == "ready"
            with Caller(servers) as one, Caller(servers) as again:
                for caller in (one, again):
                    assert caller.join(client=f"client {number}").kind == "welcome"
                assert wait_until(partial(visited, servers, number))
            assert wait_until(lambda: servers.status()["clients"] == 0)
        assert wait_until(lambda: servers.state == "stopped", FAULT_S)
        servers.join()
        assert all(map(is_gone, pids))


# The process that has started them ----------------------------------------------------------------------------------------------

_NOTEBOOK = """
import sys, json, time
from gnnkit.serving import serve
servers = serve(sys.argv[1], progress=False)
servers.wait()
print(json.dumps([[s["pid"], s["workers"][0]["pid"]] for s in servers.status()["servers"]]), flush=True)
{}
"""


def notebook(store: Store, folder: Path, then: str) -> tuple[subprocess.Popen[str], set[int]]:
    """A process that serves, and the pids of its servers and workers."""
    script = folder / "notebook.py"
    script.write_text(_NOTEBOOK.format(then))
    command = [sys.executable, str(script), str(store.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=folder, start_new_session=True)
    assert process.stdout is not None
    pids = {pid for both in json.loads(process.stdout.readline()) for pid in both}
    return process, pids


def test_nothing_outlives_a_notebook_that_is_killed(store: Store, tmp_path: Path) -> None:
    process, pids = notebook(store, tmp_path, "time.sleep(1000)")
    try:
        stopped = max(pids)
        os.kill(stopped, signal.SIGSTOP)  # even that
        process.kill()
        process.communicate(timeout=START_S)
        assert wait_until(lambda: all(map(is_gone, pids)), FAULT_S)
    finally:
        for pid in [process.pid, *pids]:
            if not is_gone(pid):
                kill(pid)


def test_a_script_that_forgets_its_servers_ends_them(store: Store, tmp_path: Path) -> None:
    process, pids = notebook(store, tmp_path, "import os\nif not os.fork():\n    servers.stop(); os._exit(0)\nassert servers.ready")
    assert process.communicate(timeout=START_S) and process.returncode == 0
    assert wait_until(lambda: all(map(is_gone, pids)), FAULT_S)


def cli(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gnnkit", "serve", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stays_in_the_foreground(store: Store, tmp_path: Path, end: signal.Signals) -> None:
    process = cli("--store", str(store.path), "--num-servers", "1", "--log-dir", str(tmp_path))
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(3)]
    address, token_file = lines[0].removeprefix("address: unix:"), Path(lines[1].removeprefix("token file: "))
    assert lines[2] == "ready" and Path(address, "server-0.sock").is_socket() and token_file == Path(address, "token")
    token = token_file.read_text().strip()
    pids = {child.pid for child in descendants(process.pid)}
    assert len(pids) == 2
    process.send_signal(end)
    output = process.communicate(timeout=START_S)
    assert process.returncode == 0
    assert wait_until(lambda: all(map(is_gone, pids)), FAULT_S)
    assert not any(token in text for text in (*lines, *output))


def test_the_command_says_what_is_wrong(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("a token that others can read")
    token_file.chmod(0o644)
    wrong = (
        (("--token-file", str(token_file)), "others can read it"),
        (("--token-file", str(tmp_path / "none")), "cannot be read"),
        (("--rank", "0"), "without an address"),
    )
    for arguments, complaint in wrong:
        assert run(["serve", "--store", str(store.path), *arguments]) == 2
        assert complaint in capsys.readouterr().err.replace("\n", " ")


def test_the_foreground_ends_with_the_last_client_and_with_an_error(store: Store) -> None:
    said: list[str] = []
    servers = serve(store, 1, stop_with_last_client=True, progress=False)
    servers.wait()
    with Caller(servers) as caller:
        assert caller.join().kind == "welcome"
        assert wait_until(lambda: servers.status()["visits"] == 1)
    run_in_foreground(servers, said.append)
    assert servers.state == "stopped" and said[0] == f"address: {servers.address}"
    before = signal.getsignal(signal.SIGTERM)
    servers = serve(store, 1, progress=False)
    servers.wait()
    kill(server_pids(servers)[0])
    with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
        run_in_foreground(servers)
    assert servers.state == "stopped" and signal.getsignal(signal.SIGTERM) == before
    shutil.rmtree(servers.folder)
