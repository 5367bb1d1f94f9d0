"""Renders runs and servers: as tables, on cards, as JSON; and what was done about them in a line."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.runtime.runs import Cleaned, Run, Stopped
from gnnkit.ui.cards import Card, Table, cost_of, process_table, told
from gnnkit.units import format_bytes, format_count, format_duration, format_number, format_rate


def runs_table(runs: Sequence[Run]) -> Table:
    """A row for each run: short columns, and a last one of words, which may be folded where a terminal is narrow."""
    return Table(("run", "state", "age", "what"), [[run.id, run.state, _age(run), _facts(run)] for run in runs])


def runs_processes(runs: Sequence[Run]) -> Table:
    """A row for each process of each run."""
    tables = [(run, process_table(run.processes)) for run in runs]
    return Table(("run", *process_table(()).columns), [[run.id, *row] for run, table in tables for row in table.rows])


def runs_card(runs: Sequence[Run]) -> Card:
    """All runs, a line each, and their processes.

    A line is "running: servers of train.py (4711), 2 processes 121 MB, 2.1 kB on disk, ogbn-products, 12 s".
    """
    states = Counter(run.state for run in runs)
    alive = [process for run in runs for process in run.alive]
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    lead = f"{counts}; {cost_of(alive)} of memory, {format_bytes(sum(run.nbytes for run in runs))} on disk" if runs else "no runs"
    sections = [("processes", runs_processes(runs))] if any(run.processes for run in runs) else []
    notes = "; ".join(note for note in (attention(runs), staying(runs)) if note) or None
    rows = [(run.id, f"{run.state}: {', '.join(filter(None, (_facts(run), _age(run))))}") for run in runs]
    return Card("gnnkit runs", "", rows, notes, sections, lead)


def _facts(run: Run) -> str:
    store = [Path(run.store).name] if run.store else []
    owner = f"{run.program} ({run.owner.pid}{'' if run.owner.state != 'gone' else ', gone'})".strip()
    return ", ".join([f"{run.what} of {owner}", cost_of(run.alive), f"{format_bytes(run.nbytes)} on disk", *store])


def _age(run: Run) -> str:
    return format_duration(int(max(0.0, time.time() - run.started_s))) if run.started_s else ""


def attention(runs: Sequence[Run]) -> str | None:
    """Returns a line about runs that need action; None where none does."""
    left = [run for run in runs if run.state == "stale" or run.has_orphans]
    if not left:
        return None
    orphans = sum(len(run.alive) for run in left)
    text = f"{format_number(len(left), 'run')} left behind" + (f", with {format_number(orphans, 'unused process')}" if orphans else "")
    return f"{text}: gnnkit cleanup"


def staying(runs: Sequence[Run]) -> str | None:
    """Runs that are listed and stay after a cleanup all the same, and what removes them, in a line; None if none does."""
    words = {"failed": "failed, whose logs stay for a week", "elsewhere": "of another boot, host or container"}
    counts = {state: sum(run.state == state and not run.has_orphans for run in runs) for state in words}
    told = [f"{format_number(count, 'run')} {words[state]}: gnnkit cleanup --{state}" for state, count in counts.items() if count]
    return "; ".join(told) or None


def logs_card(logs: Sequence[tuple[Run, str, str]]) -> Card:
    """The ends of logs.

    Args:
        logs: Run, process and text of each.
    """
    names = list(dict.fromkeys(run.id for run, _, _ in logs))
    texts = [(f"{run.id}, {name}" if len(names) > 1 else name, text or "(empty)") for run, name, text in logs]
    return Card(f"logs of {', '.join(names)}" if names else "logs", "", [] if texts else [("logs", "none")], texts=texts)


def stopped_line(stopped: Stopped) -> str:
    """Describes the result of stopping a run in a line."""
    run = stopped.run
    if stopped.left:
        names = ", ".join(f"{process.name} (pid {process.pid})" for process in stopped.left)
        return f"{run.id}: {names} still run: {run.program or 'its owner'} (pid {run.owner.pid}) starts them again, or they cannot be ended"
    if not stopped.ended:
        return f"{run.id}: it has no processes"
    return f"{run.id}: ended {format_number(len(stopped.ended), 'process')}"


def cleaned_line(cleaned: Cleaned) -> str:
    """Describes the result of cleaning up a run in a line."""
    run = cleaned.run
    done = [f"ended {format_number(cleaned.ended, 'process')}"] if cleaned.ended else []
    done += [f"removed its folder ({run.what}, {format_bytes(run.nbytes)})"] if cleaned.removed else []
    done += [f"{run.path} cannot be removed"] if cleaned.kept else []
    return f"{run.id}: {', '.join(done)}"


def done_card(title: str, lines: Sequence[str], nothing: str, *, complete: bool, stays: str | None = None) -> Card:
    """Makes the card of actions that were done, a line for each run.

    Args:
        title: The action.
        lines: Lines that begin with a run and a colon.
        nothing: The text where there are none.
        complete: Whether all that was to be done could be.
        stays: See ``staying``.
    """
    pairs = [line.partition(": ") for line in lines]
    rows = [(name, text) for name, _, text in pairs] or [("runs", nothing)]
    return Card(title, "done" if complete else "failed", rows + ([("left alone", stays)] if stays else []))


def run_facts(run: Run) -> dict[str, Any]:
    """A run as JSON."""
    return {
        **_picked(run, "id", "what", "state"),
        "path": str(run.path),
        **_picked(run, "store", "program"),
        "owner": _picked(run.owner, "pid", "state"),
        "processes": [_picked(each, "name", "pid", "state", "log", "cpu_s", "rss", "private") for each in run.processes],
        "started": run.started_s,
        **_picked(run, "nbytes", "died"),
    }


def _picked(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def servers_card(
    status: Mapping[str, Any], num_servers: int, token_file: str | None, store_bytes: int | None, processes: Sequence[ProcessStatus]
) -> Card:
    """Makes the card of servers: their address, state, speed, cost and last error.

    Args:
        status: The value of ``GraphStoreServers.status()``.
        num_servers: Servers of the run, those that were started elsewhere included.
        token_file: The file of their token; None where the user has given it.
        store_bytes: Size of their store; None where it is not known any more.
        processes: The process status of them and their workers.
    """
    if status["state"] == "stopped":
        status = _without_the_living(status)
    servers = status["servers"]
    ready = sum(server["state"] == "ready" for server in servers)
    rows = told(
        ("address", str(status["address"])),
        ("servers", f"{ready} of {len(servers)} ready" + (f", of {num_servers} in the run" if num_servers > len(servers) else "")),
        ("clients", format_count(status["clients"])),
        ("sampled", f"{format_count(status['batches'])} batches, {format_rate(status['batches_per_s'], 'batches')} now"),
        ("memory", _memory(servers, processes)),
        ("last error", status["last_error"]),
        ("restarts", format_count(status["restarts"]) if status["restarts"] else None),
        ("token file", token_file if status["state"] != "stopped" else None),
        ("store", status["store"] if store_bytes is None else f"{status['store']}, {format_bytes(store_bytes)}"),
    )
    sections = [("servers", _table(servers))] + ([("processes", process_table(processes))] if processes else [])
    return Card(f"GraphStoreServers {Path(status['store']).name}", status["state"], rows, _trouble(servers), sections)


def _without_the_living(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status as it was last heard, without what is not so any more once the servers have been stopped."""
    ended: dict[str, Any] = {"pid": None, "workers": [], "graph_bytes": 0}
    servers = [{**server, **ended, "state": "gone" if server["state"] == "gone" else "stopped"} for server in status["servers"]]
    return {**status, "servers": servers, "clients": 0, "batches_per_s": 0.0}


def _memory(servers: Any, processes: Sequence[ProcessStatus]) -> str:
    copy = max((server["graph_bytes"] for server in servers), default=0)
    return f"graph copy {format_bytes(copy)}" + (f", {cost_of(processes)}" if processes else "")


def _trouble(servers: Any) -> str | None:
    """Returns the error that ended the first process that is gone, in a line."""
    for server in servers:
        gone = [server, *(worker for worker in server["workers"] if worker["state"] == "gone")]
        error = next((process["error"] for process in gone if process["error"] is not None), None)
        if error is not None:
            return str(error.splitlines()[0])
    return None


def _table(servers: Any) -> Table:
    rows = []
    for server in servers:
        workers = server["workers"]
        there = f"{sum(worker['state'] == 'ready' for worker in workers)} of {len(workers)}" if workers else ""
        parts = server["parts"]
        held = "" if parts is None else ", ".join(map(str, parts))
        rows.append([str(server["rank"]), server["state"], str(server["pid"] or ""), there, held, format_count(server["batches"])])
    return Table(("server", "state", "pid", "workers", "parts", "batches"), rows)
