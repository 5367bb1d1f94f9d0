"""Removes what a driver that was killed has left of its cluster: ``python -m gnnkit.ray.cleaner SESSION FOLDER``.

Ray's processes are of the driver's session, and some outlive it. A line on standard input says that the driver has tidied up by itself; its
end without one, that it is gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys

import psutil

from gnnkit.waiting import Deadline

_LIMIT_S, _EXIT_WAIT_S = 30.0, 1.0


def members(session: int) -> list[psutil.Process]:
    """Returns the processes of a session that still run."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(pid) == session and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def main() -> None:
    """Waits for the end of the driver, and ends what is left of it."""
    session, folder = int(sys.argv[1]), sys.argv[2]
    if sys.stdin.readline():
        return
    deadline = Deadline(_LIMIT_S)
    while (left := members(session)) and not deadline.has_passed:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=_EXIT_WAIT_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
