"""Whose a job's folder is: one job at a time writes checkpoints there, and none takes over what a job in the queue still wants."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gnnkit.errors import PlanError
from gnnkit.files import give_up_lock, os_errors, read_text, take_lock, user_path
from gnnkit.jobs.environment import find_job

_LOCK, _OWNER = ".lock", ".owner"
# A rank that was killed may leave processes that hold its lock until they end; a host that is gone, until the file server notices.
_OTHER_S, _SAME_S = 10.0, 120.0
_STEP_S, _ASK_S = 0.2, 20.0
_HINT = "give each job a folder of its own: --dir, or RUN_DIR for exported scripts"


def made_directory(directory: str | Path) -> str:
    """Returns the job's folder, made where it is not there, as an absolute path.

    Raises:
        PlanError: It cannot be made.
    """
    folder = user_path(directory)
    with os_errors(f"directory={str(directory)!r} cannot be made", folder, "give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """A job's folder as this job's own, for a ``with`` block; rank 0 calls it.

    Raises:
        PlanError: Another job runs there, or waits in Slurm's queue to go on there.
    """
    job, lock, owner = find_job(), folder / _LOCK, folder / _OWNER
    began = time.monotonic()
    try:
        while (held := take_lock(lock)) is None:
            other = _owner_at(owner)
            if time.monotonic() - began > (_SAME_S if other.splitlines()[:1] == [job] else _OTHER_S):
                raise PlanError(f"{' '.join(other.splitlines()) or 'another job'} runs in {str(folder)!r}", _HINT)
            time.sleep(_STEP_S)
    except OSError:  # a file system without locks
        held = None
    try:
        other = _owner_at(owner).partition("\n")[0]
        if other != job and _is_queued(other):
            raise PlanError(f"{other} is in Slurm's queue, and goes on from the checkpoints in {str(folder)!r}", f"{_HINT}; or scancel it")
        with contextlib.suppress(OSError):
            owner.write_text(f"{job}\non {socket.gethostname()}\n")
        yield
    finally:
        if held is not None:
            give_up_lock(lock, held)


def _owner_at(path: Path) -> str:
    with contextlib.suppress(OSError):
        return read_text(path)
    return ""


def _is_queued(job: str) -> bool:
    """Whether a job of Slurm waits or runs."""
    number = re.fullmatch(r"Slurm job ([0-9_]+)", job)
    tool = shutil.which("squeue")
    if number is None or tool is None:
        return False
    command = [tool, "--noheader", "--jobs", number[1], "--format=%T"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return bool(subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False).stdout.strip())
    return False
