"""The table as text: for the terminal and as Markdown."""

from __future__ import annotations

from gnnkit.bench.line import Line, Target
from gnnkit.bench.report import BenchReport
from gnnkit.bench.rows import Result
from gnnkit.units import format_bytes, format_duration

COLUMNS = ("row", "what", "gnnkit", "compared with", "ratio", "to reach", "reached")


def figure(value: float | None, unit: str) -> str:
    """A measured value with its unit; a dash where there is none."""
    if value is None:
        return "-"
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_duration(value)
    if unit == "x":
        return f"{value:.2f}x"
    return f"{value:,.0f} {unit}"


def cells(result: Result) -> tuple[str, ...]:
    """A line of the table, in the order of ``COLUMNS``."""
    line = result.line
    compared = "-" if line.peer is None else figure(result.peer_value, line.unit)
    ratio = "-" if result.ratio is None else f"{result.ratio:.2f}x"
    reached = {True: "yes", False: "no", None: "-"}[result.met]
    if result.limited and line.bound is not None:
        reached += f", {line.bound.what} are the limit"
    notes = [note for note in (_in_use(result), result.note) if note]
    what = line.title + (f" ({'; '.join(notes)})" if notes else "")
    return (
        line.row,
        what,
        figure(result.value, line.unit),
        compared,
        ratio,
        _to_reach(line) or "-",
        reached,
    )


def _to_reach(line: Line) -> str:
    targets = ", ".join(_target(line, target) for target in line.targets)
    return targets if line.bound is None else f"{targets}, or {line.bound.what} at least {line.bound.least:.0%} busy"


def _in_use(result: Result) -> str:
    """How busy the resource was that may be the limit."""
    if result.line.bound is None or result.bound_share is None:
        return ""
    own = "" if result.own_share is None else f", {result.own_share:.0%} with this"
    return f"{result.line.bound.what} {result.bound_share:.0%} busy{own}"


def _target(line: Line, target: Target) -> str:
    limit = f"{target.limit:.2g}x" if target.of == "ratio" else figure(target.limit, line.unit)
    return f"{target.better} {limit}"


def markdown(report: BenchReport) -> str:
    """The table and the conditions it was measured under, as Markdown."""
    options = report.options
    rows = [cells(result) for result in report.results]
    lines = [
        f"Scale {options.scale:g} of OGBN-Products' size, fan-out {'/'.join(map(str, options.num_neighbors))}, batch {options.batch_size}, "
        f"{options.num_threads} threads or workers, medians of {options.repeats} runs in turn.",
        "  ".join(f"{name}: {value}." for name, value in report.machine.items()),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
    ]
    return "\n".join(lines)
