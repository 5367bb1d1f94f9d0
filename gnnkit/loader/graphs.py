"""The graphs that loaders sample from: opened once for all of them, found or built, placed."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.loader.options import LoaderOptions
from gnnkit.plan import Placement, StoreRef
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.schema import GraphSchema
from gnnkit.storage.store import Store

# Loaders of one process on the same parts of the same store share its mapping and its copy in huge pages.
_open_graphs: weakref.WeakValueDictionary[tuple[StoreRef, tuple[int, ...]], GraphHandle] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()


def open_store(store: Store) -> GraphHandle:
    """The process's handle on a store."""
    reference = store.reference
    with _open_lock:
        handle = _open_graphs.get((reference, store.local_parts))
        if handle is None:
            handle = GraphHandle(
                store.arrays(),
                store.splits,
                reference,
                store.name,
                store.notice,
                metadata=store.metadata,
                link_splits=store.link_splits,
            )
            _open_graphs[reference, store.local_parts] = handle
        return handle


def warm_in_background(events: EventSink) -> None:
    """Compiles kernels while the dataset is downloaded or built; whoever needs them waits for the same lock."""
    from gnnkit.sampling.kinds import warm

    threading.Thread(target=warm, args=(events,), name="gnnkit-compile", daemon=True).start()


def has_edge_arrays(schema: GraphSchema) -> bool:
    """Whether edges of some type carry arrays."""
    return any(edge_type.arrays for edge_type in schema.edge_types.values())


def store_folder(store_dir: str | Path | None, root: Path | None) -> Path:
    """The folder of stores: the one that is said, or the usual one under ``root``."""
    from gnnkit.storage.catalog import default_store_dir

    return default_store_dir(root) if store_dir is None else Path(store_dir)


def check_undivided(options: LoaderOptions) -> None:
    """Refuses to spread a graph that is only in memory.

    Raises:
        PlanError: ``placement`` asks for it.
    """
    if options.placement not in ("auto", "replicate"):
        raise PlanError(
            f"placement={options.placement!r}, but a graph in memory is whole on every host",
            "build a store with gnnkit.partition() and open it with from_store()",
        )


def placed_graph(graph: GraphHandle, options: LoaderOptions) -> tuple[GraphHandle, Placement | None]:
    """A loader's graph as another placement has it, and the placement.

    Raises:
        PlanError: The placement does not fit the hosts or the parts.
        StoreError: A part that belongs here is not here.
    """
    if graph.store is None:
        check_undivided(options)
        return graph, None
    site = options.site
    store = site.open(graph.store.written, planned=graph.store)
    return open_store(store), site.placement(store.manifest, store.path)
