"""What a line of the table is, and a figure to reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["at least", "at most"]


@dataclass(frozen=True)
class Target:
    """A figure to reach.

    Attributes:
        of: What the figure is about: "ratio", or "value" for gnnkit's own.
        better: Its direction.
        limit: The figure, in the row's unit or as a ratio.
    """

    of: Literal["ratio", "value"]
    better: Better
    limit: float

    def met(self, value: float | None, ratio: float | None) -> bool | None:
        """Whether it is reached; None where it could not be measured."""
        figure = ratio if self.of == "ratio" else value
        if figure is None:
            return None
        return figure >= self.limit if self.better == "at least" else figure <= self.limit


@dataclass(frozen=True)
class Bound:
    """A resource that excuses missed figures where it is nearly used up.

    Attributes:
        what: The resource.
        key: The share of it that was in use, among the contender's values.
        own_key: The share that was in use by the contender itself.
        least: From which share on it counts as the limit.
    """

    what: str
    key: str
    own_key: str
    least: float


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        row: The row of ``BenchOptions.rows`` that it belongs to.
        title: What is compared.
        unit: "seeds/s", "s", "B", "x" (a share).
        contender: Who is measured, and ``key`` of its values.
        peer: Who it is compared with, or None.
        key: Name of the measured value; "peak" and "anonymous" are seen from outside.
        bigger: Whether the ratio is gnnkit's value over the peer's (True) or the other way round.
        targets: Figures to reach.
        bound: What limits the contender, if it does not reach them; None: nothing that would excuse it.
    """

    row: str
    title: str
    unit: str
    contender: str
    key: str
    peer: str | None = None
    bigger: bool = True
    targets: tuple[Target, ...] = ()
    bound: Bound | None = None
