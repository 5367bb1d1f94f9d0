"""What a loader shows while it runs, and how it is held back: shared by the loader, its iteration and whoever watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gnnkit.loader.history import History
from gnnkit.loader.records import Records

# Longest time that a paused iteration goes without looking whether it is still wanted.
_SLICE_S = 0.05


class Gate:
    """Batches pass while it is open. Any thread may open and shut it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    @property
    def is_shut(self) -> bool:
        """Whether batches are held back."""
        return not self._open.is_set()

    def shut(self) -> None:
        """Holds batches back."""
        self._open.clear()

    def open(self) -> None:
        """Lets them pass."""
        self._open.set()

    def wait(self, limit_s: float, check: Callable[[], None]) -> bool:
        """Waits until it is open; whether it is.

        Args:
            limit_s: Longest wait.
            check: Called again and again; raises once nobody wants the batch any more.
        """
        deadline = time.monotonic() + limit_s
        while not self._open.wait(max(0.0, min(_SLICE_S, deadline - time.monotonic()))):
            check()
            if time.monotonic() >= deadline:
                return False
        return True


@dataclass(frozen=True)
class Control:
    """One loader's; it does not know the loader, so that watching keeps none alive.

    Attributes:
        history: What the loader reported.
        records: What became of its batches.
        gate: Holds them back.
    """

    history: History
    records: Records = field(default_factory=Records)
    gate: Gate = field(default_factory=Gate)
