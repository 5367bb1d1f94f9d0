"""Renders a loader."""

from __future__ import annotations

from gnnkit.backends.base import StreamStatus
from gnnkit.cluster.placing import describe
from gnnkit.loader.epoch import EpochStats
from gnnkit.loader.history import LastError
from gnnkit.plan import InputAnchors, InputLinks, Inputs, LoaderPlan, NeighborSampling, Sampling
from gnnkit.runtime.graph_memory import GraphHandle, graph_nbytes
from gnnkit.schema import GraphSchema, edge_type_name
from gnnkit.ui.cards import Card, Table, cost_of, process_table
from gnnkit.units import format_bytes, format_count, format_duration, format_percent, format_rate, format_short


def loader_card(
    plan: LoaderPlan, graph: GraphHandle, status: StreamStatus, stats: EpochStats, num_batches: int, error: LastError | None
) -> Card:
    """Makes the card of a loader: its graph, the place of sampling, its speed, its cost, and its last error.

    Args:
        plan: Its plan.
        graph: Its graph.
        status: Its state.
        stats: The epoch that runs or ran last.
        num_batches: Batches of an epoch.
        error: See ``History.last_error``.
    """
    schema, batching, sampling = graph.arrays.schema, plan.batching, plan.sampling
    order = "drawn by weight" if plan.inputs.weights is not None else "shuffled" if batching.shuffle else "in order"
    rows = [
        ("nodes", format_short(schema.num_nodes)),
        ("edges", format_short(schema.num_edges)),
        ("input", _inputs(plan.inputs, schema)),
        _sampling(sampling),
        ("batches", f"{format_count(num_batches)} an epoch, {format_count(batching.batch_size)} seeds each, {order}"),
        ("backend", f"{plan.backend['kind']}, {_workers(plan.backend['kind'], status.workers)}{_drawn_by(status)}"),
    ]
    if error is not None:
        rows.append(("last error", error.line))
    if "servers" in status.details:
        rows.append(("servers", str(status.details["servers"])))
    if batching.world_size > 1:
        rows.append(("rank", f"{batching.rank} of {batching.world_size}"))
    if stats.batches:
        rows.append((_epoch_name(status, stats, num_batches), _speed(stats, num_batches)))
    if stats.cached_nbytes:
        rows.append(("on the device", f"{format_bytes(stats.cached_nbytes)} of features, beside {format_bytes(stats.nbytes)} that came"))
    if stats.padding:
        rows.append(("padding", _padding(stats)))
    rows.append(("memory", _memory(status)))
    if plan.placement is not None:
        rows.append(("placement", describe(plan.placement)))
        rows += [("hosts", str(status.details["hosts"]))] if "hosts" in status.details else []
    if graph.store is not None:
        size = graph_nbytes(graph.arrays)
        rows.append(("store", f"{graph.store.path}, {format_bytes(size)} mapped" if size else graph.store.path))
    sections = [] if schema.is_homogeneous else [("types", _types(graph, plan))]
    if stats.batches:
        sections.append(("time of the last epoch", _times(stats)))
    if len(status.processes) > 1:
        sections.append(("processes", process_table(status.processes)))
    texts = [] if error is None else [("last error", error.trace)]
    return Card(f"GraphLoader {graph.name}", status.state, rows, graph.notice, sections, texts=texts)


def _padding(stats: EpochStats) -> str:
    share = f"{100 * stats.padding / (stats.nodes + stats.edges):.0f} % on top of nodes and edges"
    return f"{share}; {format_count(stats.oversized)} batches larger than every planned shape" if stats.oversized else share


def _epoch_name(status: StreamStatus, stats: EpochStats, num_batches: int) -> str:
    return "epoch" if status.state in ("sampling", "paused") and stats.batches < num_batches else "last epoch"


def _speed(stats: EpochStats, num_batches: int) -> str:
    there = f"{format_count(stats.batches)} batches" if stats.batches == num_batches else f"{stats.batches:,} of {num_batches:,} batches"
    return f"{stats.epoch}: {there}, {format_rate(stats.seeds_per_s, 'seeds')}, {format_rate(stats.batches_per_s, 'batches')}"


def _memory(status: StreamStatus) -> str:
    words = [f"buffers {format_bytes(status.buffer_bytes)}", f"graph copy {format_bytes(status.graph_bytes)}"]
    others = [process for process in status.processes if process.name != "trainer"]
    return ", ".join(words + ([cost_of(others)] if others else []))


def _inputs(inputs: Inputs, schema: GraphSchema) -> str:
    if isinstance(inputs, InputLinks):
        given = inputs.edge_label_index
        what = f"{inputs.split} links" if inputs.split else "all links" if given is None else f"{given.shape[1]} links"
        owner = edge_type_name(inputs.edge_type)
        if inputs.neg_sampling is not None:
            what = f"{what}, {inputs.neg_sampling.mode} negatives"
    else:
        what = inputs.split or ("all nodes" if inputs.ids is None else f"{len(inputs.ids)} ids")
        owner = inputs.node_type
        if isinstance(inputs, InputAnchors):
            what = f"{what} as anchors"
    return what if schema.is_homogeneous else f"{what} of {owner}"


def _sampling(sampling: Sampling) -> tuple[str, str]:
    if not isinstance(sampling, NeighborSampling):
        return "sampler", type(sampling).__name__.removesuffix("Sampling")
    fan_outs = {",".join(map(str, fan_out)) for fan_out in sampling.num_neighbors.values()}
    words = [f"[{fan_outs.pop()}]" if len(fan_outs) == 1 else f"per edge type, {sampling.num_hops} hops"]
    words += [] if sampling.labor is None else ["LABOR"]
    words += ["disjoint"] if sampling.has_roots else []
    words += [f"{sampling.temporal_strategy} before {sampling.time_attr}"] if sampling.time_attr else []
    words += [f"at most {sampling.time_window} older"] if sampling.time_window is not None else []
    words += ["strictly"] if sampling.temporal_comparison == "<" else []
    words += [sampling.subgraph_type] if sampling.subgraph_type != "directional" else []
    return "num_neighbors", ", ".join(words)


def _workers(kind: str, count: int) -> str:
    one, many = ("thread", "threads") if kind == "InProcess" else ("process", "processes")
    return f"{count} {one if count == 1 else many}"


def _drawn_by(status: StreamStatus) -> str:
    return f", drawn by {status.details['drawn by']}" if "drawn by" in status.details else ""


def _types(graph: GraphHandle, plan: LoaderPlan) -> Table:
    schema = graph.arrays.schema
    fan_outs = plan.sampling.num_neighbors if isinstance(plan.sampling, NeighborSampling) else {}
    rows = [[name, format_count(t.num_nodes), ", ".join(t.arrays), ""] for name, t in schema.node_types.items()]
    rows += [
        [edge_type_name(name), format_count(t.num_edges), ", ".join(t.arrays), ",".join(map(str, fan_outs.get(name, ())))]
        for name, t in schema.edge_types.items()
    ]
    return Table(("type", "count", "arrays", "num_neighbors"), rows)


def _times(stats: EpochStats) -> Table:
    names = ("paused_s", "wait_s", "collate_s", "transform_s", "transfer_s", "consumer_s")
    wall = max(stats.wall_s, 1e-9)
    rows = [
        [name.removesuffix("_s"), format_duration(float(value := getattr(stats, name))), format_percent(value / wall)]
        for name in names
        if name != "paused_s" or stats.paused_s
    ]
    return Table(("stage", "time", "share"), rows)
