"""The cards of loaders, and of objects that lie in packages below this one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.backends.base import StreamStatus
from gnnkit.cluster.hosts import describe
from gnnkit.loader.advice import LoopMeasurement, Profile, workers
from gnnkit.loader.epoch import EpochStats
from gnnkit.loader.history import LastError
from gnnkit.plan import InputAnchors, InputLinks, Inputs, LoaderPlan, NeighborSampling, Sampling, WalkSampling
from gnnkit.runtime.graph_memory import GraphHandle, graph_nbytes
from gnnkit.schema import ArraySpec, GraphSchema, edge_type_name
from gnnkit.splits import shown_splits
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.report import StoreReport, report_of
from gnnkit.storage.store import Store
from gnnkit.ui.cards import Card, Table, cost_of, process_table, told
from gnnkit.units import format_bytes, format_count, format_duration, format_number, format_percent, format_rate, format_short
from gnnkit.urls import is_url


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
    shuffled = "shuffled by part" if batching.is_by_part else "shuffled" if batching.shuffle else "in order"
    order = shuffled if plan.inputs.weights is None else "drawn by weight"
    drawn_by = f", drawn by {status.details['drawn by']}" if "drawn by" in status.details else ""
    is_open, details, store = status.state in ("sampling", "paused") and stats.batches < num_batches, status.details, graph.store
    size = 0 if store is None else graph_nbytes(graph.arrays)
    cached = f"{format_bytes(stats.cached_nbytes)} of features, beside {format_bytes(stats.nbytes)} that came"
    used, predicted = (format_bytes(details.get(name, 0)) for name in ("device_bytes", "predicted_bytes"))
    rows = told(
        ("nodes", format_short(schema.num_nodes)),
        ("edges", format_short(schema.num_edges)),
        ("input", _inputs(plan.inputs, schema)),
        _sampling(sampling, schema),
        ("batches", f"{format_count(num_batches)} an epoch, {format_count(batching.batch_size)} {sampling.unit} each, {order}"),
        ("backend", f"{sampled_on(plan, status)}{drawn_by}"),
        ("last error", None if error is None else error.line),
        ("servers", details.get("servers")),
        ("rank", f"{batching.rank} of {batching.world_size}" if batching.world_size > 1 else None),
        ("epoch" if is_open else "last epoch", _speed(stats, num_batches) if stats.batches else None),
        ("on the device", cached if stats.cached_nbytes else None),
        ("padding", _padding(stats) if stats.padding else None),
        ("on the device", f"{used} of the graph on {details['device']}, {predicted} were predicted" if "device_bytes" in details else None),
        ("memory", _memory(status)),
        ("placement", None if plan.placement is None else describe(plan.placement)),
        ("hosts", details.get("hosts")),
        ("store", None if store is None else f"{store.path}, {format_bytes(size)} mapped{_sharers(graph, status)}" if size else store.path),
    )
    sections = [] if schema.is_homogeneous else [("types", _types(graph, plan))]
    if stats.batches:
        sections.append(("time of the last epoch", _time_table(stats)))
    if len(status.processes) > 1:
        sections.append(("processes", process_table(status.processes)))
    texts = [] if error is None else [("last error", error.trace)]
    return Card(f"GraphLoader {graph.name}", status.state, rows, graph.notice, sections, texts=texts)


def _sharers(graph: GraphHandle, status: StreamStatus) -> str:
    """The other processes that use the store, and what that means for a copy of it; empty where there are none."""
    if graph.num_users < 2:
        return ""
    shared = f", pages shared by {graph.num_users} processes of this machine"
    return shared if status.graph_bytes else f"{shared}; a copy in huge pages for each would take too much memory"


def _padding(stats: EpochStats) -> str:
    share = f"{100 * stats.padding / (stats.nodes + stats.edges):.0f} % on top of nodes and edges"
    return f"{share}; {format_count(stats.oversized)} batches larger than every planned shape" if stats.oversized else share


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


def _sampling(sampling: Sampling, schema: GraphSchema) -> tuple[str, str]:
    if isinstance(sampling, WalkSampling):
        along = "" if schema.is_homogeneous else f" along {', '.join(edge_type_name(t) for t in sampling.metapath)}"
        words = [f"walks of {sampling.length} steps{along}", f"{sampling.per_node} from each node"]
        words += [f"p {sampling.p:g}", f"q {sampling.q:g}"] if sampling.is_biased else []
        words += [f"{sampling.num_negatives} negative"] if sampling.num_negatives else []
        return "sampler", ", ".join(words)
    if not isinstance(sampling, NeighborSampling):
        return "sampler", type(sampling).__name__.removesuffix("Sampling")
    fan_outs = {",".join(map(str, fan_out)) for fan_out in sampling.num_neighbors.values()}
    words = [f"[{fan_outs.pop()}]" if len(fan_outs) == 1 else f"per edge type, {sampling.num_hops} hops"]
    words += [] if sampling.labor is None else ["LABOR"]
    words += ["disjoint"] if sampling.has_roots else []
    unit = schema.time_unit(sampling.time_attr)
    words += [f"{sampling.temporal_strategy} before {sampling.time_attr}{f' in {unit}' if unit else ''}"] if sampling.time_attr else []
    words += [f"at most {sampling.time_window} older"] if sampling.time_window is not None else []
    words += ["strictly"] if sampling.temporal_comparison == "<" else []
    words += [sampling.subgraph_type] if sampling.subgraph_type != "directional" else []
    return "num_neighbors", ", ".join(words)


def sampled_on(plan: LoaderPlan, status: StreamStatus) -> str:
    """A loader's backend in words: "InProcess, 2 threads"."""
    kind = plan.backend["kind"]
    return f"{kind}, {format_number(status.workers, 'thread' if kind in ('InProcess', 'OnDevice') else 'process')}"


def _types(graph: GraphHandle, plan: LoaderPlan) -> Table:
    schema = graph.arrays.schema
    fan_outs = plan.sampling.num_neighbors if isinstance(plan.sampling, NeighborSampling) else {}
    rows = [[name, format_count(t.num_nodes), ", ".join(t.arrays), ""] for name, t in schema.node_types.items()]
    rows += [
        [edge_type_name(name), format_count(t.num_edges), ", ".join(t.arrays), ",".join(map(str, fan_outs.get(name, ())))]
        for name, t in schema.edge_types.items()
    ]
    return Table(("type", "count", "arrays", "num_neighbors"), rows)


def _time_table(stats: EpochStats) -> Table:
    names = ("paused_s", "wait_s", "collate_s", "transform_s", "transfer_s", "consumer_s")
    wall = max(stats.wall_s, 1e-9)
    rows = [
        [name.removesuffix("_s"), format_duration(float(value := getattr(stats, name))), format_percent(value / wall)]
        for name in names
        if name != "paused_s" or stats.paused_s
    ]
    return Table(("stage", "time", "share"), rows)


def card_of(shown: Any) -> Card:
    """The card of an object of a lower package.

    Args:
        shown: A ``Store``, a ``Profile`` or what ``gnnkit.tables`` returns; others make their cards themselves.
    """
    if isinstance(shown, Store):
        return store_card(shown.manifest, shown.path, shown.local_parts)
    if isinstance(shown, Profile):
        return profile_card(shown)
    return Card(f"Tables {shown.name}", "", shown.described, shown.notice)


_PARTS = {
    "wait": "waiting for batches",
    "collate": "making PyG objects",
    "transform": "your transform",
    "transfer": "copies to the device",
    "consumer": "your loop",
}
_SOURCES = {
    "running": "your loop, while it ran",
    "last": "your loop's last batches",
    "own": "batches sampled for this, with an empty loop: nothing had run before",
}


def profile_card(profile: Profile) -> Card:
    """Makes the card of a profile: the division of a loop's time, and what to change."""
    busy = [(name or "?", format_percent(share)) for name, share in profile.measurement.busy_of.items()]
    sections = [("time of the loop", _times(profile.measurement)), ("who samples", Table(("worker", "busy"), busy))]
    rows = [*([("to copy", profile.call)] if profile.call else []), ("looked at", _SOURCES[profile.source]), *_facts(profile.measurement)]
    return Card(f"Profile of {profile.title}", profile.advice.bottleneck, rows, sections=sections, lead=profile.advice.sentence)


def _place_of_graph(measured: LoopMeasurement) -> str:
    if measured.copied_bytes >= measured.graph_bytes > 0:
        return "a copy in memory"
    return f"the hottest {format_bytes(measured.copied_bytes)} of it in memory" if measured.copied_bytes else "read where it lies"


def _facts(measured: LoopMeasurement) -> list[tuple[str, str]]:
    """Returns the known figures of a loop, by name."""
    rates = f"{format_rate(measured.seeds_per_s, 'seeds')}, {format_rate(measured.batches_per_s, 'batches')}"
    rows = [
        ("speed", f"{rates}, over {measured.batches} batches in {format_duration(measured.seconds)}"),
        ("who samples", f"{workers(measured.kind, measured.workers)}{_share(measured.busy, ', busy {} of the time')}"),
        ("slots", f"{measured.slots}{'' if math.isnan(measured.ready) else f', {measured.ready:.1f} batches ready when one is asked for'}"),
        ("batch", "?" if math.isnan(measured.batch_bytes) else format_bytes(measured.batch_bytes)),
        ("graph", f"{format_bytes(measured.graph_bytes)}, {_place_of_graph(measured)}"),
    ]
    if not math.isnan(measured.idle_cpus):
        rows.append(("processors", f"{measured.cpus}, of which {measured.idle_cpus:.1f} idle"))
    if not math.isnan(measured.blocked):
        busy = f" {measured.disk}{_share(measured.disk_busy, ', busy {} of the time')}" if measured.disk else ""
        reads = f", {format_rate(measured.read_bytes_per_s, 'B')} from the disk{busy}" if measured.read_bytes_per_s else ""
        rows.append(
            (
                "sampling waits",
                f"{_share(measured.blocked, '{} for disk, network or locks')}, {_share(measured.starved, '{} for a processor')}{reads}",
            )
        )
    return rows


def _share(value: float, text: str) -> str:
    return "" if math.isnan(value) else text.format(format_percent(value))


def _times(measured: LoopMeasurement) -> Table:
    each_s = measured.seconds / max(1, measured.batches)
    rows = [
        (words, format_percent(measured.shares[name]), f"{measured.shares[name] * each_s * 1e3:.1f} ms") for name, words in _PARTS.items()
    ]
    return Table(("", "share", "per batch"), rows)


def store_card(manifest: Manifest, place: str | Path, opened: Sequence[int] = (), labels: str = "") -> Card:
    """Makes the card of a store: its contents, place, size and partitioning.

    Args:
        manifest: Its manifest, of which alone all this is known.
        place: Its folder or URL.
        opened: The parts that are open.
        labels: What is known of its labels, in words.
    """
    schema, report = manifest.schema, report_of(manifest, place)
    parts = "all" if len(opened) == manifest.num_parts else f"{list(opened)}" if opened else "none"
    rows = [
        ("nodes", format_short(schema.num_nodes)),
        ("edges", format_short(schema.num_edges)),
        ("parts", f"{manifest.num_parts} ({report.partition}), {parts} open"),
        ("edges cut", format_percent(report.total_edge_cut)),
        ("disk", f"{format_bytes(manifest.nbytes)}, mapped when it is read"),
        ("splits", ", ".join(_splits(manifest)) or "none"),
        *([("labels", labels)] if labels else []),
        ("built with", _built(manifest.options)),
        ("fingerprint", manifest.fingerprint[:16]),
        ("url" if is_url(place) else "path", str(place)),
    ]
    sections = [("arrays", _arrays(schema)), ("parts", _parts(report, opened))]
    return Card(f"Store {manifest.name}", "open" if opened else "", rows, manifest.notice, sections)


def _splits(manifest: Manifest) -> list[str]:
    found = [
        f"{split} {format_count(count)}" + ("" if manifest.schema.is_homogeneous else f" {node_type}")
        for node_type, splits in manifest.splits.items()
        for split, count in shown_splits(splits).items()
    ]
    return found + [
        f"links of {edge_type_name(edge_type)}: {', '.join(f'{split} {format_count(count)}' for split, count in counts.items())}"
        for edge_type, counts in manifest.num_links.items()
    ]


def _built(options: BuildOptions) -> str:
    names = ("weight", "time_attr", "feature_dtype")
    words = [f"{name}={value!r}" for name in names if (value := getattr(options, name))]
    return ", ".join([f"edge_dir={options.edge_dir!r}", *words, f"with_edge={options.with_edge}"])


def _arrays(schema: GraphSchema) -> Table:
    rows = [[name, format_count(entry.num_nodes), _described(entry.arrays)] for name, entry in schema.node_types.items()]
    rows += [[edge_type_name(name), format_count(entry.num_edges), _described(entry.arrays)] for name, entry in schema.edge_types.items()]
    return Table(("type", "count", "arrays"), rows)


def _described(arrays: Mapping[str, ArraySpec]) -> str:
    return ", ".join(f"{name} {spec}" for name, spec in arrays.items())


def _parts(report: StoreReport, opened: Sequence[int]) -> Table:
    rows = [
        [
            str(number),
            format_count(sum(part.num_nodes.values())),
            format_count(sum(part.num_edges.values())),
            format_count(sum(part.num_cached.values())),
            format_bytes(part.nbytes),
            "open" if number in opened else "not open",
        ]
        for number, part in enumerate(report.parts)
    ]
    return Table(("part", "nodes", "edges", "replicated nodes", "disk", "state"), rows)
