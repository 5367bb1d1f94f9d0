"""What the system says of a process: whether it runs, its processor time, its memory."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

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
    """A process of a loader, as it was when somebody looked.

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


def lane_of(name: str, thread: int | None) -> str:
    """Who samples a batch: a process, or one of its threads where it has several."""
    return name if thread is None else f"{name}, thread {thread}"


def process_state(pid: int) -> str:
    """What the system says a process is doing, in words."""
    try:
        return _in_words(_stat_fields(pid)[0])
    except (OSError, IndexError):
        return "gone"


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _in_words(letter: str) -> str:
    return _STATES.get(letter, f"in state {letter}")
