"""Renders processes on cards."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.ui.cards import Table
from gnnkit.units import format_bytes, format_duration


def process_table(processes: Sequence[ProcessStatus]) -> Table:
    """A row for each process: what it is called, what it does, what it has used."""
    rows = [
        [process.name, str(process.pid), process.state, format_duration(process.cpu_s), format_bytes(process.private), process.log or ""]
        for process in processes
    ]
    return Table(("process", "pid", "state", "processor", "memory", "log"), rows)


def cost_of(processes: Sequence[ProcessStatus]) -> str:
    """Formats the cost of processes beside what they share: "2 processes 107 MB"."""
    count = len(processes)
    return f"{count} process{'' if count == 1 else 'es'} {format_bytes(sum(process.private for process in processes))}"
