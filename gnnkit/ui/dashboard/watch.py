"""The thread that looks at a loader and has a dashboard drawn, for as long as there is something to see."""

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

from gnnkit.ui.dashboard.liveness import Liveness
from gnnkit.ui.dashboard.observer import Observer
from gnnkit.ui.dashboard.places import Place

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

# A still picture is looked at this seldom.
_STILL_EVERY_S = 1.0
# Looking and drawing may take this share of one processor: where they take long, they come less often.
_SHARE = 0.004
_COSTS = 7
_LONGEST_S = 5.0


class Watch:
    """Draws a loader until it is closed or collected, the drawing fails, or ``end`` is called.

    Holds neither the loader nor whoever shows it.

    Args:
        loader: The loader.
        observer: Makes its snapshots.
        place: Where they are drawn.
        interval_s: Least seconds between two looks while it is live.
    """

    def __init__(self, loader: Pipeline, observer: Observer, place: Place, interval_s: float) -> None:
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
        """What a call returns; None if it fails, which is said in the dashboard if that can still be drawn."""
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
