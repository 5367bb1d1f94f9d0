"""What is known of the ranks of a launch: plain facts, written by the thread that watches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gnnkit.errors import GnnkitError
from gnnkit.runtime.process_status import ProcessStatus

RunState = Literal["starting", "running", "restarting", "done", "failed", "stopped"]
ENDED = ("done", "failed", "stopped")


@dataclass(frozen=True)
class RankStatus:
    """A rank, as it was last heard of.

    Attributes:
        rank: Its number.
        pid: Its process; 0 where there is none.
        state: "starting", "training", "done", "failed", or "ended" where it was ended with the others.
        device: Where it trains; "" before it does.
        epoch: The epoch it is in, -1 before the first.
        step: Batches of that epoch that it has had.
        num_steps: Batches of its epochs; 0 where that is not known yet.
        numbers: What it last gave to ``ctx.log``.
    """

    rank: int
    pid: int = 0
    state: str = "starting"
    device: str = ""
    epoch: int = -1
    step: int = 0
    num_steps: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunStatus:
    """A launch at one moment.

    Attributes:
        state: "starting", "running", "restarting", "done", "failed" or "stopped".
        ranks: Its ranks.
        restarts: How often all of them were started again.
        max_restarts: How often they may be.
        error: What it failed of, or what the last restart was for; None where nothing has failed.
        elapsed_s: Seconds from ``launch`` to now, or to the end.
        run: Its name in ``gnnkit ps``.
        directory: ``ctx.directory``.
        processes: What the system says of the ranks' processes.
    """

    state: RunState
    ranks: tuple[RankStatus, ...]
    restarts: int
    max_restarts: int
    error: str | None
    elapsed_s: float
    run: str
    directory: str
    processes: tuple[ProcessStatus, ...] = ()


class RankState:
    """The ranks of one launch.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.ranks = [RankStatus(rank) for rank in range(count)]
        self.results: dict[int, int] = {}
        self.failures: list[tuple[float, GnnkitError]] = []

    def begin(self, pids: Mapping[int, int]) -> None:
        """All ranks have been started, or started again."""
        self.ranks = [RankStatus(rank, pids.get(rank, 0)) for rank in range(len(self.ranks))]
        self.failures.clear()

    def change(self, rank: int, **facts: Any) -> None:
        """Notes facts about a rank."""
        self.ranks[rank] = replace(self.ranks[rank], **facts)

    def fail(self, rank: int, at: float, error: GnnkitError) -> None:
        """Notes that a rank has failed, and when."""
        self.change(rank, state="failed")
        self.failures.append((at, error))

    @property
    def first_failure(self) -> GnnkitError | None:
        """What went wrong first: the others' complaints about the one who is gone come after it."""
        return min(self.failures, key=lambda failure: failure[0])[1] if self.failures else None

    @property
    def are_done(self) -> bool:
        """Whether every rank has handed over what its function returned."""
        return len(self.results) == len(self.ranks)

    @property
    def are_training(self) -> bool:
        """Whether every rank is in its function, or through with it."""
        return all(rank.state in ("training", "done") for rank in self.ranks)

    def close(self) -> None:
        """Marks whoever was still there as ended."""
        self.ranks = [replace(rank, pid=0, state="ended" if rank.state in ("starting", "training") else rank.state) for rank in self.ranks]
