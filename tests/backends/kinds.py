"""Every kind of batch on two small graphs, for whoever compares them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gnnkit
from gnnkit import BuildOptions, GraphLoader, Store
from gnnkit.schema import opposite_edge_type
from tests.helpers.graphs import ArraySource, EdgeType, homogeneous_source, random_edges, stored, typed_source

BUYS, REV_BUYS, KNOWS = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")
NUM_USERS, NUM_ITEMS, NUM_EDGES = 48, 30, 260
GRAPHS = ("homogeneous", "typed")
EDGE_DIRS: tuple[Any, ...] = ("in", "out")
NEIGHBORS: dict[str, Any] = {"num_neighbors": [4, 3]}
# What is said beside the backend: of nodes, and of links.
NODE_KINDS: dict[str, dict[str, Any]] = {
    "node": {**NEIGHBORS, "replace": True},
    "weighted": {**NEIGHBORS, "weight": "weight"},
    "disjoint": {**NEIGHBORS, "disjoint": True},
    # Few, so that nodes have more early neighbours than they take.
    "temporal": {"num_neighbors": [2, 2], "time_attr": "time"},
    "temporal_last": {"num_neighbors": [2, 2], "time_attr": "time", "temporal_strategy": "last"},
    "temporal_window": {"num_neighbors": [2, 2], "time_attr": "time", "weight": "weight", "temporal_comparison": "<"},
    "induced": {**NEIGHBORS, "subgraph_type": "induced"},
    "bidirectional": {**NEIGHBORS, "subgraph_type": "bidirectional"},
    "labor": {"sampler": gnnkit.Labor([4, 3], batch_dependency=2), "weight": "weight"},
    "labor_layers": {"sampler": gnnkit.Labor([3, 3], layer_dependency=True)},
    "ppr": {"sampler": gnnkit.PPR(alpha=0.25, max_ppr_nodes=6, num_neighbors_per_hop=9)},
    "hgt": {"sampler": gnnkit.HGT(num_samples=[7, 5])},
    "layer_wise": {"sampler": gnnkit.LayerWise(num_nodes=[7, 5])},
    # With so large a p that some steps fail all their tries.
    "walks": {"sampler": gnnkit.Walks(5, 2, p=50, q=0.5, num_negatives=1), "weight": "weight"},
}
# Of homogeneous graphs alone.
WHOLE_KINDS: dict[str, dict[str, Any]] = {
    "clusters": {"sampler": gnnkit.Clusters(8, 2, np.arange(NUM_USERS) * 5 % 8), "batch_size": 2},
    "saint_nodes": {"sampler": gnnkit.Saint("nodes", num_steps=4)},
    "saint_edges": {"sampler": gnnkit.Saint("edges", num_steps=4)},
    "saint_walks": {"sampler": gnnkit.Saint("walks", 3, num_steps=4, sample_coverage=2)},
}
LINK_KINDS: dict[str, dict[str, Any]] = {
    "link_binary": {**NEIGHBORS, "neg_sampling": "binary", "neg_strict": True, "exclude_edges": "reverse"},
    "link_triplet": {**NEIGHBORS, "neg_sampling": "triplet", "neg_amount": 2, "disjoint": True},
}
KINDS = (*NODE_KINDS, *LINK_KINDS, "anchor", *WHOLE_KINDS)
COMMON: dict[str, Any] = {"batch_size": 6, "seed": 5, "shuffle": True, "progress": False, "with_edge": True}


def _edge_arrays(rng: np.random.Generator, num_edges: int) -> dict[str, Any]:
    weight = rng.random(num_edges).astype(np.float32)
    weight[rng.random(num_edges) < 0.2] = 0.0
    attr = rng.standard_normal((num_edges, 2)).astype(np.float32)
    return {"weight": weight, "time": rng.integers(0, 60, num_edges), "edge_attr": attr}


@cache
def plain() -> ArraySource:
    """One type of nodes and of edges; features, labels, weights, and times of edges only."""
    rng = np.random.default_rng(11)
    return homogeneous_source(
        random_edges(rng, NUM_USERS, NUM_USERS, NUM_EDGES),
        NUM_USERS,
        edge_arrays=_edge_arrays(rng, NUM_EDGES),
        x=rng.standard_normal((NUM_USERS, 3)).astype(np.float32),
        y=rng.integers(0, 4, NUM_USERS),
    )


def anchor_labels(graph: str) -> tuple[EdgeType, EdgeType]:
    """Types of positive and negative labels, as they lead from anchors."""
    first, last = ("user", "item") if graph == "typed" else ("node", "node")
    return (first, "likes_gigl_positive", last), (first, "hates_gigl_negative", last)


@cache
def labelled(graph: str, edge_dir: Any) -> ArraySource:
    """A typed graph with label edges: of two node types, or the only one of ``plain``."""
    rng = np.random.default_rng(13)
    sizes = {"user": NUM_USERS, "item": NUM_ITEMS} if graph == "typed" else {"node": NUM_USERS}
    edges: dict[EdgeType, Any] = {}
    if graph == "typed":
        edges[BUYS] = random_edges(rng, NUM_USERS, NUM_ITEMS, NUM_EDGES)
        edges[REV_BUYS] = edges[BUYS][::-1][:, rng.permutation(NUM_EDGES)].copy()
        edges[KNOWS] = random_edges(rng, NUM_USERS, NUM_USERS, NUM_EDGES)
    else:
        edges[("node", "to", "node")] = plain().edges[("node", "to", "node")]
    for outward in anchor_labels(graph):
        # Ragged: one hub, many anchors without any.
        rows = random_edges(rng, NUM_USERS // 2, sizes[outward[2]], 90)
        edges[outward if edge_dir == "out" else opposite_edge_type(outward)] = rows if edge_dir == "out" else rows[::-1].copy()
    edge_arrays = {edge_type: _edge_arrays(rng, rows.shape[1]) for edge_type, rows in edges.items()}
    node_arrays: dict[str, dict[str, Any]] = {
        node_type: {"x": rng.standard_normal((size, 3)).astype(np.float32), "time": rng.integers(20, 60, size)}
        for node_type, size in sizes.items()
    }
    return typed_source(sizes, edges, node_arrays, edge_arrays)


def source_of(graph: str, kind: str, edge_dir: Any) -> ArraySource:
    """The graph that a kind is tried on: labels make even one node type a typed graph."""
    return plain() if graph == "homogeneous" and kind != "anchor" else labelled(graph, edge_dir)


def built(folder: Path, source: Any, num_parts: int, edge_dir: Any, order: Any = "dataset") -> Store:
    """A store with everything that any kind wants."""
    method: Any = "contiguous" if num_parts == 1 else "random"
    options = BuildOptions(
        num_parts, method, edge_dir, with_edge=True, weight="weight", time_attr="time", num_neighbors=(4, 3), order=order
    )
    return stored(source, folder, options)


def input_ids(num_nodes: int) -> Any:
    """Seeds of an epoch of four batches; the last one is short."""
    return np.random.default_rng(17).permutation(num_nodes)[:20]


@cache
def links(graph: str) -> tuple[EdgeType, Any]:
    """The links of an epoch: edges of the graph, and pairs that are none."""
    edge_type = BUYS if graph == "typed" else ("node", "to", "node")
    source = labelled(graph, "in") if graph == "typed" else plain()
    rng = np.random.default_rng(19)
    pairs = np.stack([rng.integers(0, NUM_USERS, 4), rng.integers(0, NUM_ITEMS, 4)])
    return edge_type, torch.from_numpy(np.concatenate([source.edges[edge_type][:, :16], pairs], axis=1))


def kind_loader(kind: str, graph: str, path: Path | None, backend: Any, **changes: Any) -> GraphLoader:
    """A loader of a kind on a store of ``source_of``; loaders on one store share a backend's processes.

    Args:
        kind: One of ``KINDS``.
        graph: One of ``GRAPHS``.
        path: The store; None is that of the servers that the backend joins.
        backend: Where it samples.
        **changes: Other options than the usual ones.
    """
    first, size = ("user" if graph == "typed" else "node"), NUM_USERS

    def open_store(**words: Any) -> GraphLoader:
        return GraphLoader.from_store(path, backend=backend, **{**COMMON, **words, **changes})

    if kind in LINK_KINDS:
        index = links(graph)
        return open_store(edge_label_index=index if graph == "typed" else index[1], **LINK_KINDS[kind])
    if kind == "anchor":
        positive, negative = anchor_labels(graph)
        with open_store(input_nodes=(first, input_ids(size)), **NEIGHBORS) as nodes:
            return nodes.for_anchors(positive, negative, input_nodes=input_ids(size // 2), cap=5, shuffle=True)
    words = {**NODE_KINDS, **WHOLE_KINDS}[kind].copy()
    if kind == "walks" and graph == "typed":
        words["sampler"] = replace(words["sampler"], metapath=[KNOWS])
    if kind == "temporal_window":
        words["time_window"] = np.arange(5, 45, 2)
    if "time_attr" in words and graph == "homogeneous":  # a typed graph's nodes have times of their own
        words["input_time"] = np.arange(20, 60, 2)
    return open_store(input_nodes=(first, input_ids(size)), **words)
