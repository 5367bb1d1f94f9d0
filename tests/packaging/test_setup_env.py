"""The script behind ``make demo`` and ``make test``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT
from tools import setup_env as script


def options(**changes: object) -> argparse.Namespace:
    values: dict[str, object] = {"constraint": ["constraints.txt"], "extra": [], "group": [], "torch": None, "wheels": ""}
    return argparse.Namespace(**{**values, **changes})


TORCHES = [("2.3.0", True), ("2.13.0+cpu", True), ("2.10.1", True), ("2.2.2", False), ("1.13.1", False)]


@pytest.mark.parametrize(("installed", "reused"), TORCHES)
def test_a_torch_that_is_new_enough_is_reused(monkeypatch: pytest.MonkeyPatch, installed: str, reused: bool) -> None:
    monkeypatch.setattr(script.metadata, "version", lambda name: installed)
    assert script.reusable_torch() == (installed if reused else None)


def test_pins_would_not_replace_a_reused_torch(tmp_path: Path) -> None:
    _, path = script.constraint_arguments(tmp_path, options(), True)
    pins = Path(path).read_text()
    assert "\ntorch==" not in pins and "\nnumpy==" not in pins
    assert "\nnumba==" in pins and "\ntorch-geometric==" in pins


def test_another_torch_takes_the_place_of_the_pinned_one(tmp_path: Path) -> None:
    _, path = script.constraint_arguments(tmp_path, options(torch="2.4.1"), False)
    lines = Path(path).read_text().splitlines()
    assert [line for line in lines if line.startswith("torch==")] == ["torch==2.4.1"]


def test_an_environment_for_more_serves_fewer(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    stamp = script.stamp_of(options(), None)
    (tmp_path / "gnnkit-stamp.json").write_text(json.dumps({**stamp, "groups": ["lint", "test"]}))
    assert script.is_current(tmp_path, stamp, ["test"])
    assert not script.is_current(tmp_path, stamp, ["test", "package"])
    assert not script.is_current(tmp_path, {**stamp, "torch": "2.5.0"}, ["test"])


def test_sizes_are_looked_up(tmp_path: Path) -> None:
    wheel = tmp_path / "a b.whl"
    wheel.write_bytes(b"x" * 1234)
    assert script.file_size(wheel.as_uri()) == 1234
    assert script.file_size((tmp_path / "none.whl").as_uri()) is None
    assert script.file_size("http://127.0.0.1:9/none.whl") is None


def test_a_download_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "file_size", lambda url: 10**15)
    with pytest.raises(SystemExit, match="are free"):
        script.announce(tmp_path, [("torch", "2.13.0", "file:///none")])


def test_what_was_installed_is_compiled_and_what_cannot_be_is_left(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    (tmp_path / "lib").mkdir()
    for name, text in {"sound": "x = 1\n", "newer": "def f[T(: pass\n"}.items():
        (tmp_path / f"lib/{name}.py").write_text(text)
    script.compile_all(tmp_path)
    assert [path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")] == ["sound"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("version", [("2.7"), ("none")])
def test_no_suitable_python_is_one_sentence(version: str, tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    python = str(old) if version == "2.7" else "/nonexistent/python"
    done = subprocess.run(["make", "--no-print-directory", "test", f"PYTHON={python}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "needs Python 3.10 or newer" in done.stderr.splitlines()[0]


def test_every_pin_is_a_version() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in pin and "+" not in pin and "://" not in pin for pin in pins)
    assert any(pin == "torch==2.13.0" for pin in pins)
