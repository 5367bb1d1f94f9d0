"""Threads that wait for the messages of one source: one of them waits on the source for all, the others for their bells.

If all waited on the source, each message would wake them all, and one that another thread has taken would wake none.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Callable

# Longest time that a wait goes without a look at other threads, closed loaders and interrupts.
SLICE_S = 0.05


class Bell:
    """Wakes one waiting thread.

    Args:
        is_due: Whether what the thread waits for has come; called under the lock of ``Waiters``.

    Attributes:
        is_due: See above.
        fd: An event's descriptor, closed with this object.
    """

    def __init__(self, is_due: Callable[[], bool]) -> None:
        self.is_due = is_due
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "fd"):  # there was a descriptor left
            os.close(self.fd)

    def ring(self) -> None:
        """Wakes the thread, or has its next wait end at once."""
        os.eventfd_write(self.fd, 1)

    def hush(self) -> None:
        """Ends the ringing."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:  # it has not rung
            return


class Waiters:
    """The threads that wait for one source of messages. Only the holder of the source's lock may use it.

    A thread asks for a ``poller`` under the lock, waits on it without the lock, takes the lock, calls ``awake`` and handles what has
    arrived for any thread, then ``ring``. A thread that waits no more calls ``awake`` and ``hand_on``.
    """

    def __init__(self) -> None:
        # Weakly: an entry that an interrupt has left behind goes with the wait that it ended.
        self._waiting: set[weakref.ref[Bell]] = set()
        self._reader: weakref.ref[Bell] | None = None

    def poller(self, bell: Bell, source: Callable[[], select.poll]) -> select.poll:
        """Returns the poll object for the thread of ``bell``.

        Args:
            bell: The thread's.
            source: Makes a poll object that wakes when a message arrives.
        """
        own = weakref.ref(bell, self._waiting.discard)
        if self._reader is None or self._reader not in self._waiting:
            self._reader, poller = own, source()
        else:
            poller = select.poll()
        poller.register(bell.fd, select.POLLIN)
        self._waiting.add(own)
        return poller

    def awake(self, bell: Bell) -> None:
        """The thread of ``bell`` waits no more, or not now."""
        self._waiting.discard(weakref.ref(bell))
        bell.hush()

    def ring(self) -> None:
        """Wakes the threads for which something has come."""
        for waiting in list(self._waiting):
            bell = waiting()
            if bell is not None and bell.is_due():
                bell.ring()

    def hand_on(self) -> None:
        """Wakes a thread to wait on the source, if none does."""
        if self._waiting and self._reader not in self._waiting:
            bell = next(iter(list(self._waiting)))()
            if bell is not None:
                bell.ring()
