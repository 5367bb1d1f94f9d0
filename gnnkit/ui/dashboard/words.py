"""A snapshot in words: what the page and the block of text write alike, and the block itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnnkit.ui.dashboard.charts import blocks, whole_percents
from gnnkit.ui.dashboard.facts import ProcessRow, Series, Share, Snapshot, StageRow
from gnnkit.ui.format import clean
from gnnkit.ui.wording import bar_details
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
    """How far a stage is, or what it came to."""
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
    """What the loader costs on this host: its processes' own memory, this one aside, its blocks and its copy of the graph."""
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
