"""An environment of an exported job's own requirements, and nothing else, can import its program and gnnkit."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gnnkit import GraphLoader
from gnnkit.export.job_files import requirements_text
from tests.export.graphs import make_store
from tests.helpers.machine import ROOT

BUILD = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
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
    names = {line.partition("==")[0] for line in requirements_text("import torch").splitlines()}
    assert {"gnnkit", "torch", "torch-geometric", "numba"} <= names
    assert not names & {"ipywidgets", "ipython", "ipykernel", "jupyterlab", "jupyterlab-widgets", "comm", "traitlets", "matplotlib"}
    assert "ipywidgets" in {line.partition("==")[0] for line in requirements_text("import ipywidgets").splitlines()}


def link_what_is_required(requirements: list[str], environment: Path) -> None:
    """Gives an environment the distributions that requirements lead to, as links to this one's files; all but gnnkit, which has a wheel."""
    site = environment / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    linked: set[tuple[str, str]] = set()
    asked = [(Requirement(line), "") for line in requirements if line and not line.startswith("#")]
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
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    run(sys.executable, "-c", BUILD, wheels, cwd=ROOT, timeout_s=120)
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path, timeout_s=120)
    python = tmp_path / "env/bin/python"
    link_what_is_required((job / "requirements.txt").read_text().splitlines(), tmp_path / "env")
    # pip finds every pin and all that it needs in its place, or says what is not; unpacking torch once more would show the same.
    options = ("-q", "--no-compile", "--no-index", "--disable-pip-version-check", "--find-links", wheels)
    install = (sys.executable, "-m", "pip", "--python", python, "install", *options, "-r", job / "requirements.txt")
    run(*install, cwd=tmp_path, timeout_s=240)
    answer = json.loads(run(python, "-c", IMPORT, cwd=job, timeout_s=300))
    assert answer[0] == "train"
    assert answer[1].startswith(str(tmp_path / "env")), "the wheel's, not the checkout's"
    pinned = (job / "requirements.txt").read_text().splitlines()
    assert f"torch=={answer[2].partition('+')[0]}" in pinned
    assert f"gnnkit=={answer[3]}" in pinned
