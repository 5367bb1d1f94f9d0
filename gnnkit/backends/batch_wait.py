"""How long a loader waits for a sampling process: until its deadline, and longer for one that is seen to be sampling."""

from __future__ import annotations

import time

from gnnkit.backends.worker_pool import WorkerPool
from gnnkit.errors import BatchTimeout
from gnnkit.runtime.vitals import STALE_S

# Longest time that a wait goes without looking around: at other threads, closed loaders and interrupts.
SLICE_S = 0.05


class BatchWait:
    """One wait.

    Args:
        crew: The processes.
        timeout_s: The deadline; 0 waits for nothing.
        what: What is waited for, for the error.
    """

    def __init__(self, crew: WorkerPool, timeout_s: float, what: str) -> None:
        self._crew, self._timeout_s, self._what = crew, timeout_s, what
        self._started = self._since = time.monotonic()
        self._deadline = self._started + timeout_s
        self._clocks = self._look()
        self._warned = False

    def _look(self) -> dict[int, int]:
        return {rank: self._crew.signs(rank).cpu_ns for rank in self._crew.pids}

    @property
    def left_s(self) -> float:
        """Seconds to the deadline."""
        return max(0.0, self._deadline - time.monotonic())

    def check(self, ranks: list[int]) -> str | None:
        """Looks at the processes that could bring what is waited for.

        Args:
            ranks: Their numbers.

        Returns:
            A warning that is due now, or None.

        Raises:
            BatchTimeout: The deadline has passed and none of them is sampling.
        """
        now = time.monotonic()
        if self._timeout_s > 0 and not self._warned and now - self._started >= self._timeout_s / 2 and self._is_sampling(ranks):
            self._warned = True
            return f"waiting for {self._what} for {now - self._started:.1f} s; {self._whereabouts(ranks)}"
        if now < self._deadline:
            return None
        # A process on a busy machine must have had time to show what it is doing.
        if self._timeout_s > 0 and now - self._since < STALE_S and self._is_fresh(ranks):
            self._deadline = self._since + STALE_S
            return None
        if self._timeout_s > 0 and (self._is_sampling(ranks) or self._is_starting()):
            self._since, self._deadline, self._clocks = now, now + self._timeout_s, self._look()
            return None
        raise BatchTimeout(
            f"no batch within {self._timeout_s:g} s ({self._what}); {self._whereabouts(ranks)}",
            "raise batch_timeout_s, lower num_neighbors or batch_size, or close the loader and make it again",
        )

    def _is_fresh(self, ranks: list[int]) -> bool:
        return any(self._crew.signs(rank).is_fresh for rank in ranks)

    def _is_sampling(self, ranks: list[int]) -> bool:
        """Whether one of them is alive, at a batch, and has used its processor since the last look: a hung disk does not count."""
        for rank in ranks:
            signs = self._crew.signs(rank)
            if signs.is_fresh and signs.step >= 0 and signs.cpu_ns > self._clocks.get(rank, 0):
                return True
        return False

    def _is_starting(self) -> bool:
        return self._crew.is_starting  # which has a deadline of its own

    def _whereabouts(self, ranks: list[int]) -> str:
        said = []
        for rank in ranks:
            who, signs = self._crew.describe(rank), self._crew.signs(rank)
            if who is None:
                continue
            seen = "was never seen" if signs.seen_s == float("inf") else f"was last seen {signs.seen_s:.1f} s ago"
            doing = f", sampling step {signs.step} for {signs.busy_s:.1f} s" if signs.step >= 0 else ""
            said.append(f"{who} and {seen}{doing}")
        return "; ".join(said) or "no sampling process has it"
