"""What the demonstration writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from gnnkit.demo import MARGIN_OVER_MAJORITY, MARGIN_OVER_MLP


@dataclass(frozen=True)
class Scores:
    """Test accuracies on one graph, as shares of one.

    Attributes:
        majority: Of always answering the most frequent class of the test nodes: the best constant answer.
        mlp: Of a network that sees a node's features and not its neighbours.
        sage: Of GraphSAGE.
        measured_on: Which test nodes they were measured on.
    """

    majority: float
    mlp: float
    sage: float
    measured_on: str

    @property
    def passed(self) -> bool:
        """Whether GraphSAGE is better by the margins."""
        return 100 * (self.sage - self.majority) >= MARGIN_OVER_MAJORITY and 100 * (self.sage - self.mlp) >= MARGIN_OVER_MLP


class Report:
    """Writes lines to a stream, each at once."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def line(self, text: str = "") -> None:
        """Writes one line."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def verdict(self, scores: Scores) -> bool:
        """Writes the accuracies and whether they are good enough, which it returns."""
        self.line(f"  test accuracy on {scores.measured_on}")
        for name, value in (("majority class", scores.majority), ("features-only MLP", scores.mlp), ("GraphSAGE", scores.sage)):
            self.line(f"    {name:<18} {100 * value:5.1f} %")
        over_majority, over_mlp = 100 * (scores.sage - scores.majority), 100 * (scores.sage - scores.mlp)
        needs_majority, needs_mlp = f"(needed: {MARGIN_OVER_MAJORITY:g})", f"(needed: {MARGIN_OVER_MLP:g})"
        outcome = "ok" if scores.passed else "NOT ENOUGH"
        self.line(
            f"  {outcome}: {over_majority:+.1f} points over the majority class {needs_majority}, {over_mlp:+.1f} over the MLP {needs_mlp}"
        )
        self.line()
        return scores.passed
