"""A sampler of one's own, as the page on architecture shows it, in a module that only the import path leads to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.plan import Sampling
from gnnkit.plan.sampling import sampling_from_json
from tests.docs.test_code_blocks import DOCS, blocks_of

_START = """
import hashlib, sys
import gnnkit

def said(loader):
    digest = hashlib.md5()
    for batch in loader:
        for part in (batch.n_id, batch.edge_index, batch.e_id, batch.x):
            digest.update(part.numpy().tobytes())
    print(digest.hexdigest())
"""
_MAKE = (
    _START
    + """
from forest_fire import ForestFire

store = gnnkit.partition(gnnkit.datasets.cora(), 2, out="store", with_edge=True)
options = dict(sampler=ForestFire(0.4, hops=3), input_nodes="train", batch_size=64, with_edge=True, progress=False)
with gnnkit.GraphLoader.from_store(store, **options) as loader:
    loader.plan.save("plan.json")
    said(loader.for_split("train", shuffle=False))
    for backend in (gnnkit.InProcess(2), gnnkit.Colocated(1), gnnkit.GraphStore(num_servers=1)):
        with loader.with_backend(backend, shuffle=False) as other:
            said(other)
"""
)
_EXPORT = """
import gnnkit
from forest_fire import ForestFire

store = gnnkit.partition(gnnkit.datasets.cora(), 1, out="store")
with gnnkit.GraphLoader.from_store(store, sampler=ForestFire(0.4), input_nodes="train", batch_size=64, progress=False) as loader:
    loader.export("job", train="train.py", gpus_per_node=0)
"""
_READ = (
    _START
    + """
with gnnkit.GraphLoader.from_plan("plan.json", progress=False) as loader:
    said(loader.for_split("train", shuffle=False))
"""
)
_TRAIN = "def train(loader, ctx):\n    for batch in loader:\n        pass\n"
_NOTEBOOK = """
with gnnkit.GraphLoader.from_pyg(gnnkit.datasets.cora(), sampler=ForestFire(), batch_size=64, progress=False) as loader:
    print(loader.peek().batch_size, loader.for_split("valid").peek().batch_size)
    for use in (lambda: loader.with_backend("colocated"), lambda: loader.with_backend("graph_store")):
        try:
            use()
        except gnnkit.errors.PlanError as error:
            print(error.hint)
"""


def run(folder: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (script := folder / "script.py").write_text(code)
    variables = {**os.environ, "PYTHONPATH": "", **environment}
    return subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=240, env=variables)


@pytest.fixture(scope="module")
def page() -> list[str]:
    return [code.lstrip("\n") for code in blocks_of(DOCS / "development" / "architecture.md")]


@pytest.fixture
def outside(page: list[str], tmp_path: Path) -> Path:
    (tmp_path / "forest_fire.py").write_text(page[0])
    (tmp_path / "train.py").write_text(_TRAIN)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_gives_the_same_batches_everywhere(outside: Path) -> None:
    made = run(outside, _MAKE)
    assert made.returncode == 0, made.stderr
    digests = made.stdout.split()
    assert len(digests) == 4 and len(set(digests)) == 1
    read = run(outside, _READ)  # a process that knows of it by the plan alone
    assert read.returncode == 0, read.stderr
    assert read.stdout.split() == digests[:1]
    (outside / "forest_fire.py").unlink()
    missing = run(outside, _READ)
    assert missing.returncode and "the module forest_fire, which cannot be imported here" in missing.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_brings_it(outside: Path) -> None:
    made = run(outside, _EXPORT)
    assert made.returncode == 0, made.stderr
    (outside / "forest_fire.py").unlink()
    command = [Path(sys.executable).with_name("gnnkit"), "export", "--verify", "job", "--num-batches", "2"]
    verified = subprocess.run(command, cwd=outside, capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": ""})
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_what_a_notebook_defines_samples_in_it_alone(page: list[str], tmp_path: Path) -> None:
    told = run(tmp_path, page[0] + "import gnnkit\n" + _NOTEBOOK)
    assert told.returncode == 0, told.stderr
    sizes, *hints = told.stdout.splitlines()
    assert sizes == "64 64" and len(hints) == 2
    assert all("move its classes into a file beside it, forest_fire.py" in hint for hint in hints)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("no_such_module", "cannot be imported here: ModuleNotFoundError"),
        ("antigravity", "which is no module with samplers"),
        ("gnnkit.demo", "which is no module with samplers"),
        ("../forest_fire", "which is no module with samplers"),
        ("", "which is no module with samplers"),
        (7, "which is no module with samplers"),
        ("__main__", "defined in the notebook or script itself"),
        ("numpy", "numpy has no sampler of the kind"),
    ],
)
def test_plans_that_name_no_module_of_samplers(tmp_path: Path, module: object, says: str) -> None:
    store = gnnkit.partition(gnnkit.datasets.products_like(0.0005), 1, out=tmp_path / "store")
    with GraphLoader.from_store(store, num_neighbors=[2], progress=False) as loader:
        loader.plan.save(plan := tmp_path / "plan.json")
    value = json.loads(plan.read_text())
    value["sampling"] = {"kind": "forest_fire", "module": module, "burn": 0.5, "hops": 2}
    plan.write_text(json.dumps(value))
    with pytest.raises(PlanError, match=says):
        GraphLoader.from_plan(plan)


def test_two_ways_of_sampling_of_one_kind() -> None:
    with pytest.raises(PlanError, match="has the kind 'neighbors' of NeighborSampling"):
        type("Other", (Sampling,), {"kind": "neighbors"})
    assert type(sampling_from_json({"kind": "neighbors", "num_neighbors": []})).__name__ == "NeighborSampling"
