"""The way to the notebook front end: puts output into the cell it belongs to, from whatever thread it comes."""

from __future__ import annotations

import contextvars
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any


def widget_view(widget: Any) -> dict[str, Any]:
    """The MIME bundle by which a front end shows a widget."""
    return {"application/vnd.jupyter.widget-view+json": {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}


def close_widget(widget: Any) -> None:
    """Takes a widget from the front end, with everything that it is made of."""
    for child in getattr(widget, "children", ()):
        close_widget(child)
    for part in (widget, getattr(widget, "layout", None), getattr(widget, "style", None)):
        if part is not None:
            part.close()


def running_shell() -> Any | None:
    """The IPython shell of the Jupyter kernel that runs this process, or None outside of one."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return None
    shell = ipython.get_ipython()
    return shell if shell is not None and getattr(shell, "kernel", None) is not None else None


def renders_live(shell: Any) -> bool:
    """Whether a front end watches.

    Front ends let a cell ask for input; what runs notebooks in batches (nbclient, and with it papermill and
    ``nbconvert --execute``) never does, and says so in each request.
    """
    parent = _parent_of(shell)
    content = parent.get("content") if isinstance(parent, Mapping) else None
    return bool(content.get("allow_stdin", True)) if isinstance(content, Mapping) else True


def renders_widgets(shell: Any) -> bool:
    """Whether widgets can be expected to show up.

    That takes ipywidgets, and a front end other than VS Code, which must first fetch their code from a network that may be
    closed.
    """
    in_vscode = "__vsc_ipynb_file__" in getattr(shell, "user_ns", {}) or "VSCODE_PID" in os.environ or "VSCODE_CWD" in os.environ
    return not in_vscode and importlib.util.find_spec("ipywidgets") is not None


def takes_clicks(shell: Any) -> bool:
    """Whether the kernel can take clicks while a cell runs.

    That takes subshells, which ipykernel has from 7.0 on; the front end must use them too.
    """
    return bool(getattr(shell.kernel, "_supports_kernel_subshells", False))


class CellPort:
    """Output of one sink in a notebook.

    ``settle`` chooses the cell: the one that runs, if the main thread asks; a background thread keeps the one chosen before,
    since by now another cell may be running.

    Args:
        shell: The kernel's IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._cell = self._running_cell()

    def settle(self) -> None:
        """Moves to the cell that runs, if the caller runs in it."""
        if threading.current_thread() is threading.main_thread():
            self._cell = self._running_cell()

    def display(self, data: Mapping[str, Any], display_id: str, *, update: bool) -> None:
        """Publishes a MIME bundle under a display id, or updates it wherever it is shown."""
        (cell, publisher, stdout), transient = self._cell, {"display_id": display_id}
        if threading.current_thread() is threading.main_thread() or not hasattr(publisher, "pub_socket"):
            publisher.publish(data=dict(data), metadata={}, transient=transient, update=update)
            return
        if not update:
            # What was printed before comes before.
            stdout.flush()
        # An update finds its display by id; only a new one needs its cell.
        parent = publisher.parent_header if update else cell
        content = {"data": dict(data), "metadata": {}, "transient": transient}
        message = publisher.session.msg("update_display_data" if update else "display_data", content, parent=parent)
        publisher.session.send(publisher.pub_socket, message, ident=publisher.topic)

    def apart(self, action: Callable[[], None]) -> None:
        """Does something with widgets that no request is said to have caused.

        ipykernel (7.4) has a widget's clicks handled where the last request was that it sent anything for: after a cell has, they would
        wait for the cell that runs, and once the page is gone they would not be handled.
        """
        parent = getattr(self._shell.kernel, "_shell_parent", None)

        def act() -> None:
            if isinstance(parent, contextvars.ContextVar):
                parent.set({})
            action()

        contextvars.copy_context().run(act)

    def write(self, text: str) -> None:
        """Writes to the cell's standard output."""
        cell, _, stdout = self._cell
        stdout.flush()
        if not hasattr(stdout, "pub_thread"):  # captured by the user: an ordinary stream
            stdout.write(text)
            return
        message = stdout.session.msg("stream", {"name": "stdout", "text": text}, parent=cell)
        stdout.session.send(stdout.pub_thread, message, ident=stdout.topic)

    def _running_cell(self) -> tuple[Mapping[str, Any], Any, Any]:
        """The request of a run of a cell, and its outputs: under ``%%capture`` those are not the kernel's own."""
        return _parent_of(self._shell) or {}, self._shell.display_pub, sys.stdout


def _parent_of(shell: Any) -> Any:
    get_parent = getattr(shell, "get_parent", None)
    return get_parent() if callable(get_parent) else None
