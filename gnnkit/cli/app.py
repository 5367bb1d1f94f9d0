"""The verbs, and what every one of them does with errors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from gnnkit.cli.output import ERROR, INTERRUPTED, WARNING, VerbCommand, show_error
from gnnkit.errors import GnnkitError
from gnnkit.host import without_collections
from gnnkit.version import __version__

# {verb: (its module, the first paragraph of its help)}; the module has a function, or further verbs, of the verb's name.
VERBS = {
    "demo": ("demo", "Train GraphSAGE on two graphs."),
    "doctor": ("doctor", "Check this machine and say what to do."),
    "info": ("stores", "Describe a store or a dataset."),
    "partition": ("partition", "Cut a dataset or a store into parts."),
    "append": ("partition", "Write a new version of a store, with more edges and nodes."),
    "push": ("stores", "Put a store at a URL, from where GraphLoader.from_store(URL) fetches it."),
    "plan-capacity": ("capacity", "Say what a run needs of memory, disk and network on each machine, and what would hold it back."),
    "serve": ("serve", "Hold a store and sample it for trainers, until Ctrl-C."),
    "run": (
        "train",
        "Train as one rank of a job: torchrun's, Slurm's, an indexed Job's, or alone; with --ray-workers, as all ranks on a Ray cluster.",
    ),
    "ps": ("runs", "List runs: processes that sample for notebooks and scripts, servers, and leftovers of dead runs."),
    "logs": ("runs", "Show what the processes of a run have written."),
    "stop": ("runs", "End the processes of runs; notebooks and scripts that use them go on, and get an error that says so."),
    "cleanup": ("runs", "Remove leftovers of dead runs, and end their processes; runs that live are left alone."),
    "export": ("export", "Write a plan as a job for torchrun, Slurm, Kubernetes or another launcher, or verify one that was written."),
    "bench": ("bench", "Measure what this machine samples, on each backend, against the gathering of rows alone."),
    "stores": ("stores", "List and remove the stores that gnnkit keeps on this disk."),
}
_STYLE: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}


class VerbGroup(TyperGroup):
    """A group whose commands only know their names and help, until one of them is invoked or asked for its options."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns name, command and further arguments, the command from its verb's module."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _command(str(name)), rest


def _command(verb: str) -> Any:
    with without_collections():
        made = getattr(import_module(f"gnnkit.cli.{VERBS[verb][0]}"), verb.replace("-", "_"))
    if not isinstance(made, typer.Typer):
        function, made = made, typer.Typer(add_completion=False, **_STYLE)
        made.command(verb, cls=VerbCommand)(function)
    return typer.main.get_command(made)


app = typer.Typer(
    cls=VerbGroup,
    name="gnnkit",
    help="From a dataset's name to PyG mini-batches.",
    epilog="Exit codes: 0 it worked; 1 it ran and something needs attention; 2 it could not run; 130 interrupted.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_STYLE,
)
for _verb, (_, _help) in VERBS.items():
    app.command(_verb, help=_help)(lambda: None)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gnnkit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_version, is_eager=True),
) -> None:
    """From a dataset's name to PyG mini-batches."""


def name_no_place() -> None:
    """Has what gnnkit warns of on the command line written without a file and a line, which are typer's there; others keep theirs."""
    written = warnings.formatwarning

    def plain(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
        return f"warning: {message}\n" if filename == typer.main.__file__ else written(message, category, filename, lineno, line)

    warnings.formatwarning = plain


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
