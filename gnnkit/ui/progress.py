"""Chooses how progress is drawn, and makes the sink that draws it."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import partial
from typing import IO, Any

from gnnkit.events import Event
from gnnkit.ui.kernel import CellPort, renders_live, renders_widgets, running_shell
from gnnkit.ui.options import RendererName, resolve_progress
from gnnkit.ui.plain import PlainRenderer, is_terminal, write_now
from gnnkit.ui.progress_reporter import ProgressReporter, Renderer


class SilentSink:
    """An ``EventSink`` that draws nothing, for ``progress=False``."""

    def __call__(self, event: Event) -> None:
        """Ignores the event."""

    def close(self) -> None:
        """Does nothing."""

    def __enter__(self) -> SilentSink:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None


def make_sink(progress: bool | str = "auto", *, stream: IO[str] | None = None) -> ProgressReporter | SilentSink:
    """Makes an ``EventSink`` that draws where it is called: in the notebook cell, on the terminal, or into a log.

    Args:
        progress: True or "auto" draws all stages but "epoch"; "epoch" draws that one too; False or "off" draws nothing;
            "widget", "html", "text" (bars) and "plain" (lines) choose how. ``gnnkit.set_options(progress=...)`` and the
            environment variable ``GNNKIT_PROGRESS`` take the same words: "off" in any of the three is off, and the
            environment's renderer comes first.
        stream: Draw there, as bars if it is a terminal; None is the notebook, or ``sys.stderr`` outside of one.

    Raises:
        PlanError: A value is none of these words.
    """
    choice = resolve_progress(progress)
    shell = running_shell() if stream is None else None
    target = stream if stream is not None else sys.stderr
    # A process without a console (pythonw, some services) has no stderr at all.
    if not choice.enabled or (shell is None and target is None):
        return SilentSink()
    renderer = _notebook_renderer(shell, choice.renderer) if shell is not None else _stream_renderer(target, choice.renderer)
    return ProgressReporter(renderer, epochs=choice.epochs)


def _notebook_renderer(shell: Any, wanted: RendererName | None) -> Renderer:
    from gnnkit.ui.notebook import HtmlRenderer, WidgetRenderer

    port = CellPort(shell)
    if wanted is None:
        wanted = "plain" if not renders_live(shell) else "widget" if renders_widgets(shell) else "html"
    if wanted == "widget" and importlib.util.find_spec("ipywidgets") is not None:
        return WidgetRenderer(port)
    # A notebook has no cursor to move: bars of text become HTML.
    return PlainRenderer(port.write, place=port.settle) if wanted == "plain" else HtmlRenderer(port)


def _stream_renderer(stream: IO[str], wanted: RendererName | None) -> Renderer:
    terminal = is_terminal(stream)
    # A terminal that cannot move its cursor gets lines, whatever was wished for.
    capable = not terminal or os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
    if capable and wanted != "plain" and (terminal or wanted == "text"):
        from gnnkit.ui.terminal import TerminalRenderer

        return TerminalRenderer(stream)

    return PlainRenderer(partial(write_now, stream), encoding=getattr(stream, "encoding", None) or "utf-8")
