"""A dashboard as ipywidgets, and what its buttons do."""

from __future__ import annotations

import html
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gnnkit.ui.dashboard import page
from gnnkit.ui.dashboard.facts import Snapshot
from gnnkit.ui.format import clean
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
        self._root = VBox([HTML(page.style(live=True)), self._board, buttons, self._logs])
        self._root.add_class("gnnkit-dash")

    @property
    def model_id(self) -> str:
        """The id under which a view asks for the widgets."""
        return str(self._root.model_id)

    def update(self, snapshot: Snapshot) -> None:
        """Shows a snapshot; sends what has changed."""
        self._board.value = page.board(snapshot)
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
        processes = page.logged(snapshot.processes)[:_MAX_LOGS]
        names = tuple(clean(process.name, 40) for process in processes)
        if names != self._log_names:
            self._name_logs(names)
        for process, child in zip(processes, self._logs.children, strict=True):
            child.value = page.log(process)

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
