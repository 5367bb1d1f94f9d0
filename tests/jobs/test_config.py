"""Hyper-parameters, trackers, whose a job's folder is, and the exit status of a script whose run has failed."""

from __future__ import annotations

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.jobs.environment import JobPlace
from gnnkit.jobs.ownership import owned
from gnnkit.jobs.running import run_training
from tests.helpers.command import run, run_captured
from tests.helpers.machine import ROOT
from tests.jobs.setups import planned

DEADLINE_S = 150
TRAIN = """
import json
def train(loader, ctx):
    print("restored", ctx.restore(), json.dumps(dict(ctx.config)))
    ctx.save()
"""


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    """Words that run a small job."""
    (tmp_path / "train.py").write_text(TRAIN)
    return ["run", str(planned(tmp_path)), "--train", str(tmp_path / "train.py"), "--device", "cpu"]


def test_settings_change_what_the_file_beside_the_plan_says(job: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"lr": 0.1, "name": "a"}')
    code, out, err = run_captured(capfd, [*job, "--set", "lr=0.01", "--set", "name=b c"])
    assert code == 0 and 'restored False {"lr": 0.01, "name": "b c"}' in out, err
    code, out, _ = run_captured(capfd, [*job, "--set", "lr=.5", "--dir", str(tmp_path / "other")])
    assert code == 0 and '"lr": 0.5' in out, "a number that JSON would write in another way"
    for words, said in (("rl=1", "config.json has no 'rl'"), ("lr", "is no name with a value"), ("lr=fast", "lr is a number, 0.1")):
        code, _, err = run_captured(capfd, [*job, "--set", words])
        assert code == 2 and said in err


def test_a_checkpoint_of_other_hyper_parameters_is_refused_until_it_is_taken_over(
    job: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*job, "--set", "lr=0.1"]) == 0
    code, _, err = run_captured(capfd, [*job, "--set", "lr=0.2"])
    assert code == 2 and "with lr=0.1, and this job has lr=0.2" in err and "--take-over" in err
    code, out, _ = run_captured(capfd, [*job, "--set", "lr=0.2", "--take-over"])
    assert code == 0 and "restored True" in out


@pytest.mark.slow(seconds=10)
def test_a_folder_in_which_another_job_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with owned(tmp_path):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "other")
        said = rf"(?s)process {os.getpid()} on .*runs in .* give each job a folder of its own"
        with pytest.raises(PlanError, match=said), owned(tmp_path):
            pass
    with owned(tmp_path):
        assert "torchrun's job other" in (tmp_path / ".owner").read_text()


def test_a_folder_to_which_a_queued_job_comes_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$3" = 7 ] && echo PENDING || true\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_HET_JOB_ID", raising=False)
    for number in ("6", "7", "7"):  # the first is gone from the queue; one that was requeued has the number that it had
        monkeypatch.setenv("SLURM_JOB_ID", number)
        with owned(tmp_path):
            pass
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    with pytest.raises(PlanError, match="Slurm job 7 is in Slurm's queue"), owned(tmp_path):
        pass


def _csv(folder: Path) -> list[tuple[int, float]]:
    return [
        (int(row["step"]), float(row["value"]))
        for row in csv.DictReader((folder / "metrics.csv").read_text().splitlines())
        if row["name"] == "loss"
    ]


def _tensorboard(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("loss")]


def _wandb(folder: Path) -> list[tuple[int, float]]:
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        data, at = file.read_bytes(), 7
        while at + 7 < len(data):  # records of LevelDB's log, all in its first block: checksum, length, kind, content
            length = int.from_bytes(data[at + 4 : at + 6], "little")
            record, at = Record.FromString(data[at + 7 : at + 7 + length]), at + 7 + length
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if "loss" in items:
                found.append((items["_step"], items["loss"]))
    return found


def _mlflow(folder: Path) -> list[tuple[int, float]]:
    with sqlite3.connect(folder / "mlflow.db") as database:
        return database.execute("select step, value from metrics where key = 'loss' order by step").fetchall()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("csv", _csv),
        pytest.param("tensorboard", _tensorboard, marks=pytest.mark.packages("tensorboard")),
        pytest.param("wandb", _wandb, marks=pytest.mark.packages("wandb")),
        pytest.param("mlflow", _mlflow, marks=pytest.mark.packages("mlflow", "alembic", "sqlalchemy")),
    ],
)
def test_what_is_logged_reaches_trackers_and_goes_on_in_the_same_run(
    name: str, read: Callable[[Path], list[tuple[int, float]]], job: list[str], tmp_path: Path
) -> None:
    """Twice a process of its own, as after a restart."""
    (tmp_path / "train.py").write_text(
        f"def train(loader, ctx):\n    ctx.restore()\n    ctx.track({name!r})\n    for epoch in ctx.epochs(ctx.restarts + 1):\n"
        "        for batch in loader:\n            ctx.log(loss=0.5)\n        ctx.save()\n"
    )
    command = [sys.executable, "-m", "gnnkit", *job, "--set", "lr=0.1"]
    for restarts in range(2):
        environment = {**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT), "GNNKIT_RESTARTS": str(restarts)}
        place = {"JOB_COMPLETION_INDEX": "0", "NNODES": "1"}
        done = subprocess.run(command, env=environment | place, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
    assert read(tmp_path / "run") == [(step, 0.5) for step in range(1, 49)]


def test_a_tracker_that_is_not_there(job: list[str], tmp_path: Path) -> None:
    def train(loader: Any, ctx: Any) -> None:
        ctx.track("tensorbord")

    with pytest.raises(PlanError, match="no tracker 'tensorbord'; did you mean 'tensorboard'"):
        run_training(Path(job[1]), train, JobPlace(), directory=tmp_path / "run", report=print, device="cpu")


SCRIPT = """
import gnnkit, sys
from gnnkit import GraphLoader

def train(loader, ctx):
    assert ctx.config == {"lr": 0.1}
    raise ValueError("broken")

loader = GraphLoader.from_plan(sys.argv[1], progress=False)
run = gnnkit.launch(train, loader, 1, device="cpu", config={"lr": 0.1}, progress=False)
run.wait()
%s
unfinished = open(sys.argv[2], "w")
unfinished.write("written at the end")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("look", "code"), [("", 1), ("run.error", 0), ("run.state", 0)])
def test_a_script_whose_run_has_failed_ends_with_1_unless_it_looks(job: list[str], tmp_path: Path, look: str, code: int) -> None:
    command = [sys.executable, "-c", SCRIPT % look, job[1], str(tmp_path / "file")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == code, done.stderr
    assert ("the run of train has failed: rank 0 failed: ValueError: broken" in done.stderr) == bool(code)


@pytest.mark.slow
def test_sigusr1_has_a_checkpoint_written_before_the_next_batch(job: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal\ndef train(loader, ctx):\n    ctx.restore()\n    for step, batch in enumerate(loader):\n"
        "        if step >= 4:\n            os.kill(os.getpid(), signal.SIGUSR1 if step == 4 else signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-m", "gnnkit", *job], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == -signal.SIGKILL, done.stderr

    def left(loader: GraphLoader, ctx: gnnkit.TrainContext) -> int:
        assert ctx.restore()
        return loader.state_dict()["next_batch"]  # type: ignore[no-any-return]

    assert run_training(Path(job[1]), left, JobPlace(), directory=tmp_path / "run", report=print, device="cpu") == 5
