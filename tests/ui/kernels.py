"""A front end in miniature: runs cells in a real kernel and keeps every message that comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 60.0


@dataclass
class Cell:
    """One run of a cell, as a front end shows it: outputs go to the cell that is their parent, updates to their display."""

    msg_id: str
    stdout: str = ""
    stderr: str = ""
    displays: dict[str, dict[str, Any]] = field(default_factory=dict)
    updates: int = 0


class Kernel:
    """A kernel and its only front end."""

    def __init__(self) -> None:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(kernel_name="python3")
        self.cells: list[Cell] = []
        self.messages: list[dict[str, Any]] = []

    def reset(self) -> None:
        """Empties the namespace and forgets what was shown."""
        self.run("%reset -f")
        self.cells.clear()
        self.messages.clear()

    def run(self, source: str, *, watched: bool = True) -> Cell:
        """Runs a cell until the kernel is idle again; an error in it is an assertion's.

        Args:
            source: The cell.
            watched: Whether it may ask the user for input, as all front ends but batch runners allow.
        """
        cell = Cell(self._client.execute(source, allow_stdin=watched))
        self.cells.append(cell)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            message = self._client.get_iopub_msg(timeout=deadline - time.monotonic())
            self._take(message)
            own = message["parent_header"].get("msg_id") == cell.msg_id
            if own and message["msg_type"] == "error":
                raise AssertionError("\n".join(message["content"]["traceback"]))
            if own and message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return cell

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Takes messages that come between cells, until the condition holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self._take(self._client.get_iopub_msg(timeout=deadline - time.monotonic()))

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """Every message of one type so far."""
        return [message for message in self.messages if message["msg_type"] == kind]

    def stop(self) -> None:
        """Ends the kernel and closes every socket to it."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        self._client.context.term()

    def _take(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        kind, content = message["msg_type"], message["content"]
        parent = message["parent_header"].get("msg_id")
        cell = next((cell for cell in self.cells if cell.msg_id == parent), None)
        if kind == "stream" and cell is not None:
            setattr(cell, content["name"], getattr(cell, content["name"]) + content["text"])
        if kind == "display_data" and cell is not None:
            cell.displays[content["transient"].get("display_id", message["header"]["msg_id"])] = content["data"]
        if kind == "update_display_data":
            for shown in self.cells:
                if content["transient"]["display_id"] in shown.displays:
                    shown.displays[content["transient"]["display_id"]] = content["data"]
                    shown.updates += 1
