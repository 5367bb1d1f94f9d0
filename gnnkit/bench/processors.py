"""How busy processors are over a while, and how much of that is one's own work."""

from __future__ import annotations

import os
import time

import psutil

_IDLE = ("idle", "iowait")


class ProcessorWatch:
    """Watches the processors that this process may use, from when it is made."""

    def __init__(self) -> None:
        self._own, (self._idle, _), self._start = _own_seconds(), _idle_seconds(), time.perf_counter()

    def shares(self) -> dict[str, float]:
        """What has been in use since.

        Returns:
            Shares of all that these processors could have done: "busy", with anybody's work, which counts time that a hypervisor gave to
            others, and "own_busy", with that of this process and its children.
        """
        (idle, count), own, elapsed = _idle_seconds(), _own_seconds(), time.perf_counter() - self._start
        busy = 1.0 - (idle - self._idle) / (elapsed * count)
        return {"busy": min(1.0, max(0.0, busy)), "own_busy": (own - self._own) / (elapsed * count)}


def _idle_seconds() -> tuple[float, int]:
    """Seconds in which the processors that this process may use had nothing to do, summed over them, and how many they are."""
    every, mine = psutil.cpu_times(percpu=True), os.sched_getaffinity(0)
    processors = [times for number, times in enumerate(every) if number in mine] or every
    return sum(getattr(times, name, 0.0) for times in processors for name in _IDLE), len(processors)


def _own_seconds() -> float:
    """Processor time of this process and the children that it has now, theirs included."""
    this, seconds = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            seconds += sum(process.cpu_times()[:2])
        except psutil.Error:  # gone meanwhile
            continue
    return seconds
