"""``gnnkit.launch``: ranks on this machine, what they give back, and what becomes of them when something goes wrong."""

from __future__ import annotations

import linecache
import os
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import gnnkit
from gnnkit import BuildOptions, GraphLoader, GraphStore
from gnnkit.errors import LoaderClosed, PlanError, TrainingFailed, WorkerDied, WorkerStopped
from gnnkit.jobs.launching.job import RankState
from gnnkit.jobs.launching.packing import pack_code, pack_result, unpack_code, unpack_result
from tests.helpers.command import run as command
from tests.helpers.graphs import homogeneous_source, random_edges, stored
from tests.helpers.leaks import descendants
from tests.helpers.stores import said
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow

NUM_NODES = 200


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("stores") / "store", np.random.default_rng(0)
    x, splits = rng.standard_normal((NUM_NODES, 4)).astype(np.float32), {"train": np.arange(0, NUM_NODES, 2)}
    stored(homogeneous_source(random_edges(rng, NUM_NODES, NUM_NODES, 1000), NUM_NODES, splits=splits, x=x), folder, BuildOptions())
    return folder


@pytest.fixture
def loader(store: Path) -> Iterator[GraphLoader]:
    with GraphLoader.from_store(store, num_neighbors=[3], batch_size=10, progress=False) as loader:
        yield loader


def processes_of(run: gnnkit.jobs.launching.RunHandle) -> list[psutil.Process]:
    return [psutil.Process(rank.pid) for rank in run.status.ranks]


def facts_of(run: gnnkit.RunHandle) -> dict[str, Any]:
    """What ``gnnkit ps`` says of a run."""
    (found,) = (each for each in said("ps")["runs"] if each["id"] == run.status.run)
    return dict(found)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.mark.core
def test_ranks_share_the_batches_of_a_graph_in_memory(tmp_path: Path) -> None:
    """The function and the transform are defined here, the graph is in memory only; and everything shows the run while it is there."""
    from torch_geometric.data import Data

    rng = np.random.default_rng(0)
    edge_index = torch.from_numpy(random_edges(rng, NUM_NODES, NUM_NODES, 1000))
    data = Data(x=torch.randn(NUM_NODES, 4), edge_index=edge_index, colour="red")

    def marked(batch: Any) -> Any:
        batch.mark = 7
        return batch

    def train(loader: Any, ctx: Any) -> Any:
        import sys
        import time
        from pathlib import Path

        import torch

        model = ctx.ddp(torch.nn.Linear(4, 2))
        seen = []
        for _ in ctx.epochs(2):
            for batch in loader:
                loss = model(batch.x).square().mean()
                loss.backward()
                ctx.log(loss=loss.item())
                seen.append((batch.input_id, batch.x, batch.mark, batch.colour))
        sys.stdout.write(f"seen {len(seen)}\n")
        deadline = time.monotonic() + 120
        while not Path(ctx.directory, "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        grad = next(model.parameters()).grad.clone()
        return {"seen": seen, "grad": grad, "place": (ctx.rank, ctx.local_rank, ctx.world_size, str(ctx.device)), "steps": len(loader)}

    options: dict[str, Any] = {"num_neighbors": [3], "batch_size": 16, "shuffle": True, "progress": False, "transform": marked}
    with GraphLoader.from_pyg(data, **options) as loader:
        expected = [[(batch.input_id, batch.x) for batch in loader] for _ in range(2)]
        with gnnkit.launch(train, loader, 2, device="cpu", directory=tmp_path / "job", progress=False) as run:
            assert run.state == "starting"
            assert wait_until(lambda: all("seen" in run.logs(rank) for rank in (0, 1)) or run.wait(0)), run.status
            assert run.state == "running", run.logs(0)
            assert wait_until(lambda: all(rank.epoch == 1 and rank.step == 6 and rank.numbers for rank in run.status.ranks)), run.status
            # All that it listens on is on this host alone.
            ports = [c.laddr.ip for p in processes_of(run) for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            assert set(ports) == {"127.0.0.1"}
            listed = facts_of(run)
            assert (listed["what"], [process["name"] for process in listed["processes"]]) == ("training", ["rank 0", "rank 1"])
            assert "seen 12" in said("logs", listed["id"], "--rank", 1)["logs"][0]["text"]
            text = str(run)
            assert "RunHandle train (running)" in text and "2 training, on cpu" in text and "loss" in text and listed["id"] in text
            assert repr(run).startswith("<RunHandle train (running)") and "text/html" in run._repr_mimebundle_()
            with pytest.raises(PlanError, match="another launch"):
                gnnkit.launch(train, loader, 2, directory=tmp_path / "job", progress=False)
            family = processes_of(run)
            (tmp_path / "job" / "go").touch()
            results = run.results()
        assert run.state == "done" and gone(family) and not Path(listed["path"]).exists()
        assert run.result() is results[0] and "seen 12" in run.logs(0)  # both stay with the handle
    assert [result["place"] for result in results] == [(0, 0, 2, "cpu"), (1, 1, 2, "cpu")]
    assert torch.equal(results[0]["grad"], results[1]["grad"])
    for rank, result in enumerate(results):
        dealt = [epoch[i] for epoch in expected for i in range(rank, 2 * result["steps"], 2)]
        assert len(dealt) == len(result["seen"])
        for (ids, x), (own_ids, own_x, mark, colour) in zip(dealt, result["seen"], strict=True):
            assert torch.equal(ids, own_ids) and torch.equal(x, own_x) and (mark, colour) == (7, "red")


def test_the_rank_that_failed_first_is_the_one_that_is_told_of(loader: GraphLoader) -> None:
    def train(loader: Any, ctx: Any) -> None:
        import torch.distributed as dist

        if ctx.rank == 1:
            raise ValueError("the first trouble")
        dist.barrier()

    run = gnnkit.launch(train, loader, 2, device="cpu", progress=False)
    family = processes_of(run)
    with pytest.raises(TrainingFailed, match="rank 1 failed: ValueError: the first trouble") as caught:
        run.result()
    assert "in train" in str(caught.value.__cause__)
    assert gone(family) and run.state == "failed"
    assert "the first trouble" in run.logs(1) and "the first trouble" in str(run)
    assert facts_of(run)["state"] == "ended", "its owner is there, and nobody has to do anything about it"
    run.stop()
    assert run.state == "failed" and isinstance(run.error, TrainingFailed)


def test_the_text_of_a_cell_goes_with_its_function() -> None:
    """Without it a rank's traceback names lines of a file that is nowhere."""
    cell, defined = "/nowhere/ipykernel_1/2.py", {"__name__": "__main__"}
    text = "def train(loader, ctx):\n    raise ValueError('in a cell')\n"
    linecache.cache[cell] = (len(text), None, text.splitlines(keepends=True), cell)
    try:
        exec(compile(text, cell, "exec"), defined)
        packed = pack_code(defined["train"], None, None)  # type: ignore[arg-type]
        del linecache.cache[cell]  # as in another process
        train, _, _, _ = unpack_code(packed)
        with pytest.raises(ValueError) as caught:
            train(None, None)
        shown = "".join(traceback.format_exception(caught.value))
        assert f"File \"{cell}\", line 2, in train\n    raise ValueError('in a cell')" in shown
    finally:
        linecache.cache.pop(cell, None)


def test_a_rank_that_is_killed_has_all_of_them_started_again_once(loader: GraphLoader, tmp_path: Path) -> None:
    """The second time is once too often, and the death is the error, not the others' broken connections."""

    def train(loader: Any, ctx: Any) -> None:
        import os
        import signal
        import sys

        import torch
        import torch.distributed as dist

        model = torch.nn.Linear(1, 1)
        restored = ctx.restore(model=model)
        sys.stdout.write(f"restored {restored} {float(model.weight)} {ctx.restarts}\n")
        torch.nn.init.constant_(model.weight, 5.0)
        ctx.save(model=model)
        dist.barrier()
        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    run = gnnkit.launch(train, loader, 2, device="cpu", directory=tmp_path, max_restarts=1, progress=False)
    with pytest.raises(WorkerDied, match=r"^rank 1 \(pid \d+\) was killed by SIGKILL"):
        run.result()
    assert run.status.restarts == 1
    for rank in (0, 1):
        assert "restored True 5.0 1" in run.logs(rank), run.logs(rank)
        assert "restored False" in run.logs(rank)


def test_runs_beside_each_other_are_stopped_each_for_itself(loader: GraphLoader) -> None:
    def train(loader: Any, ctx: Any) -> int:
        import sys
        import threading

        sys.stdout.write("waiting\n")
        threading.Event().wait()
        return 1

    runs = [gnnkit.launch(train, loader, 1, device="cpu", max_restarts=3, progress=False) for _ in range(2)]
    try:
        assert wait_until(lambda: all("waiting" in run.logs(0) and run.state == "running" for run in runs)), [r.logs(0) for r in runs]
        family = processes_of(runs[0])
        those = [psutil.Process(), *family]
        assert not [c for p in those for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN], "one rank meets nobody"
        assert not runs[0].wait(0.01)
        runs[0].stop()
        assert runs[0].state == "stopped" and gone(family)
        with pytest.raises(WorkerStopped, match="was stopped"):
            runs[0].result()
        assert runs[1].state == "running"
        assert command(["stop", runs[1].status.run]) == 0
        assert runs[1].wait(120)
        with pytest.raises(WorkerStopped, match="gnnkit stop has ended it"):
            runs[1].result()
        assert runs[1].status.restarts == 0
    finally:
        for run in runs:
            run.stop()


def test_one_set_of_servers_serves_all_ranks(store: Path) -> None:
    """They are the run's own: they come and go with it, whatever becomes of the loader."""

    def train(loader: Any, ctx: Any) -> Any:
        import psutil

        ids = [batch.input_id for batch in loader]
        servers = [p.pid for p in psutil.Process().parent().children() if "gnnkit.cluster.serving" in " ".join(p.cmdline())]
        own = [p.pid for p in psutil.Process().children() if "gnnkit.cluster.serving" in " ".join(p.cmdline())]
        return ids, servers, own

    backend = GraphStore(num_servers=1)
    loader = GraphLoader.from_store(store, num_neighbors=[3], batch_size=10, shuffle=False, backend=backend, progress=False)
    run = gnnkit.launch(train, loader, 1, device="cpu", progress=False)
    loader.close()
    ids, servers, own = run.result()
    assert torch.equal(torch.cat(ids), torch.arange(100)) and len(servers) >= 1 and not own
    assert wait_until(lambda: not any(map(psutil.pid_exists, servers)))


def test_what_cannot_be_launched_is_refused_before_anything_starts(
    loader: GraphLoader, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)

    def train(loader: Any, ctx: Any) -> bool:
        return lock.locked()

    def fine(loader: Any, ctx: Any) -> None:
        pass

    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("^'lock', used by train, cannot be sent", train, {}),
        ("train_fn must be a function", 3, {}),
        ("num_procs", fine, {"num_procs": 0}),
        ("max_restarts", fine, {"max_restarts": -1}),
        ("unknown device 'tpu'", fine, {"device": "tpu"}),
        ("device 'cuda:1' was asked for, but torch finds no CUDA device", fine, {"device": "cuda:1"}),
        ("cannot be made", fine, {"directory": store / "manifest.json" / "x"}),
    ]
    before = descendants()
    for message, function, words in cases:
        with pytest.raises(PlanError, match=message):
            gnnkit.launch(function, loader, progress=False, **words)
    with pytest.raises(PlanError, match=r"\(loader\) cannot be called with a loader and a context"):
        gnnkit.launch(lambda loader: None, loader, progress=False)  # type: ignore[arg-type, misc]
    with pytest.raises(PlanError, match="must be a GraphLoader"):
        gnnkit.launch(fine, 3, progress=False)  # type: ignore[arg-type]
    loader.close()
    with pytest.raises(LoaderClosed):
        gnnkit.launch(fine, loader, progress=False)
    assert descendants() == before


def test_results_come_as_they_were_or_with_an_error_that_says_why_not() -> None:
    value = {"a": torch.arange(3), "f": (lambda x: x + 1), "n": None}
    back = unpack_result(pack_result(value))
    assert torch.equal(back["a"], value["a"]) and back["f"](1) == 2 and back["n"] is None
    with pytest.raises(PlanError, match="cannot be sent back"):
        pack_result(threading.Lock())
    with pytest.raises(TrainingFailed, match="cannot be read here"):
        unpack_result(b"nothing of the kind")


def test_of_several_failures_the_earliest_counts() -> None:
    states = RankState(3)
    states.fail(2, 12.0, TrainingFailed("collateral"))
    states.fail(1, 11.0, WorkerDied("the cause"))
    states.fail(0, 13.0, TrainingFailed("collateral, too"))
    assert str(states.first_failure) == "the cause" and [rank.state for rank in states.ranks] == ["failed"] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("num_procs", [1, 2])
def test_ranks_use_gpus_though_cuda_is_initialised_here(loader: GraphLoader, num_procs: int) -> None:
    """Ranks that have to share one exchange through memory."""
    assert torch.ones(1, device="cuda").sum() == 1
    pid = os.getpid()

    def train(loader: Any, ctx: Any) -> Any:
        import os

        import torch

        model = ctx.ddp(torch.nn.Linear(4, 2))
        for batch in loader:
            model(batch.x).square().mean().backward()
        assert os.getpid() != pid
        return str(ctx.device), batch.x.device.type, next(model.parameters()).grad

    with gnnkit.launch(train, loader, num_procs, progress=False) as run:
        results = run.results()
    assert all(device.startswith("cuda:") and x == "cuda" for device, x, _ in results)
    assert all(torch.equal(grad, results[0][2]) and grad.device.type == "cpu" for _, _, grad in results)


def test_options_of_distributed_data_parallel(tmp_path: Path, loader: GraphLoader) -> None:
    """A model of which a batch reaches only a part trains with them, and what they are is checked where a model is alone, too."""

    def train(loader: Any, ctx: Any) -> Any:
        import torch

        model = ctx.ddp(torch.nn.ModuleList([torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)]), find_unused_parameters=True)
        said = []
        for option in ("find_unused_parameter", "device_ids"):
            try:
                ctx.ddp(torch.nn.Linear(1, 1), **{option: True})
            except Exception as error:
                said.append(str(error))
        return getattr(model, "find_unused_parameters", None), said

    for num_procs, wanted in ((1, None), (2, True)):
        with gnnkit.launch(train, loader, num_procs, device="cpu", directory=tmp_path / str(num_procs), progress=False) as run:
            for found, (near, decided) in run.results():
                assert found is wanted and "find_unused_parameters" in near and "one for each rank" in decided
