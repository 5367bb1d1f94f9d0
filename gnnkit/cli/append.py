"""``gnnkit append``: more rows for a store of tables."""

from __future__ import annotations

from pathlib import Path

import typer

from gnnkit.cli.info import open_store, show_store, store_facts
from gnnkit.cli.output import show_json
from gnnkit.cli.partition import by_type


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
    from gnnkit.datasets.tables.description import forms_from_text
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
