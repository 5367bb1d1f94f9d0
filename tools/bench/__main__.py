"""``python -m tools.bench``: gnnkit against its peers, in one run."""

from __future__ import annotations

from pathlib import Path

import typer

from gnnkit.cli.output import OK, WARNING, show_error, show_json, show_line, show_table
from gnnkit.ui.cards import Table
from gnnkit.ui.progress import make_sink
from tools.bench.options import ROWS, BenchOptions
from tools.bench.report import COLUMNS, cells, markdown, run_bench


def bench(
    scale: float = typer.Option(1.0, min=0.0005, help="Size of the graph; 1 is OGBN-Products' size."),
    rows: str = typer.Option("", help="Rows to measure, separated by commas; all of them by default."),
    work_dir: Path = typer.Option(Path(".bench"), help="Where the graph is kept between runs; some 19 GB at scale 1."),
    threads: int = typer.Option(2, help="Threads or workers of every loader."),
    repeats: int = typer.Option(2, help="How often everybody runs, in turn."),
    batches: int = typer.Option(40, help="Batches of a peer's epoch."),
    glt_python: Path | None = typer.Option(None, help="A Python in which graphlearn_torch can be imported."),
    pyg_python: Path | None = typer.Option(None, help="A Python with torch_geometric and pyg-lib (preferred) or torch-sparse."),
    graphbolt_python: Path | None = typer.Option(None, help="A Python in which dgl.graphbolt can be imported."),
    device: str = typer.Option("cuda", help="Device of the row `device`."),
    memory_hogs: int = typer.Option(0, help="Other processes that copy memory meanwhile."),
    as_markdown: bool = typer.Option(False, "--markdown", help="Write the table as Markdown."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON, single runs included."),
) -> None:
    """Measure gnnkit against its peers.

    graphlearn-torch, PyG and DGL GraphBolt sample the same graph in the same run. Exit code 1 if something failed or a
    figure to reach was not reached.
    """
    named = {"glt": glt_python, "pyg": pyg_python, "graphbolt": graphbolt_python}
    options = BenchOptions(
        scale=scale,
        rows=tuple(row.strip() for row in rows.split(",") if row.strip()) or ROWS,
        work_dir=work_dir,
        num_threads=threads,
        repeats=repeats,
        num_batches=batches,
        device=device,
        memory_hogs=memory_hogs,
        # Not resolved: the interpreter of a virtual environment is a link, and following it leaves the environment.
        interpreters={name: python.absolute() for name, python in named.items() if python is not None},
    )
    with make_sink(False if as_json or as_markdown else "auto") as events:
        report = run_bench(options, events)
    if as_json:
        show_json(report.to_json())
    elif as_markdown:
        show_line(markdown(report))
    else:
        show_table(Table(COLUMNS, [cells(result) for result in report.results]))
    for name, error in report.failed.items():
        show_error(f"{name} failed: {error}", None)
    raise typer.Exit(OK if report.ok else WARNING)


if __name__ == "__main__":
    typer.run(bench)
