"""What is watched of a kernel from outside while cells are interrupted, restarted and killed: its processes, sockets and files."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.helpers.kernels import compiled_kernels
from tests.helpers.leaks import SHARED_MEMORY, descendants
from tests.helpers.machine import in_time
from tests.helpers.waiting import wait_until
from tests.ui.kernels import Cell, Kernel

# It is a fifth of it on an idle machine.
PROMPT_S = 2.0
# How long what a kernel leaves may take to be gone.
GONE_S = 5.0


def cache_without(folder: Path, module: str) -> Path:
    """A user's cache folder with all compiled kernels but those of a module, which the first run compiles."""
    (folder / "gnnkit" / "kernels").mkdir(parents=True)
    for compiled in compiled_kernels().iterdir():
        if compiled.is_dir() and not any(compiled.glob(f"{module}.*")):
            (folder / "gnnkit" / "kernels" / compiled.name).symlink_to(compiled.resolve())
    return folder


class Workplace:
    """A kernel, its home and what it holds.

    Args:
        kernel: The kernel.
        home: Its ``GNNKIT_HOME``.
    """

    def __init__(self, kernel: Kernel, home: Path) -> None:
        self.kernel, self.home = kernel, home
        self._ports = self.ports()

    def children(self) -> list[psutil.Process]:
        """The processes that the kernel has started, and theirs."""
        return descendants(self.kernel.pid)

    def started(self) -> list[psutil.Process]:
        """Those that run gnnkit already; before, they are what the kernel waits for, which must not be held up."""
        return [child for child in self.children() if "gnnkit." in " ".join(child.cmdline())]

    def ports(self) -> set[int]:
        """Ports that the kernel or a process of its listens on."""
        family = [psutil.Process(self.kernel.pid), *self.children()]
        found = (connection for process in family for connection in process.net_connections("inet"))
        return {connection.laddr.port for connection in found if connection.status == psutil.CONN_LISTEN}

    def left(self) -> list[str]:
        """What is there of earlier runs: processes, ports, shared memory, folders of runs; stores under way."""
        files = [path.name for name in ("runs", "temporary") for path in (self.home / name).glob("*")]
        memory = [name for name in os.listdir(SHARED_MEMORY) if "gnnkit" in name.lower()] if SHARED_MEMORY.is_dir() else []
        unfinished = [str(path) for path in (self.home / "stores").glob("*.incomplete")]
        return [*map(str, self.children()), *map(str, self.ports() - self._ports), *memory, *files, *unfinished]

    def check_is_clean(self) -> None:
        """Nothing may be left once the notebook's names are gone."""
        self.kernel.run("%reset -f\nimport gc; _ = gc.collect()")
        assert wait_until(lambda: not self.left(), GONE_S), self.left()


def stop_at(kernel: Kernel, source: str, event: str) -> str:
    """Runs a cell and stops it once it tells of an event, "download progress" for example; what it shows in the end."""
    cell = kernel.begin(source)
    kernel.wait_for(lambda: f"{event}\n" in cell.stdout)
    return stop(kernel, cell)


def stop(kernel: Kernel, cell: Cell) -> str:
    """Presses the stop button; what the cell shows then. The prompt must be back at once."""
    started = time.monotonic()
    kernel.interrupt()
    kernel.finish(cell, may_fail=True)
    took = time.monotonic() - started
    assert cell.error is not None and cell.error["ename"] == "KeyboardInterrupt", (cell.error, cell.stdout)
    assert in_time(took, PROMPT_S), f"the prompt was back after {took:.1f} s"
    return cell.traceback


def check_is_short(shown: str, what: str) -> None:
    """An interrupt of gnnkit's own work is a few lines: what was stopped, where in the cell, and what to do."""
    lines = shown.splitlines()
    assert lines[0].startswith(f"KeyboardInterrupt: stopped in {what}"), shown
    assert len(lines) <= 4 and lines[1].startswith("  -> ") and lines[2].startswith("  at In[") and "line" in lines[2], shown


@contextmanager
def standing_still(processes: list[psutil.Process]) -> Iterator[None]:
    """Processes that do nothing meanwhile."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            if process.is_running():
                process.send_signal(signal.SIGCONT)
