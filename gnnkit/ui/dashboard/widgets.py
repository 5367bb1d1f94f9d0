"""A dashboard as ipywidgets: the board, the buttons, and a log per process that folds open."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from gnnkit.ui.dashboard import page
from gnnkit.ui.dashboard.actions import Actions
from gnnkit.ui.dashboard.facts import Snapshot
from gnnkit.ui.format import clean

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
        """What a view of the widgets is asked for by."""
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
