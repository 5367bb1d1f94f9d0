"""One Ray cluster for everything: stores that are built on it, byte for byte those of one machine, also where a node is killed meanwhile;
and ranks with the same batches, which are started again with exactly those that are left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import gnnkit
from gnnkit import GraphLoader, Ray
from gnnkit.datasets import papers_like, products_like, write_ogb_layout
from gnnkit.errors import DatasetError, GnnkitError, PlanError, StartTimeout, TrainingFailed, WorkerDied
from tests.helpers.command import run
from tests.helpers.waiting import wait_until
from tests.jobs.setups import Steps, epochs, planned
from tests.ray.clusters import PATIENCE_S, STILL_S, RayCluster, started_cluster
from tests.ray.sources import DOOMED, DamagedSource, StuckSource, WaitingSource


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster of two nodes."""
    with started_cluster(cpus=1) as cluster:
        cluster.start_node()
        yield cluster


def assert_same(built: Path, wanted: Path) -> None:
    """The same files with the same bytes, and nothing beside either store."""
    files = [sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()) for store in (built, wanted)]
    assert files[0] == files[1]
    for name in files[0]:
        assert (built / name).read_bytes() == (wanted / name).read_bytes(), name
    assert {path.name for path in built.parent.iterdir() if path.name.startswith((built.name, "."))} == {built.name}


def end_driver() -> None:
    """Ends the process of this one that drives a cluster."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that has ended, and was not waited for, has no command line
            if "gnnkit.ray" in child.cmdline():
                child.kill()


@pytest.mark.packages("ray")
@pytest.mark.slow(seconds=40)
@pytest.mark.timeout(2 * PATIENCE_S)
class TestBuilding:
    """Stores of which each node reads a share."""

    def test_each_node_reads_its_share_of_a_source(self, cluster: RayCluster, tmp_path: Path) -> None:
        source, said = products_like(0.01), list[Any]()
        wanted = gnnkit.partition(source, 4, out=tmp_path / "wanted")
        store = gnnkit.partition(source, 4, out=tmp_path / "built", engine=gnnkit.Ray(address=cluster.address), events=said.append)
        assert_same(store.path, wanted.path)
        ends = {event.stage: event for event in said if event.kind == "end"}
        assert ends["ingest"].done == ends["ingest"].total == 16 * source.schema.num_edges
        found = re.fullmatch(r"2 nodes, each read at most (\d+) % of the source", ends["partition"].text)
        assert found and int(found[1]) <= 135 / 2
        assert sum(event.kind == "progress" and event.stage == "ingest" for event in said) >= 4
        assert "ray" not in sys.modules, "Ray is for its driver, which is another process"

    def test_tables_with_keys_of_text(self, cluster: RayCluster, tmp_path: Path) -> None:
        """What can only be read from its beginning is copied; arrays and ids of edges, weights and renumbered nodes go along."""
        rng = np.random.default_rng(3)
        users = [f"user-{number}" for number in rng.permutation(300)]
        nodes = pa.table({"id": users, "age": rng.random(300), "fold": rng.choice(["train", "test"], 300)})
        edges = pa.table({"from": rng.choice(users, 4000), "item": rng.integers(0, 90, 4000), "price": rng.random(4000)})
        parquet.write_table(nodes, tmp_path / "users.parquet", row_group_size=100)
        parquet.write_table(edges, tmp_path / "edges.parquet", row_group_size=500)
        options: dict[str, Any] = {"edge_dir": "out", "weight": "edge_weight", "feature_dtype": "float16", "seed": 5}
        buys = ("user", "buys", "item")

        def source() -> gnnkit.source.GraphSource:
            return gnnkit.tables(
                {buys: tmp_path / "edges.parquet"},
                {"user": tmp_path / "users.parquet"},
                keys={"user": "id"},
                features={"user": "age", buys: "price"},
                split={"user": "fold"},
                edge_weight={buys: "price"},
            )

        wanted = gnnkit.partition(source(), 3, "random", tmp_path / "wanted", **options)
        store = gnnkit.partition(source(), 3, "random", tmp_path / "built", engine=gnnkit.Ray(address=cluster.address), **options)
        assert_same(store.path, wanted.path)
        assert store.options.with_edge and store.keys("user")[17] == users[17]

    @pytest.mark.parametrize("method", ["contiguous", "random"])
    def test_scales_are_those_of_all_parts(self, cluster: RayCluster, tmp_path: Path, method: Any) -> None:
        """Of nodes, whether their owners read them or others do, and of edges; other columns are kept whole, and a NaN is refused."""
        rng, (buys, count) = np.random.default_rng(3), (("user", "buys", "item"), 5000)
        ages = rng.standard_normal((900, 3)) * [1, 10, 1e5]
        nodes = {
            "user": {"id": np.arange(900), **{f"a{k}": ages[:, k] for k in range(3)}},
            "item": {"id": np.arange(90), "price": rng.random(90)},
        }
        edges = {buys: {"user": rng.integers(0, 900, count), "item": rng.integers(0, 90, count), "at": rng.random(count)}}

        def source() -> gnnkit.source.GraphSource:
            features: Any = {"user": ["a0", "a1", "a2"], "item": "price", buys: "at"}
            return gnnkit.tables(edges, nodes, keys={"user": "id", "item": "id"}, features=features)

        said: Any = {"user": {"dtype": "quint4x2", "whole": ["a2"]}, "item": "bfloat16", buys: "quint2x4"}
        wanted = gnnkit.partition(source(), 3, method, tmp_path / "wanted", feature_dtype=said)
        engine = gnnkit.Ray(address=cluster.address)
        store = gnnkit.partition(source(), 3, method, tmp_path / "built", engine=engine, feature_dtype=said)
        assert_same(store.path, wanted.path)
        plain = gnnkit.partition(source(), 3, method, tmp_path / "plain")
        found = plain.schema.node_types["user"].arrays["x"], store.schema.node_types["user"].arrays["x"]
        assert [spec.row_nbytes for spec in found] == [12, 2 + 4]
        for dtype in "quint8", "float16":
            edges[buys]["at"][17] = np.inf if dtype == "quint8" else 7e4
            with pytest.raises(
                PlanError, match="8 bits cannot stand for" if dtype == "quint8" else r"holds 70000\.0, which float16 cannot"
            ):
                gnnkit.partition(source(), 3, method, tmp_path / dtype, engine=engine, feature_dtype={buys: dtype})

    def test_each_node_reads_its_share_of_row_groups(self, cluster: RayCluster, tmp_path: Path) -> None:
        """Keys of text and of numbers, nodes that edges name, classes and splits; parts are those of a column."""
        rng, said = np.random.default_rng(3), list[Any]()
        users = [f"user-{number}" for number in rng.permutation(9000)]
        shards = rng.integers(0, 3, 9000)
        nodes = {"id": users, "age": rng.random(9000), "fold": rng.choice(["train", "test"], 9000), "shard": shards}
        parquet.write_table(pa.table(nodes), tmp_path / "users.parquet", row_group_size=1000)
        for number in range(2):
            edges = {"from": rng.choice(users, 40_000), "to": rng.choice(users, 40_000), "price": rng.random(40_000)}
            parquet.write_table(pa.table(edges), tmp_path / f"edges{number}.parquet", row_group_size=4000)
        options: dict[str, Any] = {"weight": "edge_weight", "partition": "column:shard"}

        def source(**more: Any) -> gnnkit.source.GraphSource:
            roles: dict[str, Any] = {"features": "age", "split": "fold", "categories": "shard", "edge_weight": "price"}
            return gnnkit.tables(tmp_path / "edges*.parquet", tmp_path / "users.parquet", keys="id", scratch_dir=tmp_path, **roles, **more)

        engine = gnnkit.Ray(address=cluster.address)
        wanted = gnnkit.partition(source(), 3, out=tmp_path / "wanted", **options)
        read = source(engine=engine, events=said.append)
        store = gnnkit.partition(read, 3, out=tmp_path / "built", engine=engine, **options)
        assert_same(store.path, wanted.path)
        assert store.manifest.node_bounds["node"] == (0, *np.bincount(shards).cumsum().tolist())
        found = re.fullmatch(r"2 nodes, each read at most (\d+) % of the tables", [event for event in said if event.kind == "end"][-1].text)
        assert found and int(found[1]) <= 135 / 2

    def test_tables_by_command(self, cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(3)
        parquet.write_table(pa.table({"a": rng.integers(0, 99, 500), "b": rng.integers(0, 99, 500)}), tmp_path / "edges.parquet")
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        for name, more in (("wanted", []), ("built", ["--engine", "ray"])):
            words = ["partition", str(tmp_path / "edges.parquet"), "2", "--out", str(tmp_path / name), *more]
            assert run(words) == 0
        assert_same(tmp_path / "built", tmp_path / "wanted")

    def test_a_tree_of_ogb_by_command(self, cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_ogb_layout(papers_like(0.0002), tmp_path / "data", compresslevel=0)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        words = ["partition", "ogbn-papers100M", "2", "--root", str(tmp_path / "data"), "--out"]
        for name, more in (("wanted", []), ("built", ["--engine", "ray"])):
            assert run([*words, tmp_path / name, *more]) == 0
        assert_same(tmp_path / "built", tmp_path / "wanted")

    def test_a_node_that_is_killed_leaves_nothing_half_done(self, cluster: RayCluster, tmp_path: Path) -> None:
        """What it has read already is read again by others, and what it was reading."""
        source, doomed = WaitingSource(0.01, tmp_path), cluster.start_node(**{DOOMED: "1"})
        killed = list[bool]()

        def kill() -> None:
            killed.append(wait_until(source.waits.exists, PATIENCE_S))
            cluster.kill_node(doomed)

        killer = threading.Thread(target=kill)
        killer.start()
        engine = gnnkit.Ray(address=cluster.address)
        # Ray does not always start what it has to repeat: then the driver is ended, and the same call goes on (how-to/ray.md).
        stood_still = threading.Event()
        watchdog = threading.Timer(STILL_S, lambda: (stood_still.set(), end_driver()))
        watchdog.start()
        try:
            store = gnnkit.partition(source, 3, "random", tmp_path / "built", engine=engine)
        except WorkerDied:
            if not stood_still.is_set():
                raise
            store = gnnkit.partition(source, 3, "random", tmp_path / "built", engine=engine)
        finally:
            watchdog.cancel()
            watchdog.join()
        killer.join()
        assert killed == [True]
        assert_same(store.path, gnnkit.partition(products_like(0.01), 3, "random", tmp_path / "wanted").path)

    def test_a_build_on_which_nothing_works_is_begun_anew(self, cluster: RayCluster, tmp_path: Path) -> None:
        """Its tasks are there and wait, no node has gone, and Ray has nothing to repeat."""
        source = StuckSource(0.002, tmp_path)
        store = gnnkit.partition(source, 2, out=tmp_path / "built", engine=gnnkit.Ray(address=cluster.address))
        assert source.waits.exists()
        assert_same(store.path, gnnkit.partition(products_like(0.002), 2, out=tmp_path / "wanted").path)

    def test_an_error_of_a_task_is_raised_here_and_the_next_call_builds(self, cluster: RayCluster, tmp_path: Path) -> None:
        engine = gnnkit.Ray(address=cluster.address)
        with pytest.raises(DatasetError, match=r"edge 7 of .* to 4898, but there are 4898 "):
            gnnkit.partition(DamagedSource(0.002), 2, out=tmp_path / "built", engine=engine)
        assert not (tmp_path / "built").exists()
        store = gnnkit.partition(products_like(0.002), 2, out=tmp_path / "built", engine=engine)
        assert_same(store.path, gnnkit.partition(products_like(0.002), 2, out=tmp_path / "wanted").path)


def train(loader: GraphLoader, ctx: gnnkit.TrainContext) -> Any:
    steps, seen = Steps(), []
    restored = ctx.restore(steps=steps)
    first = steps.done
    for _ in ctx.epochs(2):
        for batch in loader:
            seen.append(batch.input_id.tolist())
            steps.done += 1
            ctx.log(done=steps.done)
            if steps.done % 4 == 0:
                ctx.save(steps=steps)
            if ctx.restarts == 0 and ctx.rank == 1 and steps.done == 18:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.write(f"rank {ctx.rank} has done {steps.done}\n")
    return restored, first, ctx.restarts, seen


def fail(loader: GraphLoader, ctx: gnnkit.TrainContext) -> None:
    raise ValueError(f"no such thing on {ctx.device}")


def variables(loader: GraphLoader, ctx: gnnkit.TrainContext) -> Any:
    return os.environ.get("EPOCHS"), os.environ.get("FROM_RAY")


# Has Python find no gnnkit, as on a host where it is not installed.
LACKING = """
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "gnnkit":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Lacking())
"""


@pytest.mark.packages("ray")
@pytest.mark.slow(seconds=40)
@pytest.mark.timeout(2 * PATIENCE_S)
class TestTraining:
    """Ranks of which each has a node."""

    def test_ranks_go_on_after_a_death_with_exactly_the_batches_left(self, cluster: RayCluster, tmp_path: Path) -> None:
        plan = planned(tmp_path)
        wanted = [batch for epoch in epochs(plan, 2) for batch in epoch]
        with GraphLoader.from_plan(plan, progress=False) as loader:
            engine = Ray(num_workers=2, address=cluster.address)
            options = {"directory": tmp_path / "job", "max_restarts": 1, "start_timeout_s": PATIENCE_S, "progress": False}
            with gnnkit.launch(train, loader, engine=engine, **options) as run:
                results = run.results()
        for rank, (restored, first, restarts, seen) in enumerate(results):
            assert restored and restarts == 1 and 0 < first < 18
            assert seen == wanted[rank::2][first:]
            assert f"rank {rank} has done 24" in run.logs(rank)
        assert run.status.restarts == 1 and "rank 1 has died" in (run.status.error or "")
        assert len(list((tmp_path / "job").glob("checkpoint_*/checkpoint-*.pt"))) >= 1
        assert "ray" not in sys.modules, "Ray is for its driver, which is another process"

    def test_what_the_function_raises_is_raised_here(self, cluster: RayCluster, tmp_path: Path) -> None:
        with GraphLoader.from_plan(planned(tmp_path), progress=False) as loader:
            engine = Ray(num_workers=1, address=cluster.address)
            with gnnkit.launch(fail, loader, engine=engine, start_timeout_s=PATIENCE_S, progress=False) as run:
                with pytest.raises(TrainingFailed, match="rank 0 failed: ValueError: no such thing on cpu") as found:
                    run.result()
                assert "in fail" in str(found.value.__cause__) and run.state == "failed"

    def test_ranks_wait_for_room_and_start_once_a_node_has_come(
        self, cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The launch says what it waits for, as long as ``pending_timeout_s`` allows; variables of this process reach the ranks."""
        monkeypatch.setenv("EPOCHS", "7")
        options: dict[str, Any] = {"num_workers": 3, "address": cluster.address, "placement_strategy": "SPREAD"}
        options |= {"runtime_env": {"env_vars": {"FROM_RAY": "1"}}, "resources": {"licence": 0.5}}
        with GraphLoader.from_plan(planned(tmp_path), progress=False) as loader:
            engine = Ray(**options)
            with gnnkit.launch(variables, loader, engine=engine, start_timeout_s=PATIENCE_S, progress=True) as run:
                assert wait_until(lambda: run.status.waits_for, PATIENCE_S), run.error
                assert "the cluster has 2 CPU (free: " in run.status.waits_for and "waits for" in repr(run)
                number = cluster.start_node(3, resources={"licence": 2})
                assert run.results() == [("7", "1")] * 3
                assert not run.status.waits_for
        cluster.kill_node(number)
        assert "variables, 3 ranks: waits for 3 rank(s) with 1 processor(s), 0.5 licence each" in capsys.readouterr().err

    def test_hosts_without_gnnkit_are_told_what_to_install(self, cluster: RayCluster, tmp_path: Path) -> None:
        """In launches and builds alike."""
        (tmp_path / "sitecustomize.py").write_text(LACKING)
        engine = Ray(num_workers=1, address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}})
        remedy = r"No module named 'gnnkit'\n *-> .*runtime_env"
        with pytest.raises(GnnkitError, match=remedy):
            gnnkit.partition(products_like(0.001), 2, out=tmp_path / "store", engine=engine)
        loader = GraphLoader.from_plan(planned(tmp_path), progress=False)
        with loader, pytest.raises(GnnkitError, match=remedy):
            gnnkit.launch(variables, loader, engine=engine, start_timeout_s=PATIENCE_S, progress=False).result()

    def test_a_wrong_token_is_named(self, cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 32)
        with pytest.raises(StartTimeout, match=r"InvalidAuthToken(.|\n)*-> RAY_AUTH_MODE=token"):
            gnnkit.partition(products_like(0.001), 2, out=tmp_path / "store", engine=Ray(address=cluster.address))


class TestRefused:
    """What a cluster cannot do is refused before anything starts."""

    @pytest.mark.packages("ray")
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"partition": "ldg"}, "needs all edges in one place"),
            ({"cache_ratio": 0.1}, "counts visits"),
            ({"order": "hotness"}, "counts visits"),
            ({"parts": [0]}, "builds all parts"),
            ({"out": None}, "no out"),
            ({"out": "s3://bucket/store"}, "a folder that all nodes see"),
            ({"engine": "slurm"}, "engine must be one of"),
        ],
    )
    def test_an_option_is_refused(self, options: dict[str, Any], words: str, tmp_path: Path) -> None:
        given = {"out": tmp_path / "built", "engine": gnnkit.Ray(), **options}
        with pytest.raises(PlanError, match=words):
            gnnkit.partition(products_like(0.0001), 2, **given)
        assert not list(tmp_path.iterdir())

    @pytest.mark.packages("ray")
    def test_a_store_is_refused(self, tmp_path: Path) -> None:
        store = gnnkit.partition(products_like(0.0001), 2, out=tmp_path / "store")
        with pytest.raises(PlanError, match="is a store, and an engine builds from datasets"):
            gnnkit.partition(store, 3, out=tmp_path / "built", engine="ray")
