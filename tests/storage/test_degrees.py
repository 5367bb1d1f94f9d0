"""Degrees of nodes, counted again edge by edge."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gnnkit import BuildOptions
from gnnkit.storage.partition.topology import DegreeCounts, edge_degrees
from tests.helpers.graphs import random_source
from tests.storage.checks import build_store, fast_folder


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_degrees_of_typed_graphs(edge_dir: str, num_parts: int) -> None:
    for number in range(12):
        source = random_source(np.random.default_rng(number))
        num_parts = min(num_parts, max(t.num_nodes for t in source.schema.node_types.values()))
        with fast_folder() as folder:
            store = build_store(source, Path(folder) / "store", BuildOptions(num_parts, "random", edge_dir))  # type: ignore[arg-type]
            found = edge_degrees(replace(store.arrays(), chunk_edges=16))  # many chunks
        assert found.keys() == source.edges.keys()
        for edge_type, ends in source.edges.items():
            for counts, row, node_type in (found[edge_type].outgoing, 0, edge_type[0]), (found[edge_type].incoming, 1, edge_type[2]):
                own = Counter(ends[row].tolist())
                wanted = Counter(own[node] for node in range(source.schema.node_types[node_type].num_nodes))
                assert dict(zip(counts.degree.tolist(), counts.num_nodes.tolist(), strict=True)) == wanted
                assert counts.without == wanted[0] and counts.num_edges == ends.shape[1]


def test_at_least() -> None:
    counts = DegreeCounts.of(np.array([0, 5, 1, 1, 0, 2]))
    degree, nodes = counts.at_least()
    assert degree.tolist() == [1, 2, 5] and nodes.tolist() == [4, 2, 1]
    assert counts.without == 2 and counts.num_edges == 9
    assert DegreeCounts.of(np.empty(0, np.int64)).at_least()[0].tolist() == []
