"""An exported directory: what is in it, what it refuses, and that nothing of it is ever half there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import Colocated, GraphLoader, GraphStore, InProcess, LoaderPlan, OnDevice, Store
from gnnkit.errors import PlanError, StoreError
from gnnkit.export import writer
from gnnkit.export.job_files import requirements_text
from tests.export.graphs import exported, make_store
from tests.helpers.batches import digest
from tests.helpers.command import run as gnnkit_command

BACKENDS: dict[str, Any] = {
    "InProcess": InProcess(),
    "Colocated": Colocated(num_workers=3, threads_per_worker=2),
    "GraphStore": GraphStore(),
    "OnDevice": OnDevice("cuda:1"),
}
WHEEL = f"gnnkit-{metadata.version('gnnkit')}-py3-none-any.whl"
COMMON = {"plan.json", "train.py", "requirements.txt", "README.md", "export.json", WHEEL}
LAUNCH = {
    "torchrun": {"launch.sh"},
    "slurm": {"job.sbatch"},
    "pbs": {"job.pbs", "launch.sh"},
    "kubernetes": {"job.yaml", "launch.sh"},
    "skypilot": {"sky.yaml", "launch.sh"},
    "trainjob": {"job.yaml", "launch.sh"},
}


def train(loader: Any, ctx: Any) -> int:
    return 1


@pytest.fixture
def loader(store: Path) -> Iterator[GraphLoader]:
    with GraphLoader.from_store(store, num_neighbors=[3, 2], batch_size=16, backend="inprocess", progress=False) as made:
        yield made


@pytest.fixture
def export(loader: GraphLoader, tmp_path: Path) -> Callable[..., Path]:
    return exporting(loader, tmp_path)


def exporting(loader: GraphLoader, tmp_path: Path) -> Callable[..., Path]:
    """Exports a loader's plan to ``tmp_path / "job"``."""

    def run(backend: str = "InProcess", name: str = "job", **options: Any) -> Path:
        plan = json.loads(json.dumps({**loader.plan.to_json(), "backend": BACKENDS[backend].to_json()}))
        made = LoaderPlan.from_json(plan)
        job = exported(made, tmp_path / name, **{"gpus_per_node": 0, "train": train, **options})
        assert set(job.files) <= {path.name for path in job.directory.iterdir()}
        return job.directory

    return run


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("launcher", LAUNCH)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_is_a_few_files_that_a_readme_explains(export: Callable[..., Path], tmp_path: Path, launcher: str, backend: str) -> None:
    servers, is_alone = backend == "GraphStore", backend in ("InProcess", "OnDevice")
    if servers and launcher == "skypilot":
        with pytest.raises(PlanError, match="storage servers never end"):
            export(backend, launcher=launcher, storage_nodes=2)
        assert not (tmp_path / "job").exists()
        return
    job = export(backend, launcher=launcher, nodes=4, procs_per_node=8, storage_nodes=2 if servers else 0, servers_per_node=2)
    names = {path.name for path in job.iterdir()}
    extra = (set() if is_alone else {"stage.sh"}) | ({"serve.sh"} if servers else set())
    assert names == COMMON | LAUNCH[launcher] | extra
    assert len(names) <= 10
    readme = (job / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in names - {"README.md"})
    for wanted in (
        "gnnkit run plan.json --train train.py",
        "gnnkit export --verify .",
        "## Ports",
        "ephemeral",
        "## Resume",
        "## When something fails",
    ):
        assert wanted in readme
    if servers and launcher == "torchrun":  # it is copied with the others
        assert readme.index("Make the token") < readme.index("Bring this directory") < readme.index("Start the storage servers")
    for path in job.iterdir():
        assert str(tmp_path).encode() not in path.read_bytes() or path.name == "plan.json", "no path of this machine but the store's"
        assert os.access(path, os.X_OK) == (path.suffix == ".sh")
    record = json.loads((job / "export.json").read_text())
    assert record["options"] == {
        "launcher": launcher,
        "nodes": 4,
        "procs_per_node": 8,
        "storage_nodes": 2 if servers else 0,
        "servers_per_node": 2,
        "interface": None,
        "backend": backend,
        "gpus_per_proc": 0,
        "placement": "replicate" if is_alone else "partition",
        "cut_from": None if is_alone else record["options"]["cut_from"],
    }
    assert set(record["files"]) == names - {"export.json"}
    assert not writer.changed_files(job)


def test_gpus_are_one_for_each_rank_or_none(loader: GraphLoader, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"gpus_per_node=1, and each of the 2 ranks"):
        loader.export(tmp_path / "job", procs_per_node=2, gpus_per_node=1)
    with pytest.raises(PlanError, match="gpus_per_node"):
        loader.export(tmp_path / "job", gpus_per_node=-1)
    job = loader.export(tmp_path / "job", "slurm", procs_per_node=2, gpus_per_node=4)
    assert "#SBATCH --gpus-per-node=4\n" in (job.directory / "job.sbatch").read_text() and "4 GPUs on each node" in str(job)
    without = loader.export(tmp_path / "job", "slurm", procs_per_node=2, gpus_per_node=0)
    for told in (str(without), (job.directory / "job.sbatch").read_text(), (job.directory / "README.md").read_text()):
        assert "no GPU: ranks train on processors; export with gpus_per_node=2" in told


def test_the_plan_is_the_loaders_for_any_number_of_ranks(export: Callable[..., Path], loader: GraphLoader) -> None:
    plan = LoaderPlan.load(export("Colocated", nodes=2, interface="eth7", placement="replicate") / "plan.json")
    assert (plan.inputs, plan.sampling, plan.batching) == (loader.plan.inputs, loader.plan.sampling, loader.plan.batching)
    assert (plan.batching.rank, plan.batching.world_size, plan.placement) == (0, 1, None)
    assert plan.backend == {**BACKENDS["Colocated"].to_json(), "interface": "eth7"}
    job = export("Colocated", "spread", nodes=2, placement="features")
    spread = LoaderPlan.load(job / "plan.json").placement
    assert spread is not None and spread.word == "features" and spread.hosts == ((0,), (1,))
    left_out = "'--include=/part0/***' '--exclude=/part*/nodes/*/x.npy' '--exclude=/part*/edges/*/edge_attr.npy' '--exclude=/part*/cache/'"
    assert left_out in (job / "README.md").read_text()
    on_device = LoaderPlan.load(export("OnDevice", "on_device", nodes=2) / "plan.json")
    assert on_device.backend["device"] == "cuda", "each rank's own"
    served = LoaderPlan.load(export("GraphStore", storage_nodes=1) / "plan.json")
    assert served.backend["address"] is None, "it comes from the launcher's variables"


@pytest.mark.slow
def test_stage_cuts_the_store_that_the_plan_names(loader: GraphLoader, tmp_path: Path) -> None:
    """The step of the README for real; before it the plan's store is missing, and after it the batches are the notebook's."""
    shutil.copytree(str(loader.plan.store and loader.plan.store.path), tmp_path / "stores/tiny")
    with GraphLoader.from_store(tmp_path / "stores/tiny", num_neighbors=[3, 2], batch_size=16, progress=False) as own:
        export = exporting(own, tmp_path)
        job = export("Colocated", nodes=3)
    plan = LoaderPlan.load(job / "plan.json")
    assert plan.store is not None
    assert plan.placement is not None
    assert plan.placement.hosts == ((0,), (1,), (2,))
    with pytest.raises(StoreError):
        GraphLoader.from_plan(job / "plan.json", progress=False)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("job", "stores"):
        (tmp_path / name).rename(moved / name)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run([moved / "job/stage.sh"], cwd="/", env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    cut = Path(str(LoaderPlan.load(moved / "job/plan.json").store and LoaderPlan.load(moved / "job/plan.json").store.path))  # type: ignore[union-attr]
    assert (Store.open(cut).fingerprint, Store.open(cut).num_parts) == (plan.store.fingerprint, 3)
    with GraphLoader.from_plan(moved / "job/plan.json", progress=False) as there:
        assert digest(there) == digest(loader)
    with pytest.raises(StoreError, match="there is no store"):  # the first one has gone elsewhere, too
        export("Colocated", nodes=3, name="again")


def test_a_store_that_was_cut_already_is_taken(export: Callable[..., Path], store: Path, loader: GraphLoader) -> None:
    from gnnkit import BuildOptions
    from gnnkit.storage.catalog import store_path

    manifest = Store.open(store).manifest
    cut = make_store(store_path(store.parent, manifest.name, BuildOptions(2), manifest.source_fingerprint), 2)
    try:
        job = export("Colocated", nodes=2)
        assert not (job / "stage.sh").exists()
        assert str(LoaderPlan.load(job / "plan.json").store.path) == str(cut)  # type: ignore[union-attr]
    finally:
        shutil.rmtree(cut)


def test_an_export_over_an_earlier_one_keeps_what_is_not_its_own(export: Callable[..., Path]) -> None:
    job = export(launcher="torchrun")
    (job / "run").mkdir()
    (job / "run/checkpoint").write_text("state")
    (job / "notes.txt").write_text("mine")
    assert export(launcher="slurm") == job
    assert {path.name for path in job.iterdir()} == COMMON | {"job.sbatch", "run", "notes.txt"}
    assert (job / "run/checkpoint").read_text() == "state"


def test_what_somebody_has_changed_is_not_written_over(export: Callable[..., Path]) -> None:
    job = export()
    for name in ("train.py", "launch.sh"):
        with (job / name).open("a") as file:
            file.write("# mine\n")
    before = content(job)
    with pytest.raises(PlanError, match=r"launch.sh, train.py in .* have been changed since the export") as caught:
        export(nodes=2)
    assert "overwrite=True" in str(caught.value.hint)
    with pytest.raises(PlanError, match=r"launch.sh, train.py"):  # not even one that the job would not have any more
        export(launcher="slurm")
    assert content(job) == before
    assert writer.changed_files(job) == ["launch.sh", "train.py"]
    export(launcher="slurm", overwrite=True)
    assert {path.name for path in job.iterdir()} == COMMON | {"job.sbatch"}
    (job / "train.py").unlink()  # what is gone was not changed by anybody who wants to keep it
    export(launcher="slurm")
    (job / "launch.sh").write_text("# my own, and no export's")
    with pytest.raises(PlanError, match=r"launch.sh in .* has been changed"):
        export(launcher="torchrun")


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("earlier", [True, False])
def test_a_broken_export_leaves_what_was_there(
    export: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, earlier: bool
) -> None:
    if earlier:
        export()
    before = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for calls in range(3):
        left = [calls]

        def fail(file: int) -> None:
            left[0] -= 1  # noqa: B023
            if left[0] < 0:  # noqa: B023
                raise error

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises((KeyboardInterrupt, PlanError)) as caught:
            export(nodes=2)
        assert isinstance(error, KeyboardInterrupt) or "the disk is full (" in str(caught.value)
        assert {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    monkeypatch.undo()
    export(nodes=2)


def test_an_export_that_was_killed_in_the_midst_is_completed_by_the_same_call(export: Callable[..., Path], tmp_path: Path) -> None:
    """Files are replaced one by one, and the record is last: what has its new content already was changed by nobody."""
    job, other = export(), export(name="other", nodes=2)
    shutil.copy(other / "launch.sh", job / "launch.sh")
    shutil.copy(other / "plan.json", job / "plan.json")
    (other / "README.md").unlink()
    with pytest.raises(PlanError, match="launch.sh"):
        export(nodes=3)
    shutil.rmtree(other)
    job.rename(other)
    export(name="other", nodes=2)
    assert not writer.changed_files(other)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"launcher": "slrm"}, "did you mean 'slurm'"),
        ({"nodes": 0}, "nodes must be a whole number of at least 1, got 0"),
        ({"procs_per_node": True}, "procs_per_node must be a whole number"),
        ({"storage_nodes": -1}, "storage_nodes must be"),
        ({"servers_per_node": 1.5}, "servers_per_node must be"),
        ({"storage_nodes": 1}, "storage_nodes=1, but InProcess has no servers"),
        ({"backend": "GraphStore"}, "needs nodes for its servers"),
        ({"nodes": 2, "placement": "partition"}, "InProcess has none"),
        ({"placement": "everywhere"}, "placement must be"),
        ({"interface": "eth0; rm -rf /"}, "is neither the name nor the address"),
        ({"interface": ""}, "is neither the name nor the address"),
        ({"train": 3}, "train must be a function"),
        ({"train": "nowhere.py"}, "cannot be read"),
    ],
)
def test_wrong_input_writes_nothing(export: Callable[..., Path], tmp_path: Path, options: dict[str, Any], what: str) -> None:
    with pytest.raises(PlanError) as caught:
        export(**options)
    assert what in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_loader_without_a_store_and_one_with_a_transform_are_refused(store: Path, tmp_path: Path) -> None:
    import torch
    from torch_geometric.data import Data

    data = Data(x=torch.ones(4, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))
    with GraphLoader.from_pyg(data, num_neighbors=[1], batch_size=1, progress=False) as memory:
        with pytest.raises(PlanError, match="only in this process's memory") as caught:
            memory.export(tmp_path / "job")
        assert "gnnkit.partition(data" in str(caught.value.hint)
    changed = GraphLoader.from_store(store, num_neighbors=[1], batch_size=1, progress=False, transform=lambda batch: batch)
    with changed, pytest.raises(PlanError, match="transform="):
        changed.export(tmp_path / "job")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_something_else_is_left_alone(export: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    export()  # an empty one is as good as none
    shutil.rmtree(tmp_path / "job")
    (tmp_path / "job").mkdir()
    (tmp_path / "job/thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(PlanError, match="something else than an exported job"):
            export(overwrite=overwrite)
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="is a file"):
        export(name="file")
    with pytest.raises(PlanError, match="cannot be written"):
        export(name="file/job")
    assert (tmp_path / "job/thesis.tex").read_text() == "years of work"


def test_the_command_line_exports_a_plan_file(loader: GraphLoader, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader.plan.save(tmp_path / "plan.json")
    (tmp_path / "mine.py").write_text("def train(loader, ctx):\n    return 1\n")
    words = ["--train", str(tmp_path / "mine.py"), "--gpus-per-node", "0"]
    assert (
        gnnkit_command(["export", str(tmp_path / "plan.json"), str(tmp_path / "job"), "--nodes", "2", "--launcher", "slurm", *words]) == 0
    )
    shown = capsys.readouterr().out
    assert "job.sbatch" in shown and "sbatch job.sbatch" in [line.strip() for line in shown.splitlines()]
    assert (tmp_path / "job/train.py").read_text() == (tmp_path / "mine.py").read_text()
    assert LoaderPlan.load(tmp_path / "job/plan.json").inputs == loader.plan.inputs
    assert gnnkit_command(["export", str(tmp_path / "plan.json")]) == 2
    assert "there is no directory to write to" in capsys.readouterr().err
    assert gnnkit_command(["export", str(tmp_path / "plan.json"), str(tmp_path / "job2"), "--launcher", "lsf"]) == 2
    assert "launcher must be one of" in capsys.readouterr().err
    assert gnnkit_command(["export", "--verify", str(tmp_path)]) == 2
    assert "no exported job" in capsys.readouterr().err
    assert gnnkit_command(["export", "--verify", str(tmp_path), "--num-batches", "0"]) == 2
    assert "num_batches must be" in capsys.readouterr().err


def test_requirements_are_those_of_this_environment() -> None:
    lines = requirements_text(
        "import torch, numpy as np\nfrom sklearn.metrics import f1_score\ndef train(loader, ctx):\n    import yaml\n", WHEEL
    ).splitlines()
    pins = dict(line.split(";")[0].strip().split("==") for line in lines if "==" in line)
    assert {"torch", "torch-geometric", "numba", "numpy", "pyarrow", "scikit-learn", "pyyaml", "llvmlite"} <= set(pins)
    assert not {"pytest", "mypy", "ipykernel"} & set(pins)
    for name, version in pins.items():
        assert metadata.version(name).partition("+")[0] == version
    assert lines[lines.index(f"./{WHEEL}") - 1].startswith("# gnnkit comes from this folder")
    assert "+" not in "".join(line for line in lines if not line.startswith("#")), "no build of one index"
    if "graphlearn-torch" in pins:
        assert any(line.startswith("graphlearn-torch") and 'python_version < "3.12"' in line for line in lines)


def test_labels_decide_what_the_template_tells_apart(tmp_path: Path) -> None:
    many = np.random.default_rng(0).integers(0, 2, (200, 7)).astype(np.float32)
    for name, y, wanted in (
        ("one", None, ("NUM_CLASSES = 5", "MULTI_LABEL = False")),
        ("many", many, ("NUM_CLASSES = 7", "MULTI_LABEL = True")),
    ):
        store = make_store(tmp_path / name, y=y)
        with GraphLoader.from_store(store, num_neighbors=[2, 2, 2], batch_size=8, backend="inprocess", progress=False) as loader:
            source = (loader.export(tmp_path / f"{name}-job", gpus_per_node=0).directory / "train.py").read_text()
        assert all(line in source for line in (*wanted, "NUM_LAYERS = 3", 'VALID = "valid"'))
        assert len(source.splitlines()) <= 120
