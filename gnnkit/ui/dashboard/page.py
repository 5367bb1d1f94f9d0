"""A snapshot in words and as HTML: whole for a saved notebook, and in parts for widgets that change one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gnnkit.ui.cards import MAX_HTML_BYTES, Markup, render, tone_of
from gnnkit.ui.dashboard.facts import (
    HEIGHT,
    WIDTH,
    ProcessRow,
    Series,
    Share,
    Snapshot,
    StageRow,
    area_path,
    blocks,
    line_points,
    whole_percents,
)
from gnnkit.ui.format import clean
from gnnkit.ui.progress_model import bar_details
from gnnkit.units import format_bytes, format_percent, format_quantity, format_short

_BAR_WIDTH = 24
_COLUMNS = ("process", "state", "pid", "CPU", "sampling", "own memory", "shared")
_FULL, _EMPTY = "\N{FULL BLOCK}", "\N{LIGHT SHADE}"


def number(value: float) -> str:
    """A rate or an amount in about three digits: "12.4", "0.31", "4,210", "25.1k"; "–" where it is not known."""
    if not math.isfinite(value):
        return "\N{EN DASH}"
    if 0 < value < 99.95:
        return f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
    return format_short(round(value))


def stage_details(stage: StageRow) -> list[str]:
    """Returns the progress of a stage, or its result, in words."""
    if stage.state == "running":
        return bar_details(stage.bar)
    bar = stage.bar
    amounts = []
    if stage.state == "failed" and bar.fraction is not None:
        amounts = [format_percent(bar.fraction)]
    elif bar.done:
        amounts = [format_quantity(bar.done, clean(bar.unit, 20))]
    return [*amounts, clean(stage.text, 160)]


def stage_name(stage: StageRow) -> str:
    """The stage and what it works on."""
    return clean(f"{stage.bar.stage} {stage.bar.label}", 60)


def ready_words(snapshot: Snapshot) -> str:
    """Batches that wait, of those that can: "3 of 8"."""
    return " ".join((ready_now(snapshot), ready_limit(snapshot))).rstrip()


def ready_now(snapshot: Snapshot) -> str:
    """Batches that wait."""
    return format_short(snapshot.ready.now) if math.isfinite(snapshot.ready.now) else number(snapshot.ready.now)


def ready_limit(snapshot: Snapshot) -> str:
    """The most that can wait: "of 8"; "" where it is not known."""
    return f"of {snapshot.slots}" if snapshot.slots else ""


def memory_of(snapshot: Snapshot) -> str:
    """Formats the loader's memory on this host: its processes' own, this one's aside, its blocks and its copy of the graph."""
    return format_bytes(sum(p.private for p in snapshot.processes if p.name != "trainer") + snapshot.buffers + snapshot.graph)


def process_table(processes: Sequence[ProcessRow]) -> list[list[str]]:
    """Headings and rows: names and states, then numbers. A column that is known of no process is left out, but that of processors."""
    rows = [list(_COLUMNS), *(_process_cells(process) for process in processes)]
    shown = [i for i in range(len(_COLUMNS)) if _COLUMNS[i] == "CPU" or any(row[i] for row in rows[1:])]
    return [[row[i] for i in shown] for row in rows]


def _process_cells(process: ProcessRow) -> list[str]:
    return [
        clean(process.name, 40),
        clean(process.state, 30),
        str(process.pid),
        share(process.cpu),
        share(process.busy),
        format_bytes(process.private),
        format_bytes(process.shared),
    ]


def share(fraction: float) -> str:
    """A share in percent; "" where it is not known."""
    return "" if math.isnan(fraction) else f"{round(fraction * 100)} %"


def named_percents(shares: tuple[Share, ...]) -> list[tuple[str, int]]:
    """Names and whole percents that sum to a hundred."""
    return list(zip((s.name for s in shares), whole_percents([s.fraction for s in shares]), strict=True))


def to_block(snapshot: Snapshot) -> str:
    """The snapshot as lines for a terminal."""
    lines = [f"Dashboard of {clean(snapshot.title)} ({clean(snapshot.state, 40)}): {clean(snapshot.where)}"]
    facts = [(stage_name(stage), _stage(stage)) for stage in snapshot.stages]
    if snapshot.batches.values:
        facts += [
            ("batches/s", _series(snapshot.batches)),
            ("seeds/s", _series(snapshot.seeds)),
            ("ready batches", f"{ready_words(snapshot):>8}  {blocks(snapshot.ready.values, snapshot.slots)}".rstrip()),
        ]
    facts.append(("memory", memory_of(snapshot)))
    facts += [("this process", _shares(snapshot.consumer, snapshot.split_of))] if snapshot.consumer else []
    facts += [("workers", _shares(snapshot.workers, snapshot.split_of))] if snapshot.workers else []
    facts += [("advice", clean(snapshot.advice, 400))] if snapshot.advice else []
    facts += [("last error", clean(snapshot.error, 240))] if snapshot.error else []
    width = max(len(name) for name, _ in facts)
    lines += [f"  {name:<{width}}  {value}" for name, value in facts]
    if snapshot.processes:
        rows = process_table(snapshot.processes)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        # Names and states are words, the rest are numbers.
        lines += ["", *("  " + "  ".join(f"{c:{'<' if i < 2 else '>'}{widths[i]}}" for i, c in enumerate(row)).rstrip() for row in rows)]
    return "\n".join(lines)


def _stage(stage: StageRow) -> str:
    details = ", ".join(stage_details(stage))
    if stage.bar.fraction is None or stage.state != "running":
        return f"{stage.state} {details}".strip() if stage.state == "failed" else details
    filled = round(stage.bar.fraction * _BAR_WIDTH)
    return f"{_FULL * filled}{_EMPTY * (_BAR_WIDTH - filled)}  {details}"


def _series(series: Series) -> str:
    return f"{number(series.now):>8}  {blocks(series.values, max(series.values, default=0.0))}".rstrip()


def _shares(shares: tuple[Share, ...], split_of: str) -> str:
    return ", ".join(f"{name} {percent} %" for name, percent in named_percents(shares)) + (f" ({split_of})" if split_of else "")


# Before the first batch the parts are there, at nothing, so that the layout stays where it is.
_NO_CONSUMER = tuple(Share(name, 0.0) for name in ("waiting", "building", "transfer", "your loop"))
_NO_WORKERS = tuple(Share(name, 0.0) for name in ("sampling", "gathering", "idle"))
_NO_ADVICE = "Who is the bottleneck shows after the first batches of an epoch."
# Processes, log lines, characters of such a line and of other texts; tried in turn until the page is small enough to be kept in a
# notebook, which the last one is with any texts.
_BUDGETS = ((12, 8, 160, 400), (12, 4, 120, 400), (8, 2, 80, 400), (6, 0, 0, 400), (4, 0, 0, 20))


def style(*, live: bool) -> Markup:
    """The ``<style>`` element of dashboards.

    Args:
        live: With the rules of widgets.
    """
    return Markup(render("dashboard_style.html.j2", live=live))


def board(snapshot: Snapshot, processes: int = 12) -> Markup:
    """Everything but logs and buttons.

    Args:
        snapshot: What to draw.
        processes: The most processes to list.
    """
    hidden = len(snapshot.processes) - processes
    values = {
        "size": (WIDTH, HEIGHT),
        "title": clean(snapshot.title, 120),
        "where": clean(snapshot.where, 120),
        "state": clean(snapshot.state, 40),
        "tone": tone_of(snapshot.state),
        "advice": clean(snapshot.advice, 400) or _NO_ADVICE,
        "error": clean(snapshot.error, 240),
        "stages": [_stage_of_page(stage) for stage in snapshot.stages],
        "batches": _series_of_page(snapshot.batches),
        "seeds": _series_of_page(snapshot.seeds),
        "ready": _series_of_page(snapshot.ready, float(snapshot.slots)) | {"now": ready_now(snapshot), "detail": ready_limit(snapshot)},
        "memory": {"total": memory_of(snapshot), "parts": _memory(snapshot)},
        "consumer": named_percents(snapshot.consumer or _NO_CONSUMER),
        "workers": named_percents(snapshot.workers or _NO_WORKERS),
        "split_of": f"of the {snapshot.split_of}" if snapshot.split_of.startswith("last") else snapshot.split_of,
        "processes": process_table(snapshot.processes[:processes]),
        "more": f"and {hidden} more" if hidden > 0 else "",
    }
    return Markup(render("dashboard_board.html.j2", **values))


def log(process: ProcessRow, lines: int = 8, width: int = 160) -> Markup:
    """The end of a process's log."""
    tail = [clean(line, width) for line in process.tail[-lines:]] if lines else []
    return Markup(render("dashboard_log.html.j2", tail=tail, path=clean(process.log or "", 200)))


def page(snapshot: Snapshot, note: str = "") -> str:
    """The whole snapshot as static HTML below 20 kB; what does not fit is shortened and counted.

    Args:
        snapshot: What to draw.
        note: What to say below everything.
    """
    html = ""
    for processes, lines, width, text in _BUDGETS:
        logs = logged(snapshot.processes)[:processes] if lines else []
        parts: dict[str, Any] = {
            "style": style(live=False),
            "board": board(_shortened(snapshot, text), processes),
            "logs": [{"name": clean(process.name, 40), "html": log(process, lines, width)} for process in logs],
            "more": " ".join(filter(None, ("" if lines else f"{len(logged(snapshot.processes))} logs left out.", clean(note, text)))),
        }
        html = render("dashboard.html.j2", **parts)
        if len(html.encode()) < MAX_HTML_BYTES:
            break
    return html


def logged(processes: Sequence[ProcessRow]) -> list[ProcessRow]:
    """Those that write a log."""
    return [process for process in processes if process.log]


def _shortened(snapshot: Snapshot, limit: int) -> Snapshot:
    """The snapshot with texts of at most so many characters, sentences of four times as many."""
    stages = [
        replace(s, text=clean(s.text, limit), bar=replace(s.bar, stage=clean(s.bar.stage, limit), label=clean(s.bar.label, limit)))
        for s in snapshot.stages
    ]
    processes = [replace(p, name=clean(p.name, limit), state=clean(p.state, limit)) for p in snapshot.processes]
    return replace(
        snapshot,
        title=clean(snapshot.title, limit),
        where=clean(snapshot.where, limit),
        state=clean(snapshot.state, limit),
        advice=clean(snapshot.advice, 4 * limit),
        error=clean(snapshot.error, 4 * limit),
        stages=tuple(stages),
        processes=tuple(processes),
    )


def _stage_of_page(stage: StageRow) -> dict[str, Any]:
    fraction = stage.bar.fraction
    return {
        "name": stage_name(stage),
        "state": stage.state,
        "percent": None if fraction is None else f"{fraction * 100:.1f}",
        "details": stage_details(stage),
    }


def _series_of_page(series: Series, top: float = 0.0) -> dict[str, Any]:
    values = series.values or [0.0, 0.0]
    # A line at the very top of its chart cannot be seen to rise.
    edge = top or max(max(values) * 1.08, 1e-9)
    label = f"top {number(max(values))}" if max(values) > 0 else ""
    return {"now": number(series.now), "line": line_points(values, edge), "area": area_path(values, edge), "top": label}


def _memory(snapshot: Snapshot) -> list[tuple[str, str]]:
    own = sum(process.private for process in snapshot.processes if process.name != "trainer")
    parts = [("processes", own), ("batches", snapshot.buffers), ("graph copy", snapshot.graph)]
    return [(name, format_bytes(value)) for name, value in parts]
