"""Runs on the command line: listed, read, stopped, cleaned up; those of others left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gnnkit import Colocated, GraphLoader, GraphStore, Store, serve
from gnnkit.cluster.parts.starter import PartService, ServiceSpec
from gnnkit.errors import WorkerStopped
from gnnkit.runtime import runs
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.runs import find_runs
from gnnkit.ui.runs import attention, run_facts, runs_processes
from tests.backends.setups import is_gone
from tests.cluster.hosts.setups import OPTIONS, build
from tests.cluster.serving.setups import ANSWER_S, server_pids, worker_pids
from tests.helpers.command import run, run_captured
from tests.helpers.runs import run_folder
from tests.helpers.system import start_ticks, without_rights

Cli = Callable[..., tuple[int, str, str]]
# No process has it.
NOBODY = 2**22 + 1


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A small store."""
    return build(Path(tmp_path_factory.mktemp("runs")), 1)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a verb for the runs in ``tmp_path``: ``(code, output, errors)``."""
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments: object, everywhere: bool = False) -> tuple[int, str, str]:
        return run_captured(capfd, [*arguments, *([] if everywhere else ["--log-dir", tmp_path])])

    return call


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stays until it is ended."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def record(root: Path, name: str, **values: object) -> Path:
    """The folder of a run with these facts; by default of an owner that is gone."""
    own = run_folder(root, {"store": "/data/[bold]graph"})
    facts = json.loads((own.path / "run.json").read_text())
    own.close()
    folder = root / name
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({**facts, "pid": NOBODY, **values}))
    return folder


def child(process: subprocess.Popen[bytes], log: Path | None = None) -> dict[str, Any]:
    """What a record says of a process."""
    return {"rank": 0, "pid": process.pid, "ticks": start_ticks(process.pid), "log": None if log is None else str(log)}


# Runs that live -----------------------------------------------------------------------------------------------------------------


def test_servers_are_listed_read_and_stopped(store: Store, tmp_path: Path, cli: Cli) -> None:
    with serve(store, 1, log_dir=tmp_path, max_restarts=5, progress=False) as servers:
        servers.wait()
        pids = [*server_pids(servers).values(), *worker_pids(servers).values()]
        code, out, _ = cli("ps", "--json")
        (found,) = json.loads(out)["runs"]
        assert code == 0 and found["what"] == "servers" and found["state"] == "running" and found["store"] == str(store.path)
        assert found["owner"] == {"pid": os.getpid(), "state": "running"} and found["nbytes"] > 0 and not found["died"]
        assert [process["name"] for process in found["processes"]] == ["server 0", "server 0, process 0"]
        assert [process["pid"] for process in found["processes"]] == pids
        states = {"running", "waiting for a disk"}  # the system's word at this moment
        assert all(process["state"] in states and process["private"] > 0 for process in found["processes"]), found["processes"]
        code, out, _ = cli("ps", "--processes")
        assert code == 0 and found["id"] in out and "running" in out and "server 0, process 0" in out and str(pids[1]) in out
        # A folder that a user has named is known from its processes.
        assert found["id"] in {each["id"] for each in json.loads(cli("ps", "--json", everywhere=True)[1])["runs"]}

        code, out, _ = cli("logs")
        assert code == 0 and f"--- {found['id']}, server 0, " in out and "server 0, process 0" in out
        log = Path(found["processes"][1]["log"])
        log.write_text("first\nsecond\n")
        for wanted in (found["id"], found["id"][:-3], os.getpid(), pids[1]):
            assert cli("logs", wanted, "--lines", 1)[1].splitlines()[-1] == "second"
        code, out, _ = cli("logs", "--json", "--rank", 0)
        assert [each["process"] for each in json.loads(out)["logs"]] == ["server 0", "server 0, process 0"]
        code, _, err = cli("logs", "--rank", 7)
        assert code == 2 and "no process 7" in err and "server 0, process 0" in err

        call = [sys.executable, "-m", "gnnkit", "logs", "--follow", found["id"], "--log-dir", str(tmp_path)]
        with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None and "second\n" in iter(follower.stdout.readline, "")
            with log.open("a") as file:
                file.write("third\nfou")
            assert "third\n" in iter(follower.stdout.readline, "")

            code, out, _ = cli("stop", found["id"])
            assert code == 0 and out == f"{found['id']}: ended 2 processes\n" and all(is_gone(pid) for pid in pids)
            with pytest.raises(WorkerStopped, match="gnnkit stop has ended it"):
                servers.join()
            assert "--- server 0\n" not in follower.stdout.read() and follower.wait(ANSWER_S) == 0, "it ends with the processes"
        code, out, _ = cli("stop", "--all")
        assert code == 0 and out == "no run has processes\n"
        assert cli("stop", found["id"])[1] == f"{found['id']}: it has no processes\n"
        servers.revive()
        servers.wait()
    assert not list(tmp_path.iterdir()), "nobody needs its logs"


@pytest.mark.parametrize("kind", ["colocated", "graph_store"])
def test_a_loader_whose_processes_were_stopped(store: Store, tmp_path: Path, cli: Cli, kind: str) -> None:
    """Says so, starts no others unasked whatever it was allowed, and goes on when it is told to."""
    options: dict[str, Any] = {"log_dir": str(tmp_path), "max_restarts": 3}
    backend = Colocated(1, **options) if kind == "colocated" else GraphStore(1, **options)
    with GraphLoader.from_store(store.path, backend=backend, progress=False, **{**OPTIONS, "batch_size": 1}) as loader:
        iterator = iter(loader)
        seeds = [int(next(iterator).input_id)]
        code, out, _ = cli("stop", "--all")
        assert code == 0 and "ended" in out
        with pytest.raises(WorkerStopped, match="gnnkit stop"):
            for batch in iterator:
                seeds.append(int(batch.input_id))
        seeds += [int(batch.input_id) for batch in loader.resume()]
        assert sorted(seeds) == list(range(57))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_servers_in_the_foreground_end_with_their_process(store: Store, tmp_path: Path, cli: Cli) -> None:
    call = [sys.executable, "-m", "gnnkit", "serve", "--store", str(store.path), "--num-servers", "1", "--log-dir", str(tmp_path)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and "ready\n" in iter(process.stdout.readline, "")
        code, out, _ = cli("stop", process.pid)
        assert code == 0 and "ended 3 processes" in out and process.wait(ANSWER_S) == 0
    assert not list(tmp_path.iterdir())


def test_a_part_service_that_was_stopped_is_not_brought_back(store: Store, tmp_path: Path, cli: Cli) -> None:
    reference, keepers = store.reference, []
    held: Any = {"parts": (0,), "whole_structure": False}
    spec = ServiceSpec(reference.path, reference.fingerprint, held, 0, (), "127.0.0.1", 0, "a secret of these tests", 60.0, 0.0, tmp_path)
    supervisor = PartService(spec, GraphHandle(store.arrays(), store.splits, reference), lambda: None, keepers.append)
    (found,) = json.loads(cli("ps", "--json")[1])["runs"]
    assert found["what"] == "part service" and [each["name"] for each in found["processes"]] == ["part service 0"]
    assert cli("stop", found["id"])[:2] == (0, f"{found['id']}: ended 1 process\n")
    assert supervisor.finished.wait(ANSWER_S) and keepers == [supervisor] and supervisor.restarts == 0
    with pytest.raises(WorkerStopped, match=r"part service of host 0 .* gnnkit stop has ended it"):
        supervisor.check()
    assert not list(tmp_path.iterdir())


# Runs that nobody has ---------------------------------------------------------------------------------------------------------------


def test_what_is_left_behind_is_cleaned_up(
    tmp_path: Path, cli: Cli, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else: neither runs that live, nor failed ones' logs, nor what may run elsewhere, unless that is said."""
    mine = run_folder(tmp_path, {})
    log = tmp_path / "1-0123abcd" / "worker-0.log"
    stale = record(tmp_path, "1-0123abcd", children=[child(sleeper, log)])
    log.write_text("the end\n")
    inner = record(tmp_path, "2-0123abcd", pid=sleeper.pid, ticks=start_ticks(sleeper.pid), server=0)
    failed = record(tmp_path, "3-0123abcd", failed=True)
    other = record(tmp_path, "4-0123abcd", boot="another", children=[child(sleeper)])
    mended = tmp_path / "5-0123abcd.gone"
    mended.mkdir()

    code, out, _ = cli("ps", "--json")
    facts = {each["id"]: each for each in json.loads(out)["runs"]}
    assert code == 1 and json.loads(out)["attention"] == "1 run left behind, with 1 unused process: gnnkit cleanup"
    states = {mine.path: "running", stale: "stale", failed: "failed", other: "elsewhere"}
    assert {name: each["state"] for name, each in facts.items()} == {folder.name: state for folder, state in states.items()}
    assert facts[other.name]["processes"][0]["state"] == "not known" and inner.name not in facts
    code, out, _ = cli("ps")
    assert code == 1 and "gnnkit cleanup" in out and "[bold]graph" in out
    monkeypatch.setenv("COLUMNS", "80")
    rows = cli("ps")[1].splitlines()
    assert rows[0].split() == ["run", "state", "age", "what"] and all(len(row.rstrip()) <= 80 for row in rows[:-2])
    assert [row.split()[1] for row in rows[1:] if row[:1].isdigit() and row.split()[0] in facts] == [
        "running",
        *["stale", "failed", "elsewhere"],
    ]
    assert cli("logs")[1].splitlines()[1] == "the end", "the newest with processes"
    code, _, err = cli("stop", other.name)
    assert code == 2 and "another boot" in err

    code, out, _ = cli("cleanup")
    assert code == 0 and out.startswith(f"{stale.name}: ended 1 process, removed its folder (sampling processes, ")
    assert sleeper.wait(60) == -signal.SIGKILL
    assert {path.name for path in tmp_path.iterdir()} == {mine.path.name, failed.name, other.name}
    # Both say the same of what is listed and stays.
    stays = "1 run failed, whose logs stay for a week: gnnkit cleanup --failed; "
    stays += "1 run of another boot, host or container: gnnkit cleanup --elsewhere"
    assert cli("cleanup")[1].splitlines() == ["nothing to clean up", stays]
    code, out, _ = cli("ps")
    assert code == 0 and out.splitlines()[-1] == stays
    code, out, _ = cli("cleanup", "--failed", "--elsewhere", "--json")
    assert code == 0 and {each["id"]: each["removed"] for each in json.loads(out)["runs"]} == {failed.name: True, other.name: True}
    assert list(tmp_path.iterdir()) == [mine.path]
    mine.close()
    assert cli("ps")[:2] == (0, "no runs\n")


def test_processes_that_outlived_their_owner_are_stopped(tmp_path: Path, cli: Cli, sleeper: subprocess.Popen[bytes]) -> None:
    """A failed run's folder stays for its logs; a process that does not listen is killed."""
    os.kill(sleeper.pid, signal.SIGSTOP)
    failed = record(tmp_path, "1-0123abcd", failed=True, children=[child(sleeper)])
    code, out, _ = cli("ps")
    assert code == 1 and "1 unused process" in out
    code, out, _ = cli("stop", sleeper.pid)
    assert code == 0 and "ended 1 process" in out and sleeper.wait(60) == -signal.SIGKILL
    assert failed.exists() and cli("ps")[0] == 0


def test_a_process_that_cannot_be_ended_in_time_is_named(tmp_path: Path, cli: Cli) -> None:
    mine = run_folder(tmp_path, {})
    deaf = ["sh", "-c", "trap '' TERM; echo; exec sleep 600"]
    with subprocess.Popen(deaf, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        mine.add(0, process.pid)
        code, _, err = cli("stop", "--all", "--timeout-s", 0.2)
        assert code == 1 and f"process 0 (pid {process.pid})" in err
        process.kill()
    mine.close()


def test_what_cannot_be_removed_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:  # which others may look into
        stale = record(Path(folder), "1-0123abcd")
        run(["ps", "--log-dir", folder])  # imports what it is shown with, which another user may not read
        with without_rights(Path(folder)):
            code = run(["cleanup", "--log-dir", folder])
    assert code == 1 and f"{stale} cannot be removed" in capfd.readouterr().out


def test_an_interrupt_is_code_130(tmp_path: Path, cli: Cli, sleeper: subprocess.Popen[bytes]) -> None:
    mine = run_folder(tmp_path, {})
    mine.add(0, sleeper.pid)
    mine.log(0).write_text("the beginning\n")
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    code, out, _ = cli("logs", "--follow")
    timer.join()
    assert code == 130 and "the beginning" in out and sleeper.poll() is None
    mine.close()


# Races and mistakes ---------------------------------------------------------------------------------------------------------------


def test_a_run_that_ends_while_it_is_listed(tmp_path: Path, cli: Cli) -> None:
    """Is shown as it was, or not at all."""
    ended = record(tmp_path, "1-0123abcd", children=[{"rank": 0, "pid": NOBODY, "ticks": 5, "log": str(tmp_path / "none.log")}])
    (tmp_path / "2-0123abcd").mkdir()  # being made
    broken = record(tmp_path, "3-0123abcd")
    (broken / "run.json").write_text("{")
    record(tmp_path, "4-0123abcd", pid="x", ticks=[1], children=7, started="once", store=3, program=None)
    record(tmp_path, "5-0123abcd", children=["x", {"rank": [1], "pid": None, "log": 4}])
    assert cli("ps", "-p")[0] == 1 and cli("logs", ended.name)[0] == 0

    def ending() -> Iterator[Path]:
        yield tmp_path
        for folder, _ in list(runs.runs(tmp_path)):  # their records have been read
            runs.remove_run(folder)

    found = find_runs(ending())  # type: ignore[arg-type]
    assert {each.id for each in found} == {ended.name, "4-0123abcd", "5-0123abcd"}
    assert {each.id: each.nbytes for each in found}[ended.name] == 0 and attention(found)
    assert [run_facts(each)["id"] for each in found] == [each.id for each in found] and runs_processes(found).rows
    assert cli("ps")[:2] == (0, "no runs\n") and cli("cleanup")[0] == 0


def test_several_clean_up_at_once(tmp_path: Path) -> None:
    for number in range(1, 41):
        record(tmp_path, f"{number}-0123abcd")
    call = [sys.executable, "-m", "gnnkit", "cleanup", "--log-dir", str(tmp_path)]
    with ExitStack() as stack:
        cleaning = [stack.enter_context(subprocess.Popen(call, stdout=subprocess.DEVNULL)) for _ in range(4)]
        assert [process.wait(ANSWER_S) for process in cleaning] == [0] * 4, "nothing is kept"
    assert not list(tmp_path.iterdir())


def test_what_a_word_means(tmp_path: Path, cli: Cli) -> None:
    for name in ("77-0123abcd", "77-4567abcd", "78-0123abcd"):
        record(tmp_path, name)

    def ids(word: str) -> list[str]:
        code, out, _ = cli("logs", word)
        assert code == 0
        return out.removesuffix(": no logs\n").split(", ")

    assert ids("77-0123abcd") == ids("77-0") == ["77-0123abcd"] and len(ids("77")) == 2 and len(ids(str(NOBODY))) == 3
    for word in ("79", "", "x"):
        code, _, err = cli("logs", word)
        assert code == 2 and "there is no run" in err


def test_folders_of_others_are_not_looked_at(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path))
    for folder, name in (("runs", "1-0123abcd"), ("temporary", "2-0123abcd")):
        (tmp_path / folder).mkdir()
        record(tmp_path / folder, name)

    def seen() -> set[str]:
        return {run["id"] for run in json.loads(cli("ps", "--json", everywhere=True)[1])["runs"]}

    assert {"1-0123abcd", "2-0123abcd"} <= seen()
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert not {"1-0123abcd", "2-0123abcd"} & seen()
    code, _, err = cli("ps")
    assert code == 2 and "there is no folder of yours" in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["stop"], "which runs"),
        (["stop", "1", "--all"], "which runs"),
        (["stop", "none"], "there is no run 'none'"),
        (["logs"], "there are no runs with logs"),
        (["logs", "none"], "there is no run 'none'"),
        (["logs", "--lines", "0"], "lines"),
        (["logs", "--follow", "--json"], "--follow writes text"),
        (["ps", "--log-dir", "/nowhere/at/all"], "there is no folder of yours"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], text: str) -> None:
    code, out, err = cli(*words)
    assert code == 2 and out == "" and text in err


def test_a_run_of_another_kind_is_called_what_it_is(tmp_path: Path, cli: Cli) -> None:
    record(tmp_path, "1-0123abcd", started=time.time() - 3700, program="train.py", kind="proxy")
    (found,) = json.loads(cli("ps", "--json")[1])["runs"]
    assert (found["what"], found["state"], found["processes"]) == ("proxy", "stale", [])
    assert cli("cleanup")[1].startswith("1-0123abcd: removed its folder (proxy, ")
