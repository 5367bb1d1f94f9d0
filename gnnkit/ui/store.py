"""Renders a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gnnkit.schema import ArraySpec, GraphSchema, edge_type_name
from gnnkit.storage.layout import split_file
from gnnkit.ui.cards import Card, Table
from gnnkit.units import format_bytes, format_count, format_percent, format_short

if TYPE_CHECKING:
    from gnnkit.storage.report import StoreReport
    from gnnkit.storage.store import Store


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
