"""How a loader shows itself."""

from __future__ import annotations

from gnnkit.backends.base import StreamStatus
from gnnkit.loader.placing import describe
from gnnkit.loader.stats import EpochStats
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.schema import edge_type_name
from gnnkit.ui.cards import Card, Table
from gnnkit.units import format_bytes, format_count, format_duration, format_percent, format_rate, format_short


def loader_card(plan: LoaderPlan, graph: GraphHandle, status: StreamStatus, stats: EpochStats, num_batches: int) -> Card:
    """What a loader is, where it samples, how fast it went and what it costs."""
    schema, batching, sampling = graph.arrays.schema, plan.batching, plan.sampling
    inputs = plan.inputs.split or ("all nodes" if plan.inputs.ids is None else f"{len(plan.inputs.ids)} ids")
    fan_outs = {",".join(map(str, fan_out)) for fan_out in sampling.num_neighbors.values()}
    order = "shuffled" if batching.shuffle else "in order"
    rows = [
        ("nodes", format_short(schema.num_nodes)),
        ("edges", format_short(schema.num_edges)),
        ("input", inputs if schema.is_homogeneous else f"{inputs} of {plan.inputs.node_type}"),
        ("num_neighbors", f"[{fan_outs.pop()}]" if len(fan_outs) == 1 else f"per edge type, {sampling.num_hops} hops"),
        ("batches", f"{format_count(num_batches)} of {batching.batch_size}, {order}"),
        ("backend", f"{plan.backend['kind']}, {_workers(plan.backend['kind'], status.workers)}{_drawn_by(status)}"),
    ]
    if batching.world_size > 1:
        rows.append(("rank", f"{batching.rank} of {batching.world_size}"))
    if stats.batches:
        rows.append(("last epoch", f"{stats.epoch}: {format_count(stats.batches)} batches, {format_rate(stats.seeds_per_s, 'seeds')}"))
    rows.append(("memory", f"buffers {format_bytes(status.buffer_bytes)}, graph copy {format_bytes(status.graph_bytes)}"))
    if plan.placement is not None:
        rows.append(("placement", describe(plan.placement)))
        rows += [("hosts", str(status.details["hosts"]))] if "hosts" in status.details else []
    if graph.store is not None:
        rows.append(("store", graph.store.path))
    sections = [] if schema.is_homogeneous else [("types", _types(graph, plan))]
    if stats.batches:
        sections.append(("time of the last epoch", _times(stats)))
    return Card(f"GraphLoader {graph.name}", status.state, rows, graph.notice, sections)


def _workers(kind: str, count: int) -> str:
    one, many = ("thread", "threads") if kind == "InProcess" else ("process", "processes")
    return f"{count} {one if count == 1 else many}"


def _drawn_by(status: StreamStatus) -> str:
    return f", drawn by {status.details['drawn by']}" if "drawn by" in status.details else ""


def _types(graph: GraphHandle, plan: LoaderPlan) -> Table:
    schema = graph.arrays.schema
    rows = [[name, format_count(t.num_nodes), ", ".join(t.arrays), ""] for name, t in schema.node_types.items()]
    rows += [
        [edge_type_name(name), format_count(t.num_edges), ", ".join(t.arrays), ",".join(map(str, plan.sampling.num_neighbors[name]))]
        for name, t in schema.edge_types.items()
    ]
    return Table(("type", "count", "arrays", "num_neighbors"), rows)


def _times(stats: EpochStats) -> Table:
    names = ("wait_s", "collate_s", "transform_s", "transfer_s", "consumer_s")
    wall = max(stats.wall_s, 1e-9)
    rows = [
        [name.removesuffix("_s"), format_duration(float(value := getattr(stats, name))), format_percent(value / wall)] for name in names
    ]
    return Table(("stage", "time", "share"), rows)
