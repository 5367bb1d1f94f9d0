"""A snapshot as HTML: whole for a saved notebook, and in parts for widgets that change one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gnnkit.ui.cards import MAX_HTML_BYTES, tone_of
from gnnkit.ui.dashboard.charts import HEIGHT, WIDTH, area_path, line_points
from gnnkit.ui.dashboard.facts import ProcessRow, Series, Share, Snapshot, StageRow
from gnnkit.ui.dashboard.words import memory_of, named_percents, number, process_table, ready_limit, ready_now, stage_details, stage_name
from gnnkit.ui.format import clean
from gnnkit.ui.html import Markup, render
from gnnkit.units import format_bytes

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
        "stages": [_stage(stage) for stage in snapshot.stages],
        "batches": _series(snapshot.batches),
        "seeds": _series(snapshot.seeds),
        "ready": _series(snapshot.ready, float(snapshot.slots)) | {"now": ready_now(snapshot), "detail": ready_limit(snapshot)},
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


def _stage(stage: StageRow) -> dict[str, Any]:
    fraction = stage.bar.fraction
    return {
        "name": stage_name(stage),
        "state": stage.state,
        "percent": None if fraction is None else f"{fraction * 100:.1f}",
        "details": stage_details(stage),
    }


def _series(series: Series, top: float = 0.0) -> dict[str, Any]:
    values = series.values or [0.0, 0.0]
    # A line at the very top of its chart cannot be seen to rise.
    edge = top or max(max(values) * 1.08, 1e-9)
    label = f"top {number(max(values))}" if max(values) > 0 else ""
    return {"now": number(series.now), "line": line_points(values, edge), "area": area_path(values, edge), "top": label}


def _memory(snapshot: Snapshot) -> list[tuple[str, str]]:
    own = sum(process.private for process in snapshot.processes if process.name != "trainer")
    parts = [("processes", own), ("batches", snapshot.buffers), ("graph copy", snapshot.graph)]
    return [(name, format_bytes(value)) for name, value in parts]
