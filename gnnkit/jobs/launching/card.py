"""Renders runs of ``gnnkit.launch``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gnnkit.jobs.launching.job import RankStatus, RunStatus, numbers_in_words
from gnnkit.ui.cards import Card, Table, cost_of, process_table, told
from gnnkit.units import format_count, format_duration


def launch_card(title: str, status: RunStatus, trace: str | None) -> Card:
    """Makes the card of a run: its ranks, their progress, their last numbers, its cost, and its error.

    Args:
        title: The train function's name.
        status: The run.
        trace: The traceback of its error, or None.
    """
    ranks = status.ranks
    counts = {state: sum(rank.state == state for rank in ranks) for state in dict.fromkeys(rank.state for rank in ranks)}
    devices = ", ".join(dict.fromkeys(rank.device for rank in ranks if rank.device))
    main, is_alive = ranks[0], bool(status.processes)
    rows = told(
        (
            "ranks",
            f"{len(ranks)}: " + ", ".join(f"{count} {state}" for state, count in counts.items()) + (f", on {devices}" if devices else ""),
        ),
        ("time", format_duration(status.elapsed_s)),
        ("waits for", status.waits_for),
        ("epoch", f"{main.epoch}: {_steps(main)} batches on rank 0" if main.epoch >= 0 else None),
        ("rank 0", ", ".join(numbers_in_words(main.numbers))),
        ("last error", status.error),
        ("restarts", f"{status.restarts} of at most {status.max_restarts}" if status.max_restarts else None),
        ("memory", cost_of(status.processes) if is_alive else None),
        # One without a name of the user's goes with the run.
        ("directory", status.directory if Path(status.directory).is_dir() else None),
        ("run", f"{status.run}: gnnkit logs, gnnkit stop" if is_alive else None),
    )
    sections = [("ranks", _table(ranks))] + ([("processes", process_table(status.processes))] if status.processes else [])
    return Card(f"RunHandle {title}", status.state, rows, sections=sections, texts=[] if trace is None else [("last error", trace)])


def _table(ranks: Sequence[RankStatus]) -> Table:
    rows = [
        [
            str(rank.rank),
            rank.state,
            rank.device,
            str(rank.pid or ""),
            str(rank.epoch) if rank.epoch >= 0 else "",
            _steps(rank) if rank.epoch >= 0 else "",
            ", ".join(numbers_in_words(rank.numbers)),
        ]
        for rank in ranks
    ]
    return Table(("rank", "state", "device", "pid", "epoch", "batches", "numbers"), rows)


def _steps(rank: RankStatus) -> str:
    return f"{format_count(rank.step)} of {format_count(rank.num_steps)}"
