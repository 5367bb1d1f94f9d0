"""Checkpoints: there wholly or not at all, the newest whole one counts, and reading one runs no code."""

from __future__ import annotations

import hashlib
import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit.errors import PlanError
from gnnkit.jobs.context import Checkpoints
from tests.helpers.machine import ROOT

DEADLINE_S = 120
LOADER = {"version": 1, "epoch": 2, "next_batch": 7, "batch_size": 4, "num_seeds": 100, "seed": 0}


class Number:
    """Something with a state."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def found(folder: Path) -> Any:
    """What the newest whole checkpoint holds."""
    number = Number(None)
    return number.value if Checkpoints(folder).restore({"number": number}) is None else number.value


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_models_and_optimizers_come_back_in_a_new_process_of_theirs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 2])
    for _ in range(3):
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        schedule.step()
    Checkpoints(tmp_path).write({"model": model, "optimizer": optimizer, "schedule": schedule}, LOADER)
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    again = torch.optim.Adam(other.parameters(), lr=0.5)
    later = torch.optim.lr_scheduler.MultiStepLR(again, milestones=[1, 2])
    assert Checkpoints(tmp_path).restore({"model": other, "optimizer": again, "schedule": later}) == LOADER
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    assert later.state_dict() == schedule.state_dict()
    moments = [[s["exp_avg_sq"] for s in o.state_dict()["state"].values()] for o in (optimizer, again)]
    assert all(torch.equal(a, b) for a, b in zip(*moments, strict=True))
    (path,) = files(tmp_path)
    assert torch.load(path, weights_only=True)["objects"]["model"].keys() == model.state_dict().keys(), "anybody can read it"


def test_a_compiled_models_state_has_the_names_of_the_model(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    Checkpoints(tmp_path).write({"model": torch.compile(model, backend="eager")}, LOADER)
    other = torch.nn.Linear(2, 2)
    Checkpoints(tmp_path).restore({"model": other})
    assert torch.equal(other.weight, model.weight)


def test_the_last_two_are_kept_and_the_newest_counts(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).restore({"number": Number(0)}) is None
    for value in range(5):
        Checkpoints(tmp_path).write({"number": Number(value)}, LOADER)  # each a run of its own
    assert len(files(tmp_path)) == 2
    assert found(tmp_path) == 4


@pytest.mark.parametrize("damage", ["cut", "altered", "empty"])
def test_a_damaged_one_is_skipped_with_a_warning_and_replaced_first(tmp_path: Path, damage: str) -> None:
    for value in range(2):
        Checkpoints(tmp_path).write({"number": Number(value)}, LOADER)
    newest = files(tmp_path)[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes({"cut": content[: len(content) // 2], "altered": content, "empty": b""}[damage])
    checkpoints, number = Checkpoints(tmp_path), Number(None)
    with pytest.warns(UserWarning, match=f"{newest.name}.* is damaged"):
        assert checkpoints.restore({"number": number}) == LOADER
    assert number.value == 0
    checkpoints.write({"number": Number(2)}, LOADER)
    assert newest not in files(tmp_path) and len(files(tmp_path)) == 2, "the whole one that was taken is still there"
    assert found(tmp_path) == 2


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_the_one_before(tmp_path: Path) -> None:
    """Killed while it writes the file: the process stops itself in the midst of the system's write."""
    Checkpoints(tmp_path).write({"number": Number(1)}, LOADER)
    code = """
import os, signal, sys
from pathlib import Path
import gnnkit.jobs.context as checkpoint
from tests.jobs.test_checkpoint import LOADER, Number
checkpoint.sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
checkpoint.Checkpoints(Path(sys.argv[1])).write({"number": Number(2)}, LOADER)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert len(files(tmp_path)) == 2 and found(tmp_path) == 1
    Checkpoints(tmp_path).write({"number": Number(3)}, LOADER)
    assert [path.suffix for path in files(tmp_path)] == [".pt", ".pt"] and found(tmp_path) == 3


class _Runs:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_what_would_run_code_is_not_run(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"version": 1, "loader": LOADER, "objects": {"number": _Runs(tmp_path / "ran")}}, buffer)
    digest = hashlib.blake2b(buffer.getvalue(), digest_size=8).hexdigest()
    (tmp_path / f"checkpoint-00000001-{digest}.pt").write_bytes(buffer.getvalue())
    with pytest.raises(PlanError, match="cannot be read"):
        found(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"lr": [1, np.float64(2)]}, r"number\['value'\]\['lr'\]\[1\] is a numpy.float64"),
        (Path("here"), r"number\['value'\] is a pathlib"),
        (len, r"number\['value'\] is a builtins"),
    ],
)
def test_a_state_that_could_not_be_read_again_is_refused_and_changes_nothing(tmp_path: Path, value: Any, said: str) -> None:
    Checkpoints(tmp_path).write({"number": Number(1)}, LOADER)
    with pytest.raises(PlanError, match=said):
        Checkpoints(tmp_path).write({"number": Number(value)}, LOADER)
    assert found(tmp_path) == 1 and len(files(tmp_path)) == 1


def test_other_objects_than_were_saved_are_named(tmp_path: Path) -> None:
    Checkpoints(tmp_path).write({"model": Number(1), "optimizer": Number(2)}, LOADER)
    model = Number(0)
    with pytest.raises(PlanError, match=r"holds \['model', 'optimizer'\], and restore\(\) was given \['model'\]"):
        Checkpoints(tmp_path).restore({"model": model})
    assert model.value == 0
    with pytest.raises(PlanError, match="has no state_dict"):
        Checkpoints(tmp_path).write({"loss": 3.0}, LOADER)
