"""``gnnkit doctor``: can gnnkit work here, and if not, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import typer

from gnnkit.cli.checks.row import Check
from gnnkit.cli.output import ERROR, OK, WARNING, cell, console, show_json

_EXIT = {"ok": OK, "no": OK, "warning": WARNING, "error": ERROR}
_STYLE = {"ok": "green", "no": "dim", "warning": "yellow", "error": "bold red"}


def doctor(
    warm: bool = typer.Option(False, "--warm", help="Compile the sampling kernels now, so that the first batch does not wait for it."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON."),
) -> None:
    """Check this machine and say what to do.

    Exit codes: 0 all is well, 1 there are warnings, 2 gnnkit cannot work here.
    """
    if warm:
        from gnnkit.sampling.kinds import prepare_all
        from gnnkit.sampling.kinds import warm as compile_kernels
        from gnnkit.ui.progress import make_sink

        prepare_all()
        with make_sink(False if as_json else "auto") as events:
            compile_kernels(events)
    raise typer.Exit(report(list(all_checks()), as_json=as_json))


def report(checks: Sequence[Check], *, as_json: bool) -> int:
    """Writes the rows of a report to standard output; its exit code."""
    worst = max((_EXIT[check.verdict] for check in checks), default=OK)
    if as_json:
        show_json({"exit_code": worst, "checks": [check.to_json() for check in checks]})
    else:
        _show(checks)
    return worst


def all_checks() -> Iterator[Check]:
    """Yields every row of the report."""
    from gnnkit.cli.checks import backends, machine, software

    needed = []
    for check in (software.installation, software.python, software.torch, software.torch_geometric, software.kernels):
        row = check()
        if row.verdict == "error":
            needed.append(row)
        yield row
    glt = software.glt()
    yield from (software.ogb(), glt)
    for check in (machine.processors, machine.memory, machine.shared_memory):
        yield check()
    for check in (machine.disk, machine.open_files, machine.gpu, machine.network):
        yield check()
    yield from backends.backends(needed, glt)


def _show(checks: Sequence[Check]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("check", "value", "verdict", "what to do"):
        table.add_column(column, overflow="fold", no_wrap=column in ("check", "verdict"))
    for check in checks:
        style = _STYLE[check.verdict]
        table.add_row(cell(check.name), cell(check.value), f"[{style}]{check.verdict}[/{style}]", cell(check.fix))
    console().print(table)
