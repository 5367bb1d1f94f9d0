"""``gnnkit info | push | stores``: stores and datasets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import typer

from gnnkit.cli.output import WARNING, VerbCommand, by_type, show_card, show_error, show_json, show_line, show_rows, show_table
from gnnkit.cluster.urls.stores import open_url, url_manifest
from gnnkit.datasets.ogb import ogb_info, ogb_names
from gnnkit.errors import DatasetError, GnnkitError, PlanError, StoreError, near_matches
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import user_path
from gnnkit.schema import NodeType, plain
from gnnkit.storage.arrays import num_classes, num_unlabelled
from gnnkit.storage.catalog import StoreEntry, default_root, default_store_dir, default_store_dirs, list_stores, remove_store
from gnnkit.storage.catalog import prune as prune_stores
from gnnkit.storage.layout import LABEL_NAME, FeatureDtype
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.report import report_of
from gnnkit.storage.store import Store
from gnnkit.ui.cards import Table
from gnnkit.ui.objects import store_card
from gnnkit.ui.progress import make_sink
from gnnkit.units import format_bytes, format_number, format_short
from gnnkit.urls import is_url

FEATURE_DTYPE = typer.Option(
    None,
    help=f"Store features as {', '.join(get_args(FeatureDtype))}: DTYPE, or TYPE=DTYPE with a node or edge type; "
    "may be given several times.",
)


def feature_dtypes(values: list[str] | None) -> Any:
    """Returns what ``FEATURE_DTYPE`` says: a dtype of all features, ``{type: dtype}``, or None."""
    said = by_type(values) if values else None
    return {name.replace(",", "__"): dtype for name, dtype in said.items()} if isinstance(said, dict) else said


def info(
    target: str = typer.Argument(metavar="PATH|URL|NAME", help="A store's folder, URL or name, or a dataset's name such as ogbn-products."),
    verify: bool = typer.Option(
        False, "--verify", help="Read every array of a store and compare it with its checksum; exit code 1 if it is damaged."
    ),
    root: Path | None = typer.Option(None, help="Where datasets and stores are kept."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON."),
) -> None:
    """Describe a store or a dataset.

    What a store holds and how it is cut; what OGB says about a dataset.
    """
    damage, place, store = None, target, None
    if is_url(target):  # nothing but the manifest is fetched
        if verify:
            hint = "from_store(url) compares what it fetches with its checksums"
            raise PlanError(f"--verify reads arrays, and those at {target!r} are not here", hint)
        manifest = url_manifest(target)
    else:
        store = open_store_or_none(target, root)
        if store is None:
            _dataset(target, root, verify=verify, as_json=as_json)
            return
        damage = _damage(store, quiet=as_json) if verify else None
        manifest, place = store.manifest, str(store.path)
    if as_json:
        facts = store_facts(manifest, place)
        facts |= {} if store is None else {"labels": label_facts(store)}
        show_json({**facts, "verified": damage is None, "damage": damage} if verify else facts)
    else:
        show_card(store_card(manifest, place, () if store is None else store.local_parts, "" if store is None else _labels(store)))
        if verify and damage is None:
            show_line("verified: every array matches its checksum", "green")
    if damage is not None:
        show_error(damage, "remove it (gnnkit stores rm) and build it again")
        raise typer.Exit(WARNING)


def open_store_or_none(
    target: str, root: Path | None, events: EventSink = ignore_events, parts: Sequence[int] | None = None
) -> Store | None:
    """Opens the store that is meant by a folder, a URL or a name in the folder of stores; None where it must be a dataset's name.

    Raises:
        StoreError: It is a store, and cannot be opened.
        DatasetError: It is a file.
    """
    if is_url(target):
        return open_url(target, parts, events)
    path = user_path(target)
    if path.is_file():
        hint = f"gnnkit partition {path} 2 makes a store of a table of edges"
        raise DatasetError(f"{path} is a file, and neither a store nor the name of a dataset", hint)
    if path.is_dir() or os.sep in target:
        return Store.open(path, parts)
    named = (folder / target for folder in default_store_dirs(root))
    return next((Store.open(place, parts) for place in named if place.is_dir()), None)


def open_store(target: str, root: Path | None, parts: Sequence[int] | None = None) -> Store:
    """Opens the store that is meant; see ``open_store_or_none``.

    Raises:
        StoreError: There is none, or it cannot be opened.
        DatasetError: It is a file.
    """
    store = open_store_or_none(target, root, parts=parts)
    if store is None:
        raise StoreError(f"there is no store {target!r}", "gnnkit stores ls shows what there is")
    return store


def _damage(store: Store, *, quiet: bool) -> str | None:
    with make_sink(False if quiet else "auto") as events:
        try:
            store.verify(events)
        except StoreError as error:
            return error.message
    return None


def store_facts(manifest: Manifest, place: str | Path) -> dict[str, Any]:
    """Everything that is known of a store without reading its arrays, JSON-serialisable."""
    return {
        "fingerprint": manifest.fingerprint,
        "edge_dir": manifest.options.edge_dir,
        "options": manifest.options.to_json(),
        "schema": manifest.schema.to_json(),
        "splits": {node_type: dict(splits) for node_type, splits in manifest.splits.items()},
        "link_splits": plain(manifest.num_links),
        "metadata": dict(manifest.metadata),
        **report_of(manifest, place).to_json(),
    }


def label_facts(store: Store) -> dict[NodeType, dict[str, int | None]]:
    """Classes of each node type with labels, None where these are numbers to predict, and nodes without one; reads all labels."""
    facts: dict[NodeType, dict[str, int | None]] = {}
    for node_type, nodes in store.schema.node_types.items():
        if LABEL_NAME in nodes.arrays:
            facts[node_type] = {"num_classes": None, "unlabelled": num_unlabelled(store.arrays(), node_type)}
            with contextlib.suppress(PlanError):
                facts[node_type]["num_classes"] = num_classes(store.arrays(), node_type, store.metadata)
    return facts


def _labels(store: Store) -> str:
    """The labels of nodes in words; empty where there are none."""
    texts = []
    for node_type, facts in label_facts(store).items():
        classes = facts["num_classes"]
        what = "numbers to predict" if classes is None else format_number(classes, "class")
        missing = f", {format_number(facts['unlabelled'] or 0, 'node')} without" if facts["unlabelled"] else ""
        texts.append(f"{'' if store.schema.is_homogeneous else f'{node_type} '}{what}{missing}")
    return "; ".join(texts)


def check_dataset(name: str, root: Path | None) -> None:
    """Refuses what is neither the name of a store nor that of a dataset.

    Raises:
        DatasetError: Says what there is.
    """
    names, stores = ogb_names(), [entry.path.name for entry in list_stores(default_store_dir(root))]
    if name not in names:
        near = near_matches(name, [*names, *stores], 0.7)
        hint = f"gnnkit stores ls lists stores, and datasets are {', '.join(names)}"
        raise DatasetError(f"{name!r} is neither a store nor a dataset{near}", hint)


def _dataset(name: str, root: Path | None, *, verify: bool, as_json: bool) -> None:
    check_dataset(name, root)
    facts = ogb_info(name)
    if verify:
        raise PlanError(f"{name} is a dataset, and --verify is for stores", "name one of `gnnkit stores ls`")
    folder = (root or default_root()) / facts.folder
    kept = [entry for folder in default_store_dirs(root) for entry in list_stores(folder)]
    stores = [entry.path.name for entry in kept if entry.manifest is not None and entry.manifest.name == name]
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


def push(
    store: str = typer.Argument(metavar="PATH|NAME", help="A store's folder or name."),
    url: str = typer.Argument(metavar="URL", help="Where to, such as s3://bucket/store."),
    part: list[int] | None = typer.Option(None, help="Push this part only; may be given several times. The last host adds the manifest."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace another store at URL."),
    root: Path | None = typer.Option(None, help="Where datasets and stores are kept."),
) -> None:
    """Put a store at a URL, from where GraphLoader.from_store(URL) fetches it.

    Credentials are those that fsspec finds in the environment and in files of its libraries. A push that was broken off goes on.
    """
    opened = open_store(store, root, parts=part)
    with make_sink("auto") as events:
        place = opened.push(url, overwrite=overwrite, events=events)
    show_line(f"pushed {opened.name}: GraphLoader.from_store({place!r}) fetches it")


stores = typer.Typer(
    help="List and remove the stores that gnnkit keeps on this disk.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
_FOLDER = typer.Option(None, "--store-dir", help="Folder of stores; by default the one that GraphLoader uses.")
_JSON = typer.Option(False, "--json", help="Write JSON.")


def _folder(given: Path | None) -> Path:
    return default_store_dir() if given is None else user_path(given)


def _folders(given: Path | None) -> tuple[Path, ...]:
    """This user's folder of stores, and then those that can be read only."""
    return default_store_dirs() if given is None else (user_path(given),)


@stores.command("ls", cls=VerbCommand)
def list_(store_dir: Path | None = _FOLDER, as_json: bool = _JSON) -> None:
    """List the stores.

    Exit code 1 if one of them cannot be opened.
    """
    folder, *shared = _folders(store_dir)
    entries = [entry for place in (folder, *shared) for entry in list_stores(place)]
    if as_json:
        show_json({"store_dir": str(folder), "stores": [_facts(entry) for entry in entries]})
    elif not entries:
        show_line(f"no stores in {folder}")
    else:
        rows = []
        for entry in entries:
            sizes = ("?", "?", "?")
            if entry.manifest is not None:
                schema = entry.manifest.schema
                sizes = (str(entry.manifest.num_parts), format_short(schema.num_nodes), format_short(schema.num_edges))
            name = entry.path.name if entry.path.parent == folder else str(entry.path)
            rows.append((name, format_bytes(entry.nbytes), *sizes))
        show_table(Table(("store", "size", "parts", "nodes", "edges"), rows), whole=("store",))
        for entry in entries:
            if notice := entry.problem or (entry.manifest and entry.manifest.notice):
                show_line(f"{entry.path.name}: {notice}", "dim")
    if any(entry.problem for entry in entries):
        raise typer.Exit(WARNING)


@stores.command("rm", cls=VerbCommand)
def remove(
    names: list[str] = typer.Argument(metavar="NAME", help="Names of stores, as `gnnkit stores ls` shows them."),
    store_dir: Path | None = _FOLDER,
) -> None:
    """Remove stores.

    Exit code 2 if one of them is not there, is being built or is another user's.
    """
    folders = _folders(store_dir)
    failed: list[GnnkitError] = []
    for name in names:
        try:
            folder = next((each for each in folders if (each / name).is_dir()), folders[0])
            show_line(f"removed {name} ({format_bytes(remove_store(folder, name))})")
        except GnnkitError as error:
            failed.append(error)
    for other in failed[:-1]:
        show_error(other.message, other.hint)
    if failed:
        raise failed[-1]


@stores.command("prune", cls=VerbCommand)
def prune(store_dir: Path | None = _FOLDER, as_json: bool = _JSON) -> None:
    """Remove unfinished builds, stores of older formats, and compiled kernels not used for a month."""
    from gnnkit.kernels.jit import prune_kernels  # numba

    folder = _folder(store_dir)
    kernels = [StoreEntry(path, None, nbytes, "compiled kernels, not used for a month") for path, nbytes in prune_kernels()]
    pruned = prune_stores(folder) + kernels
    if as_json:
        facts = [{"path": str(item.path), "nbytes": item.nbytes, "reason": item.problem} for item in pruned]
        show_json({"store_dir": str(folder), "removed": facts})
        return
    for item in pruned:
        show_line(f"removed {item.path.name} ({format_bytes(item.nbytes)}): {item.problem}")
    if not pruned:
        show_line(f"nothing to remove in {folder}")


def _facts(entry: StoreEntry) -> dict[str, Any]:
    manifest = entry.manifest
    facts: dict[str, Any] = {"name": entry.path.name, "path": str(entry.path), "nbytes": entry.nbytes, "problem": entry.problem}
    if manifest is not None:
        facts |= {
            "dataset": manifest.name,
            "notice": manifest.notice,
            "fingerprint": manifest.fingerprint,
            "num_parts": manifest.num_parts,
            "num_nodes": manifest.schema.num_nodes,
            "num_edges": manifest.schema.num_edges,
        }
    return facts
