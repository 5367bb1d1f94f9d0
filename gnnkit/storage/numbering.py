"""Store ids: each part owns one range of them, in the dataset's order within the part or the hottest nodes first.

Hotness comes in levels, each of twice the visits of the next (``gnnkit.storage.partition.hotness``), and nodes of one level are in the
dataset's order: those that batches touch most share pages, and neighbours that the dataset keeps together stay together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import NodeType
from gnnkit.storage.layout import index_dtype

# Levels of hotness, from 0 for nodes that no batch touches.
MOST_LEVELS = 64


@dataclass(frozen=True)
class StoreNumbering:
    """The store ids of one node type.

    Attributes:
        bounds: int64 ``[num_parts + 1]``: part ``p`` owns the store ids ``[bounds[p], bounds[p + 1])``.
        store_id: int32 or int64 ``[num_nodes]`` from the dataset's id to the store id; None for the identity.
        hotness: For each part its number of nodes of each level, hottest first; None where nodes are in the dataset's order.
    """

    bounds: NDArray[np.int64]
    store_id: NDArray[Any] | None = None
    hotness: tuple[tuple[int, ...], ...] | None = None

    @property
    def num_nodes(self) -> int:
        """Nodes of the type."""
        return int(self.bounds[-1])

    def to_store(self, first: int, last: int) -> NDArray[Any]:
        """Store ids of the dataset ids ``[first, last)``."""
        return np.arange(first, last) if self.store_id is None else self.store_id[first:last]

    def part_of(self, store_ids: NDArray[Any]) -> NDArray[np.int64]:
        """The part of each store id."""
        return np.searchsorted(self.bounds, store_ids, side="right").astype(np.int64) - 1


def contiguous(num_nodes: int, num_parts: int) -> StoreNumbering:
    """Parts of consecutive nodes whose sizes differ by at most one."""
    return StoreNumbering(np.array([num_nodes * part // num_parts for part in range(num_parts + 1)], np.int64))


def from_assignment(
    node_type: NodeType, num_nodes: int, num_parts: int, part: NDArray[np.integer[Any]], levels: NDArray[np.uint8] | None = None
) -> StoreNumbering:
    """The numbering under which part ``part[i]`` owns node ``i``.

    Args:
        node_type: The nodes' type, for the error.
        num_nodes: How many there are.
        num_parts: Parts.
        part: ``[num_nodes]``, by dataset id.
        levels: ``[num_nodes]``, how hot each node is, at most ``MOST_LEVELS - 1``; None leaves them in the dataset's order.

    Raises:
        PlanError: The assignment does not give each node one of the parts.
    """
    if part.shape != (num_nodes,) or (num_nodes and not 0 <= int(part.min()) <= int(part.max()) < num_parts):
        raise PlanError(f"the partitioner did not give each of the {num_nodes} nodes of type {node_type!r} one of {num_parts} parts")
    bounds = np.concatenate([[0], np.bincount(part, minlength=num_parts).cumsum()]).astype(np.int64)
    hotness, num_keys = None, num_parts
    if levels is not None:
        num_keys *= MOST_LEVELS
        part = part.astype(np.int16 if num_keys <= np.iinfo(np.int16).max else np.int64) * MOST_LEVELS + (MOST_LEVELS - 1 - levels)
        counts = np.bincount(part, minlength=num_keys).reshape(num_parts, MOST_LEVELS)
        hotness = tuple(tuple(row) for row in counts.tolist())
    if num_nodes == 0 or bool((part[1:] >= part[:-1]).all()):
        return StoreNumbering(bounds, None, hotness)
    # NumPy sorts 16-bit integers by radix, in linear time.
    key = part.astype(np.int16) if num_keys <= np.iinfo(np.int16).max else part
    dtype = index_dtype(num_nodes)
    store_id = np.empty(num_nodes, dtype)
    store_id[np.argsort(key, kind="stable")] = np.arange(num_nodes, dtype=dtype)
    return StoreNumbering(bounds, store_id, hotness)
