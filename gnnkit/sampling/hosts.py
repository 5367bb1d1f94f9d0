"""Where the parts of a graph are, and which rows of other hosts' parts are replicated here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.sampling.tables import address_of
from gnnkit.schema import NodeType
from gnnkit.storage.store import Store


@dataclass(frozen=True)
class HotRows:
    """Features of one node type that this host replicates from others.

    Attributes:
        row: int32 ``[num_nodes]``, by store id: which replicated row it is, -1 for none.
        arrays: ``[k, *row_shape]`` each, the rows in their order.
    """

    row: NDArray[np.int32]
    arrays: tuple[NDArray[Any], ...]

    @property
    def bounds(self) -> NDArray[np.int64]:
        """int64 ``[number of arrays + 1]``: the row at which each array starts."""
        return np.cumsum([0, *map(len, self.arrays)], dtype=np.int64)

    @property
    def addresses(self) -> NDArray[np.int64]:
        """int64 ``[number of arrays]``."""
        return np.array([address_of(array) for array in self.arrays], np.int64)


@dataclass(frozen=True)
class PartMap:
    """Where this host finds each part.

    Attributes:
        here: This host's number.
        host_of_part: int64 ``[num_parts]``: the host that is asked about each part, this one for its own.
        hot: ``{node type: its replicated features}``.
    """

    here: int
    host_of_part: NDArray[np.int64]
    hot: Mapping[NodeType, HotRows] = field(default_factory=dict)

    @property
    def num_hosts(self) -> int:
        """One more than the largest number of a host."""
        return int(max(self.here, self.host_of_part.max())) + 1

    @classmethod
    def of(
        cls,
        num_parts: int,
        here: int,
        local: tuple[int, ...],
        elsewhere: Mapping[int, tuple[int, ...]],
        hot: Mapping[NodeType, HotRows] | None = None,
    ) -> PartMap:
        """Finds each part on this host, or on the next one after it that has it.

        Args:
            num_parts: Parts of the graph.
            here: This host's number.
            local: Its parts.
            elsewhere: ``{other host: its parts}``.
            hot: See ``hot_rows``.

        Raises:
            PlanError: A part is nowhere.
        """
        last = max([here, *elsewhere]) + 1
        order = sorted(elsewhere, key=lambda host: (host - here) % last)
        found = {part: host for host in reversed(order) for part in elsewhere[host]} | dict.fromkeys(local, here)
        missing = [part for part in range(num_parts) if part not in found]
        if missing:
            raise PlanError(f"no host has part {missing[0]} of {num_parts}", "give the parts of every host in placement")
        return cls(here, np.array([found[part] for part in range(num_parts)], np.int64), hot or {})


def hot_rows(store: Store) -> dict[NodeType, HotRows]:
    """The features that the parts of this host replicate; empty for a store without ``cache_ratio``."""
    caches = [store.cache(part) for part in store.local_parts]
    hot = {}
    for node_type in caches[0] if caches else ():
        row, arrays, first = np.full(store.schema.node_types[node_type].num_nodes, -1, np.int32), [], 0
        for cache in caches:
            cached = cache[node_type]
            row[store.to_store_ids(node_type, cached.global_id)] = np.arange(first, first + len(cached.x), dtype=np.int32)
            arrays.append(cached.x)
            first += len(cached.x)
        if first:
            hot[node_type] = HotRows(row, tuple(arrays))
    return hot
