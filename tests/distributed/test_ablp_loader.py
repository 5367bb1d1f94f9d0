"""``DistABLPLoader``: GiGL's fixtures, on this host and on servers, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit.distributed import (
    ABLPInputNodes,
    DistDataset,
    DistServer,
    FetchABLPInputRequest,
    PPRSamplerOptions,
    RemoteDistDataset,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
    reverse_edge_type,
)
from gnnkit.errors import PlanError
from tests.distributed.loading import NEGATIVE, POSITIVE, TO, client, dataset_of, ring, serving, stored
from tests.distributed.social import NUM_USERS, TO_STORY, social

pytestmark = [pytest.mark.filterwarnings("ignore:labels as a dict:FutureWarning")]
DEADLINE_S = 120
EDGES = [(10, 11), (10, 12), (11, 13), (11, 17), (15, 13), (15, 14), (16, 12), (16, 14)]
GOOD, BAD = [(10, 15), (15, 16)], [(10, 13), (10, 16), (11, 14), (15, 17)]


def pairs(edges: list[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor(edges).T


def toy(edge_dir: Any, *, with_negatives: bool = True) -> HeteroData:
    """The fixture of ``behaviour.md``: messages come from where an edge leads to, whatever the direction of sampling."""
    edges = pairs(EDGES) if edge_dir == "out" else pairs(EDGES).flip(0)
    labels = {POSITIVE: pairs(GOOD), **({NEGATIVE: pairs(BAD)} if with_negatives else {})}
    train = torch.isin(torch.arange(18), torch.tensor([3, 10, 15]))
    return gnnkit.add_label_edges(Data(edge_index=edges, x=torch.arange(18.0)[:, None], train_mask=train, num_nodes=18), labels, edge_dir)


def loader_of(dataset: Any, anchors: Any, fan_outs: Any = (2, 2), **options: Any) -> Any:
    from gnnkit.distributed import DistABLPLoader

    return DistABLPLoader(dataset, list(fan_outs), anchors, **{"num_workers": 0, "batch_size": 2, **options})


def remote(dataset: Any, anchors: Any, **options: Any) -> Any:
    return loader_of(dataset, anchors, **{"num_workers": 1, **options})


def only(loader: Any) -> Any:
    """The only batch of a loader."""
    (batch,) = list(loader)
    loader.shutdown()
    return batch


def by_id(labels: dict[int, torch.Tensor], anchors: torch.Tensor, nodes: torch.Tensor) -> dict[int, list[int]]:
    """A dict of labels in the dataset's ids."""
    return {int(anchors[anchor]): nodes[own].tolist() for anchor, own in labels.items()}


# Fixtures ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("cap", [None, 1])
def test_the_toy_graph(tmp_path: Path, edge_dir: str, cap: int | None) -> None:
    batch = only(loader_of(dataset_of(toy(edge_dir), tmp_path, edge_dir=edge_dir), torch.tensor([10, 15]), max_labels_per_anchor_node=cap))
    assert isinstance(batch, Data) and sorted(batch.node.tolist()) == list(range(10, 18))
    assert batch.batch.tolist() == [10, 15] and batch.batch_size == 2 and batch.num_sampled_nodes[0] == 5
    found: dict[int, set[int]] = {}
    for neighbor, seed in batch.node[batch.edge_index].T.tolist():
        found.setdefault(seed, set()).add(neighbor)
    assert found == {10: {11, 12}, 15: {13, 14}, 16: {12, 14}, 11: {13, 17}}
    assert by_id(batch.y_positive, batch.node, batch.node) == {10: [15], 15: [16]}
    assert by_id(batch.y_negative, batch.node, batch.node) == {10: [13, 16][:cap], 15: [17]}
    assert batch.x[:, 0].tolist() == batch.node.tolist()


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_edge_index_says_what_the_dict_says(tmp_path: Path, edge_dir: str) -> None:
    dataset = dataset_of(toy(edge_dir), tmp_path, edge_dir=edge_dir)
    anchors = torch.tensor([12, 15, 10])  # the first one has no labels
    as_dict = only(loader_of(dataset, anchors, batch_size=3))
    as_index = only(loader_of(dataset, anchors, batch_size=3, use_label_edge_index_output=True))
    assert as_dict.y_positive[0].tolist() == [] and list(as_dict.y_positive) == [0, 1, 2]
    for name in ("y_positive", "y_negative"):
        expected = [[anchor, int(label)] for anchor, labels in as_dict[name].items() for label in labels]
        assert as_index[name].dtype == torch.int64 and as_index[name].T.tolist() == expected


def test_the_exact_edge_index(tmp_path: Path) -> None:
    data = gnnkit.add_label_edges(ring(), {POSITIVE: torch.tensor([[3, 4, 4, 5, 0, 1, 2], [20, 20, 21, 21, 9, 9, 9]])})
    batch = only(loader_of(dataset_of(data, tmp_path), torch.tensor([3, 4, 0, 1, 2]), [0], batch_size=5, use_label_edge_index_output=True))
    assert batch.y_positive.tolist() == [[0, 1, 1, 2, 3, 4], [5, 5, 6, 7, 7, 7]] and "y_negative" not in batch


def test_several_supervision_types(tmp_path: Path) -> None:
    data, to_b, to_c = HeteroData(), ("a", "to", "b"), ("a", "to", "c")
    for node_type in "abc":
        data[node_type].x = torch.arange(60.0)[:, None]
    data[to_b].edge_index = data[to_c].edge_index = torch.tensor([[10, 11], [11, 12]])
    labels = {
        message_passing_to_positive_label(to_b): pairs([(10, 10), (10, 11), (11, 12), (11, 13), (12, 10), (13, 10)]),
        message_passing_to_positive_label(to_c): pairs([(10, 5), (13, 50)]),
        message_passing_to_negative_label(to_c): pairs([(10, 20), (11, 30), (11, 50), (12, 40)]),
    }
    for edge_dir in ("in", "out"):
        dataset = dataset_of(gnnkit.add_label_edges(data, labels, edge_dir), tmp_path / edge_dir, 2, edge_dir=edge_dir)
        anchors = ("a", torch.tensor([13, 10, 11]))
        batch = only(loader_of(dataset, anchors, batch_size=3, supervision_edge_type=[to_b, to_c]))
        assert isinstance(batch, HeteroData) and not any("gigl" in relation for _, relation, _ in batch.edge_types)
        a, b, c = (batch[node_type].node for node_type in "abc")
        assert batch["a"].batch.tolist() == [13, 10, 11] and batch["a"].batch_size == 3
        assert list(batch.y_positive) == [to_b, to_c] and list(batch.y_negative) == [to_c]
        assert by_id(batch.y_positive[to_b], a, b) == {13: [10], 10: [10, 11], 11: [12, 13]}
        assert by_id(batch.y_positive[to_c], a, c) == {13: [50], 10: [5], 11: []}
        # A row belongs to its anchor also where the first one has no labels.
        assert by_id(batch.y_negative[to_c], a, c) == {13: [], 10: [20], 11: [30, 50]}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_pagerank_does_not_follow_labels(tmp_path: Path, edge_dir: str) -> None:
    dataset = dataset_of(toy(edge_dir), tmp_path, edge_dir=edge_dir)
    batch = only(loader_of(dataset, torch.tensor([10, 15]), sampler_options=PPRSamplerOptions(max_ppr_nodes=8)))
    kept: dict[int, set[int]] = {}
    for seed, node in batch.node[batch.edge_index].T.tolist():
        kept.setdefault(seed, set()).add(node)
    # 15 is a label of 10, and 16 one of 15, and no edge of the graph leads from one to the other.
    assert kept[10] == {10, 11, 12, 13, 17} and kept[15] == {15, 13, 14} and kept[16] == {16, 12, 14}
    assert by_id(batch.y_positive, batch.node, batch.node) == {10: [15], 15: [16]}


def test_anchors_of_very_many_labels(tmp_path: Path) -> None:
    """256 labels are no zero, and a hub makes only its own batch larger."""
    hub = [(0, label) for label in range(256)] + [(1, 7)]
    data = gnnkit.add_label_edges(ring(300), {POSITIVE: pairs(hub)})
    dataset = dataset_of(data, tmp_path)
    batches = list(loader_of(dataset, torch.tensor([0, 1, 2]), [0], batch_size=1))
    assert [len(batch.y_positive[0]) for batch in batches] == [256, 1, 0] and [batch.num_nodes for batch in batches] == [256, 2, 1]
    assert batches[0].node[batches[0].y_positive[0]].tolist() == list(range(256))


def test_labels_keep_their_number(tmp_path: Path) -> None:
    data = gnnkit.add_label_edges(ring(), {POSITIVE: pairs([(4, 4), (4, 9), (4, 4), (6, 4)])})
    batch = only(loader_of(dataset_of(data, tmp_path), torch.tensor([6, 4]), [0]))
    assert batch.node.tolist() == [6, 4, 9] and {k: v.tolist() for k, v in batch.y_positive.items()} == {0: [1], 1: [1, 2, 1]}


def test_all_anchors_of_a_part(tmp_path: Path) -> None:
    """Every anchor once in processes of their own, with the labels that it has; and no dict without a warning."""
    dataset = dataset_of(toy("in"), tmp_path, 2, 1)
    loader = loader_of(dataset, None, batch_size=4, num_workers=1, shuffle=True, seed=3)
    found: dict[int, list[int]] = {}
    for batch in loader:
        found |= by_id(batch.y_positive, batch.node, batch.node)
    loader.shutdown()
    assert sorted(found) == sorted(dataset.node_ids["node"].tolist()) and found[10] == [15] and found[15] == [16]  # type: ignore[index,call-overload]
    with pytest.warns(FutureWarning, match="labels as a dict"):
        loader_of(dataset, torch.tensor([10])).shutdown()


# Servers -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    stores = {
        "toy": stored(toy("in"), tmp_path_factory.mktemp("toy"), 2),
        "social": stored(gnnkit_social(), tmp_path_factory.mktemp("social"), 2, edge_dir="out"),
    }
    with serving(*stores.values()) as running:
        yield {**dict(zip(stores, running, strict=True)), "stores": stores}


def gnnkit_social() -> HeteroData:
    return social(with_negatives=False)


@pytest.fixture
def joined(served: dict[str, Any], request: pytest.FixtureRequest) -> Iterator[RemoteDistDataset]:
    with client(served[request.param].address) as dataset:
        yield dataset


def input_of(anchors: list[int], good: Any, bad: Any = None, node_type: str = "node", edge_type: Any = TO) -> ABLPInputNodes:
    negative = None if bad is None else torch.tensor(bad)
    return ABLPInputNodes(torch.tensor(anchors), node_type, {edge_type: (torch.tensor(good), negative)})


@pytest.mark.slow
@pytest.mark.parametrize("joined", ["toy"], indirect=True)
def test_labels_that_come_with_the_anchors(joined: RemoteDistDataset) -> None:
    given = {1: input_of([10, 15, 3], [[15, -1], [16, 9], [-1, -1]], [[13, 16], [17, -1], [-1, -1]])}
    loader = remote(joined, given, batch_size=3)
    for _ in range(2):
        (batch,) = list(loader)
        assert isinstance(batch, Data) and batch.batch.tolist() == [10, 15, 3]
        assert by_id(batch.y_positive, batch.node, batch.node) == {10: [15], 15: [16, 9], 3: []}
        assert by_id(batch.y_negative, batch.node, batch.node) == {10: [13, 16], 15: [17], 3: []}
    loader.shutdown()
    # One server without negatives has batches like the others.
    given = {0: input_of([3], [[4]]), 1: input_of([10], [[15]], [[13]])}
    loader = remote(joined, given, max_labels_per_anchor_node=1, use_label_edge_index_output=True)
    assert [batch.y_negative.tolist() for batch in loader] == [[[], []], [[0], [2]]]
    loader.shutdown()


@pytest.mark.parametrize("joined", ["toy"], indirect=True)
def test_anchors_of_a_split_and_labels_of_several_types(joined: RemoteDistDataset) -> None:
    loader = remote(joined, joined.fetch_ablp_input("train"), batch_size=3)
    found: list[dict[int, list[int]]] = [{}, {}]
    for batch in loader:
        for labels, of_batch in zip(found, (batch.y_positive, batch.y_negative), strict=True):
            labels |= by_id(of_batch, batch.node, batch.node)
    loader.shutdown()
    assert found == [{3: [], 10: [15], 15: [16]}, {3: [], 10: [13, 16], 15: [17]}]
    other = ("node", "other", "node")
    labels = {TO: (torch.tensor([[4]]), None), other: (torch.tensor([[5, 3]]), torch.tensor([[-1]]))}
    batch = only(remote(joined, {1: ABLPInputNodes(torch.tensor([3]), "node", labels)}))
    assert batch.node[:3].tolist() == [3, 4, 5] and list(batch.y_positive) == [TO, other] and list(batch.y_negative) == [other]
    assert by_id(batch.y_positive[other], batch.node, batch.node) == {3: [5, 3]} and batch.y_negative[other][0].tolist() == []


@pytest.mark.parametrize("joined", ["social"], indirect=True)
def test_what_the_servers_say_is_what_a_dataset_says(joined: RemoteDistDataset, served: dict[str, Any]) -> None:
    anchors = joined.fetch_ablp_input("train", None, None, "user", TO_STORY)
    loader = remote(joined, anchors)
    found = list(loader)
    loader.shutdown()
    assert found and all("y_negative" not in batch and batch["user"].batch_size <= 2 for batch in found)
    dataset = DistDataset.from_store(served["stores"]["social"])
    labels: dict[int, list[int]] = {}
    for batch in found:
        labels |= by_id(batch.y_positive, batch["user"].node, batch["story"].node)
        here = only(loader_of(dataset, ("user", batch["user"].batch), supervision_edge_type=TO_STORY))
        # Servers list labels in ascending order, a dataset's batches in the stored one.
        stored_order = by_id(here.y_positive, here["user"].node, here["story"].node)
        assert {u: sorted(own) for u, own in stored_order.items()} == {u: labels[u] for u in batch["user"].batch.tolist()}
        assert all(own == [(u + 1) % NUM_USERS, u] for u, own in stored_order.items())
    assert labels == {u: sorted([u, (u + 1) % NUM_USERS]) for u in range(3)}


@pytest.mark.parametrize("joined", ["toy"], indirect=True)
@pytest.mark.parametrize(
    ("anchors", "options", "said"),
    [
        (torch.tensor([1]), {}, "input_nodes is a Tensor, and the dataset is on servers"),
        ({}, {}, "names no server"),
        ({2: input_of([1], [[2]])}, {}, "names the server 2"),
        ({0: torch.tensor([1])}, {}, "are a Tensor"),
        ({0: input_of([1], [[2]])}, {"supervision_edge_type": TO}, "supervision_edge_type is given, and the dataset is on servers"),
        ({0: input_of([1, 2], [[2]])}, {}, r"must be whole numbers \[2, m\]"),
        ({0: ABLPInputNodes(torch.tensor([1]), "node", {})}, {}, "no labels of any type"),
        ({0: input_of([1], [[2]]), 1: input_of([1], [[2]], edge_type=("node", "x", "node"))}, {}, "servers disagree"),
        ({0: input_of([1], [[2]], edge_type=("story", "x", "node"))}, {}, "does not begin at the anchors"),
    ],
)
def test_what_it_refuses_of_servers(joined: RemoteDistDataset, anchors: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        remote(joined, anchors, **options)


# What it refuses -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DistDataset]:
    graphs: dict[str, Callable[[], Any]] = {"plain": ring, "toy": lambda: toy("in"), "social": lambda: social(reversed_labels=True)}
    found = {name: dataset_of(make(), tmp_path_factory.mktemp(name)) for name, make in graphs.items()}
    outward = social()
    return {**found, "outward": dataset_of(outward, tmp_path_factory.mktemp("outward"), edge_dir="in")}


USERS = ("user", torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("name", "anchors", "supervision", "said"),
    [
        ("plain", torch.tensor([1]), None, "is homogeneous and has no label edges"),
        ("toy", torch.tensor([1]), TO, "input_nodes does not name a node type"),
        ("toy", ("node", torch.tensor([1])), None, "supervision_edge_type is missing"),
        ("toy", {0: torch.tensor([1])}, None, "input_nodes is a dict"),
        ("toy", torch.tensor([[1]]), None, "must be one-dimensional"),
        ("toy", torch.tensor([18]), None, "holds node 18"),
        ("social", torch.tensor([1]), None, "the graph is typed"),
        ("social", None, None, "the graph is typed"),
        ("social", USERS, [], "must be an edge type or a list"),
        ("social", USERS, reverse_edge_type(TO_STORY), "does not begin at the anchors"),
        ("social", USERS, ("user", "likes", "story"), "there are no label edges"),
        ("social", ("person", torch.tensor([1])), TO_STORY, "unknown node type 'person'"),
        ("outward", USERS, TO_STORY, "anchors do not own these edges"),
    ],
)
def test_what_it_refuses(datasets: dict[str, DistDataset], name: str, anchors: Any, supervision: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        loader_of(datasets[name], anchors, supervision_edge_type=supervision)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_labels_per_anchor_node": 0}, "cap must be a whole number of at least 1"),
        ({"fan_outs": [2], "num_neighbors": [3]}, "multiple values"),
        ({"prefetch_size": 2}, "prefetch_size belongs to the graph-store mode"),
    ],
)
def test_options_that_it_refuses(datasets: dict[str, DistDataset], options: dict[str, Any], said: str) -> None:
    with pytest.raises((PlanError, TypeError), match=said):
        loader_of(datasets["toy"], torch.tensor([10]), **options)


def test_fan_outs_say_nothing_of_labels(datasets: dict[str, DistDataset]) -> None:
    from gnnkit.distributed import DistABLPLoader

    batch = only(DistABLPLoader(datasets["toy"], {TO: [2, 2]}, torch.tensor([10, 15]), num_workers=0, batch_size=2))
    assert batch.node.tolist()[:5] == [10, 15, 16, 13, 17] or batch.node.tolist()[:2] == [10, 15]
    with pytest.raises(PlanError, match="names the label edge types"):
        DistABLPLoader(datasets["toy"], {TO: [2, 2], POSITIVE: [1, 1]}, torch.tensor([10]), num_workers=0)


@pytest.mark.parametrize("as_edges", [False, True])
@pytest.mark.parametrize("prefix", ["", "rev_"])
def test_labels_of_a_graph_along_in_edges_may_have_gigls_names(tmp_path: Path, prefix: str, as_edges: bool) -> None:
    """GiGL swaps the ends of a type and keeps the relation, graphlearn-torch also writes ``rev_``: what leads back is found under both."""
    data = HeteroData()
    for node_type, count in (("a", 11), ("b", 17), ("c", 26)):
        data[node_type].num_nodes = count
    data["a"].train_mask = torch.arange(11) == 10
    for node_type, first in (("b", 11), ("c", 20)):
        for relation, start in ((f"{prefix}to", first), (f"{prefix}to_gigl_positive", first + 2), (f"{prefix}to_gigl_negative", first + 4)):
            data[node_type, relation, "a"].edge_index = torch.tensor([[start, start + 1], [10, 10]])
    dataset, supervised = dataset_of(data, tmp_path, edge_dir="in"), [("a", "to", "b"), ("a", "to", "c")]
    options: dict[str, Any] = {"supervision_edge_type": supervised, "num_workers": 0, "use_label_edge_index_output": as_edges}
    loader = gnnkit.distributed.DistABLPLoader(dataset, [2, 2], ("a", torch.tensor([10])), **options)
    (batch,) = loader
    assert set(batch.edge_types) == {("b", f"{prefix}to", "a"), ("c", f"{prefix}to", "a")}
    for edge_type, first in zip(supervised, (11, 20), strict=True):
        for labels, start in ((batch.y_positive, first + 2), (batch.y_negative, first + 4)):
            own = labels[edge_type]
            found = own[1] if as_edges else own[0]
            assert sorted(batch[edge_type[2]].node[found].tolist()) == [start, start + 1]
    loader.shutdown()
    found = DistServer(dataset).get_ablp_input(FetchABLPInputRequest("train", "a", supervised[0]))
    assert [rows.tolist() for rows in found if rows is not None] == [[10], [[13, 14]], [[15, 16]]]
