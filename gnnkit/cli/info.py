"""``gnnkit info``: what a store or a dataset is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gnnkit.cli.output import WARNING, show_error, show_json, show_line, show_rows, show_table
from gnnkit.errors import DatasetError

if TYPE_CHECKING:
    from gnnkit.storage.store import Store


def info(
    target: str = typer.Argument(metavar="PATH|NAME", help="A store's folder or name, or a dataset's name such as ogbn-products."),
    verify: bool = typer.Option(
        False, "--verify", help="Read every array of a store and compare it with its checksum; exit code 1 if it is damaged."
    ),
    root: Path | None = typer.Option(None, help="Where datasets and stores are kept."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON."),
) -> None:
    """Describe a store or a dataset.

    What a store holds and how it is cut; what OGB says about a dataset.
    """
    store = open_store_or_none(target, root)
    if store is None:
        _dataset(target, root, verify=verify, as_json=as_json)
        return
    damage = _damage(store, quiet=as_json) if verify else None
    if as_json:
        facts = store_facts(store)
        show_json({**facts, "verified": damage is None, "damage": damage} if verify else facts)
    else:
        show_store(store)
        if verify and damage is None:
            show_line("verified: every array matches its checksum", "green")
    if damage is not None:
        show_error(damage, "remove it (gnnkit stores rm) and build it again")
        raise typer.Exit(WARNING)


def open_store_or_none(target: str, root: Path | None) -> Store | None:
    """Opens the store that is meant by a folder or by a name in the folder of stores; None where it must be a dataset's name.

    Raises:
        StoreError: It is a store, and cannot be opened.
        DatasetError: It is a file.
    """
    from gnnkit.storage.catalog import default_store_dir
    from gnnkit.storage.store import Store

    path = Path(target).expanduser()
    if path.is_file():
        hint = f"gnnkit partition {path} 2 makes a store of a table of edges"
        raise DatasetError(f"{path} is a file, and neither a store nor the name of a dataset", hint)
    if path.is_dir() or os.sep in target:
        return Store.open(path)
    named = default_store_dir(root) / target
    return Store.open(named) if named.is_dir() else None


def _damage(store: Store, *, quiet: bool) -> str | None:
    from gnnkit.errors import StoreError
    from gnnkit.ui.progress import make_sink

    with make_sink(False if quiet else "auto") as events:
        try:
            store.verify(events)
        except StoreError as error:
            return error.message
    return None


def store_facts(store: Store) -> dict[str, Any]:
    """Everything that is known of a store without reading its arrays, JSON-serialisable."""
    from gnnkit.schema import edge_type_name
    from gnnkit.storage.link_splits import LINK_INDEX

    return {
        "fingerprint": store.fingerprint,
        "edge_dir": store.edge_dir,
        "options": store.options.to_json(),
        "schema": store.schema.to_json(),
        "splits": {node_type: {name: len(ids) for name, ids in splits.items()} for node_type, splits in store.splits.items()},
        "link_splits": {
            edge_type_name(edge_type): {split: links[LINK_INDEX].shape[1] for split, links in by_split.items()}
            for edge_type, by_split in store.link_splits.items()
        },
        "metadata": dict(store.metadata),
        **store.report().to_json(),
    }


def show_store(store: Store) -> None:
    """Shows a store's facts and a line for each part."""
    from gnnkit.units import format_bytes, format_count

    report, schema, options = store.report(), store.schema, store.options
    rows = [("path", str(store.path))]
    rows += [("notice", store.notice)] if store.notice else []
    rows += [
        ("nodes", "; ".join(f"{_name(t)}{format_count(n.num_nodes)} ({_arrays(n)})" for t, n in schema.node_types.items())),
        ("edges", "; ".join(f"{_name('-'.join(t))}{format_count(e.num_edges)} ({_arrays(e)})" for t, e in schema.edge_types.items())),
        ("splits", "; ".join(f"{_name(t)}{', '.join(f'{k} {len(v):,}' for k, v in s.items())}" for t, s in store.splits.items()) or "none"),
        *_link_rows(store),
        ("size", format_bytes(store.nbytes)),
        ("compressed by", "target (edge_dir='in')" if store.edge_dir == "in" else "source (edge_dir='out')"),
        ("edge ids", "stored" if options.with_edge else "not stored"),
        *([("weights", options.weight)] if options.weight else []),
        *([("times", options.time_attr)] if options.time_attr else []),
        ("parts", f"{store.num_parts} ({options.partition}), {report.total_edge_cut:.1%} of the edges cut"),
        ("fingerprint", store.fingerprint[:16]),
    ]
    show_rows(store.name, rows)
    if store.num_parts > 1:
        parts = [
            (
                str(i),
                format_count(sum(p.num_nodes.values())),
                format_count(sum(p.num_edges.values())),
                format_count(sum(p.num_cached.values())),
                format_bytes(p.nbytes),
            )
            for i, p in enumerate(report.parts)
        ]
        columns = ("part", "nodes", "edges", "replicated", "size")
        show_table(columns, parts, right=columns)


def _link_rows(store: Store) -> list[tuple[str, str]]:
    """A row on the official splits of links, where there are any."""
    from gnnkit.storage.link_splits import LINK_INDEX

    texts = []
    for edge_type, by_split in store.link_splits.items():
        counts = ", ".join(f"{split} {links[LINK_INDEX].shape[1]:,}" for split, links in by_split.items())
        texts.append(f"{_name('-'.join(edge_type))}{counts}")
    return [("links", "; ".join(texts))] if texts else []


def _name(type_name: str) -> str:
    return "" if type_name in ("node", "node-to-node") else f"{type_name} "


def _arrays(part: Any) -> str:
    shapes = (f"{name} {spec.dtype}{list(spec.row_shape) if spec.row_shape else ''}" for name, spec in part.arrays.items())
    return ", ".join(shapes) or "no arrays"


def _dataset(name: str, root: Path | None, *, verify: bool, as_json: bool) -> None:
    from gnnkit.datasets.registry import ogb_info
    from gnnkit.errors import PlanError
    from gnnkit.storage.catalog import default_root, default_store_dir, list_stores

    facts = ogb_info(name)
    if verify:
        raise PlanError(f"{name} is a dataset, and --verify is for stores", "name one of `gnnkit stores ls`")
    folder = (root or default_root()) / facts.folder
    stores = [
        entry.path.name for entry in list_stores(default_store_dir(root)) if entry.manifest is not None and entry.manifest.name == name
    ]
    found = str(folder) if folder.is_dir() else None
    if as_json:
        show_json({"name": name, **facts.metadata(), "url": facts.url, "found": found, "stores": stores})
        return
    classes = f", {facts.num_classes} classes" if facts.kind == "node" else ""
    classes += f", {facts.num_tasks} tasks" if facts.num_tasks > 1 else ""
    rows = [
        ("task", facts.task_type + classes),
        ("metric", facts.eval_metric),
        ("official split", facts.split),
        ("archive", facts.url),
        ("on this machine", found or f"not in {folder.parent}"),
        ("stores", ", ".join(stores) or "none"),
    ]
    show_rows(name, rows)
