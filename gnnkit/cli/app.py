"""The verbs, and what every one of them does with errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from gnnkit.cli import doctor, measure, runs, stores
from gnnkit.cli.output import ERROR, INTERRUPTED, WARNING, show_error
from gnnkit.errors import GnnkitError

app = typer.Typer(
    name="gnnkit",
    help="From a dataset's name to PyG mini-batches.",
    epilog="Exit codes: 0 it worked; 1 it ran and something needs attention; 2 it could not run; 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(measure.demo)
app.command("doctor")(doctor.doctor)
app.command("info")(stores.info)
app.command("partition")(stores.partition)
app.command("append")(stores.append)
app.command("push")(stores.push)
app.command("plan-capacity")(measure.plan_capacity)
app.add_typer(stores.app, name="stores")
app.command("serve")(runs.serve)
app.command("run")(runs.run)
app.command("ps")(runs.ps)
app.command("logs")(runs.logs)
app.command("stop")(runs.stop)
app.command("cleanup")(runs.cleanup)
app.command("export")(runs.export)
app.command("bench")(measure.bench)


def _version(wanted: bool) -> None:
    if wanted:
        import gnnkit

        typer.echo(f"gnnkit {gnnkit.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_version, is_eager=True),
) -> None:
    """From a dataset's name to PyG mini-batches."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; errors become a message and a hint, never a traceback."""
    try:
        app(args=list(arguments), prog_name="gnnkit")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else (0 if end.code is None else ERROR)
    except GnnkitError as error:
        show_error(error.message, error.hint)
        return ERROR
    except BrokenPipeError:  # `gnnkit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WARNING
    except OSError as error:
        show_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", None)
        return ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0
