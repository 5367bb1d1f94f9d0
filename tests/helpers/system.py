"""What the system says of itself, changed for a test: nobody can take memory out of a machine. gnnkit itself stays as it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest


def pretend_free_memory(monkeypatch: pytest.MonkeyPatch, nbytes: int | Callable[[], int]) -> None:
    """Has the system say that so many bytes of memory are free, in this process.

    Args:
        monkeypatch: Takes it back.
        nbytes: The bytes, or what returns them each time that the system is asked.
    """
    real = psutil.virtual_memory
    monkeypatch.setattr(psutil, "virtual_memory", lambda: real()._replace(available=nbytes() if callable(nbytes) else nbytes))


def pretend_free_disk(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Has the system say that so many bytes of every disk are free, in this process."""
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=nbytes))


def pretend_processors(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Has the system say that so many processors may be used, in this process: no test needs as many, and none has fewer done."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)))


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Has processes that are started meanwhile heed a hang-up, which ``nohup`` has this one ignore: a shell cannot take that back."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def start_ticks(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks since the boot; None once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


NOBODY = 65534


@contextlib.contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """Has this process read a folder and what is in it, and change nothing there; root becomes nobody for that long."""
    was_root = os.geteuid() == 0
    folder.chmod(0o555)
    if was_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)
        folder.chmod(0o755)
