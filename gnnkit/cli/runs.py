"""``gnnkit ps | logs | stop | cleanup``: what this user has running on this host."""

from __future__ import annotations

from pathlib import Path

import typer

from gnnkit.cli.output import WARNING, show_error, show_json, show_line, show_table
from gnnkit.errors import PlanError
from gnnkit.files import user_path
from gnnkit.runtime.runs import Run, clean_up, find_runs, logs_of, newest, own_folders, select, stop_run
from gnnkit.runtime.runs import follow as watch
from gnnkit.ui.runs import attention, cleaned_line, run_facts, runs_processes, runs_table, staying, stopped_line

_STYLES = {"running": "green", "ended": "red", "stale": "yellow", "failed": "bold red", "elsewhere": "dim"}
_FOLDERS = typer.Option([], "--log-dir", help="Look in this folder of logs only; may be given several times.")
_JSON = typer.Option(False, "--json", help="Write JSON.")


def _roots(folders: list[Path]) -> list[Path] | None:
    if not folders:
        return None
    missing = [str(folder) for folder in folders if not own_folders([user_path(folder)])]
    if missing:
        raise PlanError(f"there is no folder of yours at {missing[0]!r}", "name the folder that was given as log_dir=...")
    return own_folders(map(user_path, folders))


def shown_runs(word: str | None, folders: list[Path]) -> list[Run]:
    """The runs that a word means; without one the newest that runs."""
    runs = find_runs(_roots(folders))
    return [newest(runs)] if word is None else select(runs, word)


def stopped_runs(words: list[str] | None, all_: bool, folders: list[Path], ps: str) -> list[Run]:
    """The runs that are to be stopped, each once: those that words mean, or all that have processes.

    Raises:
        PlanError: Neither is said, or both are; ``ps`` is what lists them.
    """
    if bool(words) == all_:
        raise PlanError("which runs are to be stopped?", f"name them, as {ps} lists them, or say --all")
    runs = find_runs(_roots(folders))
    named = [run for word in words or () for run in select(runs, word)]
    return [run for run in runs if run.alive] if all_ else list({run.path: run for run in named}.values())


def ps(
    processes: bool = typer.Option(False, "--processes", "-p", help="List the processes of each run too."),
    log_dir: list[Path] = _FOLDERS,
    as_json: bool = _JSON,
) -> None:
    """List runs: processes that sample for notebooks and scripts, servers, and leftovers of dead runs.

    Exit code 1 if a run was left behind: `gnnkit cleanup` removes it.
    """
    runs = find_runs(_roots(log_dir))
    left = attention(runs)
    if as_json:
        show_json({"attention": left, "runs": [run_facts(run) for run in runs]})
    elif not runs:
        show_line("no runs")
    else:
        show_table(runs_table(runs), styles=_STYLES)
        if processes:
            show_line("")
            show_table(runs_processes(runs))
        if left:
            show_line(left, "yellow")
        if stays := staying(runs):
            show_line(stays, "dim")
    if left:
        raise typer.Exit(WARNING)


def logs(
    run: str | None = typer.Argument(
        None, help="A run as `gnnkit ps` lists it, its beginning, or a pid; by default the newest one that runs."
    ),
    rank: int | None = typer.Option(None, help="Only the process of this number."),
    lines: int = typer.Option(60, "--lines", "-n", min=1, help="The most lines of each log."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Stay, and show what is written, until the processes end or Ctrl-C."),
    log_dir: list[Path] = _FOLDERS,
    as_json: bool = _JSON,
) -> None:
    """Show what the processes of a run have written."""
    if follow and as_json:
        raise PlanError("--follow writes text, as it comes", "leave --json or --follow out")
    runs = shown_runs(run, log_dir)
    if follow and len(runs) > 1:
        raise PlanError(f"{run} means {len(runs)} runs", f"follow one of them: {', '.join(each.id for each in runs)}")
    news = watch(runs[0], rank) if follow else ()
    found = [(each, name, path, text) for each in runs for name, path, text in logs_of(each, rank, lines)]
    if as_json:
        facts = [{"run": each.id, "process": name, "path": str(path), "text": text} for each, name, path, text in found]
        show_json({"logs": facts})
        return
    for each, name, path, text in found:
        show_line(f"--- {each.id}, {name}, {path}", "dim")
        if text:
            show_line(_lines(text))
    if not found:
        show_line(f"{', '.join(each.id for each in runs)}: no logs")
    for name, text in news:
        show_line(f"--- {name}", "dim")
        show_line(_lines(text))


def _lines(text: str) -> str:
    """Of a log, the lines as they were written: progress that goes back to the line's beginning to write it anew is a line each time."""
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")


def stop(
    runs: list[str] | None = typer.Argument(None, help="Runs as `gnnkit ps` lists them, their beginnings, or pids."),
    all_: bool = typer.Option(False, "--all", help="Every run that has processes."),
    timeout_s: float = typer.Option(15.0, min=0.1, help="Seconds to try, for each."),
    log_dir: list[Path] = _FOLDERS,
) -> None:
    """End the processes of runs; notebooks and scripts that use them go on, and get an error that says so.

    Exit code 1 if a process is still there.
    """
    done = [stop_run(run, timeout_s) for run in stopped_runs(runs, all_, log_dir, "gnnkit ps")]
    for stopped in done:
        if stopped.left:
            show_error(stopped_line(stopped), None)
        else:
            show_line(stopped_line(stopped))
    if not done:
        show_line("no run has processes")
    if any(stopped.left for stopped in done):
        raise typer.Exit(WARNING)


def cleanup(
    failed: bool = typer.Option(False, "--failed", help="Remove the logs of runs that failed too; they go by themselves after a week."),
    elsewhere: bool = typer.Option(
        False, "--elsewhere", help="Remove what other boots, hosts and containers have left, which may run there."
    ),
    log_dir: list[Path] = _FOLDERS,
    as_json: bool = _JSON,
) -> None:
    """Remove leftovers of dead runs, and end their processes; runs that live are left alone.

    Exit code 1 if something cannot be removed.
    """
    done = clean_up(_roots(log_dir), failed=failed, elsewhere=elsewhere)
    kept = [cleaned for cleaned in done if cleaned.kept]
    if as_json:
        show_json({"runs": [{**run_facts(each.run), "ended": each.ended, "removed": each.removed} for each in done]})
    else:
        for cleaned in done:
            show_line(cleaned_line(cleaned))
        if not done:
            show_line("nothing to clean up")
        if stays := staying(find_runs(_roots(log_dir))):
            show_line(stays, "dim")
    if kept:
        raise typer.Exit(WARNING)
