"""Where a loader's graph comes from: an OGB name, a PyG object, a store, any source, or a written plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gnnkit.errors import PlanError, interruptible
from gnnkit.events import EventSink
from gnnkit.loader.decided import as_decided, as_rank, plan_file
from gnnkit.loader.graphs import (
    check_undivided,
    find_or_build_store,
    has_edge_arrays,
    open_store,
    store_folder,
    stored_ids,
    warm_in_background,
)
from gnnkit.loader.history import History
from gnnkit.loader.link_words import wants_all_edges, without_links
from gnnkit.loader.options import Progress, Words, split_words, takes_options
from gnnkit.loader.placing import Site
from gnnkit.loader.planned import check_store_has, checked_plan, open_planned_store
from gnnkit.loader.sampling_words import resolve_sampling
from gnnkit.loader.served import check_same_dataset, check_same_path, check_same_source, joins_servers, served_store
from gnnkit.plan import LoaderPlan, Placement
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.schema import EdgeDir
from gnnkit.storage.options import BuildOptions

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from gnnkit.loader.facade import GraphLoader
    from gnnkit.source import GraphSource
    from gnnkit.storage.store import Store


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
        """A loader on one of OGB's datasets for node property prediction or link property prediction.

        The first call downloads what is missing and builds a store; later ones open it at once.

        Args:
            name: ``"ogbn-products"``, ``"ogbn-arxiv"``, ``"ogbn-proteins"``, ``"ogbn-mag"`` or ``"ogbn-papers100M"``. Or one whose batches
                start from the links of the split "train" unless ``edge_label_index`` says otherwise: ``"ogbl-collab"``, ``"ogbl-ppa"``,
                ``"ogbl-citation2"``, ``"ogbl-ddi"``, ``"ogbl-wikikg2"``, ``"ogbl-biokg"`` or ``"ogbl-vessel"``.
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
        from gnnkit.datasets.registry import ogb_info

        if ogb_info(name).kind == "link" and input_nodes == "train" and options.get("edge_label_index") is None:
            options["edge_label_index"] = "train"  # there are no splits of nodes
        words = split_words(options, input_nodes, "train", with_build=True)
        loader, build, events = words.loader, words.build, _remembered(progress)
        if joins_servers(loader.backend):
            served = served_store(loader.backend, events)
            check_same_dataset(served, name, undirected, build, options)
            return _on_store(cls, served, words, loader.site(), build.weight, build.time_attr, with_edge, events)
        folder = None if root is None else Path(root)
        warm_in_background(events)
        source = open_ogb(name, root=folder, download=download, undirected=undirected, events=events)
        site = loader.site()
        store = find_or_build_store(source, build, stored_ids(with_edge, words), store_folder(store_dir, folder), site, events)
        return _on_store(cls, store, words, site, build.weight, build.time_attr, with_edge, events)

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
        words = split_words(options, input_nodes, "train", with_build=True)
        loader, build, events = words.loader, words.build, _remembered(progress)
        if joins_servers(loader.backend):
            served = served_store(loader.backend, events)
            check_same_source(served, source.fingerprint())
            return _on_store(cls, served, words, loader.site(), build.weight, build.time_attr, with_edge, events)
        warm_in_background(events)
        site = loader.site()
        store = find_or_build_store(source, build, stored_ids(with_edge, words), store_folder(store_dir, None), site, events)
        return _on_store(cls, store, words, site, build.weight, build.time_attr, with_edge, events)

    @classmethod
    @takes_options(with_build=False)
    def from_pyg(
        cls,
        data: Data | HeteroData,
        *,
        input_nodes: Any = None,
        edge_dir: EdgeDir = "in",
        weight: str | None = None,
        time_attr: str | None = None,
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
            time_attr: See ``from_ogb``.
            with_edge: See ``from_ogb``.
            progress: See ``from_ogb``.
            **options: See ``LoaderOptions``.

        Raises:
            PlanError: The object or an option's value is unusable.
        """
        from gnnkit.datasets.pyg import PyGSource
        from gnnkit.datasets.pyg_arrays import graph_from_pyg

        words = split_words(options, input_nodes, None, with_build=False)
        events = _remembered(progress)
        index = words.inputs.edge_label_index
        source = PyGSource(data if index is None else without_links(data))
        wants_edges = has_edge_arrays(source.schema) if with_edge is None else with_edge
        has_ids = wants_edges or wants_all_edges(index)
        build = BuildOptions(edge_dir=edge_dir, with_edge=has_ids, weight=weight, time_attr=time_attr)
        graph = graph_from_pyg(source, edge_dir=edge_dir, weight=weight, time_attr=time_attr, with_edge=has_ids)
        known: dict[str, Any] = {"extra": source.extra, "type_extra": source.type_extra, "source": source, "build": build}
        handle = GraphHandle(graph, source.splits, name=type(data).__name__, **known)
        check_undivided(words.loader)
        return _make(cls, handle, words, None, weight, time_attr, wants_edges, events)

    @classmethod
    @takes_options(with_build=False)
    def from_store(
        cls,
        path: str | Path | None = None,
        *,
        input_nodes: Any = "train",
        weight: str | None = None,
        time_attr: str | None = None,
        with_edge: bool | None = None,
        progress: Progress = "auto",
        **options: Any,
    ) -> GraphLoader:
        """A loader on a store that ``gnnkit partition`` or another loader built.

        Args:
            path: The store's folder. None is the store of the servers that ``backend=GraphStore(address=...)`` joins; with a path, theirs
                must be the same one, if it is on this machine at all.
            input_nodes: See ``from_ogb``.
            weight: See ``from_ogb``; the store must have been built with it.
            time_attr: Likewise.
            with_edge: See ``from_ogb``; the store must hold edge ids.
            progress: See ``from_ogb``.
            **options: See ``LoaderOptions``.

        Raises:
            StoreError: There is no store, or it is damaged or too new.
            PlanError: An option's value is unusable.
        """
        words, events = split_words(options, input_nodes, "train", with_build=False), _remembered(progress)
        site = words.loader.site()
        if joins_servers(words.loader.backend):
            store = served_store(words.loader.backend, events)
            check_same_path(store, path)
        elif path is None:
            raise PlanError("from_store() was given no path", "name the store's folder, or servers: backend=GraphStore(address=...)")
        else:
            store = site.open(path)
        return _on_store(cls, store, words, site, weight, time_attr, with_edge, events)

    @classmethod
    @interruptible("from_plan()")
    def from_plan(
        cls,
        path: str | Path | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        progress: Progress = "auto",
        transform: Any = None,
        device: Any = None,
    ) -> GraphLoader:
        """The loader of a plan that ``loader.plan.save(file)`` wrote: the same batches.

        After ``gnnkit.distributed.initialize`` it samples where that has decided, whatever backend the file names.

        Args:
            path: The JSON file; a store's relative path in it is relative to the file. The store may have been cut into other parts than
                the plan was made with. None is the plan that ``initialize`` was given.
            rank: Which of the trainers this is; None is the plan's own, or what ``initialize`` has found.
            world_size: Number of trainers, with ``rank``. The epoch's list of batches is the same for any number.
            progress: See ``from_ogb``.
            transform: See ``LoaderOptions``.
            device: See ``LoaderOptions``.

        Raises:
            PlanError: The file is no plan, a value in it is unusable, or its graph was only in memory.
            StoreError: The store is missing or is of another graph than the plan was made for.
        """
        file, events = plan_file(path), _remembered(progress)
        plan = as_rank(as_decided(LoaderPlan.load(file)), rank, world_size)
        store = open_planned_store(plan, events)
        graph = open_store(store)
        return cls._loader()(checked_plan(plan, store, graph), graph, events, transform=transform, device=device)

    @staticmethod
    def _loader() -> type[GraphLoader]:
        from gnnkit.loader.facade import GraphLoader

        return GraphLoader


def _remembered(progress: Progress) -> History:
    """Where a new loader's events go."""
    from gnnkit.ui.progress import make_sink

    return History(make_sink(progress))


def _on_store(
    cls: type[LoaderSources],
    store: Store,
    words: Words,
    site: Site,
    weight: str | None,
    time_attr: str | None,
    with_edge: bool | None,
    events: EventSink,
) -> GraphLoader:
    check_store_has(store, weight, time_attr, with_edge)
    wants_edges = store.options.with_edge if with_edge is None else with_edge
    placement = site.placement(store.manifest, store.path)
    return _make(cls, open_store(store), words, placement, weight, time_attr, wants_edges, events)


def _make(
    cls: type[LoaderSources],
    graph: GraphHandle,
    words: Words,
    placement: Placement | None,
    weight: str | None,
    time_attr: str | None,
    with_edge: bool,
    events: EventSink,
) -> GraphLoader:
    options, arrays = words.loader, graph.arrays
    sampling = resolve_sampling(
        options, arrays.schema, edge_dir=arrays.edge_dir, weight=weight, time_attr=time_attr, with_edge=bool(with_edge)
    )
    inputs = words.inputs.resolve(sampling, graph)
    backend = options.backend_json(placement)
    plan = LoaderPlan(graph.store, inputs, sampling, options.batching(inputs), backend, options.runtime(), placement)
    return cls._loader()(plan, graph, events, transform=options.transform, device=options.device)
