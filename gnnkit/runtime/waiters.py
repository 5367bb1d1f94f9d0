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


class Waiters:
    """The threads that wait for one source of messages.

    Args:
        lock: Held whenever something is taken from the source.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        # The bell of each waiting thread, with what says whether it is to be rung. Weakly: one that an interrupt has left behind goes with
        # the wait that it ended.
        self._waiting: weakref.WeakKeyDictionary[Waker, Callable[[], bool]] = weakref.WeakKeyDictionary()
        self._reader: weakref.ref[Waker] | None = None

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
        bell: Waker | None = None
        try:
            while True:
                with self._lock:
                    if bell is not None:
                        self._waiting.pop(bell, None)
                        bell.hush()
                    found = look()
                    if not isinstance(found, float):
                        return found
                    bell = bell or Waker()
                    poller = self._poller(bell, source)
                    self._waiting[bell] = is_due
                if beside is not None:
                    beside()
                poller.poll(min(SLICE_S, found) * 1000)
        finally:
            if bell is not None:  # another thread waits on the source in the place of this one
                with self._lock:
                    self._waiting.pop(bell, None)
                    if (waiting := next(iter(list(self._waiting)), None)) is not None and not self._is_read:
                        waiting.wake()

    def ring(self) -> None:
        """Wakes the threads for which something has come; under the lock."""
        for bell, is_due in list(self._waiting.items()):
            if is_due():
                bell.wake()

    @property
    def _is_read(self) -> bool:
        """Whether a thread waits on the source."""
        reader = None if self._reader is None else self._reader()
        return reader is not None and reader in self._waiting

    def _poller(self, bell: Waker, source: Callable[[], select.poll]) -> select.poll:
        """Returns the poll object for the thread of a bell: the source's where no other thread waits on that."""
        if self._is_read:
            poller = select.poll()
        else:
            self._reader, poller = weakref.ref(bell), source()
        poller.register(bell.fd, select.POLLIN)
        return poller
