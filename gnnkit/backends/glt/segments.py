"""System V shared memory that goes with its last process: graphlearn-torch's channels otherwise leave it behind when they are killed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_TABLE = Path("/proc/sysvipc/shm")
_IPC_RMID = 0


def forget_segments() -> None:
    """Marks every segment that this process has made to be removed with its last user; processes may go on attaching them (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in _TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[4]) == os.getpid():
            libc.shmctl(int(fields[1]), _IPC_RMID, None)
