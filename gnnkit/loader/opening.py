"""Where a loader's graph comes from: an OGB name, a PyG object, a store, any source, or a written plan."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.loader.options import LoaderOptions, Progress, split_options, takes_options
from gnnkit.loader.placing import Site
from gnnkit.loader.planned import check_store_has, checked_plan, open_planned_store, read_plan
from gnnkit.loader.words import resolve_fan_outs, resolve_input_nodes
from gnnkit.plan import LoaderPlan, NeighborSampling, Placement, StoreRef
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.schema import EdgeDir, GraphSchema
from gnnkit.storage.options import BuildOptions

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from gnnkit.datasets.source import GraphSource
    from gnnkit.loader.facade import GraphLoader
    from gnnkit.storage.store import Store

# Loaders of one process on the same parts of the same store share its mapping and its copy in huge pages.
_open_graphs: weakref.WeakValueDictionary[tuple[StoreRef, tuple[int, ...]], GraphHandle] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()


def open_store(store: Store) -> GraphHandle:
    """The process's handle on a store."""
    reference = StoreRef(str(store.path), store.fingerprint)
    with _open_lock:
        handle = _open_graphs.get((reference, store.local_parts))
        if handle is None:
            handle = GraphHandle(store.arrays(), store.splits, reference, store.name, store.notice, metadata=store.metadata)
            _open_graphs[reference, store.local_parts] = handle
        return handle


class LoaderSources:
    """The constructors of ``GraphLoader``."""

    @classmethod
    @takes_options(with_build=True)
    def from_ogb(
        cls,
        name: str,
        *,
        input_nodes: Any = "train",
        with_edge: bool | None = None,
        undirected: bool = False,
        root: str | Path | None = None,
        store_dir: str | Path | None = None,
        download: bool | Literal["auto"] = "auto",
        progress: Progress = "auto",
        **options: Any,
    ) -> GraphLoader:
        """A loader on one of OGB's node property prediction datasets.

        The first call downloads what is missing and builds a store; later ones open it at once.

        Args:
            name: ``"ogbn-products"``, ``"ogbn-arxiv"``, ``"ogbn-proteins"``, ``"ogbn-mag"`` or ``"ogbn-papers100M"``.
            input_nodes: What batches start from: a split's name, ids, a mask, ``("type", any of these)``, or None for all nodes.
            with_edge: Whether batches carry edge ids; None: if the graph has edge features.
            undirected: Adds reverse edges as PyG's ``ToUndirected`` does.
            root: Folder of the datasets as OGB lays them out; None is ``$GNNKIT_HOME`` or the user's cache folder.
            store_dir: Folder of built stores; None is ``<root>/stores`` where it is writable, else in the user's cache folder.
            download: "auto" downloads up to 2 GB, True any size, False nothing.
            progress: How progress is shown; False shows nothing, "epoch" also shows a bar per epoch.
            **options: The loader's and the store's: see ``LoaderOptions`` and ``BuildOptions``.

        Raises:
            DatasetError: The dataset is unknown, not there and not to be downloaded, or damaged.
            PlanError: An option is unknown or its value unusable; found before anything is downloaded.
            StoreError: The store cannot be built or opened.
        """
        from gnnkit.datasets.ogb import open_ogb
        from gnnkit.ui.progress import make_sink

        loader, build = split_options(options, with_build=True)
        events = make_sink(progress)
        folder = None if root is None else Path(root)
        _warm_in_background(events)
        source = open_ogb(name, root=folder, download=download, undirected=undirected, events=events)
        site = loader.site()
        store = _find_or_build(source, build, with_edge, _store_folder(store_dir, folder), site, events)
        return _on_store(cls, store, loader, site, input_nodes, build.weight, with_edge, events)

    @classmethod
    @takes_options(with_build=True)
    def from_source(
        cls,
        source: GraphSource,
        *,
        input_nodes: Any = "train",
        with_edge: bool | None = None,
        store_dir: str | Path | None = None,
        progress: Progress = "auto",
        **options: Any,
    ) -> GraphLoader:
        """A loader on anything that a store can be built from, e.g. ``gnnkit.datasets.products_like(0.1)``.

        Args:
            source: The graph.
            input_nodes: See ``from_ogb``.
            with_edge: See ``from_ogb``.
            store_dir: See ``from_ogb``.
            progress: See ``from_ogb``.
            **options: See ``from_ogb``.

        Raises:
            PlanError: See ``from_ogb``.
            StoreError: See ``from_ogb``.
        """
        from gnnkit.ui.progress import make_sink

        loader, build = split_options(options, with_build=True)
        events = make_sink(progress)
        _warm_in_background(events)
        site = loader.site()
        store = _find_or_build(source, build, with_edge, _store_folder(store_dir, None), site, events)
        return _on_store(cls, store, loader, site, input_nodes, build.weight, with_edge, events)

    @classmethod
    @takes_options(with_build=False)
    def from_pyg(
        cls,
        data: Data | HeteroData,
        *,
        input_nodes: Any = None,
        edge_dir: EdgeDir = "in",
        weight: str | None = None,
        with_edge: bool | None = None,
        progress: Progress = "auto",
        **options: Any,
    ) -> GraphLoader:
        """A loader on a PyG object in memory: its tensors are used as they are, and nothing is written.

        Args:
            data: The graph.
            input_nodes: See ``from_ogb``.
            edge_dir: See ``from_ogb``.
            weight: See ``from_ogb``.
            with_edge: See ``from_ogb``.
            progress: See ``from_ogb``.
            **options: See ``LoaderOptions``.

        Raises:
            PlanError: The object or an option's value is unusable.
        """
        from gnnkit.datasets.pyg import PyGSource
        from gnnkit.datasets.pyg_arrays import graph_from_pyg
        from gnnkit.ui.progress import make_sink

        loader_options = LoaderOptions.of(options)
        events = make_sink(progress)
        source = PyGSource(data)
        wants_edges = _has_edge_arrays(source.schema) if with_edge is None else with_edge
        graph = graph_from_pyg(source, edge_dir=edge_dir, weight=weight, with_edge=wants_edges)
        handle = GraphHandle(graph, source.splits, name=type(data).__name__, extra=source.extra, type_extra=source.type_extra)
        _check_undivided(loader_options)
        return _make(cls, handle, loader_options, None, input_nodes, weight, wants_edges, events)

    @classmethod
    @takes_options(with_build=False)
    def from_store(
        cls,
        path: str | Path,
        *,
        input_nodes: Any = "train",
        weight: str | None = None,
        with_edge: bool | None = None,
        progress: Progress = "auto",
        **options: Any,
    ) -> GraphLoader:
        """A loader on a store that ``gnnkit partition`` or another loader built.

        Args:
            path: The store's folder.
            input_nodes: See ``from_ogb``.
            weight: See ``from_ogb``; the store must have been built with it.
            with_edge: See ``from_ogb``; the store must hold edge ids.
            progress: See ``from_ogb``.
            **options: See ``LoaderOptions``.

        Raises:
            StoreError: There is no store, or it is damaged or too new.
            PlanError: An option's value is unusable.
        """
        from gnnkit.ui.progress import make_sink

        loader_options = LoaderOptions.of(options)
        site = loader_options.site()
        return _on_store(cls, site.open(path), loader_options, site, input_nodes, weight, with_edge, make_sink(progress))

    @classmethod
    def from_plan(cls, path: str | Path, *, progress: Progress = "auto", transform: Any = None, device: Any = None) -> GraphLoader:
        """The loader of a plan that ``json.dump(loader.plan.to_json(), file)`` wrote: the same batches.

        Args:
            path: The JSON file; a store's relative path in it is relative to the file.
            progress: See ``from_ogb``.
            transform: See ``LoaderOptions``.
            device: See ``LoaderOptions``.

        Raises:
            PlanError: The file is no plan, a value in it is unusable, or its graph was only in memory.
            StoreError: The store is missing or is another one than the plan was made for.
        """
        from gnnkit.ui.progress import make_sink

        plan = read_plan(path)
        store = open_planned_store(plan, Path(path).parent)
        graph = open_store(store)
        return cls._loader()(checked_plan(plan, store, graph), graph, make_sink(progress), transform=transform, device=device)

    @staticmethod
    def _loader() -> type[GraphLoader]:
        from gnnkit.loader.facade import GraphLoader

        return GraphLoader


def _warm_in_background(events: EventSink) -> None:
    """Compiles kernels while the dataset is downloaded or built; whoever needs them waits for the same lock."""
    from gnnkit.sampling.jit import warm

    threading.Thread(target=warm, args=(events,), name="gnnkit-compile", daemon=True).start()


def _has_edge_arrays(schema: GraphSchema) -> bool:
    return any(edge_type.arrays for edge_type in schema.edge_types.values())


def _find_or_build(
    source: GraphSource,
    build: BuildOptions,
    with_edge: bool | None,
    store_dir: Path,
    site: Site,
    events: EventSink,
) -> Store:
    from gnnkit.storage.catalog import find_or_build

    stored_edges = _has_edge_arrays(source.schema) if with_edge is None else bool(with_edge)
    return find_or_build(source, replace(build, with_edge=stored_edges), store_dir, events, opener=site.open)


def _store_folder(store_dir: str | Path | None, root: Path | None) -> Path:
    from gnnkit.storage.catalog import default_store_dir

    return default_store_dir(root) if store_dir is None else Path(store_dir)


def _check_undivided(options: LoaderOptions) -> None:
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
        _check_undivided(options)
        return graph, None
    site = options.site()
    store = site.open(graph.store.path)
    return open_store(store), site.placement(store.manifest, store.path)


def _on_store(
    cls: type[LoaderSources],
    store: Store,
    options: LoaderOptions,
    site: Site,
    input_nodes: Any,
    weight: str | None,
    with_edge: bool | None,
    events: EventSink,
) -> GraphLoader:
    check_store_has(store, weight, with_edge)
    wants_edges = store.options.with_edge if with_edge is None else with_edge
    placement = site.placement(store.manifest, store.path)
    return _make(cls, open_store(store), options, placement, input_nodes, weight, wants_edges, events)


def _make(
    cls: type[LoaderSources],
    graph: GraphHandle,
    options: LoaderOptions,
    placement: Placement | None,
    input_nodes: Any,
    weight: str | None,
    with_edge: bool,
    events: EventSink,
) -> GraphLoader:
    fan_outs = resolve_fan_outs(options.num_neighbors, graph.arrays.schema)
    sampling = NeighborSampling(fan_outs, bool(options.replace), graph.arrays.edge_dir, weight, bool(with_edge))
    inputs = resolve_input_nodes(input_nodes, graph)
    backend = options.backend_json(placement)
    plan = LoaderPlan(graph.store, inputs, sampling, options.batching(inputs), backend, options.runtime(), placement)
    return cls._loader()(plan, graph, events, transform=options.transform, device=options.device)
