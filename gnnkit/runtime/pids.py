"""Processes by their pids: whether one that was written down still runs, and is the same."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from pathlib import Path
from typing import Any

# Between two looks at a process where the system cannot tell of its end.
_LOOK_S = 0.02


def pid_space() -> dict[str, Any]:
    """What a pid's meaning depends on: the boot and the pid namespace."""
    try:
        return {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "namespace": os.readlink("/proc/self/ns/pid")}
    except OSError:
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
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))
    finally:
        os.close(fd)


def _poll_for_end(pid: int, timeout_s: float) -> bool:
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while start_ticks(pid) is not None:
        if time.monotonic() >= deadline:
            return False
        pause.wait(_LOOK_S)
    return True
