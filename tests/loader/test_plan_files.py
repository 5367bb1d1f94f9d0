"""Plans in files: everything comes back, wherever the folder has gone, and a store is compared by its graph."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gnnkit import BuildOptions, Colocated, Glt, GraphLoader, GraphStore, InProcess, LoaderPlan, Store, partition
from gnnkit.errors import PlanError, StoreError
from gnnkit.plan import (
    PLAN_VERSION,
    AnchorLabels,
    Batching,
    HGTSampling,
    InputAnchors,
    InputLinks,
    InputNodes,
    LabelLists,
    LaborDraws,
    LayerSampling,
    NegativeSampling,
    NeighborSampling,
    Placement,
    PPRChannel,
    PPRSampling,
    RuntimeOptions,
    StoreRef,
    WalkSampling,
)
from tests.helpers.batches import digest
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, stored

OPTIONS: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 16, "progress": False}
STARTED_S = 120
TOKEN = "a secret of these tests"

# Every kind of plan ---------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
EDGE_TYPES = st.tuples(NAMES, NAMES, NAMES)
COUNTS = st.lists(st.integers(-1, 1000), min_size=1, max_size=4).map(tuple)
NODE_COUNTS = st.lists(st.integers(0, 1000), min_size=1, max_size=4).map(tuple)
SIZES = st.integers(0, 6)


def ids(size: int | None = None) -> st.SearchStrategy[Any]:
    return npst.arrays(np.int64, SIZES if size is None else size)


@st.composite
def nodes(draw: st.DrawFn) -> InputNodes:
    split = draw(st.none() | NAMES)
    times = {name: draw(st.none() | ids()) for name in ("time", "window")}
    return InputNodes(draw(NAMES), draw(NAMES), split, None if split else draw(st.none() | ids()), **times)


@st.composite
def negatives(draw: st.DrawFn) -> NegativeSampling | None:
    mode = draw(st.sampled_from([None, "binary", "triplet", "official"]))
    if mode is None:
        return None
    weight = st.none() | npst.arrays(np.float64, SIZES, elements=st.floats(0, 1e300))
    amount = draw(st.floats(1e-9, 1e9)) if mode == "binary" else draw(st.integers(1, 99))
    source, target = draw(weight) if mode == "binary" else None, None if mode == "official" else draw(weight)
    return NegativeSampling(mode, amount, draw(st.booleans()), source, target)


@st.composite
def links(draw: st.DrawFn) -> InputLinks:
    split, size = draw(st.none() | NAMES), draw(SIZES)
    label = draw(st.none() | npst.arrays(st.sampled_from([np.int64, np.float32, np.uint8, np.bool_]), size))
    pairs = None if split else draw(st.none() | npst.arrays(np.int64, (2, size)))
    exclude = draw(st.sampled_from([None, "self", "reverse"]))
    return InputLinks(draw(EDGE_TYPES), draw(NAMES), split, pairs, label, draw(st.none() | ids(size)), draw(negatives()), exclude)


@st.composite
def labels(draw: st.DrawFn) -> AnchorLabels:
    rows = npst.arrays(np.int64, (draw(SIZES), 3), elements=st.integers(-1, 1 << 40)).map(LabelLists.from_rows)
    return AnchorLabels(draw(EDGE_TYPES), draw(EDGE_TYPES | rows), draw(st.none() | EDGE_TYPES | rows))


@st.composite
def anchors(draw: st.DrawFn) -> InputAnchors:
    given_labels = tuple(draw(st.lists(labels(), min_size=1, max_size=2)))
    cap, output = draw(st.none() | st.integers(1, 9)), draw(st.sampled_from(["dict", "edge_index"]))
    return InputAnchors(draw(NAMES), draw(NAMES), given_labels, None, draw(st.none() | ids()), cap, output)


DIRECTIONS = st.sampled_from(["in", "out"])
NEIGHBORS = st.builds(
    NeighborSampling,
    st.dictionaries(EDGE_TYPES, COUNTS, max_size=3),
    replace=st.booleans(),
    edge_dir=DIRECTIONS,
    weight=st.none() | NAMES,
    with_edge=st.booleans(),
    disjoint=st.booleans(),
    subgraph_type=st.sampled_from(["directional", "bidirectional"]),
    time_attr=st.none() | NAMES,
)
LATEST = st.builds(
    NeighborSampling,
    st.dictionaries(EDGE_TYPES, COUNTS, max_size=3),
    time_attr=NAMES,
    temporal_strategy=st.just("last"),
    time_window=st.none() | st.integers(1, 1 << 62),
    temporal_comparison=st.sampled_from(["<=", "<"]),
)
LABOR = st.builds(
    NeighborSampling,
    st.dictionaries(EDGE_TYPES, COUNTS, max_size=3),
    weight=st.none() | NAMES,
    labor=st.builds(LaborDraws, st.booleans(), st.integers(1, 1 << 30)),
)
HGT = st.builds(HGTSampling, st.dictionaries(NAMES, NODE_COUNTS, max_size=3), DIRECTIONS, st.booleans())
LAYERS = st.builds(LayerSampling, st.dictionaries(NAMES, NODE_COUNTS, max_size=3), DIRECTIONS, st.none() | NAMES, st.booleans())
TYPE_LISTS = st.lists(EDGE_TYPES, max_size=3).map(tuple)
PPR = st.builds(
    PPRSampling,
    edge_types=TYPE_LISTS,
    alpha=st.floats(0.01, 0.99),
    eps=st.floats(1e-12, 1),
    max_ppr_nodes=st.integers(1, 1000),
    max_fetch_iterations=st.none() | st.integers(1, 9),
    channels=st.lists(st.builds(PPRChannel, TYPE_LISTS, st.floats(0, 1), st.integers(0, 99)), max_size=2).map(tuple),
    include_sampled_edges=st.booleans(),
    edge_dir=DIRECTIONS,
)
WALKS = st.builds(
    WalkSampling,
    *(st.integers(1, 1 << 30), st.integers(1, 9), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.integers(0, 9)),
    metapath=st.just((("user", "knows", "user"),)),
    edge_dir=DIRECTIONS,
    weight=st.none() | NAMES,
)
BACKENDS = st.sampled_from([InProcess(2), Colocated(1), GraphStore(), GraphStore(address="10.0.0.1:7000", token=TOKEN), Glt()])
PARTS = st.tuples(nodes() | links() | anchors(), NEIGHBORS | LATEST | LABOR | HGT | LAYERS | PPR)
PARTS |= st.tuples(nodes().map(lambda inputs: replace(inputs, node_type="user")), WALKS)
PLANS = st.builds(
    lambda store, parts, *others: LoaderPlan(store, *parts, *others),
    st.builds(StoreRef, NAMES.filter(lambda name: name.isalnum()).map("/data/stores/{}".format), NAMES, NAMES),
    PARTS,
    st.builds(Batching, st.integers(1, 9999), st.booleans(), seed=st.integers(0, (1 << 64) - 1), rank=st.just(2), world_size=st.just(3)),
    BACKENDS.map(lambda backend: backend.to_json()),
    st.builds(RuntimeOptions, st.floats(0.1, 1e6), prefetch=st.integers(0, 9), memory_budget=st.none() | st.integers(0, 1 << 50)),
    st.none() | st.just(Placement(((0, 1), (1, 2)))),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(PLANS)
def test_every_plan_comes_back_from_its_file(tmp_path_factory: pytest.TempPathFactory, plan: LoaderPlan) -> None:
    file = tmp_path_factory.getbasetemp() / "round.json"
    plan.save(file)
    assert LoaderPlan.load(file) == plan
    assert TOKEN not in file.read_text()


# Paths --------------------------------------------------------------------------------------------------------------------


def planned(store: str) -> LoaderPlan:
    inputs = InputNodes("node", "node/train", "train")
    return LoaderPlan(StoreRef(store, "f", "g"), inputs, NeighborSampling({("node", "to", "node"): (2,)}), Batching(8))


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
        (json.dumps({"version": PLAN_VERSION - 1}), f"of version {PLAN_VERSION - 1}.*\n.*write it again"),
        (json.dumps({"version": PLAN_VERSION + 1}), f"of version {PLAN_VERSION + 1}.*\n.*update gnnkit"),
        (json.dumps({"version": PLAN_VERSION}), "cannot be read: it says nothing of .store."),
        (b"\xff\xfe", "cannot read the plan"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, text: str | bytes, message: str) -> None:
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
