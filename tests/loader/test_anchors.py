"""Loaders of anchors: the same batches everywhere, labels that nobody samples along, what may be said of them, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import Colocated, GraphLoader, GraphStore, InProcess, LoaderPlan, Store
from gnnkit.errors import PlanError
from gnnkit.plan import LabelLists
from tests.cluster.parts.several_hosts import key_of, request_of, sampled, sampler_on, spread_samplers
from tests.cluster.serving.networked import two_hosts

USERS, ITEMS = 60, 40
BUYS, BOUGHT, KNOWS = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")
LIKES, HATES, MEETS = (
    ("user", "buys_gigl_positive", "item"),
    ("user", "buys_gigl_negative", "item"),
    ("user", "meets_gigl_positive", "user"),
)
LABELS = {LIKES: 90, HATES: 50, MEETS: 70}
OPTIONS: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 8, "progress": False}


def random_pairs(rng: np.random.Generator, sources: int, targets: int, count: int) -> torch.Tensor:
    pairs = torch.from_numpy(np.stack([rng.integers(0, sources, count), rng.integers(0, targets, count)]))
    pairs[0, : count // 4] = 5  # a hub
    return pairs


def shop() -> HeteroData:
    """Users and items without labels; every edge type has weights, some of them 0."""
    rng, data = np.random.default_rng(1), HeteroData()
    data["user"].x, data["item"].x = torch.arange(float(USERS))[:, None], 100 + torch.arange(float(ITEMS))[:, None]
    data["user"].train_mask = torch.arange(USERS) % 3 > 0
    sizes = {"user": USERS, "item": ITEMS}
    for a, r, b in (BUYS, BOUGHT, KNOWS):
        data[a, r, b].edge_index = random_pairs(rng, sizes[a], sizes[b], 300)
        data[a, r, b].weight = torch.from_numpy(rng.integers(0, 3, 300).astype(np.float32))
    return data


def labels_of_shop() -> dict[Any, torch.Tensor]:
    rng, sizes = np.random.default_rng(2), {"user": USERS, "item": ITEMS}
    return {(a, r, b): random_pairs(rng, sizes[a], sizes[b], count) for (a, r, b), count in LABELS.items()}


def labelled_shop(edge_dir: Any = "in", *, weighted: bool = False) -> HeteroData:
    data: Any = gnnkit.add_label_edges(shop(), labels_of_shop(), edge_dir)
    for edge_type in data.edge_types:
        if weighted and "weight" not in data[edge_type]:
            data[edge_type].weight = torch.zeros(data[edge_type].num_edges)
        if not weighted:
            data[edge_type].pop("weight", None)
    return data


def anchors_of(loader: GraphLoader, **options: Any) -> GraphLoader:
    return loader.for_anchors([LIKES, MEETS], [HATES, None], **{"input_nodes": "train", "seed": 7, **options})


def words(batch: Any) -> dict[str, Any]:
    """A batch as plain values; a store lists arrays in another order than an object."""
    return {f"{store._key}.{name}": _plain(value) for store in batch.stores for name, value in store.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), list(value.shape), value.tolist()
    return {key: _plain(own) for key, own in value.items()} if isinstance(value, dict) else value


def truth(batch: Any) -> None:
    """Every label of a batch is one that the anchor has, in the order given, and every anchor has all of its own."""
    given = labels_of_shop()
    user = batch["user"]
    for name, types in (("y_positive", [LIKES, MEETS]), ("y_negative", [HATES])):
        for wanted, supervised in zip(types, batch[name], strict=True):
            others, edges = batch[wanted[2]].n_id, given[wanted]
            own = batch[name][supervised]
            for number, anchor in enumerate(user.n_id[: user.batch_size].tolist()):
                assert others[own[number]].tolist() == edges[1, edges[0] == anchor].tolist()
            assert list(own) == list(range(user.batch_size))


# The same everywhere -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Store]:
    folder = tmp_path_factory.mktemp("shops")
    made = {}
    for edge_dir, parts in (("in", 1), ("in", 3), ("out", 3)):
        out = folder / f"{edge_dir}{parts}"
        made[edge_dir, parts] = gnnkit.partition(labelled_shop(edge_dir), parts, "random", out=out, edge_dir=edge_dir)  # type: ignore[arg-type]
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "edge_dir"),
    [(InProcess(2), "in"), (InProcess(2), "out"), (Colocated(2), "in"), (Colocated(2), "out"), (GraphStore(2), "in")],
    ids=["InProcess-in", "InProcess-out", "Colocated-in", "Colocated-out", "GraphStore-in"],
)
def test_the_same_batches_from_every_backend(stores: dict[Any, Store], backend: Any, edge_dir: str) -> None:
    with (
        GraphLoader.from_pyg(labelled_shop(edge_dir), input_nodes=("user", []), edge_dir=edge_dir, backend=InProcess(1), **OPTIONS) as here,  # type: ignore[arg-type]
        anchors_of(here) as reference,
        GraphLoader.from_store(stores[edge_dir, 3].path, backend=backend, input_nodes=("user", []), **OPTIONS) as elsewhere,
        anchors_of(elsewhere) as loader,
    ):
        assert len(loader) == 5 and loader.plan.batching.shuffle
        for _ in range(2):
            for batch, wanted in zip(loader, reference, strict=True):
                assert words(batch) == words(wanted)
                truth(batch)
        assert words(loader.peek()) == words(reference.peek())
        batch = loader.sample([5, 5, 3], epoch=1)
        truth(batch)
        assert batch["user"].batch_size == 3 and words(batch) == words(reference.sample([5, 5, 3], epoch=1))


@pytest.mark.parametrize("weight", [None, "weight"])
def test_the_same_batches_on_several_hosts(tmp_path: Path, weight: str | None) -> None:
    """Labels are looked up wherever their anchors are, and weights of edges are none of theirs."""
    data = labelled_shop(weighted=True)
    store = gnnkit.partition(data, 3, "random", out=tmp_path / "store", weight=weight, with_edge=True)
    with (
        GraphLoader.from_store(store.path, weight=weight, backend=InProcess(1), input_nodes=("user", []), **OPTIONS) as nodes,
        anchors_of(nodes, cap=4) as loader,
    ):
        plan = loader.plan
    samplers = spread_samplers(store.arrays(), plan.sampling, {0: (0,), 1: (1,), 2: (2,)}, inputs=plan.inputs)  # type: ignore[arg-type]
    one = sampler_on(store.arrays(), plan.sampling, inputs=plan.inputs)  # type: ignore[arg-type]
    for index, ids in enumerate(([5, 3, 17, 5, 59], [], list(range(20)))):
        request = request_of(key_of(1, index), np.array(ids, np.int64))
        wanted = sampled(one, request)
        assert all(sampled(sampler, request) == wanted for sampler, _ in samplers.values())
    asked = [kind for _, owners in samplers.values() for kind, _ in owners.asked]
    assert "expand" in asked and "rows" in asked


@pytest.mark.slow
def test_the_same_batches_from_servers_of_two_hosts(tmp_path: Path) -> None:
    """Each server has one part: labels are looked up on both, and travel with the batches' structure."""
    store = gnnkit.partition(labelled_shop(), 2, "random", out=tmp_path / "store", with_edge=True)
    with (
        two_hosts(store, tmp_path) as hosts,
        GraphLoader.from_store(
            backend=GraphStore(address=hosts.address, token=hosts.fleets[0].token), input_nodes=("user", []), **OPTIONS
        ) as nodes,
        anchors_of(nodes, output="edge_index") as loader,
        GraphLoader.from_store(store.path, backend=InProcess(1), input_nodes=("user", []), **OPTIONS) as here,
        anchors_of(here, output="edge_index") as reference,
    ):
        for batch, wanted in zip(loader, reference, strict=True):
            assert words(batch) == words(wanted)


@pytest.mark.parametrize(
    "sampler",
    [gnnkit.PPR(max_ppr_nodes=5), gnnkit.HGT(num_samples=[6, 6]), gnnkit.LayerWise(num_nodes=[6, 6])],
    ids=["PPR", "HGT", "LayerWise"],
)
def test_other_ways_of_sampling(sampler: Any) -> None:
    with (
        GraphLoader.from_pyg(labelled_shop(), input_nodes=("user", []), backend=InProcess(1), **OPTIONS) as nodes,
        anchors_of(nodes, sampler=sampler, input_nodes=[5, 8, 9]) as loader,
    ):
        batch = next(iter(loader))
        truth(batch)
        assert all(not batch[t].num_edges for t in batch.edge_types if "gigl" in t[1]) and sum(batch[t].num_edges for t in batch.edge_types)
        assert batch["user"].num_sampled_nodes[0] > 3 and batch["user"].batch_size == 3


@pytest.mark.parametrize("options", [{"disjoint": True}, {"subgraph_type": "induced"}, {"replace": True}], ids=str)
def test_options_of_sampling(options: dict[str, Any]) -> None:
    with (
        GraphLoader.from_pyg(labelled_shop(), input_nodes=("user", []), backend=InProcess(1), **OPTIONS) as nodes,
        anchors_of(nodes, **options) as loader,
    ):
        for batch in loader:
            truth(batch)
            assert all(not batch[t].num_edges for t in batch.edge_types if "gigl" in t[1])


class InterruptedAt:
    """Interrupts whoever runs it at one of the lines of gnnkit's samplers.

    Args:
        line: The line, counted as they are run; -1 is none.

    Attributes:
        lines: Lines that were run.
    """

    def __init__(self, line: int) -> None:
        self.line, self.lines = line, 0

    def __enter__(self) -> InterruptedAt:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if SAMPLING not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.line:
                raise KeyboardInterrupt
        return self._trace


SAMPLING = str(Path(gnnkit.__file__).parent / "sampling")


def test_an_interrupt_in_the_middle_of_a_batch() -> None:
    """Ctrl-C wherever it comes, while labels get their numbers for example: the next batch knows nothing of them."""
    with (
        GraphLoader.from_pyg(labelled_shop(), input_nodes=("user", []), backend=InProcess(1), **OPTIONS) as nodes,
        anchors_of(nodes) as loader,
    ):
        wanted = words(loader.sample([3, 5]))
        with InterruptedAt(-1) as counted:
            loader.sample([5, 8, 9])
        assert counted.lines > 100
        interrupts = 0
        for line in range(1, counted.lines + 1, counted.lines // 50):
            try:
                with InterruptedAt(line):
                    loader.sample([5, 8, 9])
            except KeyboardInterrupt:
                interrupts += 1
            assert words(loader.sample([3, 5])) == wanted, line
        assert interrupts > 20  # where nothing has to be made first, there are fewer lines


# What is in a batch --------------------------------------------------------------------------------------------------------


def test_nobody_samples_along_labels() -> None:
    everything = {"num_neighbors": [-1, -1], "progress": False, "backend": InProcess(1)}
    data = labelled_shop()
    data["item", "rev_sees", "user"].edge_index = torch.tensor([[1, 2], [5, 5]])  # labels, but not by their name
    with GraphLoader.from_pyg(data, input_nodes=("user", None), **everything) as nodes:
        batch = next(iter(nodes))
        assert all(batch[t].num_edges == (0 if "gigl" in t[1] else data[t].num_edges) for t in data.edge_types)
        with nodes.for_anchors(("user", "sees", "item"), input_nodes=[5]) as loader:
            batch = next(iter(loader))
            assert batch["item"].n_id[batch.y_positive[0]].tolist() == [1, 2] and batch["item", "rev_sees", "user"].num_edges == 0
            assert loader.plan.sampling.num_neighbors["item", "rev_sees", "user"] == (0, 0)  # type: ignore[attr-defined]
            with loader.with_backend(InProcess(2), num_neighbors=[-1]) as elsewhere:
                batch = elsewhere.peek()
                assert batch["user", "knows", "user"].num_edges and batch["item", "rev_sees", "user"].num_edges == 0
            for options, said in (
                ({"sampler": gnnkit.HGT(num_samples=[4])}, "HGTSampling"),
                ({"subgraph_type": "bidirectional"}, "bidirectional"),
            ):
                with pytest.raises(PlanError, match=f"{said}.* shows edges of every type that is no label type by its name"):
                    loader.for_anchors(("user", "sees", "item"), **options)


def test_what_a_batch_says_of_its_labels() -> None:
    with GraphLoader.from_pyg(labelled_shop(), input_nodes=("user", []), backend=InProcess(1), **OPTIONS) as nodes:
        with nodes.for_anchors(LIKES, input_nodes=[5, 3], cap=2, output="edge_index") as loader:
            batch = next(iter(loader))
            assert batch.y_positive.dtype == torch.int64 and "y_negative" not in batch
            liked = labels_of_shop()[LIKES]
            expected = [(5, item) for item in liked[1, liked[0] == 5].tolist()[:2]] + [(3, i) for i in liked[1, liked[0] == 3].tolist()[:2]]
            anchors, items = batch.y_positive
            assert list(zip(batch["user"].n_id[anchors].tolist(), batch["item"].n_id[items].tolist(), strict=True)) == expected
            moved = batch.to("cpu")
            assert moved.y_positive is not None and batch["user"].input_id.tolist() == [0, 1]
        with nodes.for_anchors(LIKES, HATES, input_nodes=torch.tensor([], dtype=torch.int64)) as loader:
            assert list(loader) == [] and loader.sample([]).y_positive == {}
        with nodes.for_anchors([LIKES]) as loader:  # every user, and one type is no dict of types
            assert sum(batch["user"].batch_size for batch in loader) == USERS and all(
                isinstance(key, int) for key in loader.peek().y_positive
            )


def test_ranks_and_states(stores: dict[Any, Store]) -> None:
    with GraphLoader.from_store(stores["in", 1].path, backend=InProcess(1), input_nodes=("user", []), **OPTIONS) as nodes:
        with anchors_of(nodes, shuffle=True) as alone:
            whole = [words(batch) for batch in alone]
            state = alone.state_dict()
            alone.set_epoch(0)
            iterator = iter(alone)
            next(iterator)
            state = alone.state_dict()
        with anchors_of(nodes, shuffle=True) as again:
            again.load_state_dict(state)
            assert [words(batch) for batch in again] == whole[1:]
    ranks: dict[str, Any] = {"rank": 1, "world_size": 2}
    with (
        GraphLoader.from_store(stores["in", 1].path, backend=InProcess(1), input_nodes=("user", []), **ranks, **OPTIONS) as second,
        anchors_of(second, shuffle=True, remainder="pad") as loader,
    ):
        batches: Any = list(loader)
        assert [batch["user"].seed_mask.all().item() for batch in batches] == [True, True, False]
        for batch, wanted in zip(batches[:2], whole[1::2], strict=True):
            del batch["user"]["seed_mask"]
            assert words(batch) == wanted


def test_plans(stores: dict[Any, Store], tmp_path: Path) -> None:
    with (
        GraphLoader.from_store(stores["in", 3].path, backend=InProcess(1), input_nodes=("user", []), **OPTIONS) as nodes,
        anchors_of(nodes, cap=3, output="edge_index") as loader,
    ):
        loader.plan.save(tmp_path / "plan.json")
        assert LoaderPlan.load(tmp_path / "plan.json") == loader.plan
        with GraphLoader.from_plan(tmp_path / "plan.json") as planned:
            for batch, wanted in zip(planned, loader, strict=True):
                assert words(batch) == words(wanted)
    lists = LabelLists.from_rows(np.array([[3, -1], [-1, -1], [4, 5]]))
    assert lists.counts.tolist() == [1, 0, 2] and lists.rows(np.array([2, 1, 0])).tolist() == [[4, 5], [-1, -1], [3, -1]]
    broken = json.loads((tmp_path / "plan.json").read_text())
    broken["inputs"]["labels"][0]["positive"] = {**lists.to_json(), "counts": lists.to_json()["nodes"]}
    with pytest.raises(PlanError, match="their counts are not those of their nodes"):
        LoaderPlan.from_json(broken)
    for version, what in (
        (1, "of version 1.*\n.*write it again"),
        (9, "of version 9.*\n.*update gnnkit"),
        (None, "no version.*\n.*write it again"),
    ):
        with pytest.raises(PlanError, match=what):
            LoaderPlan.from_json({**broken, "version": version})


def test_edited_plans(stores: dict[Any, Store], tmp_path: Path) -> None:
    """Labels that do not fit the anchors are refused, and label types are not sampled along, whatever a plan says."""
    with (
        GraphLoader.from_store(stores["in", 3].path, backend=InProcess(1), input_nodes=("user", []), **OPTIONS) as nodes,
        anchors_of(nodes, input_nodes=[5, 3]) as loader,
    ):
        text = json.dumps(loader.plan.to_json())

    def opened(**labels: Any) -> GraphLoader:
        plan = json.loads(text)
        plan["inputs"]["labels"][0].update(labels)
        for row in plan["sampling"]["num_neighbors"]:
            row["num_neighbors"] = [2, 2]
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        return GraphLoader.from_plan(tmp_path / "plan.json")

    def lists(rows: list[list[int]]) -> Any:
        return LabelLists.from_rows(np.array(rows)).to_json()

    for labels, said in (
        ({"positive": list(BUYS)}, "owned by 'item' nodes and lead to 'user' nodes"),
        ({"edge_type": ["user", "likes", "shop"]}, "lead to 'item' nodes: they are no labels"),
        ({"positive": lists([[1]])}, "there are 2 anchors, and 1 of them have labels"),
        ({"positive": lists([[1], [ITEMS]])}, f"none of the {ITEMS} 'item' nodes"),
    ):
        with pytest.raises(PlanError, match=said):
            opened(**labels)
    with opened(positive=lists([[1, 2], [3, -1]])) as loader:
        batch = loader.peek()
        assert [batch["item"].n_id[own].tolist() for own in batch.y_positive[LIKES].values()] == [[1, 2], [3]]
        assert all(batch[t].num_edges == 0 for t in batch.edge_types if "gigl" in t[1])
        with pytest.raises(PlanError, match="the labels came with this loader's own anchors"):
            loader.sample([5])


# What is refused -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[GraphLoader]:
    data = labelled_shop()
    data["user", "wrong_gigl_positive", "item"].edge_index = torch.tensor([[1], [2]])
    with GraphLoader.from_pyg(data, input_nodes=("user", []), backend=InProcess(1), **OPTIONS) as loader:
        yield loader


@pytest.mark.parametrize(
    ("positive", "negative", "options", "said"),
    [
        (LIKES, None, {"cap": 0}, "cap must be a whole number of at least 1, got 0"),
        (LIKES, None, {"cap": True}, "cap must be a whole number"),
        (LIKES, None, {"output": "list"}, "output must be 'dict' or 'edge_index', got 'list'"),
        ("likes", None, {}, "positive must be an edge type, or a list of some, got 'likes'"),
        ([], None, {}, "positive must be an edge type, or a list of some"),
        ([LIKES, LIKES], None, {}, "names a type twice"),
        (LIKES, [HATES, None], {}, "there are 2 negative types and 1 positive ones"),
        (LIKES, ("user", 3, "item"), {}, "negative must be an edge type"),
        (LIKES, MEETS, {}, "lead to nodes of two types"),
        (LIKES, 5, {}, "negative must be an edge type, or a list of some, got 5"),
        (LIKES, LIKES, {}, "cannot be positive and negative labels"),
        ([LIKES, ("item", "x", "user")], None, {}, "lead away from nodes of several types: .'item', 'user'."),
        (("user", "buyz_gigl_positive", "item"), None, {}, "there are no label edges .*did you mean"),
        (("user", "wrong_gigl_positive", "item"), None, {}, "anchors do not own these edges.*\n.*add_label_edges.*edge_dir='in'"),
        (LIKES, None, {"input_nodes": ("item", [1])}, "input_nodes are 'item' nodes, and the labels lead away from 'user' nodes"),
        (LIKES, None, {"input_nodes": [USERS]}, "input_nodes holds node 60"),
        (LIKES, None, {"input_nodes": "trian"}, "there is no split 'trian'; did you mean 'train'"),
        (LIKES, None, {"num_neighbours": [1]}, "unknown option 'num_neighbours'"),
    ],
)
def test_what_is_refused(nodes: GraphLoader, positive: Any, negative: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        nodes.for_anchors(positive, negative, **options)


def test_nothing_to_sample_along() -> None:
    data = gnnkit.add_label_edges(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3), {("node", "good", "node"): [[0], [2]]})
    del data["node", "to", "node"]
    with (
        GraphLoader.from_pyg(data, input_nodes=("node", []), backend=InProcess(1), **OPTIONS) as loader,
        pytest.raises(PlanError, match="all edges are labels"),
    ):
        loader.for_anchors(("node", "good", "node"))


def test_label_edges_of_a_graph() -> None:
    plain = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), x=torch.ones(3, 2), num_nodes=3)
    label = ("node", "to_gigl_positive", "node")
    for edge_dir, stored, rows in (("out", label, [[0], [2]]), ("in", ("node", "rev_to_gigl_positive", "node"), [[2], [0]])):
        made = gnnkit.add_label_edges(plain, {label: [[0], [2]]}, edge_dir)  # type: ignore[arg-type]
        assert made.edge_types == [("node", "to", "node"), stored] and made[stored].edge_index.tolist() == rows
        assert made["node"].x is plain.x and isinstance(plain, Data)
        with pytest.raises(PlanError, match="has edges .* already"):
            gnnkit.add_label_edges(made, {label: [[0], [2]]}, edge_dir)  # type: ignore[arg-type]
    for labels, edge_dir, said in (
        ({label: [[0], [3]]}, "in", "name a 'node' node that does not exist"),
        ({label: [[0, 1]]}, "in", r"of shape \[2, n\]"),
        ({label: [[0.5], [1.0]]}, "in", "must be whole numbers"),
        ({("node", "x", "item"): [[0], [1]]}, "in", "is no edge type between nodes of the graph"),
        ({label: [[0], [2]]}, "both", "edge_dir must be 'in' or 'out', got 'both'"),
    ):
        with pytest.raises(PlanError, match=said):
            gnnkit.add_label_edges(plain, labels, edge_dir)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="to a PyG Data or HeteroData, got a str"):
        gnnkit.add_label_edges("ogbn-mag", {label: [[0], [2]]})  # type: ignore[arg-type]
