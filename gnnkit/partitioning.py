"""``gnnkit.partition``: any graph, cut into parts on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict, overload, runtime_checkable

from gnnkit.arguments import checks_arguments
from gnnkit.bounds import size_in_bytes
from gnnkit.callers import warn
from gnnkit.cluster.hosts import fitting_cache_ratio
from gnnkit.datasets.ogb import open_ogb
from gnnkit.errors import PlanError, StoreError, interruptible
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import user_path
from gnnkit.plugins import find_plugin
from gnnkit.rendering import renderer
from gnnkit.schema import EdgeDir
from gnnkit.source import GraphSource
from gnnkit.splits import check_no_split
from gnnkit.storage.catalog import default_store_dir, default_store_dirs, find_or_build, stores_of_graph
from gnnkit.storage.layout import MANIFEST_NAME, BuildOptions, ByColumn, FeatureDtypes, Order, Partitioner
from gnnkit.storage.manifest import read_manifest
from gnnkit.storage.store import Store
from gnnkit.urls import is_url

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from typing_extensions import Unpack

    from gnnkit.datasets.tables.hosts import TableEngine

    AnyGraph: TypeAlias = GraphSource | Store | str | Path | Data | HeteroData


@runtime_checkable
class BuildEngine(Protocol):
    """A builder of stores elsewhere than in this process, such as ``gnnkit.Ray``."""

    def build(self, source: GraphSource, path: Path, options: BuildOptions, events: EventSink) -> Store:
        """Builds a store, and returns it: the same as this process would, byte for byte."""
        ...


class PartitionKeywords(TypedDict, total=False):
    """The options of ``partition``, for type checkers."""

    edge_dir: EdgeDir | None
    with_edge: bool | None
    feature_dtype: FeatureDtypes | None
    weight: str | None
    time_attr: str | None
    cache_ratio: float
    memory_budget: int | str | None
    num_neighbors: tuple[int, ...]
    input_nodes: str | None
    split_index: int | None
    seed: int
    order: Order
    finish: bool
    overwrite: bool
    engine: BuildEngine | str | None
    events: EventSink


@overload
def partition(
    source: AnyGraph,
    num_parts: int,
    partition: Partitioner | ByColumn = "contiguous",
    out: str | Path | None = None,
    *,
    parts: None = None,
    **options: Unpack[PartitionKeywords],
) -> Store: ...


@overload
def partition(
    source: AnyGraph,
    num_parts: int,
    partition: Partitioner | ByColumn = "contiguous",
    out: str | Path | None = None,
    *,
    parts: Sequence[int],
    **options: Unpack[PartitionKeywords],
) -> Store | None: ...


@interruptible("partition()")
@checks_arguments
def partition(  # noqa: PLR0913
    source: GraphSource | Store | str | Path | Data | HeteroData,
    num_parts: int,
    partition: Partitioner | ByColumn = "contiguous",
    out: str | Path | None = None,
    *,
    edge_dir: EdgeDir | None = None,
    with_edge: bool | None = None,
    feature_dtype: FeatureDtypes | None = None,
    weight: str | None = None,
    time_attr: str | None = None,
    cache_ratio: float = 0.0,
    memory_budget: int | str | None = None,
    num_neighbors: tuple[int, ...] = (15, 10),
    input_nodes: str | None = "train",
    split_index: int | None = None,
    seed: int = 0,
    order: Order = "dataset",
    parts: Sequence[int] | None = None,
    finish: bool = False,
    overwrite: bool = False,
    engine: BuildEngine | str | None = None,
    events: EventSink = ignore_events,
) -> Store | None:
    """Cuts a graph into parts, in bounded memory, and returns the store that holds them.

    Where the folder of stores holds the same graph in other parts, that store is read and not the dataset.

    Args:
        source: A store, the path or the URL of one, which is repartitioned without reading the dataset again; the name of an OGB
            dataset; the path of a table of edges, or of a YAML file with the arguments of ``gnnkit.tables``; a PyG ``Data`` or
            ``HeteroData``; or any ``GraphSource``.
        num_parts: Parts to cut it into.
        partition: How nodes are assigned to parts: "contiguous", "random", "ldg", "metis", "frequency", or "column:NAME" where an array of
            nodes says it, such as a column of a table that ``categories`` of ``gnnkit.tables`` keeps: whole numbers are parts, texts
            are parts in ascending order.
        out: Folder of the new store; None takes a name in the folder of stores.
        edge_dir: "in" compresses edges by target, "out" by source; None is a store's own, else "in".
        with_edge: Whether to store edge ids; None does where a store does, or where edges carry arrays.
        feature_dtype: Stores features in this type, or those of some types in others; see ``BuildOptions``. None keeps theirs.
        weight: Edge array to prepare for weighted sampling; None takes over a store's own.
        time_attr: Arrays of times to prepare for temporal sampling; None takes over a store's own.
        cache_ratio: Share of all nodes whose features each part replicates from other parts, hottest first.
        memory_budget: Bytes, or a size such as "64GB", that a host with one part and the structure of the others may hold of the store:
            the hottest rows of other parts fill what these leave of it. Instead of ``cache_ratio``.
        num_neighbors: Fan-out with which "frequency", ``cache_ratio`` and ``order`` measure how hot a node is.
        input_nodes: The split whose nodes they start from, all nodes where there is no split "train"; None is all nodes.
        split_index: Which one of several splits that is, where masks are ``[n, splits]``. The store has all of them in any case.
        seed: Seed of the partitioners that draw.
        order: The order of a part's nodes in its files: "dataset", or "hotness", those that batches touch most first, so that they share
            pages of a store that does not fit in memory. Batches are the same.
        parts: The parts to build here, while other hosts call the same with theirs and the same ``out``, on a disk that they share or on
            their own. The host that comes last puts the store together. None builds all.
        finish: Puts the store together also where only the records of other hosts' parts are here, and not their files.
        overwrite: Replaces another graph's store at ``out``. One of the same graph is replaced in any case.
        engine: What builds: None is this process; ``gnnkit.Ray(...)``, or its name "ray", are tasks on a Ray cluster, all of whose nodes
            see ``out`` (``docs/how-to/ray.md``). The store is the same, byte for byte.
        events: Receives progress.

    Returns:
        The store; with ``parts``, those of its parts that are on this disk, and None as long as other hosts have not built theirs.

    Raises:
        PlanError: An option's value is unusable, or does not fit the graph.
        DatasetError: The dataset is unknown, missing or damaged.
        StoreError: The store is damaged, the disk is full, another process is at work, or ``out`` holds another graph's store.
        StartTimeout, WorkerDied: With ``engine``, the cluster cannot be joined, or is gone.
    """
    builder = None if engine is None else find_engine(engine)
    graph = _opened(source, events, builder, out, weight)
    store = graph if isinstance(graph, Store) else None
    if store is not None:
        edge_dir, weight = edge_dir or store.edge_dir, weight or store.options.weight
        time_attr = time_attr or store.options.time_attr
        with_edge = store.options.with_edge if with_edge is None else with_edge
    elif with_edge is None:
        with_edge = any(edges.arrays for edges in graph.schema.edge_types.values())
    options = BuildOptions(
        num_parts,
        partition,
        edge_dir or "in",
        with_edge,
        feature_dtype,
        weight,
        time_attr,
        cache_ratio=cache_ratio,
        num_neighbors=tuple(num_neighbors),
        seed=seed,
        order=order,
        input_nodes=input_nodes if split_index is None else f"{input_nodes}.{split_index}",
    )
    budget = size_in_bytes("memory_budget", memory_budget)
    if budget is not None:
        if cache_ratio:
            raise PlanError(f"cache_ratio={cache_ratio!r}, and memory_budget says how much is replicated", "leave one of them out")
        options = replace(options, cache_ratio=fitting_cache_ratio(graph, options, budget))
    if out is None and parts is None and not finish and engine is None:
        own, *shared = default_store_dirs()
        return find_or_build(graph, options, own, events, shared=shared)
    if out is None:
        what = f"parts={parts!r}" if engine is None else f"engine={engine!r}"
        raise PlanError(f"{what} and no out: hosts would build them in different places", "give the store's folder with out=...")
    path = user_path(out)
    if engine is not None:
        _check_engine(store, str(out), parts, finish)
    if not overwrite:
        _refuse_another_graph(path, graph.fingerprint() if store is None else store.manifest.source_fingerprint)
    if engine is not None:
        assert builder is not None, "an engine is one, or was refused"
        return builder.build(graph, path, options, events)
    from gnnkit.storage.build import build_job, build_parts, publish  # numba

    if store is None:  # one of the same graph is read sooner than the dataset
        graph = next(stores_of_graph(graph, options, default_store_dir(), but=path), graph)
    job = build_job(graph, path, options)
    return publish(job, events) if parts is None and not finish else build_parts(job, parts or (), events, finish=finish)


def _check_engine(store: Store | None, out: str, parts: Sequence[int] | None, finish: bool) -> None:
    """Refuses what an engine cannot do.

    Raises:
        PlanError: Says what.
    """
    if store is not None:
        raise PlanError(f"{store.path} is a store, and an engine builds from datasets", "leave engine= away, or give the dataset")
    if parts is not None or finish:
        raise PlanError("parts= and finish= are for hosts that build without an engine, which builds all parts", "leave them away")
    if is_url(out):
        raise PlanError(f"out={out!r}: an engine builds in a folder that all nodes see", "store.push(url) puts the finished store at a URL")


def table_engine(engine: BuildEngine | None) -> TableEngine | None:
    """The engine as one that reads tables; None where it cannot."""
    if engine is None:
        return None
    from gnnkit.datasets.tables.hosts import TableEngine  # pyarrow

    return engine if isinstance(engine, TableEngine) else None


def find_engine(engine: BuildEngine | str) -> BuildEngine:
    """The engine that a user means."""
    if isinstance(engine, BuildEngine):
        return engine
    return find_plugin(engine, BuildEngine, "engine")  # type: ignore[type-abstract]


def _refuse_another_graph(path: Path, fingerprint: str) -> None:
    """Refuses to replace the store of another graph.

    Raises:
        StoreError: There is one at ``path``.
    """
    try:
        found = read_manifest(path)
    except StoreError:  # there is none, or a damaged one, which the build replaces or refuses
        return
    if found.source_fingerprint != fingerprint:
        raise StoreError(f"{path} is the store of another graph, {found.name!r}", "choose another out, or overwrite=True to replace it")


def _opened(source: Any, events: EventSink, engine: BuildEngine | None, out: str | Path | None, weight: str | None) -> Any:
    """The store or ``GraphSource`` that ``source`` stands for; where an engine builds, it may read tables, too, beside the store."""
    if isinstance(source, (str, Path)):
        from gnnkit.datasets.tables.reading import is_table_file  # pyarrow

        if is_table_file(source):
            from gnnkit.datasets.tables.source import open_described  # pyarrow

            beside = None if engine is None or out is None or is_url(str(out)) else user_path(out).parent
            return open_described(source, events, engine=table_engine(engine), scratch_dir=beside)
        if is_url(source):
            return renderer("open_url")(str(source), None, events)
        if isinstance(source, Path) or "/" in source or (Path(source) / MANIFEST_NAME).exists():
            return Store.open(source)
        return open_ogb(source, events=events)
    if isinstance(source, Store) or hasattr(source, "edge_chunks"):
        return source
    from gnnkit.datasets.pyg import PyGSource  # torch

    graph = PyGSource(source, edge_arrays=(weight,))
    for owner, nodes in graph.schema.node_types.items() if not graph.splits else ():  # what a store holds, loaders of it look at
        is_only = graph.schema.is_homogeneous
        rest = graph.extra if is_only else graph.type_extra.get(owner, {})
        check_no_split(rest.items(), nodes.num_nodes, "data." if is_only else f"data[{owner!r}].")
    if graph.left_out:
        warn(f"a store holds what nodes and edges have, and not {', '.join(graph.left_out)}")
    return graph
