"""Finds good options with few trials: uphill from where a loader stands, as far as what was measured promises anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnnkit.loader.advice.space import Axis, Point, Space

# Two speeds that differ by less than this part are as good as each other: the cheaper one wins.
AS_GOOD = 0.05
# Options that came within this part of the best are tried once more, because single trials err.
_CLOSE = 0.1
# What more or fewer workers, or more slots, do not help against.
_OF_THE_LOOP = ("consumer", "collate", "transform", "transfer")


@dataclass(frozen=True)
class Trial:
    """What came of some options.

    Attributes:
        options: Options of the backend, and ``prefetch``.
        seeds: Seeds that were handed out.
        seconds: In which time.
        bottleneck: See ``Advice``.
        is_full: Whether it had as many sampling threads as there are processors, or more.
    """

    options: Point
    seeds: float
    seconds: float
    bottleneck: str = "none"
    is_full: bool = False

    @property
    def seeds_per_s(self) -> float:
        """Speed."""
        return self.seeds / self.seconds if self.seconds else 0.0


class Search:
    """Tries options until nothing promises more, or there are enough trials.

    Args:
        space: What may be tried.
        run: Tries some options; None where there is no time left.
        most: The most trials, at least 1.

    Attributes:
        trials: All of them, in their order; the first one is of the options that were there before.
    """

    def __init__(self, space: Space, run: Callable[[Point], Trial | None], most: int) -> None:
        self._space, self._run, self._most = space, run, most
        self.trials: list[Trial] = []

    def go(self, start: Point) -> None:
        """Searches from ``start``."""
        self._try(start)
        while self._may_go_on and any([self._climb(axis) for axis in self._space.axes]):
            pass
        self._confirm()

    @property
    def best(self) -> Point:
        """The options to use: the cheapest of those that are about as good as the best."""
        fastest = max(map(self.speed, self._points()))
        good = [point for point in self._points() if self.speed(point) >= fastest * (1 - AS_GOOD)]
        return min(good, key=self._space.cost)

    def speed(self, point: Point) -> float:
        """Seeds per second in all trials of some options; 0 where there is none."""
        trials = [trial for trial in self.trials if trial.options == point]
        seconds = sum(trial.seconds for trial in trials)
        return sum(trial.seeds for trial in trials) / seconds if seconds else 0.0

    @property
    def _may_go_on(self) -> bool:
        return len(self.trials) < self._most

    def _points(self) -> list[Point]:
        """What was tried, each once, in the order of the first trials."""
        found: list[Point] = []
        for trial in self.trials:
            if trial.options not in found:
                found.append(trial.options)
        return found

    def _top(self) -> Point:
        return max(self._points(), key=self.speed)

    def _try(self, point: Point) -> Trial | None:
        trial = self._run(point) if self._may_go_on else None
        if trial is None:
            self._most = len(self.trials)
        else:
            self.trials.append(trial)
        return trial

    def _climb(self, axis: Axis) -> bool:
        """Goes along an option for as long as it gets faster; whether it did."""
        if not self.trials:
            return False
        before = self._top()
        for up in self._directions(axis, self._trial_of(before)):
            for point in self._space.beside(before, axis, up=up):
                fastest = self.speed(self._top())
                if point in self._points():
                    continue
                trial = self._try(point)
                if trial is None or trial.seeds_per_s <= fastest * (1 + AS_GOOD):
                    break
            if self._top() != before:
                return True
        return False

    def _trial_of(self, point: Point) -> Trial:
        return next(trial for trial in reversed(self.trials) if trial.options == point)

    @staticmethod
    def _directions(axis: Axis, trial: Trial) -> tuple[bool, ...]:
        """Where it is worth looking: up (True) or down. Fewer slots are never faster."""
        if trial.bottleneck in _OF_THE_LOOP:
            return ()
        if axis.kind == "slots":
            return (True,)
        if trial.bottleneck == "processors":
            return (False,) if trial.is_full else (True, False)
        return (True,)

    def _confirm(self) -> None:
        """Tries the best ones again, in turn with what there was before."""
        if not self.trials or len(self._points()) < 2:
            return
        fastest = self.speed(self._top())
        close = [point for point in self._points() if self.speed(point) >= fastest * (1 - _CLOSE)]
        close.sort(key=self.speed, reverse=True)
        first = self.trials[0].options
        for point in [*close, *([] if first in close else [first])]:
            if self._try(point) is None:
                return
