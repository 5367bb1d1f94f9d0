"""Waiting for what other processes and threads do, with a deadline."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from tests.helpers.machine import slowness

# Ends what hangs; no test is about it.
HANG_S = 60.0


def wait_until(condition: Callable[[], Any], timeout_s: float = HANG_S) -> bool:
    """Waits for something to become true; whether it has.

    Args:
        condition: What is looked at.
        timeout_s: How long it may take on an idle machine; a busy one is given what that comes to on it.
    """
    return _becomes_true(condition, timeout_s) or _becomes_true(condition, timeout_s * (slowness() - 1))


def is_readable(fd: int, timeout_s: float) -> bool:
    """Whether there is something to read by then, or the other end is gone; of any descriptor, where select(2) knows the first 1,024."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _becomes_true(condition: Callable[[], Any], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
