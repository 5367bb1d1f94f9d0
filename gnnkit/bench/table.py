"""The table as text: for the terminal and as Markdown."""

from __future__ import annotations

from gnnkit.bench.lines import Line, Target
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
    return f"{value:,.0f} {unit}"


def cells(result: Result) -> tuple[str, ...]:
    """A line of the table, in the order of ``COLUMNS``."""
    line = result.line
    compared = "-" if line.peer is None else figure(result.peer_value, line.unit)
    ratio = "-" if result.ratio is None else f"{result.ratio:.2f}x"
    reached = {True: "yes", False: "no", None: "-"}[result.met]
    what = line.title + (f" ({result.note})" if result.note else "")
    return (
        line.row,
        what,
        figure(result.value, line.unit),
        compared,
        ratio,
        ", ".join(_target(line, t) for t in line.targets) or "-",
        reached,
    )


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
