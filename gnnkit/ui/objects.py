"""The cards of objects that lie in packages below this one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gnnkit.loader.advice.autotune import AutotuneResult, SearchTrial
from gnnkit.loader.advice.measuring import LoopMeasurement
from gnnkit.loader.advice.profile import Profile
from gnnkit.loader.advice.rules import workers
from gnnkit.schema import ArraySpec, GraphSchema, edge_type_name
from gnnkit.storage.layout import split_file
from gnnkit.storage.store import Store
from gnnkit.ui.cards import Card, Table
from gnnkit.units import format_bytes, format_count, format_duration, format_percent, format_rate, format_short

if TYPE_CHECKING:
    from gnnkit.storage.report import StoreReport
    from gnnkit.storage.store import Store


def card_of(shown: Any) -> Card:
    """The card of an object of a lower package.

    Args:
        shown: A ``Store``, a ``Profile`` or an ``AutotuneResult``; other objects make their cards themselves.
    """
    if isinstance(shown, Store):
        return store_card(shown)
    if isinstance(shown, Profile):
        return profile_card(shown)
    assert isinstance(shown, AutotuneResult), type(shown)
    return autotune_card(shown)


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
    sections = [("time of the loop", _times(profile.measurement)), ("who samples", _workers(profile.measurement))]
    rows = [("looked at", _SOURCES[profile.source]), *_facts(profile.measurement)]
    return Card(f"Profile of {profile.title}", profile.advice.bottleneck, rows, sections=sections, lead=profile.advice.sentence)


def autotune_card(result: AutotuneResult) -> Card:
    """The options that were tried, and the best of them."""
    names = list(result.best)
    rows = [
        (*(str(trial.options[name]) for name in names), format_rate(trial.seeds_per_s, "seeds"), _mark(result, trial))
        for trial in result.trials
    ]
    facts = [
        ("best", result.words),
        ("speed", f"{format_rate(result.seeds_per_s, 'seeds')}, {result.gain:.2f} times as before"),
        ("tried", f"{len(result.trials)} trials in {format_duration(result.took_s)}; there are {result.grid_size} combinations"),
    ]
    return Card("autotune", "done", facts, sections=[("what was tried", Table((*names, "speed", ""), rows))])


def _mark(result: AutotuneResult, trial: SearchTrial) -> str:
    return "best" if trial.options == result.best else "before" if trial is result.trials[0] else ""


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


def _workers(measured: LoopMeasurement) -> Table:
    return Table(("worker", "busy"), [(name or "?", format_percent(busy)) for name, busy in measured.busy_of.items()])


def store_card(store: Store) -> Card:
    """Makes the card of a store: its contents, place, size and partitioning. Nothing but its manifest is read.

    Args:
        store: The store.
    """
    schema, options, report = store.schema, store.options, store.report()
    open_parts = len(store.local_parts)
    rows = [
        ("nodes", format_short(schema.num_nodes)),
        ("edges", format_short(schema.num_edges)),
        ("parts", f"{store.num_parts} ({options.partition}), {_open(open_parts, store)}"),
        ("edges cut", format_percent(report.total_edge_cut)),
        ("disk", f"{format_bytes(store.nbytes)}, mapped when it is read"),
        ("splits", ", ".join(_splits(store)) or "none"),
        ("built with", _built(store)),
        ("fingerprint", store.fingerprint[:16]),
        ("path", str(store.path)),
    ]
    sections = [("arrays", _arrays(schema)), ("parts", _parts(report, store.local_parts))]
    return Card(f"Store {store.name}", "open", rows, store.notice, sections)


def _open(count: int, store: Store) -> str:
    return "all open" if count == store.num_parts else f"{list(store.local_parts)} open"


def _splits(store: Store) -> list[str]:
    files = store.manifest.files
    found = [
        f"{split} {format_short(files[split_file(node_type, split)].shape[0])}" + ("" if store.schema.is_homogeneous else f" {node_type}")
        for node_type, splits in store.manifest.splits.items()
        for split in splits
    ]
    return found + [
        f"links of {edge_type_name(edge_type)}: {', '.join(splits)}" for edge_type, splits in store.manifest.link_splits.items()
    ]


def _built(store: Store) -> str:
    options = store.options
    words = [f"edge_dir={options.edge_dir!r}"]
    words += [f"{name}={value!r}" for name in ("weight", "time_attr", "feature_dtype") if (value := getattr(options, name, None))]
    words += ["with_edge=True"] if options.with_edge else []
    return ", ".join(words)


def _arrays(schema: GraphSchema) -> Table:
    rows = [[name, format_count(entry.num_nodes), _described(entry.arrays)] for name, entry in schema.node_types.items()]
    rows += [[edge_type_name(name), format_count(entry.num_edges), _described(entry.arrays)] for name, entry in schema.edge_types.items()]
    return Table(("type", "count", "arrays"), rows)


def _described(arrays: Mapping[str, ArraySpec]) -> str:
    return ", ".join(f"{name} {spec.dtype}{list(spec.row_shape) if spec.row_shape else ''}" for name, spec in arrays.items())


def _parts(report: StoreReport, local_parts: tuple[int, ...]) -> Table:
    rows = [
        [
            str(number),
            format_count(sum(part.num_nodes.values())),
            format_count(sum(part.num_edges.values())),
            format_count(sum(part.num_cached.values())),
            format_bytes(part.nbytes),
            "open" if number in local_parts else "not open",
        ]
        for number, part in enumerate(report.parts)
    ]
    return Table(("part", "nodes", "edges", "replicated nodes", "disk", "state"), rows)
