"""The thread that looks at a loader and has a dashboard drawn, and when a dashboard is live."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from gnnkit.ui.dashboard.observer import Observer
from gnnkit.ui.dashboard.places import Display

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline

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


logger = logging.getLogger(__name__)
_T = TypeVar("_T")

# A still picture is looked at this seldom.
_STILL_EVERY_S = 1.0
# Looking and drawing may take this share of one processor: where they take long, they come less often.
_SHARE = 0.004
_COSTS = 7
_LONGEST_S = 5.0


class DashboardWatch:
    """Draws a loader until it is closed or collected, the drawing fails, or ``end`` is called.

    Holds neither the loader nor whoever shows it.

    Args:
        loader: The loader.
        observer: Makes its snapshots.
        place: Where they are drawn.
        interval_s: Least seconds between two looks while it is live.
    """

    def __init__(self, loader: Pipeline, observer: Observer, place: Display, interval_s: float) -> None:
        # A queue, because the garbage collector calls back on threads that may hold an event's lock.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        bell = self._bell
        self._loader = weakref.ref(loader, lambda _: bell.put(None))
        self.observer, self._place = observer, place
        self._interval_s = max(interval_s, place.interval_s)
        self._pulse = Liveness(time.monotonic())
        # Reentrant: a look may drop the last reference to the loader, whose end is seen from the same thread.
        self._lock = threading.RLock()
        self._ended = False
        self._costs: deque[float] = deque(maxlen=_COSTS)
        self._owner_pid = os.getpid()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be drawn."""
        return self._ended

    def start(self) -> None:
        """Draws for the first time, and goes on on a thread."""
        self.look()
        if not self._ended:
            threading.Thread(target=self._run, name="gnnkit-dashboard", daemon=True).start()

    def wake(self) -> None:
        """Has it look now."""
        self._bell.put(None)

    def cell_began(self) -> None:
        """Tells that a cell begins to run."""
        with self._lock:
            self._pulse.cell_began()

    def cell_ended(self) -> None:
        """Tells that a cell has run: what it came to is drawn before the front end takes the cell for done."""
        if os.getpid() == self._owner_pid:
            with self._lock:
                self._pulse.cell_ended(time.monotonic())
            self.look()

    def end(self) -> None:
        """Leaves a still picture and ends."""
        with self._lock:
            if not self._ended:
                self._guard(lambda: self._place.draw(self.observer.last, live=False))
                self._finish()

    def look(self) -> float:
        """Looks and draws; returns seconds until it is due again."""
        with self._lock:
            if self._ended:
                return math.inf
            began = time.thread_time()
            live = self._guard(self._draw)
            if not self.observer.last.live:
                self._finish()
                return math.inf
            self._costs.append(time.thread_time() - began)
            # Of several: the first looks import and compile, which says nothing of the next ones.
            return max(self._interval_s if live else max(self._interval_s, _STILL_EVERY_S), min(median(self._costs) / _SHARE, _LONGEST_S))

    def _draw(self) -> bool:
        """One look and its drawing; whether it is live."""
        loader = self._loader()
        observer = self.observer
        snapshot = observer.closed() if loader is None else observer.look(loader, still=self._pulse.is_quiet)
        del loader
        running = any(stage.state == "running" for stage in snapshot.stages)
        live = self._pulse.beat(time.monotonic(), running=running, asked_s=observer.asked_s) and snapshot.live
        self._place.draw(snapshot, live=live)
        return live

    def _finish(self) -> None:
        self._ended = True
        self._guard(self._place.close)
        self.wake()

    def _guard(self, call: Callable[[], _T]) -> _T | None:
        """Returns a call's result; None if it fails, which the dashboard then shows if it can still be drawn."""
        try:
            return call()
        except Exception as error:  # whatever a front end or a loader that is being closed raises: no dashboard is worth a run
            logger.debug("a dashboard is no longer drawn", exc_info=True)
            with contextlib.suppress(Exception):
                self._place.draw(self.observer.failed(error), live=False)
            return None

    def _run(self) -> None:
        wait = self._interval_s
        while not self._ended:
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=wait)
                while True:  # however often it was rung meanwhile
                    self._bell.get_nowait()
            wait = self.look()
