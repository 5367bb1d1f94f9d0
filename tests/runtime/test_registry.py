"""Folders of runs, logs, and what is known about a death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnnkit import Colocated
from gnnkit.errors import PlanError
from gnnkit.host import memory_kills
from gnnkit.runtime import supervisor as obituary
from gnnkit.runtime.entry import RSS, SEEN_NS, Vitals
from gnnkit.runtime.process_status import wait_for_end
from gnnkit.runtime.runs import checked_folder, runs, sweep, tail, with_tail
from tests.helpers.runs import run_folder
from tests.helpers.system import start_ticks


def record_of(root: Path, name: str, **values: object) -> Path:
    folder = root / name
    folder.mkdir()
    own = run_folder(root, {})
    record = json.loads((own.path / "run.json").read_text())
    own.close()
    (folder / "run.json").write_text(json.dumps({**record, **values}))
    return folder


def test_a_run_is_recorded_and_removed(tmp_path: Path) -> None:
    run = run_folder(tmp_path, {"store": "/somewhere"})
    run.add(3, os.getpid())
    ((folder, record),) = runs(tmp_path)
    assert folder == run.path and record["store"] == "/somewhere" and record["children"][0]["rank"] == 3
    sweep(tmp_path)
    assert run.path.exists()  # its process lives
    run.close()
    assert not list(tmp_path.iterdir())


def test_a_failed_run_keeps_its_logs_for_a_while(tmp_path: Path) -> None:
    run = run_folder(tmp_path, {})
    run.log(0).write_text("what happened\n")
    run.keep()
    run.close()
    sweep(tmp_path)
    assert tail(run.log(0)) == "what happened"


def test_what_is_swept(tmp_path: Path) -> None:
    long_ago = time.time() - 8 * 24 * 3600
    gone = record_of(tmp_path, "1-0123abcd", pid=2**22 + 1)
    reused = record_of(tmp_path, "2-0123abcd", ticks=1)
    failed = record_of(tmp_path, "3-0123abcd", pid=2**22 + 1, failed=True)
    elsewhere = record_of(tmp_path, "4-0123abcd", pid=2**22 + 1, boot="another")
    old = record_of(tmp_path, "5-0123abcd", pid=2**22 + 1, boot="another")
    half_made = tmp_path / "6-0123abcd"
    half_made.mkdir()
    broken = record_of(tmp_path, "7-0123abcd")
    (broken / "run.json").write_text("{")
    strange = record_of(tmp_path, "8-0123abcd", pid="x", children=7)
    os.utime(old, (long_ago, long_ago))
    os.utime(broken, (long_ago, long_ago))
    sweep(tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == {failed.name, elsewhere.name, half_made.name}
    assert not any(folder.exists() for folder in (gone, reused, old, broken, strange))


def test_what_somebody_else_keeps_there_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "ogbn-products"
    theirs.mkdir()
    (theirs / "manifest.json").write_text("{}")
    (theirs / "run.json").write_text('{"started": 0}')  # other programs have runs too
    long_ago = time.time() - 8 * 24 * 3600
    os.utime(theirs, (long_ago, long_ago))
    sweep(tmp_path)
    assert not list(runs(tmp_path)) and (theirs / "manifest.json").exists()


def test_a_process_that_outlived_its_parent_is_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        ticks = start_ticks(process.pid)
        other = {"rank": 1, "pid": os.getpid(), "ticks": ticks}  # another process has this pid by now
        record_of(tmp_path, "1-0123abcd", pid=2**22 + 1, children=[{"rank": 0, "pid": process.pid, "ticks": ticks}, other])
        sweep(tmp_path)
        assert process.wait(60) == -signal.SIGKILL


_DIES_WHILE_REMOVING = """
import os, signal, sys
from pathlib import Path
from gnnkit.runtime.runs import RunFolder
run = RunFolder(Path(sys.argv[1]), {})
run.log(0).touch()
os.rmdir = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # every file is gone by now, and the folder is not
run.close()
"""


def test_a_process_that_is_killed_while_it_removes_its_run_leaves_nothing(tmp_path: Path) -> None:
    """What is left of the folder does not look like one that is being made, which would keep it for a while."""
    killed = subprocess.run([sys.executable, "-c", _DIES_WHILE_REMOVING, str(tmp_path)], timeout=240)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1 and not list(runs(tmp_path))
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())


_HAS_A_RUN = """
import sys, time
from pathlib import Path
from gnnkit.runtime.runs import RunFolder
RunFolder(Path(sys.argv[1]), {})
print(flush=True)
time.sleep(600)
"""


def test_what_is_ended_takes_its_own_runs_along(tmp_path: Path) -> None:
    """In one sweep, whatever order the folders come in."""
    with subprocess.Popen([sys.executable, "-c", _HAS_A_RUN, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        record_of(tmp_path, "1-0123abcd", pid=2**22 + 1, children=[{"rank": 0, "pid": process.pid, "ticks": start_ticks(process.pid)}])
        assert not wait_for_end(process.pid, 0.0)
        sweep(tmp_path)
        assert not list(tmp_path.iterdir()) and wait_for_end(process.pid, 0.0)


def test_folders_of_other_users_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked_folder(tmp_path / "a" / "b")
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(PermissionError):
        checked_folder(tmp_path / "a" / "b")


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    assert tail(log) == "" and "is empty" in with_tail("it ended", log)
    log.write_bytes(b"\n".join(b"line %d \xff" % i for i in range(100_000)))
    assert tail(log).endswith("line 99999 \ufffd") and len(tail(log)) < 20_000
    assert str(log) in with_tail("it ended", log)


_WRITES = """
import os, sys, time
import numpy as np
from gnnkit.runtime.entry import ParentWatch
from tests.helpers.system import start_ticks
ParentWatch(-1, os.getppid(), np.zeros(8, np.int64)).start()
for i in range(1000):
    time.sleep(0.001)
    os.write(2, b"x" * 10_000 + b"\\n")
os.write(2, b"the end\\n")
deadline = time.monotonic() + 60
while os.fstat(2).st_size >= 1_500_000 and time.monotonic() < deadline:
    time.sleep(0.01)
"""


def test_a_log_stays_small(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with log.open("a+b") as output:
        subprocess.run([sys.executable, "-c", _WRITES], stderr=output, check=True, timeout=240)
    assert log.stat().st_size < 1_500_000 and tail(log).endswith("the end")


def test_a_kill_for_lack_of_memory_is_recognised() -> None:
    vitals = Vitals.create(1)
    vitals.row(0)[RSS], vitals.row(0)[SEEN_NS] = 3_000_000_000, time.monotonic_ns()
    kills = memory_kills()
    if kills is not None:  # in a memory group
        text, hint = obituary.explain_end(-signal.SIGKILL, vitals.signs(0), kills - 1, "try again")
        assert "killed 1 process(es) of this memory group" in text and "occupied 3000 MB" in text and "memory limit" in hint
    text, hint = obituary.explain_end(-signal.SIGKILL, vitals.signs(0), kills, "try again")
    assert "another process killed it" in text and hint == "try again"
    vitals.forget(0)
    assert vitals.signs(0).seen_s == float("inf") and "not known" in obituary.explain_end(1, vitals.signs(0), None, "try again")[0]


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "killed by SIGKILL"), (-99, "killed by 99"), (3, "ended with status 3"), (None, "closed")]
)
def test_exit_statuses_in_words(code: int | None, words: str) -> None:
    assert words in obituary.describe_end(code)


# Options ----------------------------------------------------------------------------------------------------------------------

WRONG = {
    "num_workers": [0, -1, 1.5, "many", True, None],
    "threads_per_worker": [0, "auto", None],
    "worker_concurrency": [0, 33, "2"],
    "channel_size": [0, -5, "4 apples", "", 1.5, True, "-4GB"],
    "process_start_gap_seconds": [-1, float("nan"), float("inf"), "soon", True],
    "max_concurrent_producer_inits": [0, "all"],
    "max_restarts": [-1, None, 1.0],
    "log_dir": ["", 5],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_options_that_make_no_sense(name: str, value: object) -> None:
    with pytest.raises(PlanError, match=name):
        Colocated(**{name: value})


@pytest.mark.parametrize(
    ("size", "nbytes"), [(None, None), (4096, 4096), ("4GB", 4 << 30), ("64MB", 64 << 20), ("0.5 kb", 512), ("12B", 12), ("3G", 3 << 30)]
)
def test_channel_sizes(size: int | str | None, nbytes: int | None) -> None:
    assert Colocated(channel_size=size).channel_bytes == nbytes
