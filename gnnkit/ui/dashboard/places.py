"""The places where a dashboard is drawn: an output of a notebook, as HTML and text, or widgets with buttons while it is live."""

from __future__ import annotations

import html
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from gnnkit.printable import clean
from gnnkit.ui.dashboard.facts import Snapshot
from gnnkit.ui.dashboard.page import board, log, logged, page, style, to_block
from gnnkit.ui.kernel import WIDGET_MIME, CellPort
from gnnkit.ui.options import get_options
from gnnkit.units import format_duration

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline


_BETWEEN_CELLS = "Clicks wait until the running cell has ended; to act now, interrupt it: loader.resume() goes on afterwards."


class Actions:
    """Acts on a loader. May be called from any thread; raises nothing, since a front end would show it in somebody else's cell.

    Args:
        loader: The loader.
        at_once: Whether the kernel takes clicks while a cell runs, as far as one can know beforehand.

    Attributes:
        is_busy: Whether workers are being restarted or the loader is being closed.
        late: What to say of a click that came when its cell had ended, or "".
        changed: Called when ``note`` or ``is_busy`` has changed.
    """

    def __init__(self, loader: weakref.ref[Pipeline], *, at_once: bool) -> None:
        self._loader = loader
        self.changed: Callable[[], None] = lambda: None
        self._said = ""
        self._at_once = at_once
        self.is_busy, self.late = False, ""
        # Guards ``is_busy``: two clicks may come on two threads.
        self._lock = threading.Lock()

    @property
    def note(self) -> str:
        """The text beside the buttons."""
        return " ".join(filter(None, (self._said, "" if self._at_once else _BETWEEN_CELLS)))

    def pause(self) -> None:
        """Pauses the loader, or lets it go on."""
        self._guard(self._toggle)

    def restart(self) -> None:
        """Restarts the workers, beside everything else."""
        self._begin(self._restart, "restarting the workers \N{HORIZONTAL ELLIPSIS}")

    def stop(self) -> None:
        """Closes the loader, beside everything else."""
        self._begin(lambda loader: loader.close(), "stopping \N{HORIZONTAL ELLIPSIS}", "stopped: the loader is closed")

    def _toggle(self, loader: Pipeline) -> str:
        if loader.is_paused:
            loader.unpause()
            return ""
        if _has_waited() and not any(stage.stage == "epoch" and stage.state == "running" for stage in loader.history.stages):
            return "The click came when its epoch was over, and paused nothing."
        loader.pause()
        return "paused: the loop waits for its next batch"

    def _restart(self, loader: Pipeline) -> str:
        began = time.monotonic()
        loader.restart_workers()
        return f"workers restarted in {format_duration(time.monotonic() - began)}"

    def _begin(self, act: Callable[[Pipeline], str | None], during: str, after: str = "") -> None:
        with self._lock:
            if self.is_busy:
                return
            self.is_busy, self._said = True, during
        self._learn()
        self.changed()

        def run() -> None:
            self._guard(lambda loader: act(loader) or after)
            self.is_busy = False
            self.changed()

        # What takes seconds would keep other clicks waiting.
        threading.Thread(target=run, name="gnnkit-dashboard-action", daemon=True).start()

    def _guard(self, act: Callable[[Pipeline], str]) -> None:
        loader = self._loader()
        try:
            self._said = "the loader is gone" if loader is None else act(loader)
        except Exception as error:  # whatever it is, it belongs beside the button that was pressed
            self._said = clean(f"{type(error).__name__}: {error}", 300)
        self._learn()
        self.changed()

    def _learn(self) -> None:
        self._at_once = self._at_once and not _has_waited()
        self.late = self.note if _has_waited() else ""


def _has_waited() -> bool:
    """Whether the click that is handled may have waited for a cell: where there are subshells, the main thread handles none."""
    return threading.current_thread() is threading.main_thread()


_MAX_LOGS = 12


class Panel:
    """The widgets of one dashboard. To be used by one thread at a time.

    Args:
        actions: What its buttons do.
    """

    def __init__(self, actions: Actions) -> None:
        from ipywidgets import HTML, Accordion, HBox, VBox

        self._actions = actions
        self._board, self._note = HTML(), HTML()
        self._note.add_class("gk-note")
        self._pause = _button("Pause", "Holds the next batch back; workers fill their slots meanwhile.", actions.pause)
        self._restart = _button("Restart workers", "Starts those who sample anew; the epoch goes on.", actions.restart)
        self._stop = _button("Stop", "Closes the loader: the loop that runs ends with LoaderClosed.", actions.stop)
        self._stop.add_class("gk-stop")
        buttons = HBox([self._pause, self._restart, self._stop, self._note])
        buttons.add_class("gk-buttons")
        self._logs = Accordion()
        self._log_names: tuple[str, ...] = ()
        self._root = VBox([HTML(style(live=True)), self._board, buttons, self._logs])
        self._root.add_class("gnnkit-dash")

    @property
    def model_id(self) -> str:
        """The id under which a view asks for the widgets."""
        return str(self._root.model_id)

    def update(self, snapshot: Snapshot) -> None:
        """Shows a snapshot; sends what has changed."""
        self._board.value = board(snapshot)
        self._note.value = html.escape(self._actions.note)
        self._pause.description = "Continue" if snapshot.state == "paused" else "Pause"
        for button in (self._pause, self._restart, self._stop):
            button.disabled = self._actions.is_busy or not snapshot.live
        self._update_logs(snapshot)

    def close(self) -> None:
        """Takes the widgets from the front end."""
        for widget in _family(self._root):
            widget.close()

    def _update_logs(self, snapshot: Snapshot) -> None:
        processes = logged(snapshot.processes)[:_MAX_LOGS]
        names = tuple(clean(process.name, 40) for process in processes)
        if names != self._log_names:
            self._name_logs(names)
        for process, child in zip(processes, self._logs.children, strict=True):
            child.value = log(process)

    def _name_logs(self, names: tuple[str, ...]) -> None:
        from ipywidgets import HTML

        gone = [widget for child in self._logs.children[len(names) :] for widget in _family(child)]
        kept = list(self._logs.children[: len(names)])
        self._logs.children = [*kept, *(HTML() for _ in names[len(kept) :])]
        self._logs.titles = tuple(f"log of {name}" for name in names)
        self._log_names = names
        for widget in gone:
            widget.close()


def _button(description: str, tooltip: str, act: Callable[[], None]) -> Any:
    from ipywidgets import Button

    button = Button(description=description, tooltip=tooltip)
    button.on_click(lambda _: act())
    return button


def _family(widget: Any) -> list[Any]:
    """A widget with everything that it is made of."""
    parts = [part for name in ("layout", "style") if (part := getattr(widget, name, None)) is not None]
    return [*(one for child in getattr(widget, "children", ()) for one in _family(child)), widget, *parts]


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
