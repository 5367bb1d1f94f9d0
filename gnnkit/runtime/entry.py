"""The beginning and the end of every background process, and its signs of life.

They need neither torch nor the user's ``__main__``, and everything that they hold is gone when they are.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.host import leave_no_core, without_collections
from gnnkit.runtime.beats import SIGN_BEAT_S, SIGN_SILENCE_S
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.ring import SharedBlock
from gnnkit.runtime.wire import Wire

# Columns of a worker's row: when it was last seen and what it was doing then.
SEEN_NS, BUSY_SINCE_NS, STEP, CPU_NS, RSS, BATCHES = range(6)
_WIDTH = 8


@dataclass(frozen=True)
class Signs:
    """The last signs of life of a sampling process.

    Attributes:
        seen_s: Seconds since it was seen; infinite before the first time.
        busy_s: Seconds that it has been sampling a batch, 0 when idle.
        step: The step it samples, -1 when idle.
        cpu_ns: Processor time that its sampling threads have used.
        rss: Bytes of memory that it occupied.
        batches: Batches that it has sampled since it was started.
    """

    seen_s: float
    busy_s: float
    step: int
    cpu_ns: int
    rss: int
    batches: int

    @property
    def is_fresh(self) -> bool:
        """Whether it is running."""
        return self.seen_s < SIGN_SILENCE_S


# Of a process that is not known.
UNSEEN = Signs(float("inf"), 0.0, -1, 0, 0, 0)


class Vitals:
    """The rows of all sampling processes of one loader.

    Args:
        block: Where they lie.
    """

    def __init__(self, block: SharedBlock) -> None:
        self.block = block
        self._rows: NDArray[np.int64] = block.bytes.view(np.int64).reshape(-1, _WIDTH)

    @classmethod
    def create(cls, num_workers: int) -> Vitals:
        """Rows for so many processes."""
        return cls(SharedBlock.create("gnnkit-vitals", num_workers * _WIDTH * 8))

    def row(self, rank: int) -> NDArray[np.int64]:
        """int64 ``[8]``, one process's row; see the column names."""
        return self._rows[rank, :]

    @property
    def num_batches(self) -> int:
        """Batches that all of them have sampled."""
        return int(self._rows[:, BATCHES].sum())

    def forget(self, rank: int) -> None:
        """Clears the row of a process that is gone."""
        self.row(rank)[:] = 0

    def signs(self, rank: int) -> Signs:
        """Returns the last signs of life of a process."""
        row, now = self.row(rank).tolist(), time.monotonic_ns()
        seen = (now - row[SEEN_NS]) / 1e9 if row[SEEN_NS] else float("inf")
        busy = (now - row[BUSY_SINCE_NS]) / 1e9 if row[BUSY_SINCE_NS] else 0.0
        return Signs(seen, busy, row[STEP] if row[BUSY_SINCE_NS] else -1, row[CPU_NS], row[RSS], row[BATCHES])


_PR_SET_PDEATHSIG = 1
# A log that grows beyond this is cut down to its end.
_MOST_LOG_BYTES, _KEPT_LOG_BYTES = 1 << 20, 64 << 10
_STDERR = 2


class ParentWatch(threading.Thread):
    """Runs for as long as the process.

    Args:
        parent_fd: A pidfd of the parent, opened by the parent itself, so that it cannot mean another process; -1 where there are none.
        parent_pid: The parent's pid, watched beside.
        row: This process's row of ``Vitals``.
    """

    def __init__(self, parent_fd: int, parent_pid: int, row: NDArray[np.int64]) -> None:
        super().__init__(name="gnnkit-watch", daemon=True)
        self._parent_fd, self._parent_pid, self._row = parent_fd, parent_pid, row
        self._clocks: list[int] = []  # of each sampling thread
        self._busy: dict[int, tuple[int, int]] = {}
        self._ended: list[int] = []  # batches of each sampling thread
        self._page = os.sysconf("SC_PAGE_SIZE")

    def run(self) -> None:
        """Looks after everything ten times a second."""
        poller = select.poll()
        if self._parent_fd >= 0:
            poller.register(self._parent_fd, select.POLLIN)
        while True:
            self.beat()
            _trim_log()
            if poller.poll(SIGN_BEAT_S * 1000) or os.getppid() != self._parent_pid:
                os._exit(0)  # nothing to tidy up: all memory is anonymous

    def add_sampler(self) -> int:
        """Registers the calling thread as a sampler; returns its index."""
        self._ended.append(0)
        # As pthread_getcpuclockid(3) makes it (linux/posix-timers.h); the C library does not know the main thread of a forked process.
        self._clocks.append((~threading.get_native_id() << 3) | 6)
        return len(self._clocks) - 1

    def busy(self, sampler: int, step: int) -> None:
        """Says that a sampling thread begins a batch, or several together, of which ``step`` is the first."""
        self._busy[sampler] = (time.monotonic_ns(), step)

    def idle(self, sampler: int, batches: int) -> None:
        """Says that a sampling thread has ended so many batches."""
        self._busy.pop(sampler, None)
        self._ended[sampler] += batches

    def beat(self) -> None:
        """Writes the signs of life."""
        row = self._row
        row[CPU_NS] = sum(time.clock_gettime_ns(clock) for clock in list(self._clocks))
        since, step = min(list(self._busy.values()), default=(0, -1))
        row[STEP], row[BUSY_SINCE_NS] = step, since
        row[RSS], row[BATCHES] = self._rss(), sum(self._ended)
        row[SEEN_NS] = time.monotonic_ns()

    def _rss(self) -> int:
        try:
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * self._page
        except (OSError, ValueError, IndexError):  # no /proc: the size is only for an explanation
            return 0


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that started it ends: for a process that is stopped and cannot watch.

    Only for processes that a main thread started; other threads end before their process does.
    """
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


def _trim_log() -> None:
    """Standard error is the log, opened for appending; cut in place, so that no process has to reopen it."""
    try:
        status = os.fstat(_STDERR)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= _MOST_LOG_BYTES:
            return
        tail = os.pread(_STDERR, _KEPT_LOG_BYTES, status.st_size - _KEPT_LOG_BYTES)
        os.ftruncate(_STDERR, 0)
        os.write(_STDERR, b"[the beginning was cut off]\n" + tail)
    except OSError:  # a full disk, or a log that was removed: sampling goes on
        return


T = TypeVar("T")


def run(work: str) -> NoReturn:
    """Reads what was handed over on the command line, works, and ends the process.

    Args:
        work: "module:name" of what makes an object from the process's ``Wire`` and ``ParentWatch``, whose ``run`` works until the process
            is to end. Its module is imported once an error of that can be reported.
    """
    try:
        _work(work)
    except BaseException:
        logging.getLogger(work.partition(":")[0]).exception("the process ends")
        logging.shutdown()
        os._exit(1)
    # Threads may be in the middle of a kernel, and there is nothing to tidy up.
    os._exit(0)


def _work(work: str) -> None:
    wire_fd, vitals_fd, parent_fd, parent_pid, rank, from_main_thread = map(int, sys.argv[1:])
    if from_main_thread:
        die_with_parent(parent_pid)
    leave_no_core()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the loader's affair
    for fd in (wire_fd, vitals_fd, parent_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    watch = ParentWatch(parent_fd, parent_pid, Vitals(SharedBlock.attach(vitals_fd, writable=True)).row(rank))
    watch.start()
    wire = Wire(socket.socket(fileno=wire_fd))
    load_work(partial(resolve_name, work), wire)(wire, watch).run()


def load_work(load: Callable[[], T], wire: Wire) -> T:
    """Imports work and returns it; an error goes to the process that has started this one.

    Args:
        load: Does so.
        wire: The connection to the process that has started this one.
    """
    with without_collections():
        try:
            return load()
        except BaseException as error:  # a broken installation; the loader raises it
            wire.send("failed", error=error_to_json(error))
            wire.send_all(1.0)
            raise
