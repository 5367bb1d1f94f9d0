"""Ending a thread's wait for file descriptors from another thread."""

from __future__ import annotations

import contextlib
import os
import select
import weakref


class Waker:
    """Ends a thread's wait for file descriptors, from any thread. What it takes of the system goes with this object."""

    def __init__(self) -> None:
        self._fd, self._end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        weakref.finalize(self, _close, self._fd, self._end).atexit = False

    def wake(self) -> None:
        """Ends the wait that there is, or else the next one."""
        with contextlib.suppress(BlockingIOError):  # it is awake enough
            os.write(self._end, b"\0")

    def wait(self, poller: select.poll, timeout_s: float | None = None) -> dict[int, int]:
        """Waits until something happens to what a poller watches, or somebody wakes.

        Args:
            poller: What else is waited for.
            timeout_s: Most seconds to wait; None waits for as long as it takes.

        Returns:
            ``{file descriptor: what has happened to it}``.
        """
        poller.register(self._fd, select.POLLIN)
        ready = dict(poller.poll(None if timeout_s is None else timeout_s * 1000))
        if ready.pop(self._fd, None) is not None:
            os.read(self._fd, 4096)
        return ready


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
