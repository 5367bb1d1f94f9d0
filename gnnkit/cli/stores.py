"""``gnnkit info | partition | append | push | stores``: stores and datasets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from gnnkit.cli.output import WARNING, fan_outs, show_error, show_json, show_line, show_rows, show_table
from gnnkit.errors import DatasetError, GnnkitError, PlanError, StoreError
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import user_path
from gnnkit.urls import is_url

if TYPE_CHECKING:
    from gnnkit.storage.manifest import Manifest
    from gnnkit.storage.store import Store

FEATURE_DTYPE = typer.Option(
    None,
    help="Store features as float32, float16, bfloat16, quint8, quint4x2 or quint2x4: DTYPE, or TYPE=DTYPE with a node or edge type; "
    "may be given several times.",
)


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
    if is_url(target):
        _at_url(target, verify=verify, as_json=as_json)
        return
    store = open_store_or_none(target, root)
    if store is None:
        _dataset(target, root, verify=verify, as_json=as_json)
        return
    damage = _damage(store, quiet=as_json) if verify else None
    if as_json:
        facts = store_facts(store.manifest, store.path)
        show_json({**facts, "verified": damage is None, "damage": damage} if verify else facts)
    else:
        show_store(store.manifest, store.path)
        if verify and damage is None:
            show_line("verified: every array matches its checksum", "green")
    if damage is not None:
        show_error(damage, "remove it (gnnkit stores rm) and build it again")
        raise typer.Exit(WARNING)


def _at_url(url: str, *, verify: bool, as_json: bool) -> None:
    """Shows what the manifest of a store at a URL says; nothing else is fetched."""
    from gnnkit.cluster.urls.stores import url_manifest

    if verify:
        raise PlanError(
            f"--verify reads arrays, and those at {url!r} are not here", "from_store(url) compares what it fetches with its checksums"
        )
    manifest = url_manifest(url)
    if as_json:
        show_json(store_facts(manifest, url))
    else:
        show_store(manifest, url)


def open_store_or_none(
    target: str, root: Path | None, events: EventSink = ignore_events, parts: Sequence[int] | None = None
) -> Store | None:
    """Opens the store that is meant by a folder, a URL or a name in the folder of stores; None where it must be a dataset's name.

    Raises:
        StoreError: It is a store, and cannot be opened.
        DatasetError: It is a file.
    """
    from gnnkit.storage.catalog import default_store_dir
    from gnnkit.storage.store import Store

    if is_url(target):
        from gnnkit.cluster.urls.stores import open_url

        return open_url(target, parts, events)
    path = user_path(target)
    if path.is_file():
        hint = f"gnnkit partition {path} 2 makes a store of a table of edges"
        raise DatasetError(f"{path} is a file, and neither a store nor the name of a dataset", hint)
    if path.is_dir() or os.sep in target:
        return Store.open(path, parts)
    named = default_store_dir(root) / target
    return Store.open(named, parts) if named.is_dir() else None


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
    from gnnkit.ui.progress import make_sink

    with make_sink(False if quiet else "auto") as events:
        try:
            store.verify(events)
        except StoreError as error:
            return error.message
    return None


def store_facts(manifest: Manifest, place: str | Path) -> dict[str, Any]:
    """Everything that is known of a store without reading its arrays, JSON-serialisable."""
    from gnnkit.schema import edge_type_name
    from gnnkit.storage.link_splits import LINK_INDEX
    from gnnkit.storage.report import report_of

    return {
        "fingerprint": manifest.fingerprint,
        "edge_dir": manifest.options.edge_dir,
        "options": manifest.options.to_json(),
        "schema": manifest.schema.to_json(),
        "splits": {node_type: dict(splits) for node_type, splits in manifest.splits.items()},
        "link_splits": {
            edge_type_name(edge_type): {split: links[LINK_INDEX].shape[1] for split, links in by_split.items()}
            for edge_type, by_split in manifest.link_splits.items()
        },
        "metadata": dict(manifest.metadata),
        **report_of(manifest, place).to_json(),
    }


def show_store(manifest: Manifest, place: str | Path) -> None:
    """Shows a store's facts and a line for each part."""
    from gnnkit.storage.report import report_of
    from gnnkit.units import format_bytes, format_count

    report, schema, options = report_of(manifest, place), manifest.schema, manifest.options
    rows = [("url" if is_url(place) else "path", str(place))]
    rows += [("notice", manifest.notice)] if manifest.notice else []
    rows += [
        ("nodes", "; ".join(f"{_name(t)}{format_count(n.num_nodes)} ({_arrays(n)})" for t, n in schema.node_types.items())),
        ("edges", "; ".join(f"{_name('-'.join(t))}{format_count(e.num_edges)} ({_arrays(e)})" for t, e in schema.edge_types.items())),
        ("splits", "; ".join(f"{_name(t)}{', '.join(f'{k} {v:,}' for k, v in s.items())}" for t, s in manifest.splits.items()) or "none"),
        *_link_rows(manifest),
        ("size", format_bytes(manifest.nbytes)),
        ("compressed by", "target (edge_dir='in')" if options.edge_dir == "in" else "source (edge_dir='out')"),
        ("edge ids", "stored" if options.with_edge else "not stored"),
        *([("weights", options.weight)] if options.weight else []),
        *([("times", options.time_attr)] if options.time_attr else []),
        ("parts", f"{manifest.num_parts} ({options.partition}), {report.total_edge_cut:.1%} of the edges cut"),
        ("fingerprint", manifest.fingerprint[:16]),
    ]
    show_rows(manifest.name, rows)
    if manifest.num_parts > 1:
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


def _link_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """A row on the official splits of links, where there are any."""
    from gnnkit.storage.link_splits import LINK_INDEX

    texts = []
    for edge_type, by_split in manifest.link_splits.items():
        counts = ", ".join(f"{split} {links[LINK_INDEX].shape[1]:,}" for split, links in by_split.items())
        texts.append(f"{_name('-'.join(edge_type))}{counts}")
    return [("links", "; ".join(texts))] if texts else []


def _name(type_name: str) -> str:
    return "" if type_name in ("node", "node-to-node") else f"{type_name} "


def _arrays(part: Any) -> str:
    shapes = (f"{name} {spec}" for name, spec in part.arrays.items())
    return ", ".join(shapes) or "no arrays"


def _dataset(name: str, root: Path | None, *, verify: bool, as_json: bool) -> None:
    from gnnkit.datasets.ogb import ogb_info
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


def partition(
    source: str = typer.Argument(
        metavar="SOURCE",
        help="A store's folder or name; a dataset's name such as ogbn-products; a table of edges (Parquet, CSV, Arrow); or a YAML file "
        "with the arguments of gnnkit.tables. With --edges there is none: give NUM_PARTS alone.",
    ),
    num_parts: int | None = typer.Argument(None, metavar="NUM_PARTS", help="How many parts."),
    method: str = typer.Option(
        "contiguous",
        "--partition",
        help="How nodes are assigned to parts: contiguous, random, ldg, metis, frequency, or column:NAME, which says it of each node.",
    ),
    out: Path | None = typer.Option(None, help="Folder of the new store; by default a name in the store folder."),
    root: Path | None = typer.Option(None, help="Where datasets are kept."),
    edge_dir: str | None = typer.Option(None, help="Compress edges by target (in) or by source (out)."),
    with_edge: bool | None = typer.Option(None, "--with-edge/--without-edge", help="Store edge ids."),
    feature_dtype: list[str] | None = FEATURE_DTYPE,
    weight: str | None = typer.Option(None, help="Edge array to prepare for weighted sampling."),
    time_attr: str | None = typer.Option(None, help="Arrays of times to prepare for temporal sampling."),
    edges: list[str] | None = typer.Option(
        None, help="A table of edges: a path or glob, or TYPE=PATH with an edge type such as user,buys,item; may be given several times."
    ),
    nodes: list[str] | None = typer.Option(None, help="A table of nodes, or their number: PATH, or TYPE=PATH with a node type."),
    keys: list[str] | None = typer.Option(None, help="The columns that name nodes: COLUMN, or TYPE=COLUMN,COLUMN."),
    src: list[str] | None = typer.Option(None, help="The columns that name the sources of edges, likewise."),
    dst: list[str] | None = typer.Option(None, help="The columns that name their targets."),
    features: list[str] | None = typer.Option(None, help="Columns that become features."),
    categories: list[str] | None = typer.Option(None, help="Columns that become arrays of their own names, as codes of their values."),
    label: list[str] | None = typer.Option(None, help="The column that becomes the label."),
    split: list[str] | None = typer.Option(None, help="The column that holds the names of splits."),
    time: list[str] | None = typer.Option(None, help="The column that becomes the time."),
    dangling: str | None = typer.Option(None, help="What becomes of edges that name no node: error or drop."),
    header: list[str] | None = typer.Option(
        None, help="Whether row 1 of texts, such as CSV, names columns: true or false, or TYPE=true; by default their first rows tell."
    ),
    sep: str | None = typer.Option(None, help="What separates the fields of texts, such as ; or \\t; by default their first rows tell."),
    comment: str | None = typer.Option(None, help="What lines of texts begin with that are left out."),
    decimal: str | None = typer.Option(None, help="The decimal point of texts: . or a comma."),
    null: list[str] | None = typer.Option(None, help="A field of texts that is missing, such as NA; may be given several times."),
    encoding: str | None = typer.Option(None, help="The encoding of texts, such as latin-1; by default UTF-8."),
    presorted: bool = typer.Option(False, "--presorted", help="Edges come in the order of their targets; it is checked."),
    cache_ratio: float | None = typer.Option(None, help="Share of all nodes whose features every part replicates, hottest first."),
    seed: int | None = typer.Option(None, help="Seed of partitioners that draw."),
    order: str | None = typer.Option(None, help="Order of a part's nodes in its files: dataset, or hotness, those touched most first."),
    num_neighbors: str | None = typer.Option(None, help="Fan-outs that say how hot a node is, such as 15,10."),
    input_nodes: str | None = typer.Option(None, help="The split that batches start from, for the same end; train by default."),
    part: list[int] | None = typer.Option(None, help="Build this part only, while other hosts build theirs; may be given several times."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace another graph's store at OUT."),
    engine: str | None = typer.Option(
        None, help="What builds, such as ray: tasks on the cluster of RAY_ADDRESS, or one of this host. All its nodes see OUT."
    ),
    finish: bool = typer.Option(False, "--finish", help="Put together what hosts have built on disks of their own, given all records."),
    download: bool | None = typer.Option(None, "--download/--no-download", help="Allow or forbid downloads of any size."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON."),
) -> None:
    """Cut a dataset or a store into parts.

    Reports balance, edge cut and bytes. With --part on each of several hosts, one store is built by all of them: the last one puts it
    together, or --finish does where each has a disk of its own.
    """
    from gnnkit.partitioning import partition as cut
    from gnnkit.ui.progress import make_sink

    given = {
        "edge_dir": edge_dir,
        "with_edge": with_edge,
        "feature_dtype": feature_dtypes(feature_dtype),
        "weight": weight,
        "time_attr": time_attr,
        "cache_ratio": cache_ratio,
        "seed": seed,
        "order": order,
        "num_neighbors": None if num_neighbors is None else fan_outs(num_neighbors),
        "input_nodes": input_nodes,
        "parts": part,
        "engine": engine,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    named = {"nodes": nodes, "keys": keys, "src": src, "dst": dst, "features": features, "categories": categories, "label": label}
    named |= {"split": split, "time": time}
    texts = {"header": header, "sep": sep, "comment": comment, "decimal": decimal, "encoding": encoding, "null": null and tuple(null)}
    read = {"edges": edges, **named, "dangling": dangling, **texts}
    asked: dict[str, Any] = {name: value for name, value in read.items() if value is not None}
    asked |= {"presorted": True} if presorted else {}
    if edges and num_parts is None and source.isdigit():
        source, num_parts = "", int(source)
    if num_parts is None or (edges and source):
        raise typer.BadParameter("gnnkit partition SOURCE NUM_PARTS, or gnnkit partition NUM_PARTS --edges ...")
    with make_sink(False if as_json else "auto") as events:
        graph = _open(source, asked, root, download, events, engine, out)
        if hasattr(graph, "described") and not as_json:
            show_line(str(graph))
        made: Store | None = cut(graph, num_parts, cast(Any, method), out, events=events, finish=finish, overwrite=overwrite, **options)
    if made is None:
        _show_progress(out, part or [], as_json)
    elif as_json:
        show_json(store_facts(made.manifest, made.path))
    else:
        show_store(made.manifest, made.path)
        if len(made.local_parts) < made.num_parts:
            show_line(f"the files of {_parts(made.local_parts)} are here, the others are on other hosts")


def _show_progress(out: Path | None, built: list[int], as_json: bool) -> None:
    """Says what other hosts have yet to build."""
    from gnnkit.storage.build import missing_parts

    assert out is not None, "building parts needs a place"
    missing = missing_parts(out)
    if as_json:
        show_json({"path": str(out), "built": built, "missing": missing})
        return
    left = f"{_parts(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else "the store is put together with --finish"
    show_line(f"{_parts(built)} of {out} {'is' if len(built) == 1 else 'are'} built; {left}")


def _parts(numbers: Sequence[int]) -> str:
    return f"part{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _open(
    source: str, asked: dict[str, Any], root: Path | None, download: bool | None, events: Any, engine: str | None, out: Path | None
) -> Any:
    """The graph that is meant: tables, which an engine may read beside the store, a store, or a dataset."""
    from gnnkit.datasets.tables.reading import is_table_file  # pyarrow

    made: dict[str, Any] = {}
    if asked or is_table_file(source):
        from gnnkit.datasets.tables.source import open_described, tables_from_text

        if engine is not None and out is not None:
            from gnnkit.partitioning import find_engine, table_engine

            made["engine"], made["scratch_dir"] = table_engine(find_engine(engine)), user_path(out).parent
        if not asked:
            return open_described(source, events, **made)
        given = {name: by_type(value) if isinstance(value, list) else value for name, value in asked.items()}
        given.setdefault("edges", source)
        return tables_from_text(given, Path(), events, **made)
    store = open_store_or_none(source, root, events)
    return store if store is not None else _open_dataset(source, root, download, events)


def by_type(values: list[str]) -> Any:
    """Returns the value of an option of tables: for all types at once, or ``{type: value}``."""
    sides = [value.partition("=") for value in values]
    if not all(sign for _, sign, _ in sides):
        if len(values) > 1:
            raise typer.BadParameter(f"{values}: several values need TYPE=VALUE each")
        return _value(values[0])
    return {name: _value(value) for name, _, value in sides}


def feature_dtypes(values: list[str] | None) -> Any:
    """Returns what ``FEATURE_DTYPE`` says: a dtype of all features, ``{type: dtype}``, or None."""
    said = by_type(values) if values else None
    return {name.replace(",", "__"): dtype for name, dtype in said.items()} if isinstance(said, dict) else said


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text.split(",") if "," in text else text


def _open_dataset(name: str, root: Path | None, download: bool | None, events: Any) -> Any:
    from gnnkit.datasets.ogb import open_ogb

    return open_ogb(name, root=root, download="auto" if download is None else download, events=events)


def append(
    store: str = typer.Argument(metavar="STORE", help="The folder or name of a store that was made of tables."),
    edges: list[str] | None = typer.Option(
        None,
        help="A table of new edges: a path or glob, or TYPE=PATH with a type such as user,buys,item; may be given several times.",
    ),
    nodes: list[str] | None = typer.Option(None, help="A table of new nodes, or their number: PATH, or TYPE=PATH with a node type."),
    fill: list[str] | None = typer.Option(None, help="COLUMN=NUMBER: takes the place of nulls; may be given several times."),
    out: Path | None = typer.Option(None, help="Folder of the new version; by default a name beside the store."),
    root: Path | None = typer.Option(None, help="Where stores are kept."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON."),
) -> None:
    """Write a new version of a store, with more edges and nodes.

    The store stays as it is. Files that are the same in both are linked.
    """
    from gnnkit.datasets.tables.source import forms_from_text
    from gnnkit.ui.progress import make_sink

    found = open_store(store, root)
    given = {"edges": edges, "nodes": nodes}
    forms = {name: forms_from_text(by_type(value), Path()) for name, value in given.items() if value is not None}
    with make_sink(False if as_json else "auto") as events:
        made = found.append(**forms, fill=_fills(fill or []), out=out, events=events)
    if as_json:
        show_json(store_facts(made.manifest, made.path))
    else:
        show_store(made.manifest, made.path)


def _fills(values: list[str]) -> dict[str, float]:
    found = {}
    for value in values:
        column, sign, number = value.partition("=")
        try:
            found[column] = int(number) if number.lstrip("-").isdigit() else float(number)
        except ValueError:
            sign = ""
        if not sign:
            raise typer.BadParameter(f"--fill {value}: COLUMN=NUMBER is needed")
    return found


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
    from gnnkit.ui.progress import make_sink

    opened = open_store(store, root, parts=part)
    with make_sink("auto") as events:
        place = opened.push(url, overwrite=overwrite, events=events)
    show_line(f"pushed {opened.name}: GraphLoader.from_store({place!r}) fetches it")


app = typer.Typer(help="List and remove the stores that gnnkit keeps on this disk.", no_args_is_help=True, rich_markup_mode=None)
_FOLDER = typer.Option(None, "--store-dir", help="Folder of stores; by default the one that GraphLoader uses.")
_JSON = typer.Option(False, "--json", help="Write JSON.")


def _folder(given: Path | None) -> Path:
    from gnnkit.storage.catalog import default_store_dir

    return default_store_dir() if given is None else user_path(given)


@app.command("ls")
def list_(store_dir: Path | None = _FOLDER, as_json: bool = _JSON) -> None:
    """List the stores.

    Exit code 1 if one of them cannot be opened.
    """
    from gnnkit.storage.catalog import list_stores
    from gnnkit.units import format_bytes, format_count

    folder = _folder(store_dir)
    entries = list_stores(folder)
    if as_json:
        show_json({"store_dir": str(folder), "stores": [_facts(entry) for entry in entries]})
    elif not entries:
        show_line(f"no stores in {folder}")
    else:
        rows = []
        for entry in entries:
            sizes = ("?", "?", "?", entry.problem or "")
            if entry.manifest is not None:
                schema = entry.manifest.schema
                sizes = (
                    str(entry.manifest.num_parts),
                    format_count(schema.num_nodes),
                    format_count(schema.num_edges),
                    entry.manifest.notice or "",
                )
            rows.append((entry.path.name, format_bytes(entry.nbytes), *sizes))
        show_table(("store", "size", "parts", "nodes", "edges", "notice"), rows, right=("size", "parts", "nodes", "edges"))
    if any(entry.problem for entry in entries):
        raise typer.Exit(WARNING)


@app.command("rm")
def remove(
    names: list[str] = typer.Argument(help="Names of stores, as `gnnkit stores ls` shows them."), store_dir: Path | None = _FOLDER
) -> None:
    """Remove stores.

    Exit code 2 if one of them is not there or is being built.
    """
    from gnnkit.storage.catalog import remove_store
    from gnnkit.units import format_bytes

    folder = _folder(store_dir)
    failed: list[GnnkitError] = []
    for name in names:
        try:
            show_line(f"removed {name} ({format_bytes(remove_store(folder, name))})")
        except GnnkitError as error:
            failed.append(error)
    for other in failed[:-1]:
        show_error(other.message, other.hint)
    if failed:
        raise failed[-1]


@app.command("prune")
def prune(store_dir: Path | None = _FOLDER, as_json: bool = _JSON) -> None:
    """Remove unfinished builds, stores of older formats, and compiled kernels not used for a month."""
    from gnnkit.kernels.jit import prune_kernels
    from gnnkit.storage.catalog import Pruned
    from gnnkit.storage.catalog import prune as prune_stores
    from gnnkit.units import format_bytes

    folder = _folder(store_dir)
    kernels = [Pruned(path, nbytes, "compiled kernels, not used for a month") for path, nbytes in prune_kernels()]
    pruned = prune_stores(folder) + kernels
    if as_json:
        facts = [{"path": str(item.path), "nbytes": item.nbytes, "reason": item.reason} for item in pruned]
        show_json({"store_dir": str(folder), "removed": facts})
        return
    for item in pruned:
        show_line(f"removed {item.path.name} ({format_bytes(item.nbytes)}): {item.reason}")
    if not pruned:
        show_line(f"nothing to remove in {folder}")


def _facts(entry: Any) -> dict[str, Any]:
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
