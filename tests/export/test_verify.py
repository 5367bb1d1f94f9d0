"""The check of an exported job for real: its launch files, torchrun, ranks and servers, on the hosts that it would have."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from gnnkit import BuildOptions, Colocated, GraphLoader, GraphStore, Labor, LoaderPlan, OnDevice, Store, verify_export
from gnnkit.cluster import namespaces
from gnnkit.errors import PlanError, StartTimeout, StoreError, WorkerDied
from gnnkit.export.recording import recorded
from gnnkit.host import available_cpus
from gnnkit.runtime.runs import runs_root
from tests.cluster.hosts.setups import OPTIONS, source
from tests.export.graphs import exported
from tests.helpers.command import run as run_cli
from tests.helpers.graphs import stored

BACKENDS = {"on_device": OnDevice("cuda"), "colocated": Colocated(num_workers=1), "graph_store": GraphStore(num_servers=1)}
# 57 seeds in batches of 8.
NUM_BATCHES = 8


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebook's store, in one part, and the same graph in two."""
    folder = tmp_path_factory.mktemp("stores")
    for num_parts in (1, 2):
        stored(source(), folder / f"in{num_parts}", BuildOptions(num_parts=num_parts, partition="random", with_edge=True))
    return folder


Export = Callable[..., Path]


@pytest.fixture
def export(stores: Path, tmp_path: Path) -> Export:
    """Exports a loader of a store; the job's directory."""

    def make(num_parts: int, backend: str = "colocated", told: Mapping[str, Any] = MappingProxyType({}), **options: Any) -> Path:
        words = {**OPTIONS, "num_neighbors": [3, 2], "backend": "inprocess", "progress": False, **told}
        with GraphLoader.from_store(stores / f"in{num_parts}", **words) as loader:
            plan = replace(loader.plan, backend=BACKENDS[backend].to_json())
        exported(plan, tmp_path / "job", **options)
        return tmp_path / "job"

    return make


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Checks write into a folder of their own, and remove it."""
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = set(runs_root().glob("*-*"))  # logs of what has failed in other tests are kept
    yield
    assert not list(scratch.glob("gnnkit-*")) and set(runs_root().glob("*-*")) <= before


def edit(file: Path, *lines: str) -> None:
    """Puts lines where a script begins to do something."""
    text = file.read_text()
    assert "set -euo pipefail\n" in text
    file.write_text(text.replace("set -euo pipefail\n", "\n".join(["set -euo pipefail", *lines, ""]), 1))


# Equal ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow(seconds=60)
@pytest.mark.netns
@pytest.mark.timeout(600)
@pytest.mark.skipif(available_cpus() > 15, reason="this machine runs 32 ranks as they are")
def test_a_job_that_is_too_large_runs_as_2_x_2(export: Export) -> None:
    """A TrainJob's pods, on four nodes that each hold a part of a store which has to be cut first; a train.py that does not even parse."""
    job = export(1, launcher="trainjob", nodes=4, procs_per_node=8)
    (job / "train.py").write_text("def train(loader ctx):")
    report = verify_export(job, progress=False)
    assert report.equal and (report.nodes, report.procs_per_node) == (2, 2), str(report)
    assert "there is no cluster here" in report.launcher
    assert report.batches == report.epoch_batches == NUM_BATCHES and report.values > NUM_BATCHES * 5
    assert any(note.startswith("2 x 2 ranks in place of 4 x 8 ranks: this machine has ") for note in report.notes), report.notes
    assert any(note.startswith("stage.sh has cut the store") for note in report.notes)
    assert "changed since the export: train.py" in report.notes
    assert "each node is a network namespace" in report.notes
    assert Store.open(LoaderPlan.load(job / "plan.json").store.path).num_parts == 4  # type: ignore[union-attr]


@pytest.mark.slow(seconds=40)
@pytest.mark.netns
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("launcher", "started"), [("torchrun", "launch.sh"), ("pbs", "job.pbs on each node")])
def test_storage_nodes_and_two_nodes(export: Export, capfd: pytest.CaptureFixture[str], launcher: str, started: str) -> None:
    job = export(2, "graph_store", launcher=launcher, nodes=2, storage_nodes=2)
    assert run_cli(["export", "--verify", str(job)]) == 0
    said = capfd.readouterr().out
    assert "export check job (ok)" in said and f"all {NUM_BATCHES} of an epoch" in said and f"2 x 1, started by {started}" in said


@pytest.mark.slow
@pytest.mark.netns
@pytest.mark.timeout(600)
def test_slurm_s_file_and_a_shorter_epoch(export: Export) -> None:
    """Of padded batches that LABOR samples: a rank of the job chooses the same shapes as a loader here."""
    told = {"num_neighbors": None, "sampler": Labor([3, 2]), "pad": "bucket"}
    report = verify_export(export(2, told=told, launcher="slurm", nodes=2, placement="features"), num_batches=3, progress=False)
    assert report.equal and report.batches == 4 and report.epoch_batches == NUM_BATCHES, str(report)
    assert "there is no Slurm here" in report.launcher


@pytest.mark.slow(seconds=30)
@pytest.mark.timeout(600)
def test_ranks_that_sample_on_devices(export: Export) -> None:
    """Each its own; where there are no GPUs the same operations run on processors."""
    job = export(2, "on_device", procs_per_node=2)
    report = verify_export(job, progress=False)
    assert report.equal and report.batches == NUM_BATCHES, str(report)
    assert "Each rank has the graph on its own GPU" in (job / "README.md").read_text()


@pytest.mark.slow(seconds=30)
@pytest.mark.timeout(600)
def test_kubernetes_containers_where_there_are_no_namespaces(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "why_not", lambda: "nobody may")
    report = verify_export(export(2, "graph_store", launcher="kubernetes", nodes=2, storage_nodes=2), progress=False)
    assert report.equal and report.batches == NUM_BATCHES, str(report)
    assert "there is no cluster here" in report.launcher
    assert "each node is a process group on loopback: nobody may" in report.notes


# Different --------------------------------------------------------------------------------------------------------------


def alter(store: Path) -> None:
    """Makes one edge of part 1, which leads to a seed, come from another node. Part 1 has the second half of the nodes."""
    (folder,) = (store / "part1").glob("edges/*")
    starts, seeds = np.load(folder / "indptr.npy"), np.load(store / "splits/node/train.npy") - 60
    edge = next(int(starts[seed]) for seed in seeds if seed >= 0 and starts[seed] < starts[seed + 1])
    ids = np.load(folder / "indices.npy", mmap_mode="r+")
    ids[edge] = (ids[edge] + 1) % 120
    ids.flush()


def batches_of(store: Path, plan: LoaderPlan, folder: Path) -> list[Any]:
    """What a store gives, in the order of the epoch."""
    assert plan.store is not None
    replace(plan, store=replace(plan.store, path=str(store)), backend={"kind": "InProcess"}, placement=None).save(folder / "here.json")
    with GraphLoader.from_plan(folder / "here.json", progress=False) as loader:
        return [batch.values for batch in recorded(loader, 0)]


@pytest.mark.slow(seconds=30)
@pytest.mark.netns
@pytest.mark.timeout(600)
def test_one_id_in_one_part_is_found(export: Export, stores: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The store that SkyPilot's nodes have is another copy than the notebook's: with one id that is wrong. All other batches are equal."""
    job = export(1, told={"num_neighbors": [-1, -1]}, launcher="skypilot", nodes=2)  # every edge around a seed is in its batch
    plan = LoaderPlan.load(job / "plan.json")
    assert plan.store is not None
    edited = stored(source(), Path(plan.store.path), BuildOptions(num_parts=2, partition="contiguous", with_edge=True)).path
    try:
        before = batches_of(stores / "in1", plan, tmp_path)
        alter(edited)
        after = batches_of(edited, plan, tmp_path)
        different = [index for index in range(NUM_BATCHES) if before[index] != after[index]]
        assert different, "the edge is in no batch"
        assert run_cli(["export", "--verify", str(job)]) == 1
        said = capfd.readouterr().out
        first = different[0]
        tensor = next(name for name in before[first] if before[first][name] != after[first][name])
        assert f"first difference: batch {first} (rank {first % 2}, step {first // 2}), {tensor}: " in said
        assert f"{len(different)} batch{'es differ' if len(different) > 1 else ' differs'}" in said
        assert "2 x 1, started by" in said and "there is no cloud here" in said
    finally:
        shutil.rmtree(edited)


# Broken -----------------------------------------------------------------------------------------------------------------


def test_a_broken_launch_file_is_named(export: Export) -> None:
    job = export(2, nodes=1)
    edit(job / "launch.sh", "torchrum --nnodes 1")
    with pytest.raises(WorkerDied, match=r"launch\.sh of node 0 ended with exit status 127; its last lines:\n.*torchrum"):
        verify_export(job, progress=False)
    (job / "launch.sh").chmod(0o644)
    with pytest.raises(StartTimeout, match=r"cannot be started here: .*launch\.sh"):
        verify_export(job, progress=False)


def test_a_launch_file_that_runs_something_else_is_noticed(export: Export) -> None:
    job = export(2, nodes=1, procs_per_node=2)
    edit(job / "launch.sh", "echo nothing to do; exit 0")
    with pytest.raises(WorkerDied, match=r"rank 0 was given no batches(.|\n)*nothing to do"):
        verify_export(job, progress=False)


@pytest.mark.slow
def test_a_job_that_takes_too_long_is_ended(export: Export) -> None:
    job = export(2, nodes=1)
    edit(job / "launch.sh", "echo waits; (trap '' TERM; sleep 600) & sleep 600")
    with pytest.raises(StartTimeout, match=r"after 3 s no batches have come(.|\n)*waits"):
        verify_export(job, timeout_s=3, progress=False)


def test_wrong_words(export: Export, tmp_path: Path) -> None:
    job = export(2)
    for wrong in ({"num_batches": 0}, {"num_batches": 1.5}, {"timeout_s": 0}):
        with pytest.raises(PlanError, match=next(iter(wrong))):
            verify_export(job, **wrong)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="is no exported job"):
        verify_export(tmp_path)


def test_a_part_that_is_missing_is_named_where_it_is_missing(export: Export, stores: Path, tmp_path: Path) -> None:
    job = export(2)
    plan, store = job / "plan.json", shutil.copytree(stores / "in2", tmp_path / "elsewhere")
    plan.write_text(plan.read_text().replace(os.path.relpath(stores / "in2", job), "../elsewhere"))
    shutil.rmtree(store / "part1")
    with pytest.raises(StoreError, match=f"part 1 of the store {store}"):
        verify_export(job, progress=False)


def test_variables_of_another_job_do_not_reach_this_one(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    job = export(2, nodes=1)
    edit(job / "launch.sh", "env | sort | grep -E '^(GNNKIT|MASTER|N|RANK|SLURM|TORCH|WORLD)'; exit 9")
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "GNNKIT_ROLE", "GNNKIT_TOKEN", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "7")
    with pytest.raises(WorkerDied) as error:
        verify_export(job, progress=False)
    told = dict(line.strip().split("=", 1) for line in str(error.value).splitlines() if "=" in line)
    assert not {"RANK", "WORLD_SIZE", "SLURM_PROCID", "GNNKIT_ROLE", "GNNKIT_TOKEN", "TORCHELASTIC_RUN_ID"} & told.keys()
    assert told["NNODES"] == told["NPROC_PER_NODE"] == "1" and told["MASTER_ADDR"] == "127.0.0.1" and os.environ["RANK"] == "7"
