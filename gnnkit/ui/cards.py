"""Cards: objects as a line, as a block of text and as HTML. Pure functions of plain facts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gnnkit.printable import clean, clean_block
from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.ui.options import get_options
from gnnkit.units import format_bytes, format_duration

if TYPE_CHECKING:
    import jinja2


__all__ = ["Markup", "render"]


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("gnnkit.ui", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def render(template: str, **values: Any) -> str:
    """Renders a template of ``gnnkit/ui/templates``.

    Args:
        template: File name.
        **values: What the template asks for; a missing one is an error.
    """
    return _environment().get_template(template).render(**values)


# Saved notebooks carry every card they show; viewers refuse or hide what is large.
MAX_HTML_BYTES = 20_000

_MAX_LINE = 480
_MAX_LEAD = 1000
_NUMBER = re.compile(r"[-+]?[\d][\d,.]*( ?[%a-zA-Z/]{1,4})?")
_TONES = {
    "gk-ok": ("ready", "built", "open", "done", "running", "ok"),
    "gk-busy": ("importing", "starting", "joining", "building", "sampling", "downloading", "compiling", "partitioning"),
    "gk-warn": ("paused",),
    "gk-bad": ("failed", "degraded", "error", "died", "broken", "damaged", "corrupt"),
}


@dataclass(frozen=True, slots=True)
class _Budget:
    """The limits of a card: characters of a text, rows and columns of a table, tables, characters of a longer text."""

    text: int
    rows: int
    columns: int
    tables: int
    block: int


# Tried in turn until the card is small enough, which the last one is with any texts.
_BUDGETS = (
    _Budget(240, 40, 12, 8, 6000),
    _Budget(120, 20, 12, 8, 3000),
    _Budget(60, 10, 8, 6, 1200),
    _Budget(24, 5, 6, 3, 300),
    _Budget(12, 3, 3, 1, 60),
)


@dataclass(frozen=True, slots=True)
class Table:
    """A small table of texts.

    Attributes:
        columns: Headings.
        rows: Rows of as many texts; ones that look like numbers are set right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def right(self) -> set[int]:
        """The places of the columns that are set right."""
        return _numeric_columns(self.rows)


@dataclass(frozen=True, slots=True)
class Card:
    """The description of an object for display.

    Every text may hold anything: it is cleaned of control characters, shortened, and escaped where it becomes HTML.

    Attributes:
        title: The object's kind and name: "GraphLoader ogbn-products".
        state: One word: "ready", "closed", "failed"; "" shows none.
        rows: Names and values, the most important first.
        notice: A line that must be seen wherever the object is shown, or None.
        sections: Titles and tables that can be folded open.
        lead: A paragraph of several sentences, before everything else; "" shows none.
        texts: Titles and longer texts, such as the end of a log, that can be folded open.
    """

    title: str
    state: str
    rows: Sequence[tuple[str, str]] = ()
    notice: str | None = None
    sections: Sequence[tuple[str, Table]] = ()
    lead: str = ""
    texts: Sequence[tuple[str, str]] = ()

    def to_text(self) -> str:
        """One line for ``__repr__``: "<GraphLoader ogbn-products (ready): nodes 2,449,029, batches 193>"."""
        head = clean(self.title, 120) + (f" ({clean(self.state, 40)})" if self.state else "")
        facts = ", ".join(f"{clean(name, 40)} {clean(value, 80)}" for name, value in self.rows)
        # The notice is never what gets cut off.
        notice = f"; {clean(self.notice, 240)}" if self.notice else ""
        return f"<{clean(f'{head}: {facts}' if facts else head, _MAX_LINE - len(notice))}{notice}>"

    def to_block(self) -> str:
        """Several lines for a terminal: the title, then names and values in two columns, then the tables."""
        lines = [clean(self.title) + (f" ({clean(self.state, 40)})" if self.state else "")]
        if self.notice:
            lines.append(f"  ! {clean(self.notice)}")
        if self.lead:
            lines.append(f"  {clean(self.lead, _MAX_LEAD)}")
        width = max((len(clean(name, 40)) for name, _ in self.rows), default=0)
        lines += [f"  {clean(name, 40):<{width}}  {clean(value)}".rstrip() for name, value in self.rows]
        for name, table in self.sections:
            lines += ["", f"  {clean(name)}", *(f"    {line}" for line in _aligned(table))]
        for name, text in self.texts:
            lines += ["", f"  {clean(name)}", *(f"    {line}" for line in clean_block(text).splitlines())]
        return "\n".join(lines)

    def to_html(self) -> str:
        """Static HTML below 20 kB: no scripts, nothing loaded, the page's light or dark theme.

        What does not fit is shortened and counted ("and 12 more").
        """
        html = ""
        for budget in _BUDGETS:
            html = self._render(budget)
            if len(html.encode()) < MAX_HTML_BYTES:
                break
        return html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """``{"text/plain": ..., "text/html": ...}``; the lines of ``to_block`` only under ``set_options(display="text")``."""
        bundle = {"text/plain": self.to_block()}
        if get_options().display != "text":
            bundle["text/html"] = self.to_html()
        return bundle

    def _render(self, budget: _Budget) -> str:
        return render(
            "card.html.j2",
            title=clean(self.title, budget.text),
            state=clean(self.state, 40),
            tone=tone_of(self.state),
            notice=clean(self.notice, 240) if self.notice else None,
            rows=[(clean(name, min(budget.text, 40)), clean(value, budget.text)) for name, value in self.rows[: budget.rows]],
            more=_missing(
                rows=len(self.rows) - budget.rows, tables=len(self.sections) - budget.tables, texts=len(self.texts) - budget.tables
            ),
            sections=[(clean(name, budget.text), _cells(table, budget)) for name, table in self.sections[: budget.tables]],
            lead=clean(self.lead, max(budget.block // 4, 12)),
            texts=[(clean(name, budget.text), clean_block(text, budget.block)) for name, text in self.texts[: budget.tables]],
        )


def _cells(table: Table, budget: _Budget) -> dict[str, Any]:
    rows = [[clean(cell, budget.text) for cell in row[: budget.columns]] for row in table.rows[: budget.rows]]
    return {
        "columns": [clean(column, min(budget.text, 40)) for column in table.columns[: budget.columns]],
        "rows": rows,
        "numeric": _numeric_columns(rows),
        "more": _missing(rows=len(table.rows) - budget.rows, columns=len(table.columns) - budget.columns),
    }


def _missing(**left_out: int) -> str:
    """Says what was left out ("12 more rows, 3 more columns"); "" if nothing was."""
    return ", ".join(f"{count} more {what}" for what, count in left_out.items() if count > 0)


def _aligned(table: Table) -> list[str]:
    rows = [[clean(cell, 120) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    right = _numeric_columns(rows[1:])
    return ["  ".join(f"{cell:{'>' if i in right else '<'}{widths[i]}}" for i, cell in enumerate(row)).rstrip() for row in rows]


def _numeric_columns(rows: Sequence[Sequence[str]]) -> set[int]:
    """The columns that hold nothing but numbers, cells that are empty or "?" aside."""
    columns = range(max(map(len, rows), default=0))
    cells = ({row[i] for row in rows if i < len(row)} - {"", "?"} for i in columns)
    return {i for i, texts in zip(columns, cells, strict=True) if texts and all(map(_NUMBER.fullmatch, texts))}


def told(*rows: tuple[str, str | None]) -> list[tuple[str, str]]:
    """Returns the rows of a card that say something."""
    return [(name, value) for name, value in rows if value]


def tone_of(state: str) -> str:
    """The CSS class of a state: "gk-ok", "gk-busy", "gk-warn", "gk-bad", or "" for one that is none of them."""
    word = (state.lower().split() or [""])[0].strip(",:;")
    return next((tone for tone, words in _TONES.items() if word in words), "")


def process_table(processes: Sequence[ProcessStatus]) -> Table:
    """A row for each process: what it is called, what it does, what it has used."""
    rows = [
        [process.name, str(process.pid), process.state, format_duration(process.cpu_s), format_bytes(process.private), process.log or ""]
        for process in processes
    ]
    return Table(("process", "pid", "state", "processor", "memory", "log"), rows)


def cost_of(processes: Sequence[ProcessStatus]) -> str:
    """Formats the cost of processes beside what they share: "2 processes 107 MB"."""
    count = len(processes)
    return f"{count} process{'' if count == 1 else 'es'} {format_bytes(sum(process.private for process in processes))}"
