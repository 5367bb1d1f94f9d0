"""``Dashboard``, which ``loader.dashboard()`` returns; the thread that looks at a loader and draws, and when a dashboard is live."""

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
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from gnnkit.bounds import is_real
from gnnkit.errors import PlanError
from gnnkit.ui.dashboard.observer import Observer, Snapshot
from gnnkit.ui.dashboard.places import Actions, HtmlPlace, WidgetPlace, to_block, to_bundle
from gnnkit.ui.kernel import CellPort, renders_live, renders_widgets, running_shell, takes_clicks
from gnnkit.ui.options import get_options

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline


# A dashboard that nothing has happened to yet keeps its buttons this long.
_FRESH_S = 30.0
# An epoch makes a still picture live again once it has run this long: shorter ones are over before a user could press a button.
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
            if self._fresh:
                self._live = now - self._born_s < _FRESH_S
            else:
                self._live = self._live and (self._in_cell or now - self._ran_s < _LINGERS_S)
            return self._live
        self._began_s = now if self._began_s is None else self._began_s
        self._live = self._live or now - self._began_s >= _WAKES_AFTER_S
        self._fresh, self._ran_s = False, now
        return self._live


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

    Holds neither the loader nor the dashboard that shows it.

    Args:
        loader: The loader.
        observer: Makes its snapshots.
        place: Where they are drawn.
        interval_s: Least seconds between two looks while it is live.

    Attributes:
        observer: See above.
        has_ended: Whether nothing more will be drawn.
    """

    def __init__(self, loader: Pipeline, observer: Observer, place: HtmlPlace, interval_s: float) -> None:
        # A queue, because the garbage collector calls back on threads that may hold an event's lock.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        bell = self._bell
        self._loader = weakref.ref(loader, lambda _: bell.put(None))
        self.observer, self._place = observer, place
        self._interval_s = max(interval_s, place.interval_s)
        self._liveness = Liveness(time.monotonic())
        # Reentrant: a look may drop the last reference to the loader, whose end is seen from the same thread.
        self._lock = threading.RLock()
        self.has_ended = False
        self._costs: deque[float] = deque(maxlen=_COSTS)
        self._owner_pid = os.getpid()

    def start(self) -> None:
        """Draws for the first time, and goes on on a thread."""
        self.look()
        if not self.has_ended:
            threading.Thread(target=self._run, name="gnnkit-dashboard", daemon=True).start()

    def wake(self) -> None:
        """Has it look now."""
        self._bell.put(None)

    def cell_began(self) -> None:
        """Tells that a cell begins to run."""
        with self._lock:
            self._liveness.cell_began()

    def cell_ended(self) -> None:
        """Tells that a cell has run: what it came to is drawn before the front end takes the cell for done."""
        if os.getpid() == self._owner_pid:
            with self._lock:
                self._liveness.cell_ended(time.monotonic())
            self.look()

    def end(self) -> None:
        """Leaves a still picture and ends."""
        with self._lock:
            if not self.has_ended:
                self._guard(lambda: self._place.draw(self.observer.last, live=False))
                self._finish()

    def look(self) -> float:
        """Looks and draws; returns seconds until it is due again."""
        with self._lock:
            if self.has_ended:
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
        snapshot = observer.closed() if loader is None else observer.look(loader, still=self._liveness.is_quiet)
        del loader
        running = any(stage.state == "running" for stage in snapshot.stages)
        live = self._liveness.beat(time.monotonic(), running=running, asked_s=observer.asked_s) and snapshot.live
        self._place.draw(snapshot, live=live)
        return live

    def _finish(self) -> None:
        self.has_ended = True
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
        while not self.has_ended:
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=wait)
                while True:  # however often it was rung meanwhile
                    self._bell.get_nowait()
            wait = self.look()


_LEAST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.1, 60.0
# HTML is laid out anew with each drawing, and without a viewer only what stays matters.
_HTML_EVERY_S, _UNWATCHED_EVERY_S = 1.0, 5.0
# The dashboard of each loader that is being drawn.
_shown: weakref.WeakKeyDictionary[Pipeline, DashboardWatch] = weakref.WeakKeyDictionary()


class Dashboard:
    """A display of a loader's work: live in a notebook, a picture of the moment everywhere else.

    Shown in a notebook it follows the loader until that is closed or collected, and ends with its final state. While something runs it
    is made of ipywidgets, with buttons that pause the loader, restart its workers and close it; while nothing does, of plain HTML,
    which a saved notebook keeps. Without ipywidgets it is HTML that is replaced. A loader has one live dashboard: the one that was
    shown last; those before stay as they are. Elsewhere ``print(dashboard)`` writes the moment as text.

    Args:
        loader: The loader; it is not kept alive.
        interval_s: Seconds between two looks.

    Raises:
        PlanError: ``interval_s`` is no number of seconds between 0.1 and 60.
    """

    def __init__(self, loader: Pipeline, interval_s: float = 0.5) -> None:
        if not is_real(interval_s) or not _LEAST_INTERVAL_S <= interval_s <= _LONGEST_INTERVAL_S:
            raise PlanError(f"interval_s must be between {_LEAST_INTERVAL_S:g} and {_LONGEST_INTERVAL_S:g} seconds, got {interval_s!r}")
        self._loader, self._interval_s = weakref.ref(loader), float(interval_s)
        self._title = loader.graph.name
        # What is shown has an observer of its own, which belongs to its thread.
        self._observer, self._lock = Observer(self._title), threading.Lock()
        self._watch: DashboardWatch | None = None

    @property
    def is_live(self) -> bool:
        """Whether it is shown in a notebook and follows its loader."""
        return self._watch is not None and not self._watch.has_ended

    def snapshot(self) -> Snapshot:
        """Returns the facts to show now."""
        loader = self._loader()
        with self._lock:
            return self._observer.closed() if loader is None else self._observer.look(loader)

    def close(self) -> None:
        """Leaves a still picture and follows the loader no more; the loader goes on. Closing twice is fine."""
        if self._watch is not None:
            self._watch.end()

    def __repr__(self) -> str:
        return to_block(self.snapshot())

    def _repr_mimebundle_(self, include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> dict[str, Any]:
        return to_bundle(self.snapshot())

    def _ipython_display_(self) -> None:
        loader, shell = self._loader(), running_shell()
        if shell is None:
            print(self)  # noqa: T201
        elif loader is None:
            shell.display_pub.publish(data=to_bundle(self.snapshot()), metadata={})
        else:
            self._follow(loader, shell)

    def _follow(self, loader: Pipeline, shell: Any) -> None:
        """Shows it in the cell that runs, and has it drawn from now on."""
        before = _shown.pop(loader, None)
        if before is not None:
            before.end()
        actions = Actions(self._loader, at_once=takes_clicks(shell))
        # What is known goes on: of a loader that is closed, nothing else says what it did.
        observer = Observer(self._title) if before is None else before.observer
        watch = DashboardWatch(loader, observer, _place(shell, self._interval_s, actions), self._interval_s)
        actions.changed = watch.wake
        self._watch = _shown[loader] = watch
        _hear_of_cells(shell, watch)
        watch.start()


def _place(shell: Any, interval_s: float, actions: Actions) -> HtmlPlace:
    """The best that the front end is known to show."""
    port = CellPort(shell)
    if not renders_live(shell):
        return HtmlPlace(port, max(interval_s, _UNWATCHED_EVERY_S))
    if renders_widgets(shell) and get_options().display != "text":
        return WidgetPlace(port, interval_s, actions)
    return HtmlPlace(port, max(interval_s, _HTML_EVERY_S))


def _hear_of_cells(shell: Any, watch: DashboardWatch) -> None:
    """Tells a watch when cells begin and end, until it has ended."""

    def ended(*_: object) -> None:
        watch.cell_ended()
        if watch.has_ended:
            for name, call in heard.items():
                if call in shell.events.callbacks[name]:
                    shell.events.unregister(name, call)

    heard: dict[str, Callable[..., None]] = {"pre_run_cell": lambda *_: watch.cell_began(), "post_run_cell": ended}
    for name, call in heard.items():
        shell.events.register(name, call)
