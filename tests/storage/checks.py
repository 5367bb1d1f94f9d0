"""What a store must hold, worked out from the source edge by edge in plain Python."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit import BuildOptions, Store
from gnnkit.storage.build import build_store as build_in_memory
from tests.helpers.graphs import ArraySource, stored

FAST_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def fast_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for tests that draw many graphs, and so cannot use the fixture ``tmp_path``."""
    return tempfile.TemporaryDirectory(prefix="storage-test-", dir=FAST_FOLDER)


def build_store(source: Any, path: Path, options: Any = None, events: Any = None, **beside: Any) -> Store:
    """``stored``; ``beside`` are arguments of the builder itself: other buffers than it takes, for small graphs."""
    if not beside:
        return stored(source, path, options, **({} if events is None else {"events": events}))
    return build_in_memory(source, path, options or BuildOptions(), **beside)


def assert_holds(store: Store, source: ArraySource) -> None:
    """Every node, edge, array, map and split of the source, and nothing else, in the promised order."""
    arrays, options = store.arrays(), store.options
    dataset_ids = {}
    for node_type, nodes in source.schema.node_types.items():
        parts, bounds = arrays.nodes[node_type], arrays.node_bounds[node_type]
        ids = [
            np.arange(bounds[p], bounds[p + 1]) if part.global_id is None else np.asarray(part.global_id) for p, part in enumerate(parts)
        ]
        dataset_ids[node_type] = np.concatenate(ids)
        assert sorted(dataset_ids[node_type]) == list(range(nodes.num_nodes))
        levels = store.manifest.hotness.get(node_type, [[len(part)] for part in ids])
        assert (node_type in store.manifest.hotness) == (options.order == "hotness")
        for part, counts in zip(ids, levels, strict=True):  # within a level, in the dataset's order
            assert all((np.diff(level) > 0).all() for level in np.split(part, np.cumsum(counts)[:-1]))
        np.testing.assert_array_equal(
            dataset_ids[node_type][store.to_store_ids(node_type, np.arange(nodes.num_nodes))], np.arange(nodes.num_nodes)
        )
        for part, own in zip(parts, ids, strict=True):
            assert part.arrays.keys() == nodes.arrays.keys()
            for name, values in part.arrays.items():
                np.testing.assert_array_equal(values, source.node_arrays[node_type][name][own])
                assert values.dtype == source.node_arrays[node_type][name].dtype and values.flags.c_contiguous
    for edge_type in source.schema.edge_types:
        _assert_edges(store, source, edge_type, dataset_ids)
    assert store.splits.keys() == {t for t, splits in source.splits.items()}
    for node_type, splits in source.splits.items():
        assert store.splits[node_type].keys() == splits.keys()
        for split, ids in splits.items():
            np.testing.assert_array_equal(store.splits[node_type][split], ids)
    assert store.link_splits.keys() == source.link_splits.keys()
    for edge_type, by_split in source.link_splits.items():
        assert {split: list(links) for split, links in store.link_splits[edge_type].items()} == {s: list(v) for s, v in by_split.items()}
        for split, links in by_split.items():
            for name, values in links.items():
                np.testing.assert_array_equal(store.link_splits[edge_type][split][name], values)
                assert store.link_splits[edge_type][split][name].dtype == values.dtype
    assert store.metadata == source.metadata and store.name == source.name
    assert store.num_parts == options.num_parts


def _assert_edges(store: Store, source: ArraySource, edge_type: tuple[str, str, str], dataset_ids: dict[str, np.ndarray]) -> None:
    arrays, options = store.arrays(), store.options
    rows = source.edges[edge_type] if options.edge_dir == "out" else source.edges[edge_type][::-1]
    owner_type, other_type = arrays.frontier_type(edge_type), arrays.neighbor_type(edge_type)
    expected: dict[int, list[int]] = {}
    for edge, owner in enumerate(rows[0].tolist()):
        expected.setdefault(owner, []).append(edge)
    times = effective_times(source, edge_type, options.edge_dir, options.time_attr)
    if times is not None:
        expected = {owner: sorted(edges, key=lambda edge: (times[edge], edge)) for owner, edges in expected.items()}
    weights = source.edge_arrays[edge_type].get(options.weight) if options.weight else None
    scale = 0 if weights is None or not weights.any() else 32 - math.frexp(float(weights.max()))[1]
    seen = 0
    cut = np.zeros((store.num_parts, store.num_parts), np.int64)
    other_bounds = arrays.node_bounds[other_type]
    for p, part in enumerate(arrays.edges[edge_type]):
        first = int(arrays.node_bounds[owner_type][p])
        assert len(part.indptr) == arrays.node_bounds[owner_type][p + 1] - first + 1
        assert (part.edge_id is not None) == options.with_edge
        assert (part.weight_prefix is not None) == (weights is not None)
        assert (part.time is not None) == (times is not None)
        assert part.arrays.keys() == source.edge_arrays[edge_type].keys()
        for local in range(len(part.indptr) - 1):
            own = slice(int(part.indptr[local]), int(part.indptr[local + 1]))
            edges = expected.get(int(dataset_ids[owner_type][first + local]), [])
            seen += len(edges)
            assert dataset_ids[other_type][part.indices[own]].tolist() == rows[1][edges].tolist()
            if part.edge_id is not None:
                assert part.edge_id[own].tolist() == edges
            for name, values in part.arrays.items():
                np.testing.assert_array_equal(values[own], source.edge_arrays[edge_type][name][edges])
            if part.time is not None and times is not None:
                assert part.time.dtype == np.int64 and part.time[own].tolist() == [times[edge] for edge in edges]
            if part.weight_prefix is not None and weights is not None:
                whole = [0 if w == 0 else max(1, round(math.ldexp(w, scale))) for w in weights[edges].tolist()]
                assert part.weight_prefix[own].tolist() == np.cumsum([0, *whole])[1:].tolist()
            for neighbor in part.indices[own].tolist():
                cut[p, np.searchsorted(other_bounds, neighbor, side="right") - 1] += 1
    assert seen == rows.shape[1]
    np.testing.assert_array_equal(store.report().cuts[edge_type], cut)
    dtypes = {(part.indptr.dtype, part.indices.dtype) for part in arrays.edges[edge_type]}
    assert dtypes == {(np.dtype(np.int32), np.dtype(np.int32))}


def effective_times(source: ArraySource, edge_type: tuple[str, str, str], edge_dir: str, name: str | None) -> list[int] | None:
    """Each edge's own time, else that of the node that sampling arrives at; None where there is neither."""
    if name in source.edge_arrays[edge_type]:
        return [int(time) for time in source.edge_arrays[edge_type][name].reshape(-1)]
    end = 0 if edge_dir == "in" else 1
    own = source.node_arrays[edge_type[2 * end]].get(name) if name else None
    return None if own is None else [int(own.reshape(-1)[node]) for node in source.edges[edge_type][end].tolist()]


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of every file under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
