"""Renders servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.ui.cards import Card, Table, cost_of, process_table
from gnnkit.units import format_bytes, format_count, format_rate


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
    rows = [
        ("address", str(status["address"])),
        ("servers", f"{ready} of {len(servers)} ready" + (f", of {num_servers} in the run" if num_servers > len(servers) else "")),
        ("clients", format_count(status["clients"])),
        ("sampled", f"{format_count(status['batches'])} batches, {format_rate(status['batches_per_s'], 'batches')} now"),
        ("memory", _memory(servers, processes)),
    ]
    if status["last_error"] is not None:
        rows.append(("last error", status["last_error"]))
    if status["restarts"]:
        rows.append(("restarts", format_count(status["restarts"])))
    if token_file is not None and status["state"] != "stopped":
        rows.append(("token file", token_file))
    rows.append(("store", status["store"] if store_bytes is None else f"{status['store']}, {format_bytes(store_bytes)}"))
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
