"""Store ids: each part owns one range of them, in the dataset's order within the part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import NodeType
from gnnkit.storage.layout import index_dtype


@dataclass(frozen=True)
class StoreNumbering:
    """The store ids of one node type.

    Attributes:
        bounds: int64 ``[num_parts + 1]``: part ``p`` owns the store ids ``[bounds[p], bounds[p + 1])``.
        store_id: int32 or int64 ``[num_nodes]`` from the dataset's id to the store id; None for the identity.
    """

    bounds: NDArray[np.int64]
    store_id: NDArray[Any] | None = None

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


def from_assignment(node_type: NodeType, num_nodes: int, num_parts: int, part: NDArray[np.integer[Any]]) -> StoreNumbering:
    """The numbering under which part ``part[i]`` owns node ``i``.

    Raises:
        PlanError: The assignment does not give each node one of the parts.
    """
    if part.shape != (num_nodes,) or (num_nodes and not 0 <= int(part.min()) <= int(part.max()) < num_parts):
        raise PlanError(f"the partitioner did not give each of the {num_nodes} nodes of type {node_type!r} one of {num_parts} parts")
    bounds = np.concatenate([[0], np.bincount(part, minlength=num_parts).cumsum()]).astype(np.int64)
    if num_nodes == 0 or bool((part[1:] >= part[:-1]).all()):
        return StoreNumbering(bounds)
    # NumPy sorts 16-bit integers by radix, in linear time.
    key = part.astype(np.int16) if num_parts <= np.iinfo(np.int16).max else part
    dtype = index_dtype(num_nodes)
    store_id = np.empty(num_nodes, dtype)
    store_id[np.argsort(key, kind="stable")] = np.arange(num_nodes, dtype=dtype)
    return StoreNumbering(bounds, store_id)
