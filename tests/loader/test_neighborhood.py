"""One seed's part of a batch, of every kind, against a search in plain Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.loader.inspection import neighborhood
from tests.loader.graphs import make, plain, typed
from tests.loader.test_anchors import OPTIONS, anchors_of, labelled_shop

Node = tuple[str, int]  # its type and its place in the batch


def edges_of(batch: Any) -> list[tuple[Any, Node, Node]]:
    """Edge type, neighbour and the node it was sampled for."""
    if not hasattr(batch, "edge_types"):
        return [(("node", "to", "node"), ("node", s), ("node", t)) for s, t in batch.edge_index.T.tolist()]
    stores = {t: batch[t] for t in batch.edge_types}
    return [(t, (t[0], a), (t[2], b)) for t, store in stores.items() if "edge_index" in store for a, b in store.edge_index.T.tolist()]


def ids_of(batch: Any, node: Node) -> int:
    """A node's id in the dataset."""
    return int((batch[node[0]] if hasattr(batch, "node_types") else batch).n_id[node[1]])


def searched(batch: Any, roots: list[Node], num_hops: int) -> dict[Node, int]:
    """The hop of every node that a seed reaches."""
    hops, edges = dict.fromkeys(roots, 0), edges_of(batch)
    for depth in range(num_hops):
        at = {node for node, hop in hops.items() if hop == depth}
        for _, neighbor, center in edges:
            if center in at:
                hops.setdefault(neighbor, depth + 1)
    return hops


def check(found: Any, batch: Any, roots: list[Node], num_hops: int) -> None:
    """Nodes, hops, edges and parents are those of the search."""
    hops = searched(batch, roots, num_hops)
    name = {node: (node[0], ids_of(batch, node), hop) for node, hop in hops.items()}
    mine = [(found.node_types[t], int(i), int(h)) for t, i, h in zip(found.node_type, found.n_id, found.hop, strict=True)]
    assert Counter(mine) == Counter(name.values())
    assert mine[: len(roots)] == [name[root] for root in roots]
    assert sorted(found.hop.tolist()) == found.hop.tolist() and found.num_roots == len(roots)
    wanted = [(t, name[a], name[b]) for t, a, b in edges_of(batch) if a in hops and hops.get(b, num_hops) < num_hops]
    ends = [(found.edge_types[t], mine[a], mine[b]) for t, a, b in zip(found.edge_type, *found.edges, strict=True)]
    assert Counter(ends) == Counter(wanted)
    lines = set(zip(*found.edges.tolist(), strict=True))
    for node, parent in enumerate(found.parent.tolist()):
        assert (parent < 0) == (found.hop[node] == 0)
        assert parent < 0 or (found.hop[node] == found.hop[parent] + 1 and (node, parent) in lines)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_neighbors": [-1, -1, -1]},
        {"num_neighbors": [3, 0]},
        {"replace": True, "edge_dir": "out"},
        {"disjoint": True, "num_neighbors": [3, 3]},
        {"subgraph_type": "bidirectional"},
        {"subgraph_type": "induced"},
        {"sampler": gnnkit.LayerWise(num_nodes=[12, 12]), "num_neighbors": None},
        {"sampler": gnnkit.HGT(num_samples=[12, 12]), "num_neighbors": None},
    ],
    ids=str,
)
def test_seeds_of_every_way_of_sampling(options: dict[str, Any]) -> None:
    with make(**options) as loader:
        batch = loader.peek()
        for place in 0, 3, 6:
            seed = int(batch.n_id[place])
            check(neighborhood(loader.pipeline, seed, batch), batch, [("node", place)], loader.plan.sampling.num_hops)
        assert neighborhood(loader.pipeline, None, batch).n_id[0] == batch.n_id[0]
        assert neighborhood(loader.pipeline).n_id.tolist() == neighborhood(loader.pipeline, None, loader.peek()).n_id.tolist()
        asked = neighborhood(loader.pipeline, torch.tensor([41]))
        check(asked, loader.sample([41]), [("node", 0)], loader.plan.sampling.num_hops)
        assert loader.epoch == -1  # nothing was begun


def test_typed_graphs() -> None:
    with make(typed(), input_nodes="paper", num_neighbors=[3, 2]) as loader:
        for batch in loader:
            for place in 0, batch["paper"].batch_size - 1:
                seed = int(batch["paper"].n_id[place])
                check(neighborhood(loader.pipeline, seed, batch), batch, [("paper", place)], 2)


@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_links(negatives: Any, disjoint: bool) -> None:
    data = plain()
    links = data.edge_index[:, :40]
    with make(data, edge_label_index=links, neg_sampling=negatives, disjoint=disjoint) as loader:
        batch = loader.peek()
        for number in 0, 4:
            link = links[:, int(batch.input_id[number])]
            found = neighborhood(loader.pipeline, link, batch)
            ends = found.n_id[[found.pairs[0].source, found.pairs[0].target]].tolist()
            assert ends == link.tolist() and found.pairs[0].kind == "link" and len(found.pairs) == 1
            if negatives == "triplet":
                places = [int(batch.src_index[number]), int(batch.dst_pos_index[number])]
            else:
                places = batch.edge_label_index[:, number].tolist()
            check(found, batch, [("node", place) for place in dict.fromkeys(places)], 2)
        assert neighborhood(loader.pipeline, (5, 17)).n_id[:2].tolist() == [5, 17]
        with pytest.raises(PlanError, match="no link from 5 to 5"):
            neighborhood(loader.pipeline, (5, 5), batch)
        with pytest.raises(PlanError, match="the source and the target of a link, got 5"):
            neighborhood(loader.pipeline, 5)


def test_links_of_typed_graphs() -> None:
    data = typed()
    with make(data, edge_label_index=(("tag", "on", "paper"), data["tag", "on", "paper"].edge_index[:, :30])) as loader:
        batch = loader.peek()
        found = neighborhood(loader.pipeline, None, batch)
        check(found, batch, [("tag", int(batch["tag", "on", "paper"].edge_label_index[0, 0])), ("paper", 0)], 2)
        assert [found.node_types[t] for t in found.node_type[:2]] == ["tag", "paper"]


@pytest.mark.parametrize("output", ["dict", "edge_index"])
def test_anchors_and_their_labels(output: Any) -> None:
    with (
        GraphLoader.from_pyg(labelled_shop(), input_nodes=("user", []), backend="inprocess", **OPTIONS) as nodes,
        anchors_of(nodes, output=output, input_nodes=[8, 5, 9]) as loader,
    ):
        for batch in loader:
            for place in range(batch["user"].batch_size):
                found = neighborhood(loader.pipeline, int(batch["user"].n_id[place]), batch)
                roots: list[Node] = [("user", place)]
                for kind in "positive", "negative":
                    own = []
                    for wanted, labels in batch[f"y_{kind}"].items() if isinstance(batch[f"y_{kind}"], dict) else ():
                        mine = labels[place] if output == "dict" else labels[1][labels[0] == place]
                        own += [(wanted[2], int(label)) for label in mine]
                    named = [p for p in found.pairs if p.kind.startswith(kind)]
                    if kind == "positive":
                        assert len(named) == min(2, len(own)) and (len(own) <= 2 or f"2 of {len(own)} positive labels" in found.remarks)
                        roots += own[:2]
                    else:
                        targets = {int(found.n_id[p.target]) for p in named}
                        roots += [("item", i) for i, n in enumerate(batch["item"].n_id.tolist()) if n in targets]
                    assert all(pair.source == 0 for pair in named)
                assert found.num_roots == len(dict.fromkeys(roots))
                hops = searched(batch, roots, 2)
                assert Counter(found.hop.tolist()) == Counter(hops.values())


@pytest.mark.parametrize("kind", ["plain", "typed", "channels", "links"])
def test_pagerank(kind: str) -> None:
    """A seed's nodes are those that it keeps, at the distance that their edge says."""
    options: dict[str, Any] = {"num_neighbors": None, "sampler": gnnkit.PPR(max_ppr_nodes=5, include_sampled_edges=kind == "typed")}
    data = plain() if kind in ("plain", "links") else typed()
    if kind == "channels":
        cites, has = ("paper", "cites", "paper"), ("paper", "has", "tag")
        options["sampler"] = gnnkit.PPR(max_ppr_nodes=6, typed_channel_ratios={cites: 0.5, has: 0.5})
    options |= {"edge_label_index": data.edge_index[:, :20]} if kind == "links" else {"input_nodes": None if kind == "plain" else "paper"}
    with make(data, **options) as loader:
        batch = loader.peek()
        found = neighborhood(loader.pipeline, None, batch)
        stores = {("node", "to", "node"): batch} if not hasattr(batch, "edge_types") else {t: batch[t] for t in batch.edge_types}
        roots = [0] if kind != "links" else batch.edge_label_index[:, 0].tolist()
        hops: dict[Node, int] = {}
        for edge_type, store in stores.items():
            if kind in ("plain", "links") or edge_type[1] == "ppr":
                for (seed, kept), attributes in zip(store.edge_index.T.tolist(), store.edge_attr.tolist(), strict=True):
                    if seed in roots:
                        node, hop = (edge_type[2], kept), round(1 / attributes[1]) - 1
                        hops[node] = min(hop, hops.get(node, hop))
        hops |= dict.fromkeys([("node" if kind in ("plain", "links") else "paper", root) for root in roots], 0)
        mine = Counter((found.node_types[t], int(i), int(h)) for t, i, h in zip(found.node_type, found.n_id, found.hop, strict=True))
        assert mine == Counter((node[0], ids_of(batch, node), hop) for node, hop in hops.items())
        assert set(found.parent[found.hop > 0].tolist()) <= set(range(found.num_roots)) and found.edges.shape[1] > 0
        by_ppr = [kind in ("plain", "links") or found.edge_types[t][1] == "ppr" for t in found.edge_type]
        assert all(found.hop[source] == 0 for source, is_ppr in zip(found.edges[0], by_ppr, strict=True) if is_ppr)
        assert kind != "typed" or not all(by_ppr)


def test_what_cannot_be_found() -> None:
    with make() as loader:
        batch = loader.peek()
        absent = next(i for i in range(100) if i not in batch.n_id[:7].tolist())
        with pytest.raises(PlanError, match=f"(?s)the batch has no seed {absent}.*first batch_size of n_id"):
            neighborhood(loader.pipeline, absent, batch)
        for seed in "zero", 0.5, [1, 2]:
            with pytest.raises(PlanError, match="the id of one node"):
                neighborhood(loader.pipeline, seed)
        with pytest.raises(PlanError, match="ids go from 0|0 to 99|out of range"):
            neighborhood(loader.pipeline, 100)
        del batch.n_id
        with pytest.raises(PlanError, match="(?s)no tensor 'n_id'.*before a transform"):
            neighborhood(loader.pipeline, None, batch)
