"""Opens a loader's graph: an OGB name, a PyG object, a store, any source, a written plan, or another loader's graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.loader.graphs import (
    check_undivided,
    has_edge_arrays,
    open_store,
    store_folder,
    warm_in_background,
)
from gnnkit.loader.inputs import (
    LINK_OPTIONS,
    LinkOptions,
    resolve_anchors,
    resolve_input_links,
    wants_all_edges,
    without_labels,
    without_links,
)
from gnnkit.loader.options import EdgeUse, GivenOptions, LoaderOptions, check_flag, check_names, sort_options
from gnnkit.loader.pipeline import Pipeline
from gnnkit.loader.planned import as_decided, as_rank, check_store_has, checked_plan, open_planned_store, plan_file
from gnnkit.loader.served import check_same_dataset, check_same_path, check_same_source, joins_servers, served_store
from gnnkit.plan import LoaderPlan, Placement
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.schema import EdgeDir
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from gnnkit.source import GraphSource


def open_ogb_dataset(  # noqa: PLR0913 - the options of a user
    name: str,
    options: dict[str, Any],
    input_nodes: Any,
    *,
    with_edge: bool | None,
    undirected: bool,
    root: str | Path | None,
    store_dir: str | Path | None,
    download: bool | Literal["auto"],
    events: EventSink,
) -> Pipeline:
    """Opens an OGB dataset, downloaded and stored where it is not there yet; the arguments are those of ``GraphLoader.from_ogb``."""
    from gnnkit.datasets.ogb import open_ogb  # ogb
    from gnnkit.datasets.registry import ogb_info  # ogb

    check_flag("undirected", undirected)
    if ogb_info(name).kind == "link" and input_nodes == "train" and options.get("edge_label_index") is None:
        options["edge_label_index"] = "train"  # there are no splits of nodes
    given = sort_options(options, input_nodes, "train", with_edge)
    if joins_servers(backend := given.loader.backend_for(None)):
        served = served_store(backend, events)
        check_same_dataset(served, name, undirected, given.build, options)
        return _on_store(served, given, events)
    folder = None if root is None else Path(root)
    warm_in_background(events)
    source = open_ogb(name, root=folder, download=download, undirected=undirected, events=events)
    return _on_built(source, given, store_folder(store_dir, folder), events)


def open_source(
    source: GraphSource,
    options: dict[str, Any],
    input_nodes: Any,
    *,
    with_edge: bool | None,
    store_dir: str | Path | None,
    events: EventSink,
    usual: Any = "train",
) -> Pipeline:
    """Opens any source, stored where it is not yet.

    The arguments are those of ``GraphLoader.from_source``, and ``usual``, the input nodes where nobody says anything.
    """
    _check_source(source)
    given = sort_options(options, input_nodes, usual, with_edge)
    if joins_servers(backend := given.loader.backend_for(None)):
        served = served_store(backend, events)
        check_same_source(served, source.fingerprint())
        return _on_store(served, given, events)
    warm_in_background(events)
    return _on_built(source, given, store_folder(store_dir, None), events)


def _check_source(source: Any) -> None:
    """Refuses what is no source, and says what takes it.

    Raises:
        PlanError: It is none.
    """
    if hasattr(source, "edge_chunks") and hasattr(source, "schema"):
        return
    module, kind = type(source).__module__.partition(".")[0], type(source).__name__
    if isinstance(source, (str, Path)):
        hint = "from_tables(path) reads tables, from_store(path) opens a store, from_ogb(name) one of OGB's datasets"
    elif module == "torch_geometric":
        hint = "from_pyg(data) takes it"
    elif module in ("networkx", "pandas", "polars", "duckdb", "pyarrow") or hasattr(source, "__arrow_c_stream__"):
        hint = "from_tables(edges, nodes) takes it"
    else:
        hint = "from_pyg(data) takes a PyG object, from_store(path) a store; a source has the methods of gnnkit.source.GraphSource"
    raise PlanError(f"from_source() was given a {kind}, which is no source: {source!r:.60}", hint)


def open_pyg(
    data: Data | HeteroData,
    options: dict[str, Any],
    input_nodes: Any,
    *,
    edge_dir: EdgeDir,
    weight: str | None,
    time_attr: str | None,
    with_edge: bool | None,
    events: EventSink,
) -> Pipeline:
    """Opens a PyG object as it is in memory; the arguments are those of ``GraphLoader.from_pyg``."""
    from gnnkit.datasets.pyg import (
        PyGSource,  # torch_geometric
        graph_from_pyg,  # torch_geometric
    )

    given = sort_options(options, input_nodes, None, with_edge, {"weight": weight, "time_attr": time_attr})
    index = given.inputs.edge_label_index
    source = PyGSource(data if index is None else without_links(data))
    wants_edges = has_edge_arrays(source.schema) if with_edge is None else with_edge
    has_ids = wants_edges or wants_all_edges(index)
    build = replace(given.build, edge_dir=edge_dir, with_edge=has_ids)
    graph = graph_from_pyg(source, edge_dir=edge_dir, weight=weight, time_attr=time_attr, with_edge=has_ids)
    known: dict[str, Any] = {"extra": source.extra, "type_extra": source.type_extra, "source": source, "build": build}
    known["check_unchanged"] = source.check_unchanged
    handle = GraphHandle(graph, source.splits, name=type(data).__name__, **known)
    check_undivided(given.loader)
    return _open(handle, given, None, wants_edges, events)


def open_stored(
    path: str | Path | Store | None,
    options: dict[str, Any],
    input_nodes: Any,
    *,
    weight: str | None,
    time_attr: str | None,
    with_edge: bool | None,
    events: EventSink,
) -> Pipeline:
    """Opens a store; the arguments are those of ``GraphLoader.from_store``."""
    if isinstance(path, Store):
        path = path.url or path.path
    elif path is not None and not isinstance(path, (str, Path)):
        raise PlanError(
            f"from_store() was given a {type(path).__name__}",
            "give the store's folder or URL, or a Store such as loader.store; a graph in memory is opened by from_pyg() or from_source()",
        )
    given = sort_options(options, input_nodes, "train", with_edge, {"weight": weight, "time_attr": time_attr})
    site = given.loader.site
    if joins_servers(backend := given.loader.backend_for(None)):
        store = served_store(backend, events)
        check_same_path(store, path)
    elif path is None:
        raise PlanError("from_store() was given no path", "name the store's folder, or servers: backend=GraphStore(address=...)")
    else:
        store = site.open(path, events)
    return _on_store(store, given, events)


def open_plan(
    path: str | Path | None, *, rank: int | None, world_size: int | None, events: EventSink, transform: Any = None, device: Any = None
) -> Pipeline:
    """Opens a written plan; the arguments are those of ``GraphLoader.from_plan``."""
    plan, backend = as_decided(LoaderPlan.load(plan_file(path)))
    plan = as_rank(plan, rank, world_size)
    store = open_planned_store(plan, backend, events)
    graph = open_store(store)
    return Pipeline(checked_plan(plan, backend, store, graph), graph, events, backend=backend, transform=transform, device=device)


def links_beside(pipeline: Pipeline, edge_label_index: Any, changes: Mapping[str, Any]) -> Pipeline:
    """Opens links on the graph of a pipeline; the arguments are those of ``GraphLoader.for_links``."""
    check_names(changes, [*LINK_OPTIONS, *(field.name for field in fields(LoaderOptions))])
    links = LinkOptions(**{name: value for name, value in changes.items() if name in LINK_OPTIONS})
    rest = {name: value for name, value in changes.items() if name not in LINK_OPTIONS}
    return pipeline.changed(lambda sampling: (resolve_input_links(edge_label_index, links, sampling, pipeline.graph), sampling), rest)


def anchors_beside(pipeline: Pipeline, input_nodes: Any, labels: Mapping[str, Any], changes: Mapping[str, Any]) -> Pipeline:
    """Opens anchors on the graph of a pipeline; the arguments are those of ``GraphLoader.for_anchors``."""
    inputs = resolve_anchors(pipeline.graph, input_nodes, **labels)
    return pipeline.changed(lambda sampling: (inputs, without_labels(sampling, inputs.label_types)), changes)


def _on_built(source: GraphSource, given: GivenOptions, folder: Path, events: EventSink) -> Pipeline:
    """A pipeline on the store of a source, which is built where there is none yet."""
    from gnnkit.storage.catalog import find_or_build  # partitioners

    with_edge = given.with_edge
    if with_edge is None:  # ids say the order of links, too
        with_edge = has_edge_arrays(source.schema) or wants_all_edges(given.inputs.edge_label_index)
    build = replace(given.build, with_edge=bool(with_edge))
    return _on_store(find_or_build(source, build, folder, events, opener=given.loader.site.open), given, events)


def _on_store(store: Store, given: GivenOptions, events: EventSink) -> Pipeline:
    check_store_has(store, given.build.weight, given.build.time_attr, given.with_edge)
    with_edge = store.options.with_edge if given.with_edge is None else given.with_edge
    return _open(open_store(store), given, given.loader.site.placement(store.manifest, store.path), with_edge, events)


def _open(graph: GraphHandle, given: GivenOptions, placement: Placement | None, with_edge: bool, events: EventSink) -> Pipeline:
    options, edges = given.loader, EdgeUse(graph.arrays.edge_dir, given.build.weight, given.build.time_attr, bool(with_edge))
    plan, backend = options.plan(graph, placement, edges, lambda sampling: (given.inputs.resolve(sampling, graph), sampling))
    return Pipeline(plan, graph, events, backend=backend, transform=options.transform, device=options.device)
