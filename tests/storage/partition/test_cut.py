"""The cut matrix against counting with NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.events import ignore_events
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.partition import assign_parts, edge_cut
from gnnkit.storage.partition.cut import edge_cut_of_chunks
from tests.helpers.graphs import random_source
from tests.storage.partition.build import graph_arrays


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), edge_dir=st.sampled_from(["in", "out"]), num_parts=st.integers(1, 5))
def test_the_matrix_counts_edges_from_source_part_to_target_part(seed, edge_dir, num_parts):
    source = random_source(np.random.default_rng(seed))
    sizes = {name: t.num_nodes for name, t in source.schema.node_types.items()}
    num_parts = min(num_parts, max(sizes.values()))
    parts = assign_parts(source.schema, None, BuildOptions(num_parts=num_parts, partition="random", seed=seed), ignore_events)
    whole = edge_cut(graph_arrays(sizes, source.edges, edge_dir=edge_dir), parts, num_parts)
    parted = graph_arrays(sizes, source.edges, edge_dir=edge_dir, assignment=parts, num_parts=num_parts)
    of_itself, given_again = edge_cut(parted), edge_cut(parted, parts, num_parts)
    for edge_type, (start, end) in source.edges.items():
        expected = np.zeros((num_parts, num_parts), np.int64)
        np.add.at(expected, (parts[edge_type[0]][start], parts[edge_type[2]][end]), 1)
        chunks = edge_cut_of_chunks(source.edge_chunks(edge_type), parts[edge_type[0]], parts[edge_type[2]], num_parts)
        for matrix in (whole[edge_type], of_itself[edge_type], given_again[edge_type], chunks):
            assert matrix.dtype == np.int64
            np.testing.assert_array_equal(matrix, expected)


def test_the_number_of_parts_follows_from_the_assignment():
    graph = graph_arrays({"node": 4}, {("node", "to", "node"): np.array([[0, 1, 3], [1, 2, 0]])})
    (matrix,) = edge_cut(graph, {"node": np.array([0, 0, 1, 2])}).values()
    assert matrix.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 0]]
