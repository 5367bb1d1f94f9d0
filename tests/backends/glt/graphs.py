"""Graphs for graphlearn-torch, and what a batch drawn from them must be like, whoever drew it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnkit.datasets import ArraySpec, EdgeTypeSchema, GraphSchema, NodeTypeSchema
from gnnkit.distributed import reverse_edge_type
from tests.helpers.graphs import ArraySource, homogeneous_source, typed_source

NUM_NODES, DEGREE = 60, 12


def ring(num_nodes: int = NUM_NODES, degree: int = DEGREE) -> ArraySource:
    """Every node has ``degree`` in-edges, from the nodes that follow it, but the last 9 have none."""
    rng = np.random.default_rng(0)
    targets = np.repeat(np.arange(num_nodes - 9), degree)
    sources = (targets + np.tile(np.arange(1, degree + 1), num_nodes - 9)) % num_nodes
    edge_index = np.stack([sources, targets])[:, rng.permutation(len(targets))]
    return homogeneous_source(
        edge_index,
        num_nodes,
        x=eight_bits(rng, num_nodes, 5),
        y=np.arange(num_nodes) % 4,
        edge_arrays={"edge_attr": eight_bits(rng, len(targets), 2)},
        splits={"train": np.arange(0, num_nodes, 2)},
    )


def eight_bits(rng: np.random.Generator, count: int, width: int) -> Any:
    """float32 ``[count, width]`` of whole numbers from 0 to 255, both of them in every column: quantised, they stay what they are."""
    rows = rng.integers(0, 256, (count, width)).astype(np.float32)
    rows[0], rows[1] = 0.0, 255.0
    return rows


def library() -> ArraySource:
    """Typed: types without features, without labels and without edges, bfloat16, rows of two dimensions, isolated nodes."""
    rng = np.random.default_rng(1)
    sizes = {"author": 30, "paper": 50, "venue": 6}
    edges = {
        ("author", "writes", "paper"): np.stack([rng.integers(0, 30, 150), rng.integers(0, 40, 150)]),
        ("paper", "cites", "paper"): np.stack([rng.integers(0, 50, 200), rng.integers(0, 45, 200)]),
        ("paper", "in", "venue"): np.stack([np.arange(50), rng.integers(0, 6, 50)]),
        ("venue", "rev_in", "paper"): np.empty((2, 0), np.int64),
    }
    nodes: dict[str, dict[str, Any]] = {
        "author": {"x": rng.standard_normal((30, 3, 2))},
        "paper": {"x": rng.integers(0, 1 << 16, (50, 5)).astype(np.uint16), "y": rng.integers(0, 9, (50, 2)), "old": rng.random(50) < 0.5},
        "venue": {},
    }
    rows = {("paper", "cites", "paper"): {"edge_attr": rng.integers(0, 255, (200, 3)).astype(np.uint8)}}
    specs = {
        t: {n: ArraySpec("bfloat16" if v.dtype == np.uint16 else str(v.dtype), v.shape[1:]) for n, v in a.items()} for t, a in nodes.items()
    }
    edge_specs = {t: {n: ArraySpec(str(v.dtype), v.shape[1:]) for n, v in rows.get(t, {}).items()} for t in edges}
    schema = GraphSchema(
        {t: NodeTypeSchema(size, specs[t]) for t, size in sizes.items()},
        {t: EdgeTypeSchema(e.shape[1], edge_specs[t]) for t, e in edges.items()},
    )
    return ArraySource(schema, edges, nodes, rows, splits={"paper": {"train": np.arange(0, 50, 2)}})


def town() -> ArraySource:
    """Typed, with features and labels of every type: what graphlearn-torch's own loaders can sample."""
    rng = np.random.default_rng(2)
    sizes = {"shop": 20, "user": 40}
    edges = {
        ("shop", "near", "shop"): np.stack([rng.integers(0, 20, 60), np.repeat(np.arange(20), 3)]),
        ("user", "visits", "shop"): np.stack([rng.integers(0, 40, 80), np.repeat(np.arange(20), 4)]),
        ("shop", "knows", "user"): np.stack([rng.integers(0, 20, 80), np.repeat(np.arange(40), 2)]),
    }
    nodes: dict[str, dict[str, Any]] = {
        t: {"x": rng.standard_normal((n, 3)).astype(np.float32), "y": np.arange(n) % 5} for t, n in sizes.items()
    }
    return typed_source(sizes, edges, nodes)


def _bits(values: Any) -> Any:
    import torch

    return (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()


def check_batch(batch: Any, source: ArraySource, fan_outs: dict[Any, list[int]], edge_dir: str) -> None:
    """Asserts that a batch with edge ids is one that may be drawn: contents, edges, and how many of each node."""
    homogeneous = source.schema.is_homogeneous
    hop_of = {}
    for node_type, arrays in source.node_arrays.items():
        store = batch if homogeneous else batch[node_type]
        ids = store.n_id.numpy()
        for name, values in arrays.items():
            assert np.array_equal(_bits(store[name]), values.view(np.int16)[ids] if values.dtype == np.uint16 else values[ids]), (
                node_type,
                name,
            )
        counts = list(store.num_sampled_nodes)
        assert sum(counts) == len(ids)
        hop_of[node_type] = np.repeat(np.arange(len(counts)), counts)
    for edge_type, ends in source.edges.items():
        shown = edge_type if edge_dir == "in" or homogeneous else reverse_edge_type(edge_type)
        store = batch if homogeneous else batch[shown]
        far, near = store.edge_index.numpy()
        owner, other = (edge_type[2], edge_type[0]) if edge_dir == "in" else (edge_type[0], edge_type[2])
        node_of = {t: (batch if homogeneous else batch[t]).n_id.numpy() for t in (owner, other)}
        own_row, other_row = (1, 0) if edge_dir == "in" else (0, 1)
        e_id = store.e_id.numpy()
        assert np.array_equal(ends[own_row, e_id], node_of[owner][near]), edge_type
        assert np.array_equal(ends[other_row, e_id], node_of[other][far]), edge_type
        for name, values in source.edge_arrays.get(edge_type, {}).items():
            assert np.array_equal(store[name].numpy(), values[e_id]), (edge_type, name)
        degrees = np.bincount(ends[own_row], minlength=source.schema.node_types[owner].num_nodes)[node_of[owner]]
        asked = np.array([*fan_outs[edge_type], 0])[hop_of[owner]]
        expected = np.where(asked < 0, degrees, np.minimum(degrees, asked))
        # A seed that is repeated is drawn for once, at its first place.
        first = np.unique(node_of[owner], return_index=True)[1]
        assert np.array_equal(np.bincount(near, minlength=len(node_of[owner]))[first], expected[first]), edge_type
        assert sum(store.num_sampled_edges) == len(e_id)
