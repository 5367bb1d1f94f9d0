"""``Dashboard``: what ``loader.dashboard()`` returns."""

from __future__ import annotations

import importlib.util
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gnnkit.errors import PlanError
from gnnkit.ui.dashboard.facts import Snapshot
from gnnkit.ui.dashboard.observer import Observer
from gnnkit.ui.dashboard.page import to_block
from gnnkit.ui.dashboard.places import Display, HtmlPlace, WidgetPlace, to_bundle
from gnnkit.ui.dashboard.watch import DashboardWatch
from gnnkit.ui.dashboard.widgets import Actions
from gnnkit.ui.kernel import CellPort, renders_live, renders_widgets, running_shell, takes_clicks
from gnnkit.ui.options import get_options, resolve_progress

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline

_LEAST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.1, 60.0
# HTML is laid out anew with each drawing, and where nobody watches only what stays matters.
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
        is_number = isinstance(interval_s, (int, float)) and not isinstance(interval_s, bool)
        if not is_number or not _LEAST_INTERVAL_S <= interval_s <= _LONGEST_INTERVAL_S:
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


def _place(shell: Any, interval_s: float, actions: Actions) -> Display:
    """The best that the front end is known to show; the words for progress choose it too."""
    port = CellPort(shell)
    if not renders_live(shell):
        return HtmlPlace(port, max(interval_s, _UNWATCHED_EVERY_S))
    wanted = resolve_progress("auto").renderer
    fits = renders_widgets(shell) if wanted is None else wanted == "widget" and importlib.util.find_spec("ipywidgets") is not None
    if fits and get_options().display != "text":
        return WidgetPlace(port, interval_s, actions)
    return HtmlPlace(port, max(interval_s, _HTML_EVERY_S))


def _hear_of_cells(shell: Any, watch: DashboardWatch) -> None:
    """Tells a watch when cells begin and end, until it has ended."""

    def began(*_: object) -> None:
        watch.cell_began()

    def ended(*_: object) -> None:
        watch.cell_ended()
        if watch.has_ended:
            stop()

    def stop() -> None:
        for name, call in heard.items():
            if call in shell.events.callbacks[name]:
                shell.events.unregister(name, call)

    heard: dict[str, Callable[..., None]] = {"pre_run_cell": began, "post_run_cell": ended}
    for name, call in heard.items():
        shell.events.register(name, call)
