"""An opened graph that several loaders of one process share."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError
from gnnkit.host import available_memory
from gnnkit.plan import StoreRef
from gnnkit.runtime.graph_memory import GraphMemory, copy_fits
from gnnkit.runtime.shared_graph import SharedGraph, graph_nbytes, share
from gnnkit.schema import NodeType
from gnnkit.storage.arrays import GraphArrays

if TYPE_CHECKING:
    from gnnkit.source import GraphSource, LinkSplits
    from gnnkit.storage.options import BuildOptions


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
        link_splits: ``{edge type: {split: {name: array}}}``, dataset ids; see ``GraphSource.link_splits``.
        source: Where a graph in memory comes from, for those who need it stored; None for one that is.
        build: How a store of a graph in memory has to be built so that it has the same edges in the same order.
    """

    arrays: GraphArrays
    splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]]
    store: StoreRef | None = None
    name: str = "graph"
    notice: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    type_extra: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    link_splits: LinkSplits = field(default_factory=dict)
    source: GraphSource | None = None
    build: BuildOptions | None = None
    _memory: GraphMemory | None = None
    _shared: SharedGraph | None = None
    # The copy of a graph that is in memory anyway: held by those whose processes need it.
    _lent: weakref.ref[SharedGraph] | None = None
    _copier: weakref.ref[object] | None = None
    # Reentrant: a forgotten loader's finalizer may run in the middle of anything.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def memory(self, memory_budget: int | None) -> GraphMemory:
        """The arrays to sample from, one for all callers; the first budget that allows it has them copied into huge pages.

        A graph that is in memory already is not copied.
        """
        with self._lock:
            if self._memory is None:
                if self.store is None:  # the user's own arrays, whatever they do to them, and no copy
                    self._memory = GraphMemory(self.arrays, 0)
                else:
                    self._memory = GraphMemory(self.arrays, memory_budget, self._shared)
            elif self.store is not None and not self._has_copier:
                self._memory.want_copy(memory_budget, self._shared)
            return self._memory

    @property
    def shared(self) -> SharedGraph | None:
        """The copy that every process of this host may map, whoever made it; None while there is none."""
        if self._shared is None and self._memory is not None:
            return self._memory.shared
        return self._shared

    def share_now(self) -> SharedGraph:
        """Copies a graph that is only in this process's memory, once for all processes that sample from it.

        The copy lasts for as long as somebody keeps what is returned.

        Raises:
            MemoryLimitError: The copy does not fit.
        """
        with self._lock:
            shared = None if self._lent is None else self._lent()
            if shared is None:
                needed, free = graph_nbytes(self.arrays), available_memory()
                if needed > free:
                    raise MemoryLimitError(
                        f"sampling processes need a copy of the graph: {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free",
                        "use InProcess(), or build a store with gnnkit.partition() and open it with from_store()",
                    )
                shared = share(self.arrays, threading.Event())
                self._lent = weakref.ref(shared)
            return shared

    def wants_copy(self, copier: object, memory_budget: int | None) -> bool:
        """Whether ``copier`` is to have a copy of the stored graph made; at most one is told so at a time.

        Only for holders of their crews' lock, which is why neither this nor ``copy_made`` takes the lock of ``memory``: a finalizer that
        runs in the middle of that may wait for the crews'.
        """
        memory = self._memory
        if (
            self._has_copier
            or (memory is not None and memory.is_copying)
            or self.shared is not None
            or not copy_fits(self.arrays, memory_budget)
        ):
            return False
        self._copier = weakref.ref(copier)
        return True

    @property
    def _has_copier(self) -> bool:
        """Whether a crew has been told to make the copy."""
        return self._copier is not None and self._copier() is not None

    def copy_made(self, copier: object, shared: SharedGraph | None) -> None:
        """Takes over the copy that ``copier`` has had made; None where it gave up."""
        if self._copier is not None and self._copier() is copier:
            self._copier = None
        if shared is not None and self.shared is None:
            self._shared = shared

    def to_store_ids(self, node_type: NodeType, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Dataset ids as store ids.

        Returns:
            int64, of the same shape.
        """
        table = self.arrays.store_id[node_type]
        return ids if table is None else table[ids].astype(np.int64)
