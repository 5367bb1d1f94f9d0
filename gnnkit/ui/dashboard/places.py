"""The places where a dashboard is drawn: in an output of a notebook, as HTML and text, or as widgets while it is live."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from gnnkit.ui.dashboard.facts import Snapshot
from gnnkit.ui.dashboard.page import page, to_block
from gnnkit.ui.dashboard.widgets import Actions, Panel
from gnnkit.ui.kernel import WIDGET_MIME, CellPort
from gnnkit.ui.options import get_options

_NO_BUTTONS = "Without widgets there are no buttons: loader.pause(), unpause(), restart_workers() and close() may be called from a thread."


class Display(Protocol):
    """Draws snapshots. Calls never overlap; they come from any thread.

    Attributes:
        interval_s: Least time between two drawings.
    """

    interval_s: float

    def draw(self, snapshot: Snapshot, *, live: bool) -> None:
        """Draws a snapshot; a still picture if it is not ``live``."""
        ...

    def close(self) -> None:
        """Releases what was taken; what was drawn last stays."""
        ...


class HtmlPlace:
    """One display of HTML and text, replaced as a whole.

    Args:
        port: The way to the front end.
        interval_s: See ``Place``: each drawing has the front end lay out the cell again.
    """

    def __init__(self, port: CellPort, interval_s: float) -> None:
        self._port, self.interval_s = port, interval_s
        self._display_id = uuid.uuid4().hex
        self._is_shown = False
        self._still: tuple[Snapshot, str] | None = None

    def draw(self, snapshot: Snapshot, *, live: bool) -> None:
        """Replaces what is shown; a still picture by another one only if something has happened."""
        if live:
            self._still = None
            self._show(to_bundle(snapshot, _NO_BUTTONS))
        else:
            self._draw_still(snapshot)

    def close(self) -> None:
        """Nothing to release: the display holds plain HTML."""

    def _draw_still(self, snapshot: Snapshot, note: str = "") -> None:
        lasting = snapshot.lasting(), note
        if lasting != self._still:
            self._still = lasting
            self._show(to_bundle(snapshot, note))

    def _show(self, bundle: dict[str, Any]) -> None:
        self._port.display(bundle, self._display_id, update=self._is_shown)
        self._is_shown = True


class WidgetPlace(HtmlPlace):
    """Widgets while the dashboard is live, plain HTML when it is not: that is what a saved notebook can show.

    Beside the widgets goes the same as HTML and text, for front ends that do not know widgets and for readers of the file. It is
    renewed at growing intervals, because it costs the front end another view of the widgets.

    Args:
        port: The way to the front end.
        interval_s: See ``Place``.
        actions: What the buttons do.
        clock: Seconds; decides when the HTML beside the widgets is renewed.
    """

    first_renewal_s = 30.0

    def __init__(self, port: CellPort, interval_s: float, actions: Actions, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(port, interval_s)
        self._actions, self._clock = actions, clock
        self._panel: Panel | None = None
        self._is_live = False
        self._renewed_s, self._renew_after_s = 0.0, self.first_renewal_s

    def draw(self, snapshot: Snapshot, *, live: bool) -> None:
        """Changes the widgets in place, or replaces them by a still picture."""
        self._port.apart(lambda: self._draw(snapshot, live=live))

    def close(self) -> None:
        """Takes the widgets from the front end."""
        panel, self._panel = self._panel, None
        if panel is not None:
            self._port.apart(panel.close)

    def _draw(self, snapshot: Snapshot, *, live: bool) -> None:
        if not live:
            self._is_live = False
            self._draw_still(snapshot, self._actions.late)
            return
        self._still = None
        if self._panel is None:
            self._panel = Panel(self._actions)
        self._panel.update(snapshot)
        now = self._clock()
        if not self._is_live:
            self._is_live, self._renew_after_s = True, self.first_renewal_s
        elif now - self._renewed_s < self._renew_after_s:
            return
        else:
            self._renew_after_s *= 2
        self._renewed_s = now
        view = {"version_major": 2, "version_minor": 0, "model_id": self._panel.model_id}
        self._show({WIDGET_MIME: view} | to_bundle(snapshot))


def to_bundle(snapshot: Snapshot, note: str = "") -> dict[str, Any]:
    """A snapshot as HTML and text; as text only under ``set_options(display="text")``.

    Args:
        snapshot: What to show.
        note: See ``page``.
    """
    bundle = {"text/plain": to_block(snapshot)}
    if get_options().display != "text":
        bundle["text/html"] = page(snapshot, note)
    return bundle
