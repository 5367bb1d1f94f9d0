"""Plans in files: everything comes back, wherever the folder has gone, and a store is compared by its graph."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import PPR, BuildOptions, Colocated, Glt, GraphLoader, GraphStore, InProcess, LoaderPlan, Store, partition
from gnnkit.errors import PlanError, SamplingError, StoreError
from gnnkit.plan import LabelLists
from tests.backends.kinds import KINDS, KNOWS, WHOLE_KINDS, built, kind_loader, source_of
from tests.helpers.batches import digest
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, stored

OPTIONS: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 16, "progress": False}
STARTED_S = 120
TOKEN = "a secret of these tests"

# Every kind of plan ---------------------------------------------------------------------------------------------------------

NAMES = ("a", "node/é x", "数", "__", '\\\n"', " ")
# Fields whose texts are names in a graph, and so may be any.
NAMED = {"node_type", "stream", "split", "weight", "time_attr", "graph", "fingerprint"}
BACKENDS = (InProcess(2), Colocated(1), GraphStore(), GraphStore(address="10.0.0.1:7000", token=TOKEN), Glt())
CHANNELS = {(("user", "buys", "item"),): 0.75, (KNOWS,): 0.25}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[LoaderPlan]:
    """The plan of a loader of each kind, typed where that can be, and of some with more options."""
    found = []
    for graph, kinds in (("homogeneous", WHOLE_KINDS), ("typed", [kind for kind in KINDS if kind not in WHOLE_KINDS])):
        store = built(tmp_path_factory.mktemp("kinds") / graph, source_of(graph, "node", "in"), 1, "in")
        for kind in kinds:
            with kind_loader(kind, graph, store.path, InProcess(1)) as loader:
                found.append(loader.plan)
    path, words = store.path, {"num_neighbors": [2], "progress": False}
    ends, some = np.arange(8).reshape(2, 4), np.arange(4)
    with (
        GraphLoader.from_store(path, sampler=PPR(typed_channel_ratios=CHANNELS), input_nodes="user", progress=False) as shares,
        GraphLoader.from_store(path, edge_label_index=(KNOWS, ends), edge_label=some, **words) as links,
        kind_loader("anchor", "typed", path, InProcess(1)) as anchors,
    ):
        found += [shares.plan, links.plan]
        inputs: Any = anchors.plan.inputs
    lists = replace(inputs.labels[0], positive=LabelLists.from_rows(np.array([[1, 2], [3, -1]])))  # of a ``DistABLPLoader``
    found.append(replace(anchors.plan, inputs=replace(inputs, split=None, labels=(lists,), output="edge_index")))
    here = LoaderPlan.from_json({**found[0].to_json(), "placement": [[0]]}).placement
    return [replace(plan, placement=here if number % 2 else None) for number, plan in enumerate(found)]


def varied(rng: np.random.Generator, value: Any, name: str = "") -> Any:
    """A record with other values, of the same types, wherever it takes them."""
    if is_dataclass(value):
        for field in fields(value):
            with suppress(PlanError):  # some go with others only
                value = replace(value, **{field.name: varied(rng, getattr(value, field.name), field.name)})
        return value
    if isinstance(value, tuple) and any(map(is_dataclass, value)):
        return tuple(varied(rng, each) for each in value)
    if isinstance(value, np.ndarray):
        return value if name == "counts" else rng.integers(0, 99, value.shape).astype(value.dtype)
    if isinstance(value, str):
        return str(rng.choice(NAMES)) if name in NAMED else value
    others = {bool: rng.integers(2), int: rng.integers(1, 1 << 30), float: rng.uniform(0.01, 0.99)}
    return type(value)(others[type(value)]) if type(value) in others else value


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal field by field: records of inputs and clusters compare what they are written as."""
    if is_dataclass(one):
        return type(one) is type(other) and all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.slow
def test_every_plan_comes_back_from_its_file(plans: list[LoaderPlan], tmp_path: Path) -> None:
    rng, file = np.random.default_rng(0), tmp_path / "round.json"
    for given in (*plans, *plans, *plans):
        plan = replace(varied(rng, given), backend=BACKENDS[rng.integers(len(BACKENDS))].to_json())
        plan.save(file)
        loaded = LoaderPlan.load(file)
        assert loaded == plan and same(loaded, plan)
        assert TOKEN not in file.read_text()


# Paths --------------------------------------------------------------------------------------------------------------------


PLANNED: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def example(store: Store) -> None:
    """A plan as JSON."""
    with GraphLoader.from_store(store.path, input_nodes="train", **OPTIONS) as loader:
        PLANNED.update(json.loads(json.dumps(loader.plan.to_json())))


def planned(store: str) -> LoaderPlan:
    return LoaderPlan.from_json({**PLANNED, "store": {**PLANNED["store"], "path": store}})


def written_path(file: Path) -> str:
    path: str = json.loads(file.read_text())["store"]["path"]
    return path


def test_a_path_is_relative_below_a_common_folder_and_else_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    for store, written in (
        (tmp_path / "runs" / "store", "store"),
        (tmp_path / "stores" / "it", "../stores/it"),
        (Path("/no-such-folder/store"), "/no-such-folder/store"),
    ):
        planned(str(store)).save(tmp_path / "runs" / "plan.json")
        assert written_path(tmp_path / "runs" / "plan.json") == written
        assert LoaderPlan.load(tmp_path / "runs" / "plan.json") == planned(str(store))
    monkeypatch.chdir(tmp_path / "runs")
    planned(str(tmp_path / "runs" / "store")).save("plan.json")
    assert written_path(Path("plan.json")) == "store"
    assert LoaderPlan.load("plan.json") == planned(str(tmp_path / "runs" / "store"))


def test_a_folder_that_is_reached_through_a_link(tmp_path: Path) -> None:
    """``..`` leads out of the folder that a link stands for, not out of the one that the link lies in."""
    (tmp_path / "disk" / "runs").mkdir(parents=True)
    (tmp_path / "disk" / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "runs")
    planned(str(tmp_path / "disk" / "store")).save(tmp_path / "link" / "plan.json")
    assert (tmp_path / "link" / written_path(tmp_path / "link" / "plan.json")).samefile(tmp_path / "disk" / "store")
    for file in (tmp_path / "link" / "plan.json", tmp_path / "disk" / "runs" / "plan.json"):
        assert LoaderPlan.load(file) == planned(str(tmp_path / "disk" / "store"))


# Writing ------------------------------------------------------------------------------------------------------------------


def test_a_plan_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.json"
    planned("/s/one").save(file)
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PlanError, match=r"plan\.json' cannot be written: No space left"):
        planned("/s/another").save(file)
    assert file.read_bytes() == before and os.listdir(tmp_path) == ["plan.json"]
    monkeypatch.undo()
    planned("/s/another").save(file)
    assert LoaderPlan.load(file) == planned("/s/another") and os.listdir(tmp_path) == ["plan.json"]
    with pytest.raises(PlanError, match="cannot be written"):
        planned("/s/one").save(tmp_path / "no" / "folder" / "plan.json")


def test_a_graph_in_memory_is_not_planned_into_a_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="only in memory") as caught:
        replace(planned("/s"), store=None).save(tmp_path / "plan.json")
    assert caught.value.hint is not None and "partition" in caught.value.hint and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read the plan"),
        ("[]", "holds no plan"),
        ("[" * 100_000, "cannot read the plan"),
        ("{}", "is no plan"),
        (-1, r"of version \d+, this gnnkit reads version .*\n.*write it again"),
        (1, r"of version \d+, this gnnkit reads version .*\n.*update gnnkit"),
        (0, "cannot be read: it says nothing of .store."),
        (b"\xff\xfe", "cannot read the plan"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, text: str | bytes | int, message: str) -> None:
    if isinstance(text, int):
        text = json.dumps({"version": PLANNED["version"] + text})
    (tmp_path / "plan.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError, match=message):
        LoaderPlan.load(tmp_path / "plan.json")
    with pytest.raises(PlanError, match=message):
        GraphLoader.from_plan(tmp_path / "plan.json", progress=False)


# Opening ------------------------------------------------------------------------------------------------------------------


def source(seed: int = 0) -> ArraySource:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((200, 7)).astype(np.float32)
    splits = {"train": rng.permutation(200)[:120].astype(np.int64)}
    return homogeneous_source(random_edges(rng, 200, 200, 1500), 200, splits=splits, x=x, y=np.arange(200))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return stored(source(), tmp_path_factory.mktemp("plans") / "store", BuildOptions())


@pytest.fixture(scope="module")
def whole(store: Store) -> str:
    with GraphLoader.from_store(store.path, **OPTIONS) as loader:
        return digest(loader)


READER = """
import sys
from gnnkit import GraphLoader
from tests.helpers.batches import digest
with GraphLoader.from_plan(sys.argv[1], progress=False) as loader:
    print(digest(loader))
"""


@pytest.mark.slow
def test_a_folder_that_was_moved_gives_the_same_batches_elsewhere(store: Store, whole: str, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(store.path, folder / "store")
    with GraphLoader.from_store(folder / "store", **OPTIONS) as loader:
        loader.plan.save(folder / "plan.json")
    folder.rename(tmp_path / "elsewhere")
    call = [sys.executable, "-c", READER, str(tmp_path / "elsewhere" / "plan.json")]
    found = subprocess.run(call, cwd="/", capture_output=True, text=True, timeout=STARTED_S, check=True)
    assert found.stdout.strip() == whole


@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_a_plan_takes_its_graph_in_other_parts(store: Store, whole: str, tmp_path: Path, method: Any) -> None:
    with GraphLoader.from_store(store.path, **OPTIONS) as loader:
        plan = loader.plan
    cut = partition(store, 3, method, tmp_path / "cut")
    assert cut.fingerprint != store.fingerprint and cut.reference.graph == store.reference.graph
    assert plan.store is not None
    replace(plan, store=replace(plan.store, path=str(cut.path))).save(tmp_path / "plan.json")
    with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again:
        assert digest(again) == whole and again.plan.store == cut.reference


def test_the_most_nodes_of_a_batch_travel_with_the_plan(store: Store, tmp_path: Path) -> None:
    """Into a file, an exported job, and graphlearn-torch's face; a plan without the bound does not name it."""
    with GraphLoader.from_store(store.path, backend="inprocess", max_nodes=1, **OPTIONS) as loader:
        loader.plan.save(tmp_path / "plan.json")
        loader.export(tmp_path / "job", gpus_per_node=0)
        with pytest.raises(SamplingError, match="more than max_nodes=1"):
            next(iter(loader.dist_loader))
        assert "max_nodes" not in replace(loader.plan.runtime, max_nodes=None).to_json()
    for file in (tmp_path / "plan.json", tmp_path / "job" / "plan.json"):
        with GraphLoader.from_plan(file, progress=False) as opened, pytest.raises(SamplingError, match="more than max_nodes=1"):
            opened.peek()


@pytest.mark.parametrize("options", [BuildOptions(edge_dir="out"), BuildOptions(feature_dtype="float16"), BuildOptions(with_edge=True)])
def test_a_store_that_would_give_other_batches_is_another_graph(store: Store, tmp_path: Path, options: BuildOptions) -> None:
    other = stored(source(), tmp_path / "other", options)
    assert other.reference.graph != store.reference.graph
    assert other.manifest.source_fingerprint == store.manifest.source_fingerprint


def test_another_graph_is_refused(store: Store, tmp_path: Path) -> None:
    other = stored(source(seed=1), tmp_path / "other", BuildOptions())
    with GraphLoader.from_store(store.path, **OPTIONS) as loader:
        assert loader.plan.store is not None
        replace(loader.plan, store=replace(loader.plan.store, path=str(other.path))).save(tmp_path / "plan.json")
    with pytest.raises(StoreError, match=rf"is {other.reference.graph[:16]}, and the plan was made for {store.reference.graph[:16]}"):
        GraphLoader.from_plan(tmp_path / "plan.json", progress=False)
    other.path.rename(tmp_path / "gone")
    with pytest.raises(StoreError, match=r"there is no store at .*\n.*by a path relative to itself"):
        GraphLoader.from_plan(tmp_path / "plan.json", progress=False)
