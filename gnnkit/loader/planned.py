"""The graph that a plan names, opened and compared with what was planned."""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.backends import backend_from_json
from gnnkit.backends.base import Backend, joined
from gnnkit.cluster.hosts import ONE_HOST, find_hosts
from gnnkit.errors import PlanError, StoreError
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import user_path
from gnnkit.loader.inputs import (
    check_reverses,
    checked_anchors,
    checked_links,
    find_rank,
    resolve_input_nodes,
    resolve_rank,
    with_seed_weights,
    with_time_window,
    without_labels,
)
from gnnkit.loader.options import LoaderOptions, Site
from gnnkit.loader.served import is_served, joins_servers, served_store
from gnnkit.loader.subgraphs import found_on
from gnnkit.plan import InputAnchors, InputLinks, Inputs, LoaderPlan, NeighborSampling, Placement, Sampling, StoreRef
from gnnkit.plan.sampling import EdgeUse, resolve_fan_outs
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.samplers import to_options
from gnnkit.schema import GraphSchema
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.store import Store
from gnnkit.urls import is_url

if TYPE_CHECKING:
    from gnnkit.datasets.pyg import PyGSource
    from gnnkit.storage.layout import BuildOptions

# Loaders of one process share what they have opened of the same graph: of a store its mapping and its copy in huge pages.
_open_graphs: weakref.WeakValueDictionary[Any, GraphHandle] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()


def open_store(store: Store) -> GraphHandle:
    """The process's handle on a store."""
    reference = store.reference
    key = reference, store.local_parts, store.whole_structure
    with _open_lock:
        handle = _open_graphs.get(key)
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
            _open_graphs[key] = handle
        return handle


def open_in_memory(source: PyGSource, build: BuildOptions, name: str) -> GraphHandle:
    """The process's handle on a graph in memory.

    Args:
        source: The graph.
        build: The direction of its edges, and what of them is used.
        name: What users call it.

    Raises:
        PlanError: See ``graph_from_pyg``.
        DatasetError: See ``graph_from_pyg``.
    """
    from gnnkit.datasets.pyg import graph_from_pyg  # torch_geometric

    key = id(source), build  # no other source has its id for as long as the handle keeps it
    handle = _open_graphs.get(key)
    if handle is None:
        arrays = graph_from_pyg(source, edge_dir=build.edge_dir, weight=build.weight, time_attr=build.time_attr, with_edge=build.with_edge)
        known: dict[str, Any] = {"extra": source.extra, "type_extra": source.type_extra, "source": source, "build": build}
        handle = GraphHandle(arrays, source.splits, name=name, **known, check_unchanged=source.check_unchanged)
        handle = _open_graphs.setdefault(key, handle)
    return handle


def warm_in_background(events: EventSink) -> None:
    """Compiles kernels while the dataset is downloaded or built; processes that need them wait for the same lock."""
    from gnnkit.sampling.kinds import warm  # kernels

    threading.Thread(target=warm, args=(events,), name="gnnkit-compile", daemon=True).start()


def has_edge_arrays(schema: GraphSchema) -> bool:
    """Whether edges of some type carry arrays."""
    return any(edge_type.arrays for edge_type in schema.edge_types.values())


def store_folders(store_dir: str | Path | None, root: Path | None) -> tuple[Path, ...]:
    """The folders of stores: the one that is said, or the usual ones under ``root``. New stores go to the first."""
    from gnnkit.storage.catalog import default_store_dirs  # partitioners

    return default_store_dirs(root) if store_dir is None else (user_path(store_dir),)


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


def plan_file(path: str | Path | None) -> Path:
    """The file of a plan.

    Args:
        path: The file; None is the one that ``initialize`` was given.

    Raises:
        PlanError: It was given none.
    """
    if path is not None:
        return user_path(path)
    decided = joined()
    if decided is None or decided.plan is None:
        raise PlanError(
            "from_plan() was given no file, and neither was gnnkit.distributed.initialize",
            "from_plan('plan.json'), or export GNNKIT_PLAN=plan.json and call initialize() first",
        )
    return decided.plan


def as_rank(plan: LoaderPlan, rank: int | None, world_size: int | None) -> tuple[LoaderPlan, bool]:
    """A plan for the rank that is given, or else found; and whether that is looked for again when an epoch begins.

    No batch of the epoch's list changes, only who gets which. A plan of one of several ranks stays that rank's where none is found.

    Raises:
        PlanError: Only one of the two is given, or they make no sense.
    """
    finds_rank = rank is None and world_size is None and (plan.batching.world_size == 1 or find_rank() is not None)
    if rank is not None or world_size is not None or finds_rank:
        rank, world_size = resolve_rank(rank, world_size)
        plan = replace(plan, batching=replace(plan.batching, rank=rank, world_size=world_size))
    return plan, finds_rank


_BRING_IT = (
    "the plan's file names the store by a path relative to itself: move both together, or write where the store is into it (store, path)"
)


def open_planned(plan: LoaderPlan, events: EventSink) -> tuple[LoaderPlan, Backend, GraphHandle]:
    """Opens the store that a plan was made for, or another one of the same graph in its place. Where servers are joined, it is theirs.

    Args:
        plan: A plan that may have been edited.
        events: Receives the stages of fetching the store, or of joining servers.

    Returns:
        The plan with every value checked, for the place where its store lies now and as ``initialize`` has it run; its backend and graph.

    Raises:
        PlanError: The plan's graph was only in memory, or a value is unusable or does not fit the store.
        StoreError: The store is missing, damaged, or another one.
        StartTimeout: See ``served_store``.
    """
    if plan.store is None:
        raise PlanError("the plan's graph was only in memory", "build a store with gnnkit.partition() and a loader with from_store()")
    decided = joined()
    backend = backend_from_json(plan.backend) if decided is None else decided.backend
    placement = None
    if joins_servers(backend):
        store = served_store(backend, events)
    else:
        site = Site("replicate", ONE_HOST)
        if plan.placement is not None:
            hosts = find_hosts(getattr(backend, "hosts", None), plan.batching.world_size, plan.runtime.start_timeout_s)
            site = Site(plan.placement, hosts)
        store = _store_at(plan.store, site, events)
        if plan.placement is not None and not is_served(backend):
            placement = site.placement(store.manifest, store.path)
    check_planned(plan.store, store.manifest, store.path)
    if plan.batching.is_by_part and store.fingerprint != plan.store.fingerprint:
        raise StoreError(
            f"the plan's shuffle is 'parts', and the store {str(store.path)!r} is cut otherwise than the one that it was made for",
            "batches have seeds of one part each: point the plan at that store, or make the plan again",
        )
    graph = open_store(store)
    inputs, sampling = _checked(plan, store, graph)
    plan = replace(plan, store=store.reference, backend=backend.to_json(), inputs=inputs, sampling=sampling, placement=placement)
    return plan, backend, graph


def _store_at(planned: StoreRef, site: Site, events: EventSink) -> Store:
    """Opens what belongs to this host of a plan's store; where nothing is at its path, says that the two go together."""
    try:
        return site.open(planned.path, events, planned)
    except StoreError as error:
        is_there = False
        with contextlib.suppress(OSError, ValueError):  # no system can have a file of that name
            is_there = is_url(planned.path) or (Path(planned.path) / MANIFEST_NAME).exists()
        if is_there:
            raise
        raise StoreError(error.message, _BRING_IT) from error


def check_planned(planned: StoreRef, manifest: Manifest, path: str | Path) -> None:
    """Compares a store with the one that a plan was made for: it must have the same graph, in whatever parts.

    Raises:
        StoreError: It is of another graph, or the graph was stored otherwise.
    """
    if manifest.graph_fingerprint != planned.graph:
        raise StoreError(
            f"the graph of the store {str(path)!r} is {manifest.graph_fingerprint[:16]}, and the plan was made for {planned.graph[:16]}",
            "point the plan at the store that it was made for, or make the plan again",
        )


def check_store_has(store: Store, weight: str | None, time_attr: str | None, with_edge: bool | None) -> None:
    """Compares what is to be sampled with what a store was built with.

    Raises:
        PlanError: Edge ids, weights or times are wanted that it does not hold.
    """
    if with_edge and not store.options.with_edge:
        raise PlanError(f"the store {str(store.path)!r} holds no edge ids", "build it with with_edge=True, or leave with_edge out")
    for name, words, wanted in (("weight", "weights", weight), ("time_attr", "times", time_attr)):
        if wanted is not None and wanted != (own := getattr(store.options, name)):
            built = f"without {words}" if own is None else f"for the {words} {own!r}"
            raise PlanError(f"{name}={wanted!r}, but the store {str(store.path)!r} was built {built}", f"build it with {name}={wanted!r}")


def _checked(plan: LoaderPlan, store: Store, graph: GraphHandle) -> tuple[Inputs, Sampling]:
    """A plan's inputs and way of sampling, checked against its store.

    Raises:
        PlanError: A value is unusable, or does not fit the store.
    """
    sampling = plan.sampling
    if sampling.edge_dir != store.edge_dir:
        raise PlanError(f"the plan samples along edge_dir={sampling.edge_dir!r}, and its store is compressed for {store.edge_dir!r}")
    check_store_has(store, sampling.weight, sampling.time_attr, sampling.with_edge)
    inputs, sampling = checked_inputs(plan.inputs, _checked_sampling(sampling, store.schema), graph)
    sampling = found_on(sampling, inputs, graph, ignore_events)
    if inputs.weights is not None and not plan.batching.shuffle:
        raise PlanError("the plan's inputs have weights, which draw the inputs of an epoch, and its shuffle is false")
    return inputs, sampling


def _checked_sampling(sampling: Sampling, schema: GraphSchema) -> Sampling:
    if isinstance(sampling, NeighborSampling):
        check_reverses(sampling.subgraph_type, schema)
        return replace(sampling, num_neighbors=resolve_fan_outs(sampling.num_neighbors, schema))
    return to_options(sampling).sampling(schema, EdgeUse.of(sampling))


def checked_inputs(inputs: Inputs, sampling: Sampling, graph: GraphHandle) -> tuple[Inputs, Sampling]:
    """A plan's inputs, checked for a way of sampling that need not be the one that they were made for; and that way, as they want it.

    Raises:
        PlanError: A value is unusable, or does not fit the graph or the sampling.
    """
    if isinstance(inputs, InputAnchors):
        return with_seed_weights(checked_anchors(inputs, graph), inputs.weights, graph), without_labels(sampling, inputs.label_types)
    found: Inputs
    if isinstance(inputs, InputLinks):
        found = checked_links(inputs, sampling, graph)
    else:
        if inputs.split is not None and inputs.ids is not None:
            raise PlanError("the plan's inputs need a split or ids but not both")
        which = inputs.node_type, inputs.ids if inputs.split is None else inputs.split
        resolved = resolve_input_nodes(which, graph, inputs.time, sampling.time_attr)
        # The stream decides the draws: it stays as it was written.
        found = replace(resolved, stream=inputs.stream, is_mask=inputs.is_mask)
    return with_seed_weights(with_time_window(found, inputs.window, sampling, graph), inputs.weights, graph), sampling


def check_source(source: Any) -> None:
    """Refuses what is no source, and says what takes it.

    Raises:
        PlanError: It is none.
    """
    if hasattr(source, "edge_chunks") and hasattr(source, "schema"):
        return
    module, kind = type(source).__module__.partition(".")[0], type(source).__name__
    if isinstance(source, (str, Path)):
        hint = "from_tables(path) reads tables, from_store(path) opens a store, from_ogb(name) one of OGB's datasets"
    elif module in ("networkx", "pandas", "polars", "duckdb", "pyarrow") or hasattr(source, "__arrow_c_stream__"):
        hint = "from_tables(edges, nodes) takes it"
    else:
        from gnnkit.datasets.pyg import graph_hint  # torch_geometric

        usual = "from_pyg(data) takes a PyG object, from_store(path) a store; a source has the methods of gnnkit.source.GraphSource"
        hint = graph_hint(source) or ("from_pyg(data) takes it" if module == "torch_geometric" else usual)
    raise PlanError(f"from_source() was given a {kind}, which is no source: {source!r:.60}", hint)
