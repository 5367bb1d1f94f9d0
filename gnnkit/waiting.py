"""Deadlines, and waits of the main thread that notice an interrupt.

An interrupt reaches the main thread alone, and one that comes just before a wait begins does not end it: a wait looks up every moment.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from gnnkit.errors import PlanError

R = TypeVar("R")

# Longest time between two looks up.
SLICE_S = 0.1


def begin_apart(work: Callable[[], R], name: str, *, daemon: bool) -> Future[R]:
    """Begins ``work`` in a thread of its own.

    Args:
        work: What is done.
        name: The thread's.
        daemon: Whether the process may end before it has.

    Returns:
        What ``work`` returns, or raises.

    Raises:
        PlanError: The system starts no more threads.
    """
    outcome: Future[R] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # handed over: the waiting thread raises it
            outcome.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=daemon).start()
    except RuntimeError as error:
        raise PlanError(
            "the system starts no more threads", "raise the limit of processes: ulimit -u, or pids.max of the container"
        ) from error
    return outcome


def is_ready(fd: int, timeout_s: float, events: int = select.POLLIN) -> bool:
    """Waits for something to read, the other side's end included, or for other ``events`` of poll(2); whether it has come.

    Of any descriptor: select(2) refuses those from 1,024 on, which a process with many files open has.
    """
    poller = select.poll()
    poller.register(fd, events)
    return bool(poller.poll(max(0.0, timeout_s * 1000)))


def is_done(outcome: Future[Any], timeout_s: float | None = None) -> bool:
    """Waits for an outcome; whether it is there.

    Args:
        outcome: What is waited for.
        timeout_s: Most seconds to wait; None waits for as long as it takes.
    """
    deadline = Deadline(timeout_s)
    while True:
        if wait([outcome], deadline.within(SLICE_S)).done:
            return True
        if deadline.has_passed:
            return False


class Deadline:
    """The end of a wait, passed down to whatever waits on the way.

    Args:
        timeout_s: Seconds from now; None never ends.

    Attributes:
        timeout_s: The seconds that it was made with; None never ends.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started

    @property
    def left_s(self) -> float:
        """Seconds left, never negative; infinite where it never ends."""
        return math.inf if self.timeout_s is None else max(0.0, self.timeout_s - self.elapsed_s)

    @property
    def has_passed(self) -> bool:
        """Whether no time is left."""
        return self.left_s == 0.0

    def within(self, slice_s: float) -> float:
        """Seconds that a wait may take which looks around every ``slice_s`` seconds."""
        return min(slice_s, self.left_s)
