"""Decides when a dashboard is live and when it is a still picture. Knows only what it is told."""

from __future__ import annotations

import math

# A dashboard that nothing has happened to yet keeps its buttons this long.
_FRESH_S = 30.0
# An epoch makes a still picture live again once it has run this long: shorter ones are over before anybody could press a button.
_WAKES_AFTER_S = 0.7
# Between two epochs of one loop a dashboard stays as it is.
_LINGERS_S = 2.0
# A loop that was left keeps its epoch open. It is taken for over if its cell has ended and no batch is asked for within this time.
_QUIET_S = 1.5


class Liveness:
    """Live while something runs: saved notebooks keep what is shown, and live widgets mean nothing without their kernel.

    Args:
        now: ``time.monotonic()``; the cell that shows the dashboard is running.

    Attributes:
        is_quiet: Whether the epoch that is open is taken for one that was left.
    """

    def __init__(self, now: float) -> None:
        self._born_s = now
        self._fresh, self._live, self._in_cell = True, True, True
        self._began_s: float | None = None
        self._ran_s = -math.inf
        self._quiet_from_s: float | None = None
        self.is_quiet = False

    def cell_began(self) -> None:
        """A cell begins to run."""
        self._in_cell, self._quiet_from_s = True, None

    def cell_ended(self, now: float) -> None:
        """No cell runs any more."""
        self._in_cell, self._quiet_from_s, self._ran_s = False, now, -math.inf

    def beat(self, now: float, *, running: bool, asked_s: float) -> bool:
        """Whether the dashboard is live.

        Args:
            now: ``time.monotonic()``, as all moments here.
            running: Whether an epoch or another stage is open.
            asked_s: When a batch was last asked for and came; -inf before the first.
        """
        if self._quiet_from_s is not None and asked_s > self._quiet_from_s:
            self._quiet_from_s = None  # its loop goes on in a thread
        self.is_quiet = running and self._quiet_from_s is not None and now - self._quiet_from_s >= _QUIET_S
        if self.is_quiet:
            running, self._ran_s = False, -math.inf
        self._fresh = self._fresh and asked_s < self._born_s
        if not running:
            self._began_s = None
            self._live = self._stays(now)
            return self._live
        self._began_s = now if self._began_s is None else self._began_s
        self._live = self._live or now - self._began_s >= _WAKES_AFTER_S
        self._fresh, self._ran_s = False, now
        return self._live

    def _stays(self, now: float) -> bool:
        if self._fresh:
            return now - self._born_s < _FRESH_S
        return self._live and (self._in_cell or now - self._ran_s < _LINGERS_S)
