"""Running the contenders in turn, and the table of what they say."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from gnnkit.cluster import namespaces
from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.units import format_bytes, format_duration
from tools.bench.contenders import CONTENDERS, Arena, BenchGraph, Contender, environment, why_unavailable
from tools.bench.lines import LINES, Result, TableLine, Target, contenders_of, evaluate
from tools.bench.memory_groups import missing_memory_group
from tools.bench.options import BenchOptions
from tools.bench.process import BenchError, ProcessMeasurement, measure, memory_hogs

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
    notes = [note for note in (result.peer_engine, _in_use(result), result.note) if note]
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


def _to_reach(line: TableLine) -> str:
    targets = ", ".join(_target(line, target) for target in line.targets)
    return targets if line.bound is None else f"{targets}, or {line.bound.what} at least {line.bound.least:.0%} busy"


def _in_use(result: Result) -> str:
    """Formats the use of the resource that may be the limit; empty where it is unknown."""
    if result.line.bound is None or result.bound_share is None:
        return ""
    own = "" if result.own_share is None else f", {result.own_share:.0%} with this"
    return f"{result.line.bound.what} {result.bound_share:.0%} busy{own}"


def _target(line: TableLine, target: Target) -> str:
    limit = f"{target.limit:.2g}x" if target.of == "ratio" else figure(target.limit, line.unit)
    return f"{target.better} {limit}"


def markdown(report: BenchReport) -> str:
    """The table and the conditions it was measured under, as Markdown."""
    options = report.options
    rows = [cells(result) for result in report.results]
    lines = [
        f"Scale {options.scale:g} of OGBN-Products' size, fan-out {'/'.join(map(str, options.num_neighbors))}, batch {options.batch_size}, "
        f"{options.num_threads} threads or workers, medians of {options.repeats} runs in turn, "
        f"{options.memory_hogs} processes that copy memory beside them.",
        "  ".join(f"{name}: {value}." for name, value in report.machine.items()),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
    ]
    return "\n".join(lines)


# Contenders that are a file on disk rather than a process.
_STORES = {"store": False, "store-edge-ids": True}


@dataclass(frozen=True)
class BenchReport:
    """The table and what it was made from.

    Attributes:
        options: What was measured.
        machine: Facts of the machine and the packages.
        results: The table's lines.
        measurements: ``{contender: what every run of it said}``.
        failed: ``{contender: error}``: it was there and did not run through.
        unavailable: ``{contender: reason}``: it is not installed.
    """

    options: BenchOptions
    machine: Mapping[str, str]
    results: tuple[Result, ...]
    measurements: Mapping[str, tuple[ProcessMeasurement, ...]]
    failed: Mapping[str, str] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing failed and no target was missed."""
        return not self.failed and all(result.met is not False for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form, single runs included."""
        runs = {
            name: [{**m.values, "wall_s": m.wall_s, "anonymous_bytes": m.anonymous_bytes, "shared_bytes": m.shared_bytes} for m in many]
            for name, many in self.measurements.items()
        }
        return {
            "scale": self.options.scale,
            "batch_size": self.options.batch_size,
            "num_neighbors": list(self.options.num_neighbors),
            "num_threads": self.options.num_threads,
            "memory_hogs": self.options.memory_hogs,
            "machine": dict(self.machine),
            "rows": [result.to_json() for result in self.results],
            "runs": runs,
            "failed": dict(self.failed),
            "unavailable": dict(self.unavailable),
        }


def run_bench(options: BenchOptions, events: EventSink = ignore_events) -> BenchReport:
    """Measures what the options ask for; contenders take turns, and medians are compared.

    Args:
        options: What to measure.
        events: Receives the stages of making the graph, and "bench" with a unit per run.

    Raises:
        StoreError, DatasetError: The graph could not be made.
    """
    folder = (options.work_dir / f"products-like-{options.scale:g}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    arena = Arena(options, BenchGraph(options.scale, folder, events))
    wanted = contenders_of(options.rows)
    unavailable = why_not_measured(wanted, arena)
    commands = {name: CONTENDERS[name].command(arena) for name in wanted if name in CONTENDERS and name not in unavailable}
    with memory_hogs(options.memory_hogs):
        measurements, failed = _run_in_turn(commands, options, events)
    for name, with_edge in _STORES.items():
        if name in wanted:
            nbytes = _folder_bytes(arena.graph.store(with_edge=with_edge))
            measurements[name] = [ProcessMeasurement({"nbytes": nbytes}, 0.0, 0, 0)]
    missing = {**unavailable, **dict.fromkeys(failed, "failed")}
    lines = [line for line in LINES if line.row in options.rows]
    results = tuple(evaluate(line, measurements, missing, options.scale) for line in lines)
    return BenchReport(options, _machine(), results, {k: tuple(v) for k, v in measurements.items()}, failed, unavailable)


def why_not_measured(wanted: list[str], arena: Arena) -> dict[str, str]:
    """Returns the contenders that cannot be measured here, with the reason of each."""
    reasons: dict[str, str | None] = {}
    no_hosts, no_groups = functools.cache(namespaces.why_not), functools.cache(missing_memory_group)
    found = {}
    for name in wanted:
        contender = CONTENDERS.get(name)
        if contender is not None and contender.on_hosts and (why := no_hosts()) is not None:
            found[name] = f"not measured: {why}"
            continue
        if contender is not None and contender.on_device and (why := _why_no_device(arena.options.device)) is not None:
            found[name] = f"not measured: {why}"
            continue
        if contender is not None and contender.memory_divisor is not None:
            if (why := no_groups() or _why_no_group(arena, contender)) is not None:
                found[name] = f"not measured: {why}"
            continue
        peer = contender.peer if contender is not None else None
        if peer is None:
            continue
        if peer not in reasons:
            reasons[peer] = why_unavailable(peer, arena.interpreter(peer))
        reason = reasons[peer]
        if reason is not None:
            found[name] = f"not measured: {reason}"
    return found


def _why_no_group(arena: Arena, contender: Contender) -> str | None:
    divisor = contender.memory_divisor
    assert divisor is not None
    nbytes = arena.group_bytes(divisor)
    if nbytes >= contender.least_bytes:
        return None
    least = format_bytes(contender.least_bytes)
    return f"a memory group of 1/{divisor} of the store has {format_bytes(nbytes)}, and this needs {least}: measure at a larger scale"


def _why_no_device(device: str) -> str | None:
    from gnnkit.backends.devices import resolve_device  # which imports torch

    try:
        resolve_device(device)
    except PlanError as error:
        return error.message
    return None


def _run_in_turn(
    commands: Mapping[str, list[str]], options: BenchOptions, events: EventSink
) -> tuple[dict[str, list[ProcessMeasurement]], dict[str, str]]:
    """A-B-C-A-B-C: whatever else the machine does hits everybody alike."""
    measurements: dict[str, list[ProcessMeasurement]] = {}
    failed: dict[str, str] = {}
    with Stage(events, "bench", label=f"scale {options.scale:g}", total=len(commands) * options.repeats, unit="runs") as stage:
        for _ in range(options.repeats):
            for name, command in commands.items():
                if name not in failed:
                    try:
                        run = measure(command, timeout_s=options.timeout_s, environment=environment())
                        measurements.setdefault(name, []).append(run)
                    except BenchError as error:
                        failed[name] = str(error)
                stage.advance()
    return measurements, failed


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _machine() -> dict[str, str]:
    import gnnkit
    from gnnkit.host import available_cpus

    versions = {name: metadata.version(name) for name in ("torch", "torch_geometric", "numba", "numpy")}
    return {
        "processors": f"{available_cpus()} of {os.cpu_count()} ({_processor_name()})",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "gnnkit": gnnkit.__version__,
        **versions,
    }


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
