"""``gnnkit partition | append``: stores of datasets, of tables and of other stores."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from gnnkit.cli.output import by_type, fan_outs, show_card, show_json, show_line
from gnnkit.cli.stores import FEATURE_DTYPE, check_dataset, feature_dtypes, open_store, open_store_or_none, store_facts
from gnnkit.cluster.hosts import fitting_placement, held_nbytes
from gnnkit.datasets.ogb import open_ogb
from gnnkit.datasets.tables.reading import is_table_file
from gnnkit.datasets.tables.source import forms_from_text, open_described, tables, tables_from_text
from gnnkit.files import user_path
from gnnkit.host import total_memory
from gnnkit.partitioning import find_engine, table_engine
from gnnkit.partitioning import partition as cut
from gnnkit.storage.build import missing_parts
from gnnkit.storage.store import Store
from gnnkit.ui.objects import card_of
from gnnkit.ui.progress import make_sink
from gnnkit.units import format_bytes


def partition(
    ctx: typer.Context,
    source: str = typer.Argument(
        metavar="SOURCE",
        help="A store's folder or name; a dataset's name such as ogbn-products; a table of edges (Parquet, CSV, Arrow); or a YAML file "
        "with the arguments of gnnkit.tables. With --edges there is none: give NUM_PARTS alone.",
    ),
    num_parts: int | None = typer.Argument(None, metavar="NUM_PARTS", help="How many parts."),
    partition: str = typer.Option(
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
    unlabelled: list[str] | None = typer.Option(None, help="A label that means none, such as unknown; may be given several times."),
    split: list[str] | None = typer.Option(None, help="The column that holds the names of splits."),
    time: list[str] | None = typer.Option(None, help="The column that becomes the time."),
    edge_type: list[str] | None = typer.Option(None, help="The column of edges whose values are edge types: COLUMN, or TYPE=COLUMN."),
    standardize: bool | None = typer.Option(
        None, "--standardize", help="Give all features the mean 0 and the deviation 1 in the split train."
    ),
    undirected: bool | None = typer.Option(None, "--undirected", help="Add the reverse of each edge."),
    dangling: str | None = typer.Option(None, help="What becomes of edges that name no node: error or drop."),
    header: list[str] | None = typer.Option(
        None, help="Whether row 1 of texts, such as CSV, names columns: true or false, or TYPE=true; by default their first rows tell."
    ),
    sep: str | None = typer.Option(None, help="What separates the fields of texts, such as ; or \\t; by default their first rows tell."),
    comment: str | None = typer.Option(None, help="What lines of texts begin with that are left out."),
    decimal: str | None = typer.Option(None, help="The decimal point of texts: . or a comma."),
    null: list[str] | None = typer.Option(None, help="A field of texts that is missing, such as NA; may be given several times."),
    encoding: str | None = typer.Option(None, help="The encoding of texts, such as latin-1; by default UTF-8."),
    presorted: bool | None = typer.Option(None, "--presorted", help="Edges come in the order of their targets; it is checked."),
    cache_ratio: float | None = typer.Option(None, help="Share of all nodes whose features every part replicates, hottest first."),
    memory_budget: str | None = typer.Option(
        None, help="Bytes of the store on a host with one part and all structure, such as 64GB: hottest rows of other parts fill them."
    ),
    seed: int | None = typer.Option(None, help="Seed of partitioners that draw."),
    order: str | None = typer.Option(None, help="Order of a part's nodes in its files: dataset, or hotness, those touched most first."),
    num_neighbors: str | None = typer.Option(None, help="Fan-outs that say how hot a node is, such as 15,10."),
    input_nodes: str | None = typer.Option(None, help="The split that batches start from, for the same end; train by default."),
    split_index: int | None = typer.Option(None, help="Which one of several splits that is, from 0."),
    parts: list[int] | None = typer.Option(
        None, "--part", help="Build this part only, while other hosts build theirs; may be given several times."
    ),
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
    asked = _given(ctx, tables, but=("engine",))
    asked |= {name: tuple(asked[name]) for name in ("null", "unlabelled") if name in asked}  # lists are by type
    options = _given(ctx, cut, but=("source", "num_parts"))
    if feature_dtype:
        options["feature_dtype"] = feature_dtypes(feature_dtype)
    if num_neighbors is not None:
        options["num_neighbors"] = fan_outs(num_neighbors)
    if edges and num_parts is None and source.isdigit():
        source, num_parts = "", int(source)
    if num_parts is None or (edges and source):
        raise typer.BadParameter("gnnkit partition SOURCE NUM_PARTS, or gnnkit partition NUM_PARTS --edges ...")
    with make_sink(False if as_json else "auto") as events:
        graph = _open(source, asked, root, download, events, engine, out)
        if hasattr(graph, "described") and not as_json:
            show_line(str(graph))
        made: Store | None = cut(graph, num_parts, events=events, **options)
    if made is None:
        _show_progress(out, parts or [], as_json)
    elif as_json:
        show_json(store_facts(made.manifest, made.path))
    else:
        show_card(card_of(made))
        if len(made.local_parts) < made.num_parts:
            show_line(f"the files of {_parts(made.local_parts)} are here, the others are on other hosts")
        if made.num_parts > 1:
            show_line(_advice(made))


def _given(ctx: typer.Context, function: Callable[..., Any], but: Container[str]) -> dict[str, Any]:
    """The command's options that are arguments of a function by the same names, as far as they were given."""
    known = {name: ctx.params[name] for name in inspect.signature(function).parameters if name in ctx.params and name not in but}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items() if value not in (None, (), [])}


def _show_progress(out: Path | None, built: list[int], as_json: bool) -> None:
    """Says what other hosts have yet to build."""
    assert out is not None, "building parts needs a place"
    missing = missing_parts(out)
    if as_json:
        show_json({"path": str(out), "built": built, "missing": missing})
        return
    left = f"{_parts(missing)} {'is' if len(missing) == 1 else 'are'} missing" if missing else "the store is put together with --finish"
    show_line(f"{_parts(built)} of {out} {'is' if len(built) == 1 else 'are'} built; {left}")


def _advice(store: Store) -> str:
    """Advises on the placement of the store on a host for each part, and on another cut."""
    sizes, count = store.manifest.sizes, store.num_parts
    word = fitting_placement(sizes, count, count, total_memory())
    held = held_nbytes(sizes, word, count, count)
    line = f'on {count} hosts with the memory of this one, placement="auto" is "{word}", {format_bytes(held)} on each'
    best = "metis" if find_spec("pymetis") else "ldg"
    if word == "replicate" or store.options.partition == best:
        return line
    cut = f'with shuffle="parts", whose batches have seeds of one part each, {best} has the least cross between hosts'
    return f"{line}. {cut}"


def _parts(numbers: Sequence[int]) -> str:
    return f"part{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _open(
    source: str, asked: dict[str, Any], root: Path | None, download: bool | None, events: Any, engine: str | None, out: Path | None
) -> Any:
    """The graph that is meant: tables, which an engine may read beside the store, a store, or a dataset."""
    made: dict[str, Any] = {}
    if asked or is_table_file(source):
        if engine is not None and out is not None:
            made["engine"], made["scratch_dir"] = table_engine(find_engine(engine)), user_path(out).parent
        if not asked:
            return open_described(source, events, **made)
        given = {name: by_type(value) if isinstance(value, list) else value for name, value in asked.items()}
        given.setdefault("edges", source)
        return tables_from_text(given, Path(), events, **made)
    store = open_store_or_none(source, root, events)
    if store is not None:
        return store
    check_dataset(source, root)
    return open_ogb(source, root=root, download="auto" if download is None else download, events=events)


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
    found = open_store(store, root)
    given = {"edges": edges, "nodes": nodes}
    forms = {name: forms_from_text(by_type(value), Path()) for name, value in given.items() if value is not None}
    with make_sink(False if as_json else "auto") as events:
        made = found.append(**forms, fill=_fills(fill or []), out=out, events=events)
    if as_json:
        show_json(store_facts(made.manifest, made.path))
    else:
        show_card(card_of(made))


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
