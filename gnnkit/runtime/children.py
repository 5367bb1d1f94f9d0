"""Starting one background process, and ending it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from gnnkit.errors import PlanError
from gnnkit.runtime.process_status import process_state
from gnnkit.runtime.wire import Wire

# Libraries in the child count threads by these; a sampling thread is one thread, and there are as many as the user said.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# What would make an interpreter do something else than sample.
_DROPPED_VARIABLES = ("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONPROFILEIMPORTTIME")
# What a child needs of these it is told over its wire.
_SECRETS = ("GNNKIT_TOKEN", "GNNKIT_TOKEN_FILE")


def child_environment(threads: int) -> dict[str, str]:
    """The environment of a sampling process: this process's, with the same import path, few threads and no GPU."""
    environment = {name: value for name, value in os.environ.items() if name not in (*_DROPPED_VARIABLES, *_SECRETS)}
    path = [os.getcwd() if entry == "" else entry for entry in sys.path]
    environment |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
    environment |= {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return environment


class ChildProcess:
    """A sampling process, or another that ``gnnkit.runtime.entry`` runs.

    Args:
        rank: Its number.
        log: The file that its output is appended to.
        vitals_fd: Descriptor of the block of ``Vitals``.
        threads: Sampling threads.
        module: What it runs.
        environment: Variables that it has beside those of ``child_environment``, or instead of them.

    Attributes:
        rank: Its number.
        log: The file that its output is appended to.
        wire: The connection to it.
        pid: Its pid.
        started: ``time.monotonic()`` when it was started.

    Raises:
        OSError: The system does not start it.
        PlanError: There is no Python interpreter to start.
    """

    def __init__(
        self, rank: int, log: Path, vitals_fd: int, threads: int, module: str, environment: Mapping[str, str] | None = None
    ) -> None:
        if not sys.executable:
            raise PlanError("sampling processes need a Python interpreter, and this program does not say which", "use InProcess()")
        self.rank, self.log, self.started = rank, log, time.monotonic()
        self.wire, theirs = Wire.pair()
        parent_fd = -1
        try:
            parent_fd = _own_pidfd()
            from_main_thread = threading.current_thread() is threading.main_thread()
            numbers = (theirs.fileno(), vitals_fd, parent_fd, os.getpid(), rank, int(from_main_thread))
            with log.open("ab") as output, open(log, "a+b") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    env={**child_environment(threads), **(environment or {})},
                    pass_fds=[fd for fd in numbers[:3] if fd >= 0],
                    start_new_session=True,
                )
        except BaseException:
            self.wire.close()
            raise
        finally:
            theirs.close()
            if parent_fd >= 0:
                os.close(parent_fd)
        self.pid = self._process.pid

    def has_ended(self) -> bool:
        """Whether the process is gone; its exit status has been collected then."""
        return self._process.poll() is not None

    def is_ending(self) -> bool:
        """Whether its main thread has ended, and the others are about to."""
        return self.state() in ("ended", "gone")

    def wait(self, timeout_s: float) -> int | None:
        """Waits for its end; the exit status as ``Popen`` gives it, or None."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        self._process.send_signal(number)

    def state(self) -> str:
        """What the system says it is doing, in words."""
        return process_state(self.pid)


def children_of(pid: int) -> list[int]:
    """Pids of the processes that a process has started and that still run."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def _own_pidfd() -> int:
    """A descriptor that becomes readable when this process ends; -1 where the system has none."""
    try:
        return os.pidfd_open(os.getpid())
    except OSError:  # a kernel before 5.3, or a sandbox that refuses: the child then only watches its parent's pid
        return -1


def end_all(children: list[ChildProcess], farewell_s: float = 0.2) -> None:
    """Ends processes: asks, then insists, then kills; none of them is left, and all exit statuses are collected.

    Args:
        children: The processes.
        farewell_s: Seconds between asking and insisting.
    """
    for child in children:
        child.wire.send("stop")
    for insist, patience_s in ((signal.SIGTERM, farewell_s), (signal.SIGKILL, 0.1), (None, 10.0)):
        deadline = time.monotonic() + patience_s
        children = [child for child in children if not _ended_by(child, deadline)]
        for child in children:
            if insist is not None:
                child.signal(insist)


def _ended_by(child: ChildProcess, deadline: float) -> bool:
    """Waits for the other end of the connection to close, which is when the process ends, and then for its exit status."""
    poller = select.poll()
    if child.wire.fileno() >= 0:
        poller.register(child.wire.fileno(), 0)  # only POLLHUP
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return child.has_ended()
    return child.wait(max(0.05, deadline - time.monotonic())) is not None
