"""``gnnkit doctor``: its rows, verdicts and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import gnnkit
from gnnkit import Colocated, GraphStore
from gnnkit.cli import doctor, trial
from gnnkit.cli.doctor import Check, report
from gnnkit.vendor.glt import GltStatus
from tests.helpers.glt import is_native
from tests.helpers.system import pretend_free_disk, pretend_free_memory, pretend_processors

ROWS = {
    "gnnkit", "Python", "torch", "torch_geometric", "kernels", "row copies", "ogb", "torch/GLT pairing", "processors", "memory",
    "graph copies", "/dev/shm", "disk", "open files", "GPU", "network", "backend InProcess", "backend OnDevice", "backend Colocated",
    "several hosts", "backend Glt", "backend GraphStore",
}  # fmt: skip


# A process with more files open than select(2) can wait for.
_MANY_FILES = """
import os, resource, runpy

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
runpy.run_module("gnnkit", run_name="__main__")
"""


@pytest.mark.slow(seconds=60)
def test_this_machine_is_well_and_every_row_is_there() -> None:
    done = subprocess.run([sys.executable, "-c", _MANY_FILES, "doctor", "--warm", "--json"], capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    rows = {row["name"]: row for row in report["checks"]}
    assert rows.keys() == ROWS
    assert report["exit_code"] == done.returncode
    assert rows["backend InProcess"]["value"] == "yes: 4 batches sampled and checked"
    assert rows["backend OnDevice"]["value"].startswith("yes: 4 batches from the device c")
    assert rows["backend Colocated"]["value"] == "yes: 4 batches from 2 processes and 2 parts, the same as InProcess's"
    assert rows["several hosts"]["value"] == "yes: 4 batches from two hosts on loopback with a part each, the same as InProcess's"
    assert rows["backend GraphStore"]["value"] == "yes: 4 batches from 2 servers and 2 parts, the same as InProcess's"
    assert rows["kernels"]["value"].startswith("compiled")
    assert "rows asked for ahead" in rows["row copies"]["value"] and "memcpy" in rows["row copies"]["value"]
    assert all(row["fix"] for row in rows.values() if row["verdict"] in ("warning", "error"))


@pytest.mark.parametrize(("verdicts", "code"), [(["ok", "no"], 0), (["ok", "warning"], 1), (["warning", "error", "ok"], 2)])
def test_the_worst_row_decides_the_exit_code(capfd: pytest.CaptureFixture[str], verdicts: list[Any], code: int) -> None:
    checks = [Check(f"row {i}", "found", verdict, "do this") for i, verdict in enumerate(verdicts)]
    assert report(checks, as_json=False) == code
    out = capfd.readouterr().out
    for check in checks:
        assert check.name in out and check.verdict in out
    assert report(checks, as_json=True) == code
    said = json.loads(capfd.readouterr().out)
    assert [row["verdict"] for row in said["checks"]] == verdicts and said["exit_code"] == code


def test_each_row_is_shown_before_the_next_one_is_looked_for(capfd: pytest.CaptureFixture[str]) -> None:
    def checks() -> Iterator[Check]:
        yield Check("first", "found")
        assert "first" in capfd.readouterr().out
        yield Check("second", "found", "warning", "do this")

    assert report(checks(), as_json=False) == 1
    assert capfd.readouterr().out.split() == ["second", "found", "warning", "do", "this"]


@pytest.mark.parametrize(("free", "verdict"), [(20e9, "ok"), (2e9, "warning"), (0.5e9, "error")])
def test_memory(monkeypatch: pytest.MonkeyPatch, free: float, verdict: str) -> None:
    pretend_free_memory(monkeypatch, int(free))
    row = doctor.memory()
    assert row.verdict == verdict
    assert bool(row.fix) == (verdict != "ok")


@pytest.mark.parametrize(("free", "verdict"), [(64e9, "ok"), (1e9, "warning"), (0.1e9, "error")])
def test_disk(monkeypatch: pytest.MonkeyPatch, free: float, verdict: str) -> None:
    pretend_free_disk(monkeypatch, int(free))
    assert doctor.disk().verdict == verdict


def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    row = doctor.disk()
    assert row.verdict == "error" and "GNNKIT_HOME" in row.fix


def test_docker_s_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_free_disk(monkeypatch, 64 << 20)
    row = doctor.shared_memory()
    assert row.verdict == "warning" and "--shm-size" in row.fix


@pytest.mark.parametrize(("count", "verdict"), [(1, "warning"), (2, "ok")])
def test_processors(monkeypatch: pytest.MonkeyPatch, count: int, verdict: str) -> None:
    pretend_processors(monkeypatch, count)
    assert doctor.processors().verdict == verdict


@pytest.mark.parametrize(("hard", "verdict"), [(1024, "warning"), (4096, "ok"), (-1, "ok")])
def test_open_files(monkeypatch: pytest.MonkeyPatch, hard: int, verdict: str) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, hard))
    assert doctor.open_files().verdict == verdict


def versions(monkeypatch: pytest.MonkeyPatch, **installed: str | None) -> None:
    known = {name.replace("_", "-"): version for name, version in installed.items()}

    def version(package: str) -> str:
        found = known.get(package.replace("_", "-"), "1.0")
        if found is None:
            raise metadata.PackageNotFoundError(package)
        return found

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize(("version", "verdict"), [(None, "error"), ("2.2.1", "error"), ("2.3.0", "ok"), ("2.13.0+cpu", "ok")])
def test_torch(monkeypatch: pytest.MonkeyPatch, version: str | None, verdict: str) -> None:
    versions(monkeypatch, torch=version)
    assert doctor.torch().verdict == verdict


@pytest.mark.parametrize("name", ["torch_geometric", "ogb"])
def test_missing_packages(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    versions(monkeypatch, **{name: None})
    row = getattr(doctor, name)()
    assert row.verdict in ("warning", "error") and "pip install" in row.fix


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("native", ["native: ", "GLT's own loaders and sampling on GPUs too", "0.2.4 on torch 1.0"]),
        ("unfit", ["unfit: ", "but Glt() and GLT's own samplers, which need", "0.2.4 on torch 1.0", "(it does not fit)"]),
        ("absent", ["absent: ", "but Glt() and GLT's own samplers", "(it does not fit)"]),
    ],
)
def test_glt_is_said_to_be_native_unfit_or_absent(monkeypatch: pytest.MonkeyPatch, kind: Any, words: list[str]) -> None:
    versions(monkeypatch)
    found = GltStatus(kind, "0.2.4", "it does not fit", "" if kind == "native" else "pip install it")
    row = doctor.glt_row(found)
    assert row.verdict == "ok" and all(word in row.value for word in words) and row.fix == found.fix


@pytest.mark.parametrize(
    ("torch", "word"), [("raise SystemExit('torn apart')", "torn apart"), ("import time; time.sleep(60)", "more than 0.5 s")]
)
def test_glt_that_cannot_be_looked_at_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, word: str) -> None:
    """Its library links to torch, which is imported for that; a library for another one may take the process with it."""
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "graphlearn_torch").mkdir()
    (tmp_path / "graphlearn_torch" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = doctor.glt_library(timeout_s=0.5 if "time" in torch else 60)
    assert row.verdict == "warning" and word in row.value and row.fix


def test_glt_here_is_what_the_loaders_find() -> None:
    assert doctor.glt_library().value.startswith("native") == is_native()


@pytest.mark.glt
@pytest.mark.slow(seconds=30)
def test_glt_is_native_in_the_second_environment_and_samples(glt_interpreter: Path) -> None:
    code = (
        "from gnnkit.cli import doctor\n"
        "glt = doctor.glt_library(); assert doctor.without_trial('Glt', [], glt) is None\n"
        "(row,) = doctor.trials(['Glt'])\n"
        "print(glt.value); print(row.value)"
    )
    done = subprocess.run([str(glt_interpreter), "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    glt, row = done.stdout.splitlines()
    assert glt.startswith("native: ") and "on torch 2.4.1" in glt
    assert row == "yes: 4 batches drawn by graphlearn-torch and checked"


def rows_of_trials(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, timeout_s: float = 60) -> list[Check]:
    """The rows of two trials that a script of ours makes."""
    (folder / "gnnkit_doctor_trial.py").write_text(f"import json, os, signal, sys, time\n{text}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return list(doctor.trials(["InProcess", "Colocated"], timeout_s=timeout_s, module="gnnkit_doctor_trial"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("sys.exit('no such library')", "ended with code 1: no such library"),
        ("time.sleep(60)", "did not end within 0.5 s"),
    ],
)
def test_a_trial_that_crashes_or_hangs_is_an_error_of_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    rows = rows_of_trials(tmp_path, monkeypatch, text, timeout_s=0.5 if "sleep" in text else 60)
    assert [row.verdict for row in rows] == ["error", "error"]
    assert words in rows[0].value and rows[0].value.startswith("no: its trial ")


def test_a_crash_leaves_the_row_before_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "print(json.dumps({'name': 'InProcess', 'ok': True, 'value': 'fine'}), flush=True)"
    rows = rows_of_trials(tmp_path, monkeypatch, f"{said}\nos.kill(os.getpid(), signal.SIGKILL)")
    assert [(row.verdict, row.value.split(":")[0]) for row in rows] == [("ok", "yes"), ("error", "no")]
    assert "SIGKILL" in rows[1].value


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Colocated(num_workers=1), GraphStore(num_servers=1)])
def test_batches_that_differ_are_an_error(backend: Any) -> None:
    with pytest.raises(RuntimeError, match="its batches are not those of InProcess"):
        trial.compare(backend, "others", trial.batches_here()[1:])


def test_a_trial_s_error_is_its_reason(capfd: pytest.CaptureFixture[str]) -> None:
    saved = os.dup(1)
    try:
        trial.main({"InProcess": lambda: str(1 // 0), "Colocated": lambda: "fine"})
    finally:
        os.dup2(saved, 1)
        os.close(saved)
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert first == {"name": "InProcess", "ok": False, "value": "ZeroDivisionError: integer division or modulo by zero"}
    assert second["ok"] and second["value"] == "fine"


def test_a_backend_that_is_not_tried_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [Check("torch", "not installed", "error", "pip install torch")]
    glt = Check("torch/GLT pairing", "python only: most of it", "ok", "install it")
    rows = {row.name.removeprefix("backend "): row for row in doctor.backends(broken, glt)}
    assert (rows["InProcess"].verdict, rows["InProcess"].fix) == ("error", "pip install torch")
    assert rows["InProcess"].value.startswith("no: torch")
    assert {*doctor.BACKENDS} - {doctor.SEVERAL_HOSTS} <= {*gnnkit.__all__}
    row = doctor.without_trial("Glt", [], glt)
    assert row is not None and (row.verdict, row.fix) == ("no", "install it")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert doctor.without_trial("Colocated", [], glt) == Check("backend Colocated", "no: it needs Linux, this is darwin", "no")
    assert doctor.without_trial("InProcess", [], glt) is None
