"""Ranks on Ray clusters that a launch, or an exported job, starts for itself; and what is refused before anything starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import gnnkit
from gnnkit import GraphLoader, GraphStore, Ray, verify_export
from gnnkit.errors import PlanError, WorkerDied
from gnnkit.ray.cleaner import members
from tests.export.graphs import exported
from tests.helpers.waiting import wait_until
from tests.jobs.setups import planned
from tests.ray.clusters import PATIENCE_S


def wait_for_good(loader: GraphLoader, ctx: gnnkit.TrainContext) -> None:
    threading.Event().wait()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder below which drivers make those of their clusters, of one test alone; Ray's sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def clusters(place: Path) -> list[Path]:
    return list(place.glob("gnnkit-ray-*"))


class TestOwnCluster:
    """A cluster of this machine that a launch starts for itself."""

    @pytest.mark.packages("ray")
    @pytest.mark.slow(seconds=30)
    @pytest.mark.timeout(2 * PATIENCE_S)
    def test_nothing_is_left_of_it_when_its_driver_is_killed(self, place: Path) -> None:
        """A graph in memory will do: the ranks are on this host."""
        import torch
        from torch_geometric.data import Data

        data = Data(x=torch.ones(4, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))
        with GraphLoader.from_pyg(data, num_neighbors=[1], batch_size=2, input_nodes=None, progress=False) as loader:
            engine = Ray(num_workers=1, address="local")
            with gnnkit.launch(wait_for_good, loader, engine=engine, start_timeout_s=PATIENCE_S, progress=False) as run:
                assert wait_until(lambda: run.state != "starting", PATIENCE_S) and run.state == "running", run.error
                (driver,) = run.status.processes
                rank, started = run.status.ranks[0].pid, members(driver.pid)
                assert rank and len(started) > 3 and len(clusters(place)) == 1
                os.kill(driver.pid, signal.SIGKILL)
                with pytest.raises(WorkerDied, match="Ray's driver"):
                    run.result()
        assert wait_until(lambda: not members(driver.pid) and not is_alive(rank)), members(driver.pid)
        assert wait_until(lambda: not clusters(place))


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


class TestExported:
    """Jobs whose launch.sh has Ray start the ranks."""

    @pytest.mark.packages("ray")
    @pytest.mark.slow(seconds=40)
    @pytest.mark.timeout(2 * PATIENCE_S)
    def test_batches_of_a_job_are_proved_equal_on_a_cluster_of_this_machine(self, tmp_path: Path, place: Path) -> None:
        with GraphLoader.from_plan(planned(tmp_path), progress=False) as loader:
            loader.export(tmp_path / "job", launcher="ray", procs_per_node=2)
        report = verify_export(tmp_path / "job", timeout_s=PATIENCE_S)
        assert report.equal and report.batches == report.epoch_batches, report
        assert "Ray cluster of this machine" in report.launcher
        assert not clusters(place)

    def test_what_ray_cannot_start_is_refused(self, tmp_path: Path) -> None:
        with GraphLoader.from_plan(planned(tmp_path, backend="colocated"), progress=False) as loader:
            plan = loader.plan
        with pytest.raises(PlanError, match="not its share"):
            exported(plan, tmp_path / "job", launcher="ray", nodes=2)
        exported(plan, tmp_path / "job", launcher="ray", nodes=2, procs_per_node=2, placement="replicate")
        assert '"${NUM_WORKERS:-4}"' in (tmp_path / "job" / "launch.sh").read_text()
        served = loader.plan.__class__(**{**vars(plan), "backend": GraphStore(num_servers=1).to_json()})
        with pytest.raises(PlanError, match="starts no storage servers"):
            exported(served, tmp_path / "served", launcher="ray", storage_nodes=1)


class TestOptions:
    """Values that are of no use are refused before anything starts."""

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"num_workers": 0}, "num_workers"),
            ({"cpus_per_worker": 0}, "cpus_per_worker"),
            ({"num_workers": 4, "num_cpus": 3}, "num_cpus"),
            ({"object_store_memory": 1}, "object_store_memory"),
            ({"address": "ray://head:10001"}, "no address of a Ray cluster"),
            ({"placement_strategy": "PACKED"}, "no strategy of Ray.*\n.*STRICT_SPREAD"),
            ({"resources": {"GPU": 1}}, "'GPU' is 1"),
            ({"resources": {"licence": 0}}, "'licence' is 0"),
            ({"runtime_env": {"pip": {1, 2}}}, "no JSON"),
            ({"pending_timeout_s": -1}, "pending_timeout_s"),
        ],
    )
    def test_a_value_is_refused(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(PlanError, match=words):
            Ray(**options)

    @pytest.mark.packages("ray")
    def test_what_a_cluster_cannot_give_is_refused(self, tmp_path: Path) -> None:
        from torch_geometric.data import Data

        with GraphLoader.from_plan(planned(tmp_path), progress=False) as loader:
            for options, words in (({"device": "cuda:0"}, "it is Ray that gives"), ({"threads_per_proc": 7}, "cpus_per_worker=7")):
                with pytest.raises(PlanError, match=words):
                    gnnkit.launch(wait_for_good, loader, engine=Ray(), progress=False, **options)
        import torch

        data = Data(x=torch.ones(4, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))
        with GraphLoader.from_pyg(data, num_neighbors=[1], batch_size=2, input_nodes=None, progress=False) as loader:
            with pytest.raises(PlanError, match="only on this host"):
                gnnkit.launch(wait_for_good, loader, engine=Ray(address="10.0.0.1:6379"), progress=False)
            with pytest.raises(PlanError, match="num_procs=3"):
                gnnkit.launch(wait_for_good, loader, 3, engine=Ray(), progress=False)
