"""The output of every verb: tables for people, JSON for programs, errors on the standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

OK, WARNING, ERROR, INTERRUPTED = 0, 1, 2, 130
# Into a pipe or a file lines are not folded at 80 columns: nobody could read the paths.
_PIPE_WIDTH = 200


def console(*, stderr: bool = False) -> Console:
    """A rich console on the standard output, wide enough for tables in a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def show_rows(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Shows names and values, one pair a line."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0)
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(escape(name), escape(value))
    console().print(table)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), styles: Mapping[str, str] | None = None
) -> None:
    """Shows a table.

    Args:
        columns: Headings.
        rows: As many texts as headings in each.
        right: Columns that are aligned to the right.
        styles: ``{text: style}`` of cells that hold just this text.
    """
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for name in columns:
        table.add_column(escape(name), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"[{styles[cell]}]{escape(cell)}[/]" if styles and cell in styles else escape(cell) for cell in row))
    console().print(table)


def show_json(value: Any) -> None:
    """Writes a JSON document to the standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def show_line(text: str, style: str | None = None) -> None:
    """Writes one line to the standard output."""
    from rich.text import Text

    console().print(Text(text, style=style or ""), soft_wrap=True)


def show_error(message: str, hint: str | None) -> None:
    """Writes what happened and what to do about it to the standard error."""
    from rich.text import Text

    out = console(stderr=True)
    out.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if hint:
        out.print(Text.assemble("  -> ", hint), soft_wrap=True)
