"""``Node2Vec`` and ``MetaPath2Vec`` of ``gnnkit.pyg``: PyG's models, trained on gnnkit's walks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.nn import models as theirs
from torch_geometric.utils import to_undirected

from gnnkit.errors import PlanError
from gnnkit.pyg import MetaPath2Vec, Node2Vec

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
WRITES, WRITTEN_BY = ("author", "writes", "paper"), ("paper", "written_by", "author")
LIBRARY = {WRITES: torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]]), WRITTEN_BY: torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2]])}


def on_metapath(kind: type[Any] = MetaPath2Vec, **more: Any) -> Any:
    words = {"embedding_dim": 16, "metapath": [WRITES, WRITTEN_BY], "walk_length": 2, "context_size": 2, **more}
    return kind(LIBRARY, **words)


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (1.0, 0.5), (4.0, 1.0)])
def test_node2vec(p: float, q: float) -> None:
    model = Node2Vec(PATH, embedding_dim=16, walk_length=2, context_size=2, p=p, q=q)
    assert isinstance(model, theirs.Node2Vec) and str(model) == "Node2Vec(3, 16)"
    assert model(torch.arange(3)).shape == (3, 16)
    pos_rw, neg_rw = model.sample(torch.arange(3))
    assert pos_rw.shape == neg_rw.shape == (3, 2)
    assert set(map(tuple, pos_rw.tolist())) <= set(map(tuple, PATH.T.tolist()))
    assert model.loss(pos_rw, neg_rw).item() >= 0
    assert model.pos_sample(torch.tensor([2])).tolist() == [[2, 1]] and model.neg_sample(torch.tensor([2])).shape == (1, 2)


def test_windows_of_walks_lie_as_pygs() -> None:
    """Those from each walk's first node come first. Nodes without neighbours repeat; without negatives there are none."""
    edge_index = torch.stack([torch.arange(9), torch.arange(1, 10)])  # the only walk is the one straight on
    model = Node2Vec(edge_index, 4, walk_length=5, context_size=3, walks_per_node=2, num_negative_samples=3, num_nodes=10)
    pos_rw, neg_rw = model.sample([2, 7])
    walks = torch.tensor([[2, 3, 4, 5, 6], [7, 8, 9, 9, 9]] * 2)
    assert pos_rw.tolist() == torch.cat([walks[:, first : first + 3] for first in range(3)]).tolist()
    assert neg_rw.shape == (3 * 12, 3) and neg_rw[:12, 0].tolist() == [2, 7] * 6
    alone = Node2Vec(edge_index, 4, walk_length=5, context_size=3, num_negative_samples=0)
    assert [part.shape for part in alone.sample([2])] == [(3, 3), (0, 3)]


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.core
def test_node2vec_is_trained_as_pygs_example_does(num_workers: int) -> None:
    """Two cliques with one edge between them: nodes of one get embeddings that lie together."""
    torch.manual_seed(0)
    ends = torch.combinations(torch.arange(8)).T
    edge_index = to_undirected(torch.cat([ends, ends + 8, torch.tensor([[0], [8]])], dim=1))
    model = Node2Vec(edge_index, embedding_dim=8, walk_length=10, context_size=5, walks_per_node=10, p=1.0, q=2.0, sparse=True)
    loader = model.loader(batch_size=4, shuffle=True, num_workers=num_workers)
    assert isinstance(loader, DataLoader) and len(loader) == 4
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.05)
    losses = []
    for _ in range(12):
        for pos_rw, neg_rw in loader:
            optimizer.zero_grad()
            loss = model.loss(pos_rw, neg_rw)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    loader.graph_loader.close()
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    z = torch.nn.functional.normalize(model().detach(), dim=1)
    likeness, same = z @ z.T, (torch.arange(16) < 8)[:, None] == (torch.arange(16) < 8)
    assert likeness[same].mean() > likeness[~same].mean() + 0.3


def test_metapath2vec() -> None:
    model = on_metapath()
    assert isinstance(model, theirs.MetaPath2Vec) and str(model) == "MetaPath2Vec(5, 16)"
    assert model("author").shape == (3, 16) and model("paper").shape == (2, 16)
    pos_rw, neg_rw = model._sample(torch.arange(3))
    assert model.loss(pos_rw, neg_rw).item() >= 0
    pairs = {(a, 3 + p) for a, p in LIBRARY[WRITES].T.tolist()} | {(3 + p, a) for p, a in LIBRARY[WRITTEN_BY].T.tolist()}
    assert set(map(tuple, pos_rw.tolist())) <= pairs
    assert neg_rw[:3, 0].tolist() == [0, 1, 2] and set(neg_rw[:3, 1].tolist()) <= {3, 4} and set(neg_rw[3:, 1].tolist()) <= {0, 1, 2}


def test_batches_of_metapath2vec_have_pygs_shapes_and_ids() -> None:
    """Of nodes that no edge leads on from, the dummy follows in both; each window begins with what PyG's begins with."""
    edges = {WRITES: torch.tensor([[0], [1]]), WRITTEN_BY: torch.tensor([[1, 0], [0, 2]])}
    made = [
        kind(edges, 4, [WRITES, WRITTEN_BY], walk_length=5, context_size=3, walks_per_node=2, num_negative_samples=2)
        for kind in (MetaPath2Vec, theirs.MetaPath2Vec)
    ]
    ours, pygs = (model._sample(torch.tensor([0, 1])) for model in made)
    assert ours[0].equal(pygs[0]), "there is one way"
    assert made[0].dummy_idx in ours[0] and ours[1].shape == pygs[1].shape


@pytest.mark.parametrize("batch_size", [16, 2])
def test_metapath2vec_without_edges(batch_size: int) -> None:
    edges = {t: torch.empty((2, 0), dtype=torch.long) for t in (("a", "to", "b"), ("b", "to", "a"))}
    words = {"walks_per_node": 5, "num_negative_samples": 5, "num_nodes_dict": {"a": 3, "b": 4}}
    model = MetaPath2Vec(edges, 16, list(edges), walk_length=10, context_size=7, **words)
    pos_rw, neg_rw = next(iter(model.loader(batch_size=batch_size, shuffle=True)))
    seeds = min(3, batch_size)
    assert pos_rw.shape == (5 * 5 * seeds, 7) and neg_rw.shape == (25 * 5 * seeds, 7)
    assert set(pos_rw[:, 1:].reshape(-1).tolist()) == {model.dummy_idx}


@pytest.mark.parametrize("make", [lambda: Node2Vec(PATH, 4, 3, 2, num_nodes=40), lambda: on_metapath(walks_per_node=3)])
def test_a_loader_is_one_of_gnnkits(make: Callable[[], Any]) -> None:
    """The same seed gives the same walks, also of a copy, and states go on."""
    model = make()
    model.sample([0])
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    torch.manual_seed(1)
    first = list(model.loader(batch_size=2, shuffle=True))
    torch.manual_seed(1)
    other = again.loader(batch_size=2, shuffle=True)
    assert len(first) == len(other)
    assert all(a.equal(b) for left, right in zip(first, other, strict=True) for a, b in zip(left, right, strict=True))
    iterator = iter(other)
    next(iterator)
    state = other.state_dict()
    rest = model.loader(batch_size=2, shuffle=True)
    rest.load_state_dict(state)
    assert all(a.equal(b) for left, right in zip(iterator, rest, strict=True) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Node2Vec(PATH, 4, walk_length=2, context_size=3), "context_size=3, and walks have 2 nodes"),
        (lambda: on_metapath(context_size=4), "context_size=4, and walks have 3 nodes"),
        (lambda: Node2Vec(PATH, 4, 2, 2, p=0).loader(), "p must be a number"),
        (lambda: Node2Vec(PATH, 4, 2, 2, num_nodes="3"), "num_nodes must be a whole number"),  # type: ignore[arg-type]
        (lambda: Node2Vec(PATH, 4, 1, 1).loader(), "length must be a whole number of at least 1"),
        (lambda: on_metapath().loader(batch_size=None), "batch_size=None"),
        (lambda: Node2Vec(PATH, 4, 2, 2).sample([7]), "there is no input"),
    ],
)
def test_what_cannot_be(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()
