"""What is computed from the measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnnkit.bench.line import Line
from gnnkit.bench.lines import LINES
from gnnkit.bench.process import Measurement

Measurements = Mapping[str, Sequence[Measurement]]
# Figures to reach hold for a graph of OGBN-Products' size; on a small one fixed costs are all there is.
FULL_SCALE = 1.0
_SEEN: dict[str, Callable[[Measurement], float]] = {"peak": lambda m: m.peak_bytes, "anonymous": lambda m: m.anonymous_bytes}


def value_of(measurements: Measurements, contender: str, key: str) -> float | None:
    """The median of one value over a contender's runs; None where it has none."""
    seen = _SEEN.get(key)
    values = [float(m.values[key]) if seen is None else seen(m) for m in measurements.get(contender, ())]
    return statistics.median(values) if values else None


def contenders_of(rows: Sequence[str]) -> list[str]:
    """Every process that some rows need, each once."""
    names = [name for line in LINES if line.row in rows for name in (line.contender, line.peer) if name]
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Result:
    """A line with its figures.

    Attributes:
        line: What was compared.
        value: gnnkit's median, None where it could not be measured.
        peer_value: The peer's median.
        ratio: See ``Line.bigger``.
        met: Whether every target is reached, or the line's bound; None at another scale, without targets, or where a figure is missing.
        note: Why something is missing.
        bound_share: How much of the line's bound was in use; None where it has none, or was not measured.
        own_share: How much of it the contender itself used.
        limited: Whether ``met`` is owed to the bound.
    """

    line: Line
    value: float | None
    peer_value: float | None
    ratio: float | None
    met: bool | None
    note: str
    bound_share: float | None = None
    own_share: float | None = None
    limited: bool = False

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        line = self.line
        return {
            "row": line.row,
            "title": line.title,
            "unit": line.unit,
            "gnnkit": self.value,
            "peer": line.peer,
            "peer_value": self.peer_value,
            "ratio": self.ratio,
            "targets": [{"of": t.of, "better": t.better, "limit": t.limit} for t in line.targets],
            "met": self.met,
            "bound": line.bound
            and {"what": line.bound.what, "least": line.bound.least, "share": self.bound_share, "own_share": self.own_share},
            "limited": self.limited,
            "note": self.note,
        }


def evaluate(line: Line, measurements: Measurements, missing: Mapping[str, str], scale: float) -> Result:
    """Computes a line from the measurements.

    Args:
        line: The line.
        measurements: By contender.
        missing: ``{contender: why it was not measured}``.
        scale: Size of the graph.
    """
    value = value_of(measurements, line.contender, line.key)
    peer_value = value_of(measurements, line.peer, line.key) if line.peer else None
    ratio = None
    if value and peer_value:
        ratio = value / peer_value if line.bigger else peer_value / value
    verdicts = [target.met(value, ratio) for target in line.targets]
    bound = line.bound
    share, own_share = (value_of(measurements, line.contender, key) for key in (bound.key, bound.own_key)) if bound else (None, None)
    met, limited = None, False
    if scale >= FULL_SCALE and verdicts and None not in verdicts:
        limited = not all(verdicts) and bound is not None and share is not None and share >= bound.least
        met = all(verdicts) or limited
    names = [name for name in (line.contender, line.peer or "") if name in missing]
    note = "; ".join(f"{name}: {missing[name]}" for name in names)
    return Result(line, value, peer_value, ratio, met, note, share, own_share, limited)
