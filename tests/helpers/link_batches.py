"""Batches of links, and what the program written from the specification says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch_geometric.data import Data, HeteroData

from tests.helpers.batches import items
from tests.helpers.graphs import ArraySource, EdgeType

NODE_COUNTS, EDGE_COUNTS = "num_sampled_nodes", "num_sampled_edges"


def contents(batch: Data | HeteroData) -> dict[str, Any]:
    """Every attribute of a batch by its full name, arrays as NumPy's."""
    return {name: value.numpy() if hasattr(value, "numpy") else value for name, value in items(batch)}


def check(batch: Mapping[str, Any], sampled: Mapping[str, Any], source: ArraySource, edge_type: EdgeType) -> None:
    """Compares a batch with a link batch of the reference: names, shapes and values.

    Args:
        batch: See ``contents``; without counts where they are compared elsewhere.
        sampled: What ``reference_links.sample`` gives.
        source: The graph.
        edge_type: The links' type.
    """
    plain = source.schema.is_homogeneous
    owners = {"src": edge_type[0], "dst": edge_type[2], "edge": "__".join(edge_type)}

    def name_of(owner: str, name: str) -> str:
        return name if plain else f"{owner}.{name}"

    expected: dict[str, Any] = {name_of(owners["edge"], "input_id"): sampled["input_id"]}
    for (where, name), values in sampled["links"].items():
        expected[name_of(owners[where], name)] = values
    for node_type, found in sampled["nodes"].items():
        for name, values in found.items():
            if values is not None:
                expected[name_of(node_type, name)] = values
        if "x" not in source.schema.node_types[node_type].arrays:
            expected[name_of(node_type, "num_nodes")] = len(found["n_id"])
    for shown, found in sampled["edges"].items():
        expected.update({name_of("__".join(shown), name): values for name, values in found.items()})
    assert set(batch) == set(expected), set(batch) ^ set(expected)
    for name, values in expected.items():
        got = batch[name]
        if isinstance(got, np.ndarray):
            wanted = np.array(values, got.dtype).reshape(got.shape if np.size(values) == 0 == got.size else np.shape(values))
            np.testing.assert_array_equal(got, wanted, name)
        else:
            assert got == values, name
