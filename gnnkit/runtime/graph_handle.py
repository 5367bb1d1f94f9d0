"""An opened graph that several loaders of one process share."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import StoreRef
from gnnkit.runtime.graph_memory import GraphMemory
from gnnkit.schema import NodeType
from gnnkit.storage.arrays import GraphArrays


@dataclass(eq=False)
class GraphHandle:
    """A graph and what is known about it.

    Attributes:
        arrays: Its arrays as mapped, or the user's own.
        splits: ``{node type: {split: int64 [k] dataset ids}}``.
        store: Where it is stored; None for a graph in memory.
        name: What users call it.
        notice: A line to show wherever it is shown, or None.
        extra: Attributes of the whole graph that every batch carries.
        type_extra: Attributes of a whole node type or edge type that every batch carries, by type.
        metadata: Facts about the dataset.
    """

    arrays: GraphArrays
    splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]]
    store: StoreRef | None = None
    name: str = "graph"
    notice: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    type_extra: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    _memory: GraphMemory | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def memory(self, memory_budget: int | None) -> GraphMemory:
        """The arrays to sample from; the first caller decides the budget of their copy in huge pages.

        A graph that is in memory already is not copied.
        """
        with self._lock:
            if self._memory is None:
                self._memory = GraphMemory(self.arrays, 0 if self.store is None else memory_budget)
            return self._memory

    def to_store_ids(self, node_type: NodeType, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Dataset ids as store ids.

        Returns:
            int64, of the same shape.
        """
        table = self.arrays.store_id[node_type]
        return ids if table is None else table[ids].astype(np.int64)
