"""The last minute of a loader in bins of a second, filled batch by batch as they are delivered."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnnkit.loader.records import BatchRecord

SECONDS = 60


@dataclass(slots=True)
class _Second:
    """What one second of the monotonic clock holds.

    Batches and seeds are spread over the time that it took to get them, so that one batch in three seconds is a third of a batch in
    each of them. Times and waiting batches are booked where the batch was delivered.
    """

    number: int
    batches: float = 0.0
    seeds: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    delivered: int = 0
    ready: float = 0.0


class ThroughputWindow:
    """Sums over the last ``SECONDS`` whole seconds; costs what is new since the last look, not what there is.

    Attributes:
        until_s: When the newest batch that was added was delivered; -inf before the first.
    """

    def __init__(self) -> None:
        self._seconds: deque[_Second] = deque(maxlen=SECONDS + 1)
        self._seen_s = self.until_s = -math.inf

    @property
    def seen_s(self) -> float:
        """When the newest batch that was added had been asked for."""
        return self._seen_s

    def add(self, records: Iterable[BatchRecord]) -> None:
        """Adds those that are newer than all before."""
        for record in records:
            if record.asked_s > self._seen_s:
                self._seen_s, self.until_s = record.asked_s, record.delivered_s
                self._book(record)

    def rates(self, now: float) -> tuple[list[float], list[float]]:
        """Batches and seeds in each of the last ``SECONDS`` whole seconds, oldest first."""
        seconds = self._last(now, SECONDS)
        return [s.batches if s else 0.0 for s in seconds], [s.seeds if s else 0.0 for s in seconds]

    def occupancy(self, now: float) -> list[float]:
        """Batches that waited on average when one was asked for; where none was, what was seen last."""
        values, last = [], 0.0
        for second in self._last(now, SECONDS):
            last = last if second is None or not second.delivered else second.ready / second.delivered
            values.append(last)
        return values

    def times(self, now: float, seconds: int) -> dict[str, float]:
        """Seconds that the consumer spent in each stage, within the last ``seconds`` and the one that runs."""
        return _total(second.times for second in self._recent(now, seconds))

    def busy(self, now: float, seconds: int) -> dict[str, float]:
        """Seconds that each worker was sampling and gathering, by its name."""
        return _total(second.busy for second in self._recent(now, seconds))

    def _book(self, record: BatchRecord) -> None:
        delivered = record.delivered_s
        # A pause is nobody's work: the batch belongs to what came after it.
        began = record.asked_s + record.paused_s if record.paused_s else record.asked_s - record.consumer_s
        self._spread(max(began, delivered - SECONDS), delivered, record.seeds)
        second = self._at(math.floor(delivered))
        if second is None:
            return
        second.delivered += 1
        second.ready += record.ready
        times = second.times
        for name in ("wait", "collate", "transform", "transfer", "consumer", "sample", "gather"):
            times[name] = times.get(name, 0.0) + getattr(record, f"{name}_s")
        second.busy[record.worker] = second.busy.get(record.worker, 0.0) + record.sample_s + record.gather_s

    def _spread(self, began: float, ended: float, seeds: int) -> None:
        span = ended - began
        first, last = math.floor(began), math.floor(ended)
        for number in range(first, last + 1):
            second = self._at(number)
            if second is not None:
                inside = min(ended, number + 1) - max(began, number)
                share = inside / span if span > 0 else 1.0 if number == last else 0.0
                second.batches += share
                second.seeds += share * seeds

    def _at(self, number: int) -> _Second | None:
        """The second of that number, made if it is newer than all; None where it has been forgotten."""
        if not self._seconds or number > self._seconds[-1].number:
            # A long silence leaves no more than fits.
            start = max(number - SECONDS, self._seconds[-1].number + 1 if self._seconds else number)
            self._seconds.extend(_Second(missing) for missing in range(start, number + 1))
        index = len(self._seconds) - 1 - (self._seconds[-1].number - number)
        return self._seconds[index] if index >= 0 else None

    def _last(self, now: float, count: int) -> list[_Second | None]:
        """The ``count`` whole seconds before the one that runs; None for those that are not known."""
        known = {second.number: second for second in self._seconds}
        current = math.floor(now)
        return [known.get(number) for number in range(current - count, current)]

    def _recent(self, now: float, count: int) -> list[_Second]:
        since = math.floor(now) - count
        return [second for second in self._seconds if second.number >= since]


def _total(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total
