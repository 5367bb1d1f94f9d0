"""Processes as the system sees them: whether one that was written down still runs, its processor time and its memory."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.waiting import Deadline, is_ready

# Between two looks at a process where the system cannot tell of its end.
_LOOK_S = 0.02


def pid_space() -> dict[str, Any]:
    """Returns the boot and the pid namespace, on which a pid's meaning depends."""
    with contextlib.suppress(OSError):
        return {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "namespace": os.readlink("/proc/self/ns/pid")}
    return {"boot": "", "namespace": ""}


def is_of_here(record: dict[str, Any]) -> bool:
    """Whether a run was made in this boot of this host or container; the pids of others mean nothing here."""
    return all(record.get(name) == value for name, value in pid_space().items())


def start_ticks(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks since the boot, which no change of the clock moves; None once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(record: dict[str, Any]) -> bool:
    """Whether a recorded process still runs, and is the same."""
    pid, ticks = record.get("pid"), record.get("ticks")
    return isinstance(pid, int) and ticks is not None and start_ticks(pid) == ticks


def send_signal(record: dict[str, Any], number: signal.Signals) -> bool:
    """Sends a signal to a recorded process, and to no other that has its pid by now; whether it was still there.

    Args:
        record: Its pid and start.
        number: The signal.
    """
    fd = -1
    try:
        with contextlib.suppress(OSError):  # it has ended, or the system has no such descriptors
            fd = os.pidfd_open(record["pid"])  # keeps the pid's meaning from here on
        if not is_alive(record):
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(record["pid"], number)
        return True
    except OSError:  # it has ended meanwhile
        return False
    finally:
        if fd >= 0:
            os.close(fd)


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Waits until a process, which need not be a child of this one, has ended; whether it has.

    Args:
        pid: Its pid.
        timeout_s: The most seconds to wait.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:  # a kernel before 5.3, or a sandbox that refuses
        return _poll_for_end(pid, timeout_s)
    try:
        return is_ready(fd, timeout_s)
    finally:
        os.close(fd)


def _poll_for_end(pid: int, timeout_s: float) -> bool:
    deadline, pause = Deadline(timeout_s), threading.Event()
    while start_ticks(pid) is not None:
        if deadline.has_passed:
            return False
        pause.wait(_LOOK_S)
    return True


_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_STATES = {
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "D": "waiting for a disk",
    "Z": "ended",
    "R": "running",
    "S": "running",
}


@dataclass(frozen=True)
class ProcessStatus:
    """A process of a loader, as it was at one moment.

    Attributes:
        name: "trainer" (this process), "process 0", "server 0", "server 0, process 1" or "receiver".
        pid: Its pid.
        state: "running", "stopped (SIGSTOP)", "waiting for a disk", "ended", "gone" and the like.
        log: The file that it writes to; None where there is none.
        cpu_s: Processor time that all its threads have used, in seconds.
        rss: Bytes of memory that it sees: mapped files of the store, and what it shares with others, included.
        private: Bytes of these that are its own, neither a mapped file nor shared: what it costs.
        busy_s: Seconds that it has been at the batch that it samples; 0 when idle, and where it is not known.
        threads: Threads that it has.
    """

    name: str
    pid: int
    state: str
    log: str | None = None
    cpu_s: float = 0.0
    rss: int = 0
    private: int = 0
    busy_s: float = 0.0
    threads: int = 0


def look_at(name: str, pid: int, log: Path | None = None, busy_s: float = 0.0) -> ProcessStatus:
    """Looks at a process; two small files of /proc are read.

    Args:
        name: See ``ProcessStatus``.
        pid: Its pid.
        log: Its log.
        busy_s: See ``ProcessStatus``.
    """
    text = None if log is None else str(log)
    try:
        fields = _stat_fields(pid)
        _, resident, shared = (int(pages) * _PAGE for pages in Path(f"/proc/{pid}/statm").read_text().split()[:3])
    except (OSError, ValueError, IndexError):
        if pid != os.getpid():
            return ProcessStatus(name, pid, "gone", text)
        # A system without /proc.
        return ProcessStatus(name, pid, "running", text, time.process_time(), threads=threading.active_count())
    # Fields 14, 15 and 20 of proc(5), counted from the third, which is the state.
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return ProcessStatus(name, pid, _in_words(fields[0]), text, cpu_s, resident, max(0, resident - shared), busy_s, int(fields[17]))


def process_state(pid: int) -> str:
    """Returns the state of a process in the system, in words."""
    with contextlib.suppress(OSError, IndexError):
        return _in_words(_stat_fields(pid)[0])
    return "gone"


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; the name before it may hold anything."""
    with io.FileIO(f"/proc/{pid}/stat") as file:  # a wait for a process looks often: without a buffer and a decoder
        return file.readall().rpartition(b")")[2].decode().split()


def _in_words(letter: str) -> str:
    return _STATES.get(letter, f"in state {letter}")
