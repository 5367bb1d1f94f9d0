"""``gnnkit doctor``: its rows, verdicts and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gnnkit.cli.app import run
from gnnkit.cli.checks import backends, machine, software
from gnnkit.cli.checks.row import Check

ROWS = {
    "gnnkit", "Python", "torch", "torch_geometric", "kernels", "ogb", "torch/GLT pairing", "processors", "memory", "/dev/shm",
    "disk", "open files", "GPU", "network", "backend InProcess", "backend Colocated", "backend GraphStore",
}  # fmt: skip


@pytest.mark.slow
def test_this_machine_is_well_and_every_row_is_there() -> None:
    done = subprocess.run([sys.executable, "-m", "gnnkit", "doctor", "--warm", "--json"], capture_output=True, text=True, timeout=170)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    rows = {row["name"]: row for row in report["checks"]}
    assert rows.keys() == ROWS
    assert report["exit_code"] == done.returncode
    assert rows["backend InProcess"]["value"].startswith("yes: a batch of 4 seeds was sampled")
    assert rows["kernels"]["value"].startswith("compiled")
    assert all(row["fix"] for row in rows.values() if row["verdict"] in ("warning", "error"))


@pytest.mark.parametrize(("verdicts", "code"), [(["ok", "no"], 0), (["ok", "warning"], 1), (["warning", "error", "ok"], 2)])
def test_the_worst_row_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], verdicts: list[Any], code: int
) -> None:
    checks = [Check(f"row {i}", "found", verdict, "do this") for i, verdict in enumerate(verdicts)]
    monkeypatch.setattr("gnnkit.cli.doctor.all_checks", lambda: iter(checks))
    assert run(["doctor"]) == code
    out = capfd.readouterr().out
    for check in checks:
        assert check.name in out and check.verdict in out
    assert run(["doctor", "--json"]) == code
    assert [row["verdict"] for row in json.loads(capfd.readouterr().out)["checks"]] == verdicts


@pytest.mark.parametrize(("free", "verdict"), [(20e9, "ok"), (2e9, "warning"), (0.5e9, "error")])
def test_memory(monkeypatch: pytest.MonkeyPatch, free: float, verdict: str) -> None:
    monkeypatch.setattr("gnnkit.host.available_memory", lambda: int(free))
    row = machine.memory()
    assert row.verdict == verdict
    assert bool(row.fix) == (verdict != "ok")


@pytest.mark.parametrize(("free", "verdict"), [(64e9, "ok"), (1e9, "warning"), (0.1e9, "error")])
def test_disk(monkeypatch: pytest.MonkeyPatch, free: float, verdict: str) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free, total=100e9))
    assert machine.disk().verdict == verdict


def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    row = machine.disk()
    assert row.verdict == "error" and "GNNKIT_HOME" in row.fix


def test_docker_s_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=64 << 20, total=64 << 20))
    row = machine.shared_memory()
    assert row.verdict == "warning" and "--shm-size" in row.fix


@pytest.mark.parametrize(("count", "verdict"), [(1, "warning"), (2, "ok")])
def test_processors(monkeypatch: pytest.MonkeyPatch, count: int, verdict: str) -> None:
    monkeypatch.setattr("gnnkit.host.available_cpus", lambda: count)
    assert machine.processors().verdict == verdict


@pytest.mark.parametrize(("soft", "verdict"), [(256, "warning"), (4096, "ok")])
def test_open_files(monkeypatch: pytest.MonkeyPatch, soft: int, verdict: str) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (soft, 1 << 20))
    assert machine.open_files().verdict == verdict


def versions(monkeypatch: pytest.MonkeyPatch, **installed: str | None) -> None:
    known = {name.replace("_", "-"): version for name, version in installed.items()}
    monkeypatch.setattr(software, "_installed", lambda package: known.get(package.replace("_", "-"), "1.0"))


@pytest.mark.parametrize(("version", "verdict"), [(None, "error"), ("2.2.1", "error"), ("2.3.0", "ok"), ("2.13.0+cpu", "ok")])
def test_torch(monkeypatch: pytest.MonkeyPatch, version: str | None, verdict: str) -> None:
    versions(monkeypatch, torch=version)
    assert software.torch().verdict == verdict


@pytest.mark.parametrize("name", ["torch_geometric", "ogb"])
def test_missing_packages(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    versions(monkeypatch, **{name: None})
    row = getattr(software, name)()
    assert row.verdict in ("warning", "error") and "pip install" in row.fix


def test_glt_is_said_to_be_absent_native_or_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software.util, "find_spec", lambda name: object())
    versions(monkeypatch, graphlearn_torch=None)
    assert "without it" in software.glt().value
    versions(monkeypatch, graphlearn_torch="0.2.4", torch="2.13.0")
    row = software.glt()
    assert row.verdict == "ok" and "without its native library" in row.value and "glt-native" in row.fix
    versions(monkeypatch, graphlearn_torch="0.2.4", torch="2.4.1+cu121")
    monkeypatch.setattr(software, "_glt_load_error", lambda: None)
    assert "with its native library" in software.glt().value
    monkeypatch.setattr(software, "_glt_load_error", lambda: "libc10_cuda.so: not found")
    assert "libc10_cuda.so" in software.glt().value


@pytest.mark.glt
def test_glt_is_native_in_the_second_environment(glt_interpreter: Any) -> None:
    code = "from gnnkit.cli.checks.software import glt; print(glt().value)"
    done = subprocess.run([str(glt_interpreter), "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "with its native library on torch 2.4.1" in done.stdout


def test_a_backend_says_no_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    row = backends.backend("InProcess", [Check("torch", "not installed", "error", "pip install torch")])
    assert (row.verdict, row.fix) == ("error", "pip install torch")
    assert row.value.startswith("no: torch")
    monkeypatch.setattr(backends, "_sample_once", lambda: 1 // 0)
    row = backends.backend("InProcess", [])
    assert row.verdict == "error" and "ZeroDivisionError" in row.value
    row = backends.backend("Nonexistent", [])
    assert row.verdict == "no" and "not part of gnnkit" in row.value
