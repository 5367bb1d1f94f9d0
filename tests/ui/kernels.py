"""A front end in miniature: runs cells in a real kernel and keeps every message that comes back."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traitlets.config import Config

TIMEOUT_S = 120.0


@dataclass
class Cell:
    """One run of a cell, as a front end shows it: outputs go to the cell that is their parent, updates to their display."""

    msg_id: str
    stdout: str = ""
    stderr: str = ""
    displays: dict[str, dict[str, Any]] = field(default_factory=dict)
    updates: int = 0
    error: dict[str, Any] | None = None

    @property
    def traceback(self) -> str:
        """What the front end shows for the cell's error, without colours; "" if it has none."""
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(self.error["traceback"])) if self.error else ""


def on_sockets_of_its_own() -> Config:
    """Has a kernel listen on Unix sockets: a port that is chosen before the kernel takes it may be another test's by then."""
    folder = Path(tempfile.mkdtemp(prefix="k"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Config({"KernelManager": {"transport": "ipc", "ip": str(folder / "socket")}})


class Kernel:
    """A kernel and its only front end.

    Args:
        environment: Variables that the kernel has beside this process's.
    """

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        from jupyter_client.manager import KernelManager

        self._manager = KernelManager(kernel_name="python3", config=on_sockets_of_its_own())
        self._manager.start_kernel(env={**os.environ, **(environment or {})})
        self._client = self._manager.client()
        try:
            self._client.start_channels()
            self._client.wait_for_ready(timeout=TIMEOUT_S)
        except BaseException:
            self.stop()
            raise
        self.cells: list[Cell] = []
        self.messages: list[dict[str, Any]] = []

    def reset(self) -> None:
        """Empties the namespace and forgets what was shown."""
        self.run("%reset -f")
        self.cells.clear()
        self.messages.clear()

    def run(self, source: str, *, watched: bool = True, may_fail: bool = False) -> Cell:
        """Runs a cell until the kernel is idle again; an error in it is an assertion's.

        Args:
            source: The cell.
            watched: Whether it may ask the user for input, as all front ends but batch runners allow.
            may_fail: Whether an error is no error of the test's.
        """
        return self.finish(self.begin(source, watched=watched), may_fail=may_fail)

    def begin(self, source: str, *, watched: bool = True) -> Cell:
        """Has a cell run; see ``run``."""
        cell = Cell(self._client.execute(source, allow_stdin=watched))
        self.cells.append(cell)
        return cell

    def finish(self, cell: Cell, *, may_fail: bool = False) -> Cell:
        """Takes messages until the kernel is idle after a cell that was begun."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            message = self._client.get_iopub_msg(timeout=deadline - time.monotonic())
            self._take(message)
            own = message["parent_header"].get("msg_id") == cell.msg_id
            if own and message["msg_type"] == "error" and not may_fail:
                raise AssertionError("\n".join(message["content"]["traceback"]))
            if own and message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return cell

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self._manager.provisioner.process.pid)

    def interrupt(self) -> None:
        """What the stop button does."""
        self._manager.interrupt_kernel()

    def kill(self) -> None:
        """Ends the kernel's process as a crash would, whatever it does."""
        self._manager.signal_kernel(signal.SIGKILL)

    def restart(self, *, now: bool) -> None:
        """What the restart button does: asks the kernel to end, and kills it if it does not, or at once.

        Cells that were running are lost.
        """
        self._manager.restart_kernel(now=now)
        self._client.wait_for_ready(timeout=TIMEOUT_S)
        self._wait_until_heard()
        self.cells.clear()
        self.messages.clear()

    def _wait_until_heard(self) -> None:
        """Asks until what the kernel publishes arrives: the client takes what the old kernel published last for the new one's."""
        deadline = time.monotonic() + TIMEOUT_S
        asked: set[str] = set()
        while time.monotonic() < deadline:
            asked.add(self._client.kernel_info())
            with contextlib.suppress(queue.Empty):
                while self._client.get_iopub_msg(timeout=1)["parent_header"].get("msg_id") not in asked:
                    pass
                return
        raise AssertionError(f"the kernel published nothing for {TIMEOUT_S} s")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Takes messages that come between cells, until the condition holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self._take(self._client.get_iopub_msg(timeout=deadline - time.monotonic()))

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """Every message of one type so far."""
        return [message for message in self.messages if message["msg_type"] == kind]

    def widgets(self) -> dict[str, dict[str, Any]]:
        """The state of each widget as the front end has it now, by its model's id: what was opened, and what was changed since."""
        found: dict[str, dict[str, Any]] = {}
        for message in self.messages:
            content, kind = message["content"], message["msg_type"]
            if kind in ("comm_open", "comm_msg"):
                found.setdefault(content["comm_id"], {}).update(content["data"].get("state", {}))
            elif kind == "comm_close":
                found.pop(content["comm_id"], None)
        return found

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
        if kind == "error" and cell is not None:
            cell.error = content
        if kind == "display_data" and cell is not None:
            cell.displays[content["transient"].get("display_id", message["header"]["msg_id"])] = content["data"]
        if kind == "update_display_data":
            for shown in self.cells:
                if content["transient"]["display_id"] in shown.displays:
                    shown.displays[content["transient"]["display_id"]] = content["data"]
                    shown.updates += 1
