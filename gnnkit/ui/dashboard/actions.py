"""What the buttons of a dashboard do, and what is said about it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

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
        """What to say beside the buttons."""
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
