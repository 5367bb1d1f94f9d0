"""The output of every verb: tables for people, JSON for programs, errors on the standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand
from typing_extensions import override

from gnnkit.errors import PlanError
from gnnkit.printable import printable, printable_line

if TYPE_CHECKING:
    from rich.console import Console

    from gnnkit.ui.cards import Card, Table

OK, WARNING, ERROR, INTERRUPTED = 0, 1, 2, 130
# Into a pipe or a file lines are not folded at 80 columns, which would cut paths.
_PIPE_WIDTH = 200


def console(*, stderr: bool = False) -> Console:
    """A rich console on the standard output, wide enough for tables in a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def cell(text: str) -> str:
    """Foreign text as rich's markup, for a cell of a table: one line."""
    from rich.markup import escape

    return escape(printable_line(text))


class VerbCommand(TyperCommand):
    """A command whose usage and options are written as other tools write them: ``gnnkit info PATH``, ``--root ROOT``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            if param.param_type_name == "option" and param.metavar is None and not getattr(param, "is_flag", False):
                param.metavar = str(param.name).upper()

    @override
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


def fan_outs(text: str) -> tuple[int, ...]:
    """Reads ``--num-neighbors``: one whole number for each hop.

    Raises:
        PlanError: The text is something else.
    """
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise PlanError(f"--num-neighbors {text!r} is no list of whole numbers", "write one number per hop: 15,10,5") from None


def by_type(values: list[str]) -> Any:
    """Returns the value of an option of tables: for all types at once, or ``{type: value}``."""
    sides = [value.partition("=") for value in values]
    if not all(sign for _, sign, _ in sides):
        if len(values) > 1:
            raise typer.BadParameter(f"{values}: several values need TYPE=VALUE each")
        return _value(values[0])
    return {name: _value(value) for name, _, value in sides}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text.split(",") if "," in text else text


def bare_table(**options: Any) -> Any:
    """Makes a table without lines, for ``console``; options are those of ``rich.table.Table``."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), **options)


def show_rows(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Shows names and values, one pair a line."""
    table = bare_table(title=cell(title), title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(cell(name), cell(value))
    console().print(table)


def show_table(shown: Table, *, whole: Sequence[str] = (), styles: Mapping[str, str] | None = None) -> None:
    """Shows a table, numbers to the right.

    Args:
        shown: The table.
        whole: Columns whose texts are never folded, so that they can be copied.
        styles: ``{text: style}`` of cells that hold just this text.
    """
    table, right = bare_table(header_style="bold"), shown.right
    for number, name in enumerate(shown.columns):
        table.add_column(cell(name), justify="right" if number in right else "left", overflow="fold", no_wrap=name in whole)
    for row in shown.rows:
        table.add_row(*(f"[{styles[text]}]{cell(text)}[/]" if styles and text in styles else cell(text) for text in row))
    console().print(table)


def show_card(card: Card) -> None:
    """Shows the names, values and tables of a card."""
    show_rows(card.title, [*([("notice", card.notice)] if card.notice else []), *card.rows])
    for _, table in card.sections:
        show_line("")
        show_table(table)


def show_json(value: Any) -> None:
    """Writes a JSON document to the standard output; characters that a terminal obeys are JSON's escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    sys.stdout.write("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text) + "\n")


def show_line(text: str, style: str | None = None) -> None:
    """Writes one line to the standard output, or several of a log."""
    from rich.text import Text

    console().print(Text(printable(text), style=style or ""), soft_wrap=True)


def show_error(message: str, hint: str | None) -> None:
    """Writes what happened and what to do about it to the standard error."""
    from rich.text import Text

    out = console(stderr=True)
    out.print(Text.assemble(("error: ", "bold red"), printable(message)), soft_wrap=True)
    if hint:
        out.print(Text.assemble("  -> ", printable(hint)), soft_wrap=True)
