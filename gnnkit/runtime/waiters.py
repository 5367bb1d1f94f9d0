"""Threads that wait for the messages of one source: one of them waits on the source for all, the others for their bells.

If all waited on the source, each message would wake them all, and one that another thread has taken would wake none.
"""

from __future__ import annotations

import select
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from gnnkit.runtime.wire import Waker

R = TypeVar("R")

# Longest time that a wait goes without a look at other threads, closed loaders and interrupts.
SLICE_S = 0.05


class Bell(Waker):
    """Wakes one waiting thread.

    Args:
        is_due: Whether what the thread waits for has come; called under the lock of ``Waiters``.

    Attributes:
        is_due: See above.
    """

    def __init__(self, is_due: Callable[[], bool]) -> None:
        self.is_due = is_due
        super().__init__()


class Waiters:
    """The threads that wait for one source of messages.

    Args:
        lock: Held whenever something is taken from the source.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        # Weakly: an entry that an interrupt has left behind goes with the wait that it ended.
        self._waiting: set[weakref.ref[Bell]] = set()
        self._reader: weakref.ref[Bell] | None = None

    def until(
        self,
        look: Callable[[], R | float],
        is_due: Callable[[], bool],
        source: Callable[[], select.poll],
        beside: Callable[[], None] | None = None,
    ) -> R:
        """Calls ``look`` whenever something has come, until it has a result.

        Args:
            look: Handles what has arrived, for any thread; called under the lock. Returns the result, or the most seconds to wait for it.
            is_due: Whether a call of ``look`` is due, for threads that handle this one's messages.
            source: Makes a poll object that wakes when a message arrives; called under the lock.
            beside: Called without the lock before each wait.
        """
        bell: Bell | None = None
        try:
            while True:
                with self._lock:
                    if bell is not None:
                        self._waiting.discard(weakref.ref(bell))
                        bell.hush()
                    found = look()
                    if not isinstance(found, float):
                        return found
                    bell = bell or Bell(is_due)
                    poller = self._poller(bell, source)
                if beside is not None:
                    beside()
                poller.poll(min(SLICE_S, found) * 1000)
        finally:
            if bell is not None:  # another thread waits on the source in the place of this one
                with self._lock:
                    self._waiting.discard(weakref.ref(bell))
                    self._hand_on()

    def ring(self) -> None:
        """Wakes the threads for which something has come; under the lock."""
        for waiting in list(self._waiting):
            bell = waiting()
            if bell is not None and bell.is_due():
                bell.wake()

    def _poller(self, bell: Bell, source: Callable[[], select.poll]) -> select.poll:
        """Returns the poll object for the thread of a bell: the source's where no other thread waits on that."""
        own = weakref.ref(bell, self._waiting.discard)
        if self._reader is None or self._reader not in self._waiting:
            self._reader, poller = own, source()
        else:
            poller = select.poll()
        poller.register(bell.fd, select.POLLIN)
        self._waiting.add(own)
        return poller

    def _hand_on(self) -> None:
        """Wakes a thread to wait on the source, if none does."""
        if self._waiting and self._reader not in self._waiting:
            bell = next(iter(list(self._waiting)))()
            if bell is not None:
                bell.wake()
