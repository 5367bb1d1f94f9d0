"""``ctx.log`` in a terminal: a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from gnnkit.jobs.context import Logged

_EVERY_S = 5.0


class LogLines:
    """A ``Report`` that shows what one rank logs, at most every few seconds, and the last of every epoch.

    Args:
        show: Shows a line.
        clock: Seconds.
    """

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self._held: Logged | None = None
        self._next_s = -float("inf")

    def __call__(self, logged: Logged) -> None:
        """Takes note of numbers."""
        if self._held is not None and self._held.epoch != logged.epoch:
            self.flush()
        self._held = logged
        if self._clock() >= self._next_s:
            self.flush()

    def flush(self) -> None:
        """Shows what was logged last, if it was not shown."""
        if self._held is not None:
            self._show(line(self._held))
            self._held, self._next_s = None, self._clock() + _EVERY_S


def line(logged: Logged) -> str:
    """Numbers of a step, as a line."""
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in logged.numbers.items())
    return f"epoch {logged.epoch}  batch {logged.step}/{logged.num_steps}  {numbers}"
