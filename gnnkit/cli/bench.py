"""``gnnkit bench``: what this machine samples."""

from __future__ import annotations

import typer

from gnnkit.bench import BenchOptions, measure
from gnnkit.cli.output import fan_outs, show_json, show_line, show_table
from gnnkit.ui.cards import Table
from gnnkit.ui.progress import make_sink


def bench(
    source: str | None = typer.Argument(None, metavar="STORE", help="A store's folder; a generated graph by default."),
    scale: float = typer.Option(0.1, min=0.0005, help="Size of the generated graph; 1 is OGBN-Products' size."),
    num_neighbors: str = typer.Option("15,10,5", help="Fan-outs."),
    batch_size: int = typer.Option(1024, min=1, help="Seeds of a batch."),
    threads: int | None = typer.Option(None, min=1, help="Threads, or sampling processes; as gnnkit chooses by default."),
    seconds: float = typer.Option(4.0, min=0.1, help="How long each backend is timed, in each of three turns."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON, single turns included."),
) -> None:
    """Measure what this machine samples, on each backend, against the gathering of rows alone.

    Backends take turns, and medians are shown with the least and the most. Comparing gnnkit with other loaders takes a checkout:
    make bench.
    """
    with make_sink(False if as_json else "auto") as events:
        report = measure(BenchOptions(source, scale, tuple(fan_outs(num_neighbors)), batch_size, threads, seconds), events)
    if as_json:
        show_json(report.to_json())
        return
    show_table(Table(report.COLUMNS, report.cells()))
    for line in report.lines():
        show_line(line)
