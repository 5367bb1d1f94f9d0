"""An environment of an exported job's own requirements, and nothing else, can import its program and gnnkit."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.export.job_files import requirements_text
from gnnkit.export.writer import changed_files
from tests.export.graphs import make_store
from tests.helpers.machine import ROOT

WHEEL = f"gnnkit-{metadata.version('gnnkit')}-py3-none-any.whl"
IMPORT = """
import importlib.metadata as metadata, json, pathlib
from gnnkit.jobs.running import load_train
train = load_train(pathlib.Path("train.py"))
print(json.dumps([train.__name__, gnnkit_file, metadata.version("torch"), metadata.version("gnnkit")]))
""".replace("gnnkit_file", "__import__('gnnkit').__file__")


def run(*command: str | Path, cwd: Path, timeout_s: float) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=plain, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_notebook_tools_are_pinned_only_where_the_program_imports_them() -> None:
    names = {line.partition("==")[0] for line in requirements_text("import torch", WHEEL).splitlines()}
    assert {f"./{WHEEL}", "torch", "torch-geometric", "numba"} <= names
    assert not names & {"ipywidgets", "ipython", "ipykernel", "jupyterlab", "jupyterlab-widgets", "comm", "traitlets", "matplotlib"}
    assert "ipywidgets" in {line.partition("==")[0] for line in requirements_text("import ipywidgets", WHEEL).splitlines()}


def link_what_is_required(requirements: list[str], environment: Path) -> None:
    """Gives an environment the distributions that requirements lead to, as links to this one's files; all but gnnkit, which has a wheel."""
    site = environment / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    linked: set[tuple[str, str]] = set()
    asked = [(Requirement("gnnkit" if line.startswith("./") else line), "") for line in requirements if line and not line.startswith("#")]
    while asked:
        wanted, extra = asked.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        found = metadata.distribution(wanted.name)
        new = {(found.name, extra) for extra in {"", *wanted.extras}} - linked
        asked += [(Requirement(line), extra) for _, extra in new for line in found.requires or []]
        if found.name != "gnnkit" and found.name not in {name for name, _ in linked}:
            for file in found.files or []:
                target = site / file
                if ".." not in file.parts and not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.symlink_to(found.locate_file(file))
        linked |= new


@pytest.mark.slow(seconds=20)
def test_a_fresh_environment_of_its_own_requirements_imports_the_program(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    with GraphLoader.from_store(store, num_neighbors=[2], batch_size=8, backend="inprocess", progress=False) as loader:
        job = loader.export(tmp_path / "job", gpus_per_node=0).directory
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path, timeout_s=120)
    python = tmp_path / "env/bin/python"
    link_what_is_required((job / "requirements.txt").read_text().splitlines(), tmp_path / "env")
    # pip finds every pin and all that it needs in its place, or says what is not; unpacking torch once more would show the same.
    options = ("-q", "--no-compile", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, "-r", "requirements.txt", cwd=job, timeout_s=240)
    answer = json.loads(run(python, "-c", IMPORT, cwd=job, timeout_s=300))
    assert answer[0] == "train"
    assert answer[1].startswith(str(tmp_path / "env")), "the wheel's, not the checkout's"
    pinned = (job / "requirements.txt").read_text().splitlines()
    assert f"torch=={answer[2].partition('+')[0]}" in pinned
    assert f"./{WHEEL}" in pinned and answer[3] in WHEEL


def export(folder: Path, store: Path) -> Path:
    with GraphLoader.from_store(store, num_neighbors=[2], batch_size=8, backend="inprocess", progress=False) as loader:
        return loader.export(folder, gpus_per_node=0).directory


def test_a_job_carries_the_wheel_of_the_gnnkit_that_exported_it(tmp_path: Path) -> None:
    job = export(tmp_path / "job", make_store(tmp_path / "store"))
    with zipfile.ZipFile(job / WHEEL) as archive:
        assert archive.testzip() is None
        listed = {line.split(",")[0] for line in archive.read(archive.namelist()[-1]).decode().splitlines()}
        held = {name: archive.read(name) for name in archive.namelist()}
    assert set(held) == listed
    package = ROOT / "gnnkit"
    sources = {file.relative_to(ROOT).as_posix(): file.read_bytes() for file in package.rglob("*.py")}
    assert sources.items() <= held.items(), "as they are here, whatever was installed before they were edited"
    assert "gnnkit/data/cora/cora.npz" in held and not [name for name in held if "__pycache__" in name]
    assert changed_files(job) == []


def test_equal_files_make_equal_wheels(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    first, second = export(tmp_path / "one", store), export(tmp_path / "two", store)
    assert (first / WHEEL).read_bytes() == (second / WHEEL).read_bytes()
    (first / WHEEL).write_bytes(b"")
    assert changed_files(first) == [WHEEL]
    with pytest.raises(PlanError, match=re.escape(WHEEL)):
        export(first, store)


AGAIN = """
import sys, gnnkit
from gnnkit import GraphLoader
with GraphLoader.from_store(sys.argv[1], num_neighbors=[2], batch_size=8, backend="inprocess", progress=False) as loader:
    loader.export("again", gpus_per_node=0)
print(gnnkit.__file__)
"""


def test_an_environment_without_gnnkit_installs_the_wheel_without_any_index(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    job = export(tmp_path / "job", store)
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path, timeout_s=120)
    python, (site,) = tmp_path / "env/bin/python", (tmp_path / "env").glob("lib/python*/site-packages")
    options = ("-q", "--no-compile", "--no-index", "--no-deps", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, f"./{WHEEL}", cwd=job, timeout_s=120)
    assert (tmp_path / "env/bin/gnnkit").exists() and (site / "gnnkit/data/cora/cora.npz").exists()
    # What gnnkit needs is this environment's, behind its own packages.
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    assert run(python, "-c", AGAIN, store, cwd=tmp_path, timeout_s=120).strip() == str(site / "gnnkit/__init__.py")
    assert (tmp_path / "again" / WHEEL).read_bytes() == (job / WHEEL).read_bytes(), "also of what was installed from a wheel"


def test_a_gnnkit_that_is_not_installed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, real = make_store(tmp_path / "store"), metadata.distribution

    def without_gnnkit(name: str) -> metadata.Distribution:
        return real("no-such-distribution" if name == "gnnkit" else name)

    monkeypatch.setattr(metadata, "distribution", without_gnnkit)
    with pytest.raises(PlanError, match="is not installed.*\n.*-> pip install -e ."):
        export(tmp_path / "job", store)
    assert not (tmp_path / "job").exists()
