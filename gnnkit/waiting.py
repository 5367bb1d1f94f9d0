"""Work in other threads, for which the main thread waits so that an interrupt is noticed.

An interrupt reaches the main thread alone, and one that comes just before a wait begins does not end it: a wait looks up every moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

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
    """
    outcome: Future[R] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # handed over: whoever waits raises it
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=daemon).start()
    return outcome


def is_done(outcome: Future[Any], timeout_s: float | None = None) -> bool:
    """Waits for an outcome; whether it is there.

    Args:
        outcome: What is waited for.
        timeout_s: Most seconds to wait; None waits for as long as it takes.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
        if wait([outcome], max(0.0, left_s)).done:
            return True
        if deadline is not None and time.monotonic() >= deadline:
            return False
