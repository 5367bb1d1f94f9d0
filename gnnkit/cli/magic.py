"""The commands of runs in IPython: ``%load_ext gnnkit`` and ``%gnnkit ps | logs | stop | cleanup``, whose answers are cards."""

from __future__ import annotations

import shlex
from typing import Any

import typer

from gnnkit.cli.runs import shown_runs, stopped_runs
from gnnkit.errors import PlanError
from gnnkit.runtime.runs import clean_up, find_runs, logs_of, stop_run
from gnnkit.ui.cards import Card
from gnnkit.ui.runs import cleaned_line, done_card, logs_card, runs_card, staying, stopped_line

_NAME = "gnnkit"
_verbs = typer.Typer(help="Runs of this user on this host.", add_completion=False, rich_markup_mode=None)
# What typer raises where words make no sense; it has no name for it.
_Misused: Any = typer.BadParameter.__mro__[1]


def load(shell: Any) -> None:
    """Makes ``%gnnkit`` known to an IPython shell, with its completions."""
    shell.register_magic_function(run_line, "line", _NAME)
    shell.set_hook("complete_command", lambda _, event: completions(event.text_until_cursor), str_key=f"%{_NAME}")


def unload(shell: Any) -> None:
    """Takes ``%gnnkit`` away from an IPython shell."""
    shell.magics_manager.magics["line"].pop(_NAME, None)


def run_line(line: str) -> Card | None:
    """Runs of gnnkit on this host: %gnnkit ps | logs [run] | stop run... | cleanup.

    Args:
        line: What stands after ``%gnnkit``.

    Returns:
        A card that shows what was found or done; None where only help was asked for.

    Raises:
        PlanError: The line cannot be understood, or there is no such run.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise PlanError(f"%{_NAME} {line}: {error}", "quotes come in pairs") from None
    command = typer.main.get_command(_verbs)
    try:
        with command.make_context(f"%{_NAME}", words or ["--help"]) as context:
            card: Card = command.invoke(context)
    except typer.Exit:  # help was printed
        return None
    except _Misused as error:
        raise PlanError(f"%{_NAME} {line}: {error.format_message()}", f"%{_NAME} --help tells what can be said") from None
    return card


@_verbs.command()
def ps() -> Card:
    """List runs and their processes."""
    return runs_card(find_runs())


@_verbs.command()
def logs(
    run: str | None = typer.Argument(None, help="A run, its beginning, or a pid; by default the newest one that runs."),
    rank: int | None = typer.Option(None, help="Only the process of this number."),
    lines: int = typer.Option(60, min=1, help="The most lines of each log."),
) -> Card:
    """Show what the processes of a run have written."""
    return logs_card([(each, name, text) for each in shown_runs(run, []) for name, _, text in logs_of(each, rank, lines)])


@_verbs.command()
def stop(
    runs: list[str] | None = typer.Argument(None, help="Runs, their beginnings, or pids."),
    all_: bool = typer.Option(False, "--all", help="Every run that has processes, of other notebooks too."),
) -> Card:
    """End the processes of runs."""
    done = [stop_run(run) for run in stopped_runs(runs, all_, [], f"%{_NAME} ps")]
    complete = not any(stopped.left for stopped in done)
    return done_card("gnnkit stop", [stopped_line(stopped) for stopped in done], "no run has processes", complete=complete)


@_verbs.command()
def cleanup(
    failed: bool = typer.Option(False, "--failed", help="The logs of runs that failed too."),
    elsewhere: bool = typer.Option(False, "--elsewhere", help="What other boots, hosts and containers have left, too."),
) -> Card:
    """Remove leftovers of dead runs."""
    done = clean_up(failed=failed, elsewhere=elsewhere)
    complete = not any(each.kept for each in done)
    return done_card(
        "gnnkit cleanup", [cleaned_line(each) for each in done], "nothing to clean up", complete=complete, stays=staying(find_runs())
    )


def completions(line: str) -> list[str]:
    """Returns the words that may come next.

    Args:
        line: The line up to the cursor, ``%gnnkit`` included.
    """
    words, verbs = line.split()[1:], getattr(typer.main.get_command(_verbs), "commands")  # noqa: B009 - a group has them
    before = words if not words or line[-1:].isspace() else words[:-1]
    if not before:
        return list(verbs)
    parameters = verbs[before[0]].params if before[0] in verbs else []
    known = [word for parameter in parameters for word in parameter.opts if word.startswith("--")]
    if any(parameter.param_type_name == "argument" for parameter in parameters):
        known += [run.id for run in find_runs()]
    return [word for word in known if word not in before]
