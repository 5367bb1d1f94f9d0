"""The wheel and the sdist hold what they should, and the wheel works where nothing of the checkout is."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT

BUILD = "import sys, hatchling.build as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


def build(kind: str, folder: Path) -> Path:
    done = subprocess.run([sys.executable, "-c", BUILD, kind, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def data_files() -> set[str]:
    if not (ROOT / ".git").exists():  # an unpacked sdist
        return {str(path.relative_to(ROOT)) for path in ROOT.glob("data/**/*") if path.is_file()}
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "data"], cwd=ROOT, capture_output=True, text=True)
    return {line for line in listed.stdout.splitlines() if (ROOT / line).is_file()}


def test_the_wheel_holds_the_package_its_types_and_its_data(wheel_names: set[str]) -> None:
    assert "gnnkit/py.typed" in wheel_names
    sources = {str(path.relative_to(ROOT)) for path in ROOT.glob("gnnkit/**/*.py")}
    assert sources <= wheel_names
    assert data_files()
    assert {f"gnnkit/{name}" for name in data_files()} <= wheel_names
    templates = {str(path.relative_to(ROOT)) for pattern in ("j2", "html", "css") for path in ROOT.glob(f"gnnkit/**/*.{pattern}")}
    assert templates <= wheel_names


def test_the_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"gnnkit"}
    assert not [name for name in wheel_names if "__pycache__" in name or name.endswith((".pyc", ".nbi", ".nbc"))]


def test_the_wheel_is_small_and_pure(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 10_000_000


def test_the_metadata_says_what_users_need(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_string(archive.read(name).decode())
    assert metadata["Requires-Python"] == ">=3.10"
    text = metadata.get_payload()
    assert isinstance(text, str) and "from_ogb" in text and "](" not in text and "<img" not in text, "nothing that is not in the wheel"
    assert metadata["License-Expression"] == "Apache-2.0"
    needs = metadata.get_all("Requires-Dist") or []
    torch = [need for need in needs if need.startswith("torch>") and "extra" not in need]
    assert torch == ["torch>=2.3"], "torch has a lower bound and no upper one"
    glt = [need for need in needs if need.startswith("graphlearn-torch")]
    assert len(glt) == 1 and "extra" not in glt[0] and "python_version < '3.12'" in glt[0] and "'x86_64'" in glt[0]
    assert {"glt-native", "metis", "plots"} <= set(metadata.get_all("Provides-Extra") or [])


@pytest.mark.slow
def test_the_sdist_holds_the_project(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "DESCRIPTION.md"}
    wanted |= {"Makefile", "constraints.txt", "tools/setup_env.py", ".ci/run"}
    assert wanted <= names
    assert data_files() <= names
    assert {"tests/conftest.py", "gnnkit/py.typed"} <= names
    linked = re.findall(r"(?:\]\(|src(?:set)?=\")([^)\"#:]+)[)\"]", (ROOT / "README.md").read_text())
    assert linked and set(linked) <= names, "README's links and pictures are those of files that come along"
    assert not [name for name in names if name.startswith((".venv", ".envs", ".git/")) or "__pycache__" in name]


def test_the_wheel_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "import gnnkit, pathlib\nfrom gnnkit.shipped import shipped_data_dir\nprint(gnnkit.__file__); print(shipped_data_dir())\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    places = done.stdout.split()
    assert all(place.startswith(str(tmp_path / "site")) for place in places), places
