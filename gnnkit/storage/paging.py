"""LaunchReporter the system how a mapped store is going to be read."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.host import available_memory
from gnnkit.storage.arrays import GraphArrays


def expect_random_access(graph: GraphArrays) -> None:
    """Has the system read only what is asked for, where a mapped graph is larger than the memory that may hold it.

    Otherwise every row that is sampled is read from the disk with the 128 KB (8 MB on some systems) around it, which only pushes
    out what was read before. A graph that fits is left to be read ahead: that fills the cache in a few large reads.
    """
    arrays = _arrays(graph)
    if not hasattr(mmap, "MADV_RANDOM") or sum(array.nbytes for array in arrays) <= available_memory():
        return
    for array in arrays:
        mapping = _mapping_of(array)
        if mapping is not None:
            mapping.madvise(mmap.MADV_RANDOM)


def _arrays(graph: GraphArrays) -> list[NDArray[Any]]:
    arrays: list[NDArray[Any] | None] = []
    for node_type in graph.schema.node_types:
        for node_part in graph.local_nodes(node_type):
            arrays += [*node_part.arrays.values(), node_part.global_id]
    for edge_type in graph.schema.edge_types:
        for edge_part in graph.local_edges(edge_type):
            arrays += [*edge_part.arrays.values(), edge_part.indptr, edge_part.indices]
            arrays += [edge_part.edge_id, edge_part.weight_prefix, edge_part.time]
    return [array for array in arrays if array is not None]


def _mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None
