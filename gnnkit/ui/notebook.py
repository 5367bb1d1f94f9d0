"""Progress in a notebook: one small block of HTML per cell, which shrinks to a line when everything is done."""

from __future__ import annotations

import time
import uuid
from collections import deque
from typing import Any

from gnnkit.printable import clean
from gnnkit.ui.cards import render
from gnnkit.ui.kernel import WIDGET_MIME, CellPort
from gnnkit.ui.progress import Frame, ProgressLine, bar_details, name_of, outcome, percent_of, sentence

# What a cell keeps: enough to read, little enough to be saved in the notebook.
_MAX_DONE = 8
_MAX_LINES = 8


class HtmlRenderer:
    """Draws by replacing the HTML of one display.

    Args:
        port: The way to the front end.
    """

    interval_s = 0.25

    def __init__(self, port: CellPort) -> None:
        self._port = port
        self._running = False
        self._new_block()

    def settle(self) -> None:
        """Follows the main thread into the cell that runs."""
        self._port.settle()

    def draw(self, frame: Frame) -> None:
        """Draws everything that this cell has shown so far, as small as it goes."""
        if self._port.cell_id != self._cell and not self._running:
            self._leave()
            self._new_block()
        for line in frame.lines:
            self._keep(line)
        self._running = bool(frame.bars)
        self._show(self._html(frame), self._text(frame), final=not frame.bars)
        self._shown = True

    def close(self) -> None:
        """Leaves the last state as it is."""
        self._leave()

    def _new_block(self) -> None:
        self._cell = self._port.cell_id
        self._display_id = uuid.uuid4().hex
        self._shown = False
        self._done: deque[ProgressLine] = deque(maxlen=_MAX_DONE)
        self._lines: deque[ProgressLine] = deque(maxlen=_MAX_LINES)
        self._forgotten = 0

    def _keep(self, line: ProgressLine) -> None:
        # Stages that went well share one line; an epoch, a failure and a message each get their own.
        kept = self._done if line.kind == "done" and line.stage != "epoch" else self._lines
        self._forgotten += len(kept) == kept.maxlen
        kept.append(line)

    def _html(self, frame: Frame) -> str:
        return render(
            "progress.html.j2",
            done=[(name_of(line), outcome(line)) for line in self._done],
            lines=[
                {
                    "kind": line.kind,
                    "name": name_of(line),
                    "text": outcome(line),
                    "percent": None if line.bar is None else percent_of(line.bar),
                }
                for line in self._lines
            ],
            bars=[
                {"stage": clean(bar.stage, 40), "label": clean(bar.label, 80), "details": bar_details(bar), "percent": percent_of(bar)}
                for bar in frame.bars
            ],
            hidden=frame.hidden,
            forgotten=self._forgotten,
        )

    def _text(self, frame: Frame) -> str:
        lines = [sentence(line) for line in (*self._done, *self._lines)]
        return "\n".join([*lines, *(f"{name_of(bar)}: {', '.join(bar_details(bar))}" for bar in frame.bars)])

    def _show(self, html: str, text: str, *, final: bool) -> None:
        self._port.display({"text/html": html, "text/plain": text}, self._display_id, update=self._shown)

    def _leave(self) -> None:
        """Nothing to release: the display holds plain HTML."""


class WidgetRenderer(HtmlRenderer):
    """Draws into a widget while something runs, and leaves plain HTML.

    A widget changes in place, without the front end laying out the cell again and without a trace in the saved notebook.
    Beside it goes the same block as HTML and text, for front ends that do not know widgets; it is renewed now and then, and
    at the end.

    Args:
        port: The way to the front end.
    """

    interval_s = 0.125
    # Renewing lays out the cell again, which is the very thing widgets avoid.
    renew_every_s = 10.0

    def __init__(self, port: CellPort) -> None:
        self._widget: Any = None
        self._renewed_at = 0.0
        super().__init__(port)

    def _show(self, html: str, text: str, *, final: bool) -> None:
        if final:
            super()._show(html, text, final=True)
            self._leave()
            return
        is_new = self._widget is None
        if is_new:
            from ipywidgets import HTML

            self._widget = HTML(value=html)
        else:
            self._widget.value = html
        now = time.monotonic()
        if is_new or now - self._renewed_at >= self.renew_every_s:
            self._renewed_at = now
            view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
            self._port.display({WIDGET_MIME: view, "text/html": html, "text/plain": text}, self._display_id, update=self._shown)

    def _leave(self) -> None:
        widget, self._widget = self._widget, None
        if widget is not None:
            for part in (widget, widget.layout, widget.style):
                part.close()
