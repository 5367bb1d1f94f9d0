"""``%load_ext gnnkit``, and then ``%gnnkit ps | logs | stop | cleanup`` in a cell: what the command line does, as cards."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from gnnkit.errors import PlanError
from gnnkit.ui.cards import Card

_NAME = "gnnkit"
_FLAGS = {
    "ps": (),
    "logs": ("--rank", "--lines"),
    "stop": ("--all",),
    "cleanup": ("--failed", "--elsewhere"),
}
_WITH_RUNS = ("logs", "stop")


def load(shell: Any) -> None:
    """Makes ``%gnnkit`` known to an IPython shell, with its completions."""
    shell.register_magic_function(_magic, "line", _NAME)
    shell.set_hook("complete_command", _complete, str_key=f"%{_NAME}")


def unload(shell: Any) -> None:
    """Takes ``%gnnkit`` away from an IPython shell."""
    shell.magics_manager.magics["line"].pop(_NAME, None)


def run_line(line: str) -> Card | None:
    """Does what a line says.

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
    try:
        chosen = _parser().parse_args(words or ["--help"])
    except _HelpShown:
        return None
    card: Card = chosen.do(chosen)
    return card


def _magic(line: str) -> Card | None:
    """Runs of gnnkit on this host: %gnnkit ps | logs [run] | stop run... | cleanup."""
    return run_line(line)


def _ps(_: argparse.Namespace) -> Card:
    from gnnkit.runtime.runs import find_runs
    from gnnkit.ui.runs import runs_card

    return runs_card(find_runs())


def _logs(chosen: argparse.Namespace) -> Card:
    from gnnkit.runtime.runs import find_runs, logs_of, newest, select
    from gnnkit.ui.runs import logs_card

    every = find_runs()
    runs = [newest(every)] if chosen.run is None else select(every, chosen.run)
    return logs_card([(run, name, text) for run in runs for name, _, text in logs_of(run, chosen.rank, chosen.lines)])


def _stop(chosen: argparse.Namespace) -> Card:
    from gnnkit.runtime.runs import find_runs, select, stop_run
    from gnnkit.ui.runs import done_card, stopped_line

    if bool(chosen.runs) == chosen.all:
        raise PlanError("which runs are to be stopped?", f"name them, as %{_NAME} ps lists them, or say --all")
    every = find_runs()
    named = [run for word in chosen.runs for run in select(every, word)]
    runs = {run.path: run for run in named or [run for run in every if run.alive]}
    done = [stop_run(run) for run in runs.values()]
    complete = not any(stopped.left for stopped in done)
    return done_card("gnnkit stop", [stopped_line(stopped) for stopped in done], "no run has processes", complete=complete)


def _cleanup(chosen: argparse.Namespace) -> Card:
    from gnnkit.runtime.runs import clean_up, find_runs
    from gnnkit.ui.runs import cleaned_line, done_card, staying

    done = clean_up(failed=chosen.failed, elsewhere=chosen.elsewhere)
    complete = not any(each.kept for each in done)
    return done_card(
        "gnnkit cleanup", [cleaned_line(each) for each in done], "nothing to clean up", complete=complete, stays=staying(find_runs())
    )


class _HelpShown(Exception):
    """Help was printed, and nothing else is to be done."""


class _Parser(argparse.ArgumentParser):
    """A parser that ends no process."""

    def error(self, message: str) -> NoReturn:
        """Refuses a line."""
        raise PlanError(f"{self.prog}: {message}", f"{self.prog} --help tells what can be said")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Ends the parsing, not the kernel."""
        raise _HelpShown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=f"%{_NAME}", description="Runs of this user on this host.")
    verbs = parser.add_subparsers(required=True, metavar="ps | logs | stop | cleanup", parser_class=_Parser)

    def add(name: str, do: Callable[[argparse.Namespace], Card], text: str) -> argparse.ArgumentParser:
        verb: argparse.ArgumentParser = verbs.add_parser(name, description=text, help=text)
        verb.set_defaults(do=do)
        return verb

    add("ps", _ps, "List runs and their processes.")
    logs = add("logs", _logs, "Show what the processes of a run have written.")
    logs.add_argument("run", nargs="?", help="a run, its beginning, or a pid; by default the newest one that runs")
    logs.add_argument("--rank", type=int, help="only the process of this number")
    logs.add_argument("--lines", type=_count, default=60, help="the most lines of each log")
    stop = add("stop", _stop, "End the processes of runs.")
    stop.add_argument("runs", nargs="*", metavar="run", help="runs, their beginnings, or pids")
    stop.add_argument("--all", action="store_true", help="every run that has processes, of other notebooks too")
    cleanup = add("cleanup", _cleanup, "Remove what runs that nobody has any more have left.")
    cleanup.add_argument("--failed", action="store_true", help="the logs of runs that failed too")
    cleanup.add_argument("--elsewhere", action="store_true", help="what other boots, hosts and containers have left, too")
    return parser


def _count(text: str) -> int:
    """A number of lines."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, got {text!r}")
    return int(text)


def _complete(_: Any, event: Any) -> list[str]:
    """Returns the words that may come next in a line that begins with ``%gnnkit``; called by IPython."""
    return completions(event.text_until_cursor)


def completions(line: str) -> list[str]:
    """Returns the words that may come next.

    Args:
        line: The line up to the cursor, ``%gnnkit`` included.
    """
    words: Sequence[str] = line.split()[1:]
    before = words if not words or line[-1:].isspace() else words[:-1]
    if not before:
        return list(_FLAGS)
    verb = before[0]
    if verb not in _FLAGS:
        return []
    runs = []
    if verb in _WITH_RUNS:
        from gnnkit.runtime.runs import find_runs

        runs = [run.id for run in find_runs()]
    return [word for word in (*_FLAGS[verb], *runs) if word not in before]
