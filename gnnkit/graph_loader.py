"""``GraphLoader``: a user's options become a plan, a backend samples it, and PyG batches come out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from gnnkit.arguments import Dates, EdgesOption, NodesOption, checks_arguments, checks_calls
from gnnkit.backends import BackendName
from gnnkit.backends.base import Backend
from gnnkit.backends.devices import Device
from gnnkit.callers import name_of
from gnnkit.datasets.table_options import TableOptions
from gnnkit.errors import AttributeNotSettable, NoSuchAttribute, PlanError, interruptible
from gnnkit.events import EventSink
from gnnkit.files import user_path
from gnnkit.loader.history import History
from gnnkit.loader.inputs import (
    LINK_OPTIONS,
    InputOptions,
    LinkOptions,
    is_auto,
    resolve_anchors,
    resolve_input_links,
    wants_all_edges,
    without_labels,
    without_links,
)
from gnnkit.loader.option_table import GROUPS, option_table, takes_options
from gnnkit.loader.options import GivenOptions, LoaderOptions, Progress, check_names, sort_options
from gnnkit.loader.pipeline import Controls, Pipeline, near_data, on_built, on_graph, on_store, open_plan
from gnnkit.loader.planned import check_source, has_edge_arrays, open_in_memory, store_folders, warm_in_background
from gnnkit.loader.served import check_same_dataset, check_same_path, check_same_source, joins_servers, served_store
from gnnkit.plan import LoaderPlan, PlacementWord
from gnnkit.rendering import Shown
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.schema import EdgeDir, EdgeType
from gnnkit.splits import split_index_of
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.store import Store
from gnnkit.ui import progress as progress_ui
from gnnkit.vendor.ogb import OgbName

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from typing_extensions import Unpack

    from gnnkit.distributed.base_loader import BaseDistLoader
    from gnnkit.export.exporter import Exported
    from gnnkit.loader.advice import Profile
    from gnnkit.loader.feature_cache import FeatureCache
    from gnnkit.loader.inference import Embeddings, Layer
    from gnnkit.loader.inspection import LeakageCheck
    from gnnkit.loader.option_types import BesideKeywords, BuildKeywords, ConstructorKeywords, LinkKeywords, LoaderKeywords, TablesKeywords
    from gnnkit.plan import LabelOutput
    from gnnkit.source import GraphSource
    from gnnkit.ui.cards import Card
    from gnnkit.ui.dashboard import Dashboard
    from gnnkit.ui.picture import Picture


NEXT_BATCH = "batches = iter(loader), then next(batches) as often as needed; or for batch in loader"
_MADE_BY = (
    "from_pyg(data, ...), from_ogb(name, ...), from_tables(edges, nodes, ...), from_store(path, ...) or from_source(...) make a loader"
)


# What people who know another library ask for, and what does it here.
_ELSEWHERE = {
    "from_networkx": "GraphLoader.from_tables(graph) takes a NetworkX graph",
    "from_pandas": "GraphLoader.from_tables(edges, nodes) takes data frames",
    "from_csv": "GraphLoader.from_tables('edges.csv', 'nodes.csv') takes files of tables",
    "from_dgl": "GraphLoader.from_pyg(torch_geometric.utils.from_dgl(graph), ...)",
}


class _Answering(type):
    """The class of ``GraphLoader``, which answers names of other libraries; it is asked for those alone that there are not."""

    if not TYPE_CHECKING:  # which is to complain itself

        def __getattr__(cls, name: str) -> Any:
            text = f"type object {cls.__name__!r} has no attribute {name!r}"
            raise NoSuchAttribute(text, _ELSEWHERE[name]) if name in _ELSEWHERE else AttributeError(text)


@checks_calls()
class GraphLoader(Controls, Shown, metaclass=_Answering):
    """Iterates over sampled neighbourhoods of a graph as PyG batches.

    Made by ``from_ogb``, ``from_tables``, ``from_pyg``, ``from_store``, ``from_source`` or ``from_plan``. A loader may be iterated any
    number of times, one iteration at a time; each is the next epoch, also when the one before was abandoned. All methods may be called
    from any thread.

    ``for batch in loader`` runs an epoch; ``peek()`` shows a batch and ``sample(ids)`` makes one around nodes of your choice.
    ``for_split("valid")``, ``for_links(...)``, ``for_anchors(...)`` and ``with_backend(...)`` make other loaders on the same graph.
    ``stats()``, ``status()``, ``dashboard()``, ``profile()`` and ``plot_batch()`` show what it does, and what to change.
    ``inference(layers)`` embeds all nodes, ``export(folder)`` writes the same pipeline as a job for a cluster, ``close()`` ends it.

    What it samples is fixed when it is made: its attributes cannot be assigned. It is pickled and deep-copied as its plan, and opened at
    the other end; a forked child opens it when it uses it. Each then begins with the epoch that would be the next here.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> loader = gnnkit.GraphLoader.from_pyg(data, input_nodes="train", num_neighbors=[5, 5], batch_size=32, progress=False)
        >>> for batch in loader:
        ...     seeds = batch.n_id[: batch.batch_size]
        >>> len(loader), loader.num_features
        (5, 1433)
        >>> loader.close()
    """

    _pipeline: Pipeline
    _dist_loader: weakref.ref[BaseDistLoader] | None

    @checks_calls(_MADE_BY)
    def __init__(
        self,
        plan: LoaderPlan,
        graph: GraphHandle,
        events: EventSink,
        *,
        transform: Callable[[Any], Any] | None = None,
        device: Device | None = None,
        cache: FeatureCache | None = None,
    ) -> None:
        """Opens a plan on a graph.

        Args:
            plan: What is sampled.
            graph: The opened graph.
            events: Where progress goes.
            transform: Called on each batch before it is copied to ``device``; after that where features are cached there.
            device: The device that batches are copied to; None leaves them in memory.
            cache: Features on that device which another loader on the same graph has; used where the plan asks for as many.
        """
        if not isinstance(plan, LoaderPlan):
            raise PlanError(f"GraphLoader() opens a plan, and was given a {type(plan).__name__}", _MADE_BY)
        self._hold(Pipeline(plan, graph, events, transform=transform, device=device, cache=cache))

    def _hold(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._dist_loader = None

    @property
    def pipeline(self) -> Pipeline:
        """The opened plan, to which this class adds the constructors and verbs of users."""
        here = self._pipeline.in_this_process()
        if here is not self._pipeline:
            self._hold(here)
        return here

    @property
    def _opened(self) -> Pipeline:
        return self._pipeline

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pipeline": self.pipeline, "_dist_loader": None}

    def __getitem__(self, index: object) -> NoReturn:
        """Refuses what reads items by their numbers, as a ``DataLoader`` around a loader does."""
        raise PlanError(
            f"a loader has no item {index!r:.40}: it makes batches itself, in the order of an epoch",
            "for batch in loader, without a DataLoader around it; loader.peek() shows a batch, and loader.sample([id]) makes one of a node",
        )

    def __next__(self) -> NoReturn:
        """Refuses what takes a loader for one iteration over it: each ``iter(loader)`` is an epoch."""
        raise PlanError("a loader is no iterator: each iter(loader) begins an epoch", NEXT_BATCH)

    @property
    def dataset(self) -> NoReturn:
        """Answers code for a ``DataLoader``: there is no such object."""
        raise NoSuchAttribute(
            "a loader has no dataset: it samples from a graph",
            "loader.schema and loader.store say which, loader.plan.inputs what batches start from; len(loader) is the number of batches",
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("_pipeline", "_dist_loader") and (type(self) is GraphLoader or hasattr(GraphLoader, name)):
            raise AttributeNotSettable(
                f"{name!r} of a loader cannot be assigned: what it samples is fixed when it is made",
                f"make another loader on the same graph: loader.for_split(..., {name}=...)"
                if name in option_table()
                else "its methods change what it does; keep facts of your own in variables of your own",
            )
        super().__setattr__(name, value)

    @classmethod
    def _over(cls, pipeline: Pipeline) -> GraphLoader:
        loader = cls.__new__(cls)
        loader._hold(pipeline)
        return loader

    # Constructors ----------------------------------------------------------------------------------------------------------

    @classmethod
    @takes_options(BuildOptions)
    def from_ogb(
        cls,
        name: OgbName,
        *,
        input_nodes: NodesOption = "auto",
        with_edge: bool | None = None,
        undirected: bool = False,
        root: str | Path | None = None,
        store_dir: str | Path | None = None,
        download: bool | Literal["auto"] = "auto",
        progress: Progress = "auto",
        **options: Unpack[BuildKeywords],
    ) -> GraphLoader:
        """A loader on one of OGB's datasets for node property prediction or link property prediction.

        The first call downloads what is missing and builds a store; later ones open it at once.

        Args:
            name: ``"ogbn-products"``, ``"ogbn-arxiv"``, ``"ogbn-proteins"``, ``"ogbn-mag"`` or ``"ogbn-papers100M"``. Or one whose batches
                start from the links of the split "train" unless ``edge_label_index`` says otherwise: ``"ogbl-collab"``, ``"ogbl-ppa"``,
                ``"ogbl-citation2"``, ``"ogbl-ddi"``, ``"ogbl-wikikg2"``, ``"ogbl-biokg"`` or ``"ogbl-vessel"``.
            input_nodes: What batches start from: a split's name, ids, a mask, ``("type", any of these)``, or None for all nodes. "auto" is
                the split "train", of nodes or else of links, and all nodes where the graph has none.
            with_edge: Whether batches carry edge ids; None: if the graph has edge features.
            undirected: Adds reverse edges as PyG's ``ToUndirected`` does.
            root: Folder of the datasets as OGB lays them out; None is ``$GNNKIT_HOME`` or the user's cache folder.
            store_dir: Folder of built stores; None is ``<root>/stores`` where it is writable, else in the user's cache folder.
            download: "auto" downloads up to 2 GB, True any size, False nothing.
            progress: "auto" shows the stages that take long, such as downloads, True a bar for each epoch too, False nothing.
            **options: The loader's and the store's: see ``LoaderOptions`` and ``BuildOptions``.

        Raises:
            DatasetError: The dataset is unknown, not there and not to be downloaded, or damaged.
            PlanError: An option is unknown or its value unusable; found before anything is downloaded.
            StoreError: The store cannot be built or opened.
        """
        from gnnkit.datasets.ogb import ogb_info, open_ogb  # ogb

        events, given = History(progress_ui.make_sink(progress)), dict(options)
        if ogb_info(name).kind == "link" and is_auto(input_nodes) and options.get("edge_label_index") is None:
            given["edge_label_index"] = "train"  # there are no splits of nodes
        sorted_options = sort_options(given, input_nodes, with_edge)
        if joins_servers(backend := sorted_options.loader.backend_for(None)):
            served = served_store(backend, events)
            check_same_dataset(served, name, undirected, sorted_options.build, given)
            return cls._over(on_store(served, sorted_options, events))
        folder = None if root is None else user_path(root)
        warm_in_background(events)
        source = open_ogb(name, root=folder, download=download, undirected=undirected, events=events)
        return cls._over(on_built(source, sorted_options, store_folders(store_dir, folder), events))

    @classmethod
    @takes_options(BuildOptions)
    def from_source(
        cls,
        source: GraphSource,
        *,
        input_nodes: NodesOption = "auto",
        with_edge: bool | None = None,
        store_dir: str | Path | None = None,
        progress: Progress = "auto",
        **options: Unpack[BuildKeywords],
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
        check_source(source)
        events = History(progress_ui.make_sink(progress))
        return cls._of_source(source, sort_options(options, input_nodes, with_edge), store_dir, events)

    @classmethod
    def _of_source(cls, source: GraphSource, given: GivenOptions, store_dir: str | Path | None, events: EventSink) -> GraphLoader:
        if joins_servers(backend := given.loader.backend_for(None)):
            served = served_store(backend, events)
            check_same_source(served, source.fingerprint())
            return cls._over(on_store(served, given, events))
        warm_in_background(events)
        return cls._over(on_built(source, given, store_folders(store_dir, None), events))

    @classmethod
    @takes_options(BuildOptions, TableOptions)
    def from_tables(
        cls,
        edges: Any,
        nodes: Any = None,
        *,
        input_nodes: NodesOption = "auto",
        with_edge: bool | None = None,
        store_dir: str | Path | None = None,
        progress: Progress = "auto",
        **options: Unpack[TablesKeywords],
    ) -> GraphLoader:
        """A loader on tables of nodes and edges: files, globs, data frames, Arrow streams, arrays or a NetworkX graph.

        The tables are read at every call, which finds out whether their store is there; ``from_store(loader.store)`` does not read them.

        Args:
            edges: The table of edges, or ``{edge type: table}``; see ``gnnkit.tables``.
            nodes: The table of nodes, or their number; or ``{node type: either}``.
            input_nodes: See ``from_ogb``.
            with_edge: See ``from_ogb``.
            store_dir: See ``from_ogb``.
            progress: See ``from_ogb``.
            **options: See ``TableOptions`` and ``from_ogb``.

        Raises:
            DatasetError: A table cannot be read, or its rows are no graph: see ``gnnkit.tables``.
            PlanError: See ``from_ogb`` and ``gnnkit.tables``.
            StoreError: See ``from_ogb``.
        """
        from gnnkit.datasets.tables import tables  # pyarrow

        events = History(progress_ui.make_sink(progress))
        of_tables: dict[str, Any] = {name: value for name, value in options.items() if name in GROUPS["Tables"]}
        source = tables(edges, nodes, events=events, **of_tables)
        return cls._of_source(source, sort_options(options, input_nodes, with_edge), store_dir, events)

    @classmethod
    @takes_options()
    def from_pyg(
        cls,
        data: Data | HeteroData,
        *,
        input_nodes: NodesOption = "auto",
        edge_dir: EdgeDir = "in",
        weight: str | None = None,
        time_attr: str | None = None,
        with_edge: bool | None = None,
        progress: Progress = "auto",
        **options: Unpack[ConstructorKeywords],
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
        from gnnkit.datasets.pyg import PyGSource  # torch_geometric

        given = sort_options(options, input_nodes, with_edge, {"edge_dir": edge_dir, "weight": weight, "time_attr": time_attr})
        index = given.inputs.edge_label_index
        source = PyGSource(data if index is None else without_links(data), edge_arrays=(weight,))
        given = near_data(given, data)
        wants_edges = has_edge_arrays(source.schema) if with_edge is None else with_edge
        build = replace(given.build, with_edge=wants_edges or wants_all_edges(index))
        graph, events = open_in_memory(source, build, type(data).__name__), History(progress_ui.make_sink(progress))
        pipeline = on_graph(graph, given, None, wants_edges, events)
        return cls._over(pipeline)

    @classmethod
    @takes_options()
    def from_store(
        cls,
        path: str | Path | Store | None = None,
        *,
        input_nodes: NodesOption = "auto",
        weight: str | None = None,
        time_attr: str | None = None,
        with_edge: bool | None = None,
        progress: Progress = "auto",
        **options: Unpack[ConstructorKeywords],
    ) -> GraphLoader:
        """A loader on a store that ``gnnkit partition`` or another loader built.

        Args:
            path: The store's folder, its URL such as ``"s3://bucket/store"``, or an opened ``Store``. From a URL the parts of this host
                are fetched once. None is the store of the servers that ``backend=GraphStore(address=...)`` joins; with a path, theirs must
                be the same one, if it is on this machine at all.
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
        events = History(progress_ui.make_sink(progress))
        if isinstance(path, Store):
            path = path.url or path.path
        elif path is not None and not isinstance(path, (str, Path)):
            raise PlanError(
                f"from_store() was given a {type(path).__name__}",
                "give the store's folder or URL, or a Store such as loader.store; "
                "a graph in memory is opened by from_pyg() or from_source()",
            )
        given = sort_options(options, input_nodes, with_edge, {"weight": weight, "time_attr": time_attr})
        if joins_servers(backend := given.loader.backend_for(None)):
            store = served_store(backend, events)
            check_same_path(store, path)
        elif path is None:
            raise PlanError("from_store() was given no path", "name the store's folder, or servers: backend=GraphStore(address=...)")
        else:
            store = given.loader.site.open(path, events)
        return cls._over(on_store(store, given, events))

    @classmethod
    @checks_arguments
    @interruptible("from_plan()")
    def from_plan(
        cls,
        path: str | Path | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        progress: Progress = "auto",
        transform: Callable[[Any], Any] | None = None,
        device: Device | None = None,
    ) -> GraphLoader:
        """The loader of a plan that ``loader.plan.save(file)`` wrote: the same batches.

        After ``gnnkit.distributed.initialize`` it samples where that has decided, whatever backend the file names.

        Args:
            path: The JSON file; a store's relative path in it is relative to the file. The store may have been cut into other parts than
                the plan was made with. None is the plan that ``initialize`` was given.
            rank: Which of the trainers this is; None is what the process group or torchrun's environment says, and the plan's own where
                there is neither.
            world_size: Number of trainers, with ``rank``. The epoch's list of batches is the same for any number.
            progress: See ``from_ogb``.
            transform: See ``LoaderOptions``.
            device: See ``LoaderOptions``.

        Raises:
            PlanError: The file is no plan, a value in it is unusable, or its graph was only in memory.
            StoreError: The store is missing or is of another graph than the plan was made for.
        """
        events = History(progress_ui.make_sink(progress))
        return cls._over(open_plan(path, rank=rank, world_size=world_size, events=events, transform=transform, device=device))

    # Other loaders on the same graph ---------------------------------------------------------------------------------------

    def for_split(
        self,
        input_nodes: NodesOption,
        *,
        split_index: int | None = None,
        input_time: Dates | None = None,
        **changes: Unpack[LoaderKeywords],
    ) -> GraphLoader:
        """A loader of other nodes; other options where they are given. It begins with epoch 0.

        Args:
            input_nodes: A split's name, ids, a mask, ``("type", any of these)``, or None for all nodes.
            split_index: Which one of several splits; None is that of this loader.
            input_time: See ``InputOptions``.
            **changes: Options as for the constructors; those that are not given stay as they are, except that ``shuffle`` and
                ``remainder`` start from their defaults.

        Raises:
            PlanError: An option is unknown or its value unusable.
        """
        graph, own = self.pipeline.graph, split_index_of(self.plan.inputs.split)
        inputs = InputOptions(input_nodes=input_nodes, split_index=own if split_index is None else split_index, input_time=input_time)
        return self._over(self.pipeline.changed(lambda sampling: (inputs.resolve(sampling, graph), sampling), changes))

    def for_links(self, edge_label_index: EdgesOption, **changes: Unpack[LinkKeywords]) -> GraphLoader:
        """A loader of links, as PyG's ``LinkNeighborLoader``.

        Args:
            edge_label_index: ``[2, n]`` ids of sources and targets, a split's name, ``(edge type, either of these)``, or an edge type for
                all its edges; None for all edges of a homogeneous graph.
            **changes: ``edge_label``, ``edge_label_time``, ``neg_sampling``, ``neg_amount``, ``neg_strict``, ``exclude_edges`` (see
                ``LinkOptions``), and those of ``for_split``.

        Raises:
            PlanError: An option is unknown or its value unusable.
        """
        check_names(changes, [*LINK_OPTIONS, *(field.name for field in fields(LoaderOptions))])
        graph, rest = self.pipeline.graph, dict[str, Any](changes)
        links = LinkOptions(**{name: rest.pop(name) for name in LINK_OPTIONS if name in changes})
        return self._over(
            self.pipeline.changed(lambda sampling: (resolve_input_links(edge_label_index, links, sampling, graph), sampling), rest)
        )

    def for_anchors(
        self,
        positive: EdgeType | list[EdgeType],
        negative: EdgeType | list[EdgeType | None] | None = None,
        *,
        input_nodes: NodesOption = None,
        cap: int | None = None,
        output: LabelOutput = "dict",
        **changes: Unpack[LoaderKeywords],
    ) -> GraphLoader:
        """A loader of anchors, each with the nodes that it is to be told together with, and apart from.

        Args:
            positive: The edge type of the positive labels, as it leads from anchors to labels; or several.
            negative: The same for negative labels; for several positive types a list of as many, None where there are none.
            input_nodes: The anchors: a split's name, ids, a mask, or None for all nodes of the type.
            cap: Labels of each kind that an anchor keeps, at most; None keeps all.
            output: "dict" gives ``{number of an anchor: numbers of its labels}``, "edge_index" ``[2, e]``.
            **changes: Those of ``for_split``.

        Raises:
            PlanError: A type is unknown, or stored the wrong way round, or an option's value is unusable.
        """
        index = split_index_of(self.plan.inputs.split)
        inputs = resolve_anchors(self.pipeline.graph, input_nodes, positive, negative, cap, output, index)
        return self._over(self.pipeline.changed(lambda sampling: (inputs, without_labels(sampling, inputs.label_types)), changes))

    def with_backend(self, backend: Backend | BackendName, **changes: Unpack[BesideKeywords]) -> GraphLoader:
        """The same batches from somewhere else. It begins with epoch 0, as every new loader does.

        ``set_epoch(loader.epoch + 1)`` of it goes on with the epochs of this one, ``load_state_dict(loader.state_dict())`` at its place.

        Args:
            backend: Where sampling happens, see ``LoaderOptions``.
            **changes: Those of ``for_split``.

        Raises:
            PlanError: An option is unknown or its value unusable.
        """
        return self._over(self.pipeline.with_backend(backend, changes))

    @property
    def dist_loader(self) -> BaseDistLoader:
        """This loader as a ``graphlearn_torch.distributed.DistLoader``, for code that wants one; batches have its names beside PyG's.

        It is the same loader: iterating one advances the other, and closing either closes both. graphlearn-torch need not be installed.

        Raises:
            PlanError: The loader does not sample nodes hop by hop.
        """
        self.pipeline.check_open()
        made = None if self._dist_loader is None else self._dist_loader()
        if made is None:
            from gnnkit.distributed.base_loader import dist_loader_over  # few loaders are lent

            made = dist_loader_over(self.pipeline)
            self._dist_loader = weakref.ref(made)
        return made

    # How it shows itself, and advice ---------------------------------------------------------------------------------------

    def dashboard(self, interval_s: float = 0.5) -> Dashboard:
        """A view of the loader that goes on while it runs; see ``gnnkit.ui.dashboard``.

        Args:
            interval_s: Seconds between two looks, 0.1 to 60.

        Raises:
            PlanError: ``interval_s`` is something else.
        """
        from gnnkit.ui.dashboard import Dashboard  # ipywidgets

        return Dashboard(self.pipeline, interval_s)

    def profile(self, seconds: float = 10.0) -> Profile:
        """Measures where the time goes, what limits the loader, and which call makes a faster one; see ``gnnkit.loader.advice``.

        Args:
            seconds: Length of the loop's time to measure.
        """
        from gnnkit.loader.advice import profile  # rarely used

        return profile(self.pipeline, seconds, name_of(self) or "loader")

    def autotune(self, *_: Any, **__: Any) -> NoReturn:
        """Refuses what is not there any more: ``profile()`` says what to change, without trying everything."""
        raise PlanError(
            "loader.autotune() is not there any more", "print(loader.profile()) after a loop: its line 'to copy' is the loader to try next"
        )

    def check_leakage(self, batches: int = 100) -> LeakageCheck:
        """Compares the edges of batches with the times of their seeds, from what the batches show: nothing may be later than its seed.

        The batches are the first ones of the next epoch, which does not advance. With several ranks, each checks its own.

        Args:
            batches: How many, at most.

        Returns:
            How many edges were compared, how many are later, and the first of these; see ``gnnkit.check_leakage``.

        Raises:
            PlanError: The loader does not follow times, or its batches show edges that were not drawn.
        """
        from gnnkit.loader.inspection import check_loader  # rarely used

        return check_loader(self.pipeline, batches)

    def plot_batch(self, seed: Any = None, batch: Any = None) -> Picture:
        """One seed's sampled neighbourhood, hop by hop; see ``gnnkit.ui.plots``.

        Args:
            seed: An id of the input type, for links the ids of both ends; None takes the first one of the batch.
            batch: A batch of this loader; None samples around ``seed``, or takes the next batch, without advancing the epoch.
        """
        from gnnkit.ui.plots import plot_batch  # matplotlib

        return plot_batch(self.pipeline, seed, batch)

    def plot_timeline(self, epoch: int | None = None) -> Picture:
        """Plots the work of each worker and of the consumer over time; see ``gnnkit.ui.plots``.

        Args:
            epoch: Which epoch; None takes the last one.
        """
        from gnnkit.ui.plots import plot_timeline  # matplotlib

        return plot_timeline(self.pipeline, epoch)

    def plot_footprint(self, num_batches: int | None = None) -> Picture:
        """Plots how often nodes are touched, and what a cache of the most touched features would save; see ``gnnkit.ui.plots``.

        Args:
            num_batches: Batches to sample, of each of the next two epochs; None takes 32, or all where there are fewer.
        """
        from gnnkit.ui.plots import plot_footprint  # matplotlib

        return plot_footprint(self.pipeline, num_batches)

    def _card(self) -> Card:
        from gnnkit.ui.objects import loader_card  # only when it is looked at

        return loader_card(self.plan, self._opened.graph, self.status(), self.stats(), len(self), self.history.last_error)

    # Inference, export, end ------------------------------------------------------------------------------------------------

    def inference(
        self,
        layers: Sequence[Layer],
        out: str | Path | None = None,
        *,
        input_nodes: NodesOption = None,
        batch_size: int | None = None,
        device: Device | None = None,
        keep_layers: bool = False,
        progress: Progress = "auto",
    ) -> Embeddings:
        """Embeddings of all nodes, layer by layer, each from all neighbours of a node.

        A layer is a function of a batch with one hop of all neighbours. It returns a row for each seed, ``[batch_size, ...]``, or for each
        node of the batch, of which the seeds' are taken; of a typed graph, those of the seeds' type, or a dict of all types' tensors as
        ``HeteroConv`` gives it. After the first layer, ``x`` holds the rows of the layer before. Layers run without gradients; call
        ``model.eval()`` before.

        It is one process's work: with several ranks, call it on one of them while the others keep their loaders open.

        Args:
            layers: The model's layers, first to last.
            out: Folder to write to, which must not exist: ``<out>/layer<k>/<node type>.npy``. It is there once all of it is. None is a
                temporary one, which goes with the result.
            input_nodes: Nodes whose embeddings are wanted, as for ``for_split``; layers before the last run over all nodes. None is all.
            batch_size: Seeds per batch; None is the loader's.
            device: The device that batches are copied to; None is the loader's.
            keep_layers: Keeps the files of all layers, not of the last one only.
            progress: How progress is shown, as for ``from_ogb``.

        Raises:
            PlanError: ``out`` exists, or another process is writing it, or a layer returns something else than such rows.
            StoreError: The embeddings cannot be written.
        """
        from gnnkit.loader.inference import check_layers, infer  # rarely used

        self.pipeline.check_open()
        functions = check_layers(layers, out, keep_layers)
        with progress_ui.make_sink(progress) as events:
            return infer(self.pipeline, functions, out, input_nodes, (batch_size, device), keep_layers, events)

    def export(  # noqa: PLR0913
        self,
        directory: str | Path,
        launcher: str = "torchrun",
        nodes: int = 1,
        procs_per_node: int = 1,
        storage_nodes: int = 0,
        servers_per_node: int = 1,
        interface: str | None = None,
        train: Callable[..., Any] | str | Path | None = None,
        *,
        placement: PlacementWord | None = None,
        gpus_per_node: int | None = None,
        config: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        verify: bool = False,
    ) -> Exported:
        """Writes this loader and a train function as a job for several GPUs or nodes, whose batches are the same.

        The directory holds the plan, ``train.py``, what starts it, pinned requirements and a README with the exact commands. It appears
        whole or not at all. See ``docs/exporting.md``.

        Args:
            directory: The directory; an earlier export in it is replaced, and what else lies in it stays.
            launcher: What starts the job: "torchrun", "slurm", or another name of ``docs/launchers.md``, which installed packages may
                add to.
            nodes: Nodes with trainers.
            procs_per_node: Trainers (ranks) on each.
            storage_nodes: Nodes with storage servers, for ``GraphStore``.
            servers_per_node: Storage servers on each of those.
            interface: Name or address of the interface that nodes talk to each other on; None: the one that leads to the first node.
            train: ``train(loader, ctx)``, as ``gnnkit.launch`` takes it: it is written as source, with the imports, functions, classes
                and constants that it uses. Or the path of a Python file that defines it. None: GraphSAGE with DDP and checkpoints.
            placement: "partition" has each node that holds the graph hold its share of the parts, "features" also the structure of the
                others, "replicate" all of it; None is "partition" where the backend can ask other nodes. A store with too few parts is
                cut anew by the script ``stage.sh``.
            gpus_per_node: GPUs to ask for on each node with trainers, at least one for each rank, or 0; None: one for each rank if this
                machine has any; a person who exports where there is none is asked, once.
            config: ``ctx.config`` of every rank, hyper-parameters for example; ``gnnkit run --set`` changes them.
            options: Of the launcher: ``{"partition": "gpu", "account": "physics", "time": "4:00:00"}`` for Slurm, ``image``, and fields
                that are merged into what is written for Kubernetes: ``{"pod": {"nodeSelector": {"gpu": "a100"}}}``.
            overwrite: Writes over exported files that were changed.
            verify: Then runs the job on this machine and compares its batches with those of the plan.

        Raises:
            PlanError: A value is unusable; the graph is only in memory; the function uses something that cannot be brought along; the
                directory is something else, or files of it were changed.
            StoreError: The store is missing or damaged.
        """
        from gnnkit.export.exporter import JobOptions, export_plan  # rarely used

        transform = self.pipeline.transform
        if transform is not None:
            raise PlanError(
                f"transform={transform!r} is not part of the plan, and a job's batches would be without it",
                "call it in train: for batch in loader: batch = transform(batch)",
            )
        sizes = nodes, procs_per_node, storage_nodes, servers_per_node
        job = JobOptions(launcher, *sizes, interface, placement, gpus_per_node, config or {}, options or {})
        return export_plan(self.plan, directory, job, train=train, overwrite=overwrite, verify=verify)
