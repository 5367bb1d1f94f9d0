"""A store for a graph that is only in memory, for as long as servers need it: servers read stores."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import replace
from operator import attrgetter

from gnnkit.errors import PlanError, on_error
from gnnkit.events import EventSink
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.runs import RunFolder, new_run
from gnnkit.sampling.subgraph import BatchKey, BatchLayout
from gnnkit.schema import EdgeType, NodeType, reverse_edge_type
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.catalog import temporary_data

_KEY_OF = attrgetter("key")
_lock = threading.Lock()
_stored: weakref.WeakKeyDictionary[GraphHandle, weakref.ref[TemporaryStore]] = weakref.WeakKeyDictionary()


class TemporaryStore:
    """A store that goes with this object; one whose process was killed goes with the next that is made.

    Args:
        graph: The graph.
        events: Receives the stages of a build.

    Attributes:
        reference: The store.

    Raises:
        PlanError: The graph as it was before it was compressed is not known, or there is no folder to write to.
        StoreError: It cannot be written.
    """

    def __init__(self, graph: GraphHandle, events: EventSink) -> None:
        from gnnkit.storage.build import build_store  # heavy

        if graph.source is None or graph.build is None:
            raise PlanError("servers read stores, and this graph is only in memory", "build a store with gnnkit.partition()")
        folder = new_run(None, {"store": graph.name}, root=temporary_data())
        self._end = weakref.finalize(self, _remove, folder, os.getpid())
        with on_error(self._end):
            store = build_store(graph.source, folder.path / "store", graph.build, events)
        self.reference = store.reference


def temporary_store(graph: GraphHandle, events: EventSink) -> TemporaryStore:
    """The store of a graph in memory: made once, and shared in this process.

    Raises:
        PlanError: See ``TemporaryStore``.
        StoreError: See ``TemporaryStore``.
    """
    with _lock:
        reference = _stored.get(graph)
        store = None if reference is None else reference()
        if store is None:
            store = TemporaryStore(graph, events)
            _stored[graph] = weakref.ref(store)
        return store


class GraphOrder:
    """Puts a layout's arrays in a graph's own order: a store has them by name, and a batch's attributes follow the layout.

    Args:
        graph: The graph in memory.
    """

    def __init__(self, graph: GraphArrays) -> None:
        self._orders: dict[tuple[str, NodeType | EdgeType], list[str]] = {}
        for node_type, nodes in graph.schema.node_types.items():
            self._orders["node", node_type] = list(nodes.arrays)
        for edge_type, edges in graph.schema.edge_types.items():
            self._orders["edge", edge_type if graph.edge_dir == "in" else reverse_edge_type(edge_type)] = list(edges.arrays)
        self._places: dict[tuple[BatchKey, ...], list[int]] = {}  # one entry for all batches of a plan

    def __call__(self, layout: BatchLayout) -> BatchLayout:
        """Returns the layout with its fields in order."""
        keys = tuple(map(_KEY_OF, layout.fields))
        if keys not in self._places:
            self._places[keys] = self._find_places(keys)
        fields = tuple([layout.fields[place] for place in self._places[keys]])
        return layout if fields == layout.fields else replace(layout, fields=fields)

    def _find_places(self, keys: tuple[BatchKey, ...]) -> list[int]:
        found = list(range(len(keys)))
        for (scope, owner), names in self._orders.items():
            places = [i for i, key in enumerate(keys) if (key.scope, key.type) == (scope, owner) and key.name in names]
            for place, source in zip(places, sorted(places, key=lambda i: names.index(keys[i].name)), strict=True):
                found[place] = source
        return found


def _remove(folder: RunFolder, owner: int) -> None:
    if os.getpid() == owner:
        folder.close()
