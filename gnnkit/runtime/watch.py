"""A sampling process's own watchman: ends it with its parent, shows that it is alive, and keeps its log small."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import stat
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.runtime.vitals import BATCHES, BUSY_SINCE_NS, CPU_NS, RSS, SEEN_NS, STEP

_BEAT_S = 0.1
_PR_SET_PDEATHSIG = 1
# A log that grows beyond this is cut down to its end.
_MOST_LOG_BYTES, _KEPT_LOG_BYTES = 1 << 20, 64 << 10
_STDERR = 2


class Watch(threading.Thread):
    """Runs for as long as the process.

    Args:
        parent_fd: A pidfd of the parent, opened by the parent itself, so that it cannot mean another process; -1 where there are none.
        parent_pid: The parent's pid, watched beside.
        row: This process's row of ``Vitals``.
    """

    def __init__(self, parent_fd: int, parent_pid: int, row: NDArray[np.int64]) -> None:
        super().__init__(name="gnnkit-watch", daemon=True)
        self._parent_fd, self._parent_pid, self._row = parent_fd, parent_pid, row
        self._samplers: list[tuple[int, int]] = []  # clock and index of each sampling thread
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
            if poller.poll(_BEAT_S * 1000) or os.getppid() != self._parent_pid:
                os._exit(0)  # nothing to tidy up: all memory is anonymous

    def add_sampler(self) -> int:
        """Makes the calling thread known as one that samples; its number."""
        index = len(self._samplers)
        self._ended.append(0)
        self._samplers.append((time.pthread_getcpuclockid(threading.get_ident()), index))
        return index

    def busy(self, sampler: int, step: int) -> None:
        """Says that a sampling thread begins a batch."""
        self._busy[sampler] = (time.monotonic_ns(), step)

    def idle(self, sampler: int) -> None:
        """Says that a sampling thread has ended its batch."""
        self._busy.pop(sampler, None)
        self._ended[sampler] += 1

    def beat(self) -> None:
        """Writes the signs of life."""
        row = self._row
        row[CPU_NS] = sum(time.clock_gettime_ns(clock) for clock, _ in list(self._samplers))
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
    """Standard error is the log, opened for appending; cut in place, so that nobody has to reopen it."""
    try:
        status = os.fstat(_STDERR)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= _MOST_LOG_BYTES:
            return
        tail = os.pread(_STDERR, _KEPT_LOG_BYTES, status.st_size - _KEPT_LOG_BYTES)
        os.ftruncate(_STDERR, 0)
        os.write(_STDERR, b"[the beginning was cut off]\n" + tail)
    except OSError:  # a full disk, or a log that somebody took away: sampling goes on
        return
