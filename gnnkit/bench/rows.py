"""What is computed from the measurements, and the figures that gnnkit is to reach."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gnnkit.bench.process import Measurement

Measurements = Mapping[str, Sequence[Measurement]]
Better = Literal["at least", "at most"]
# Figures to reach hold for a graph of OGBN-Products' size; on a small one fixed costs are all there is.
FULL_SCALE = 1.0


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
class Line:
    """One line of the table.

    Attributes:
        row: The row of ``BenchOptions.rows`` that it belongs to.
        title: What is compared.
        unit: "seeds/s", "s", "B".
        contender: Who is measured, and ``key`` of its values.
        peer: Who it is compared with, or None.
        key: Name of the measured value; "peak" and "anonymous" are seen from outside.
        bigger: Whether the ratio is gnnkit's value over the peer's (True) or the other way round.
        targets: Figures to reach.
    """

    row: str
    title: str
    unit: str
    contender: str
    key: str
    peer: str | None = None
    bigger: bool = True
    targets: tuple[Target, ...] = ()


LINES = (
    Line(
        "seeds-glt",
        "against graphlearn-torch, seeded",
        "seeds/s",
        "gnnkit",
        "seeds_per_s",
        "glt",
        targets=(Target("ratio", "at least", 8),),
    ),
    Line("seeds-pyg", "against PyG NeighborLoader", "seeds/s", "gnnkit", "seeds_per_s", "pyg"),
    Line("seeds-graphbolt", "against DGL GraphBolt", "seeds/s", "gnnkit", "seeds_per_s", "graphbolt"),
    Line(
        "limit",
        "against gathering the same rows and nothing else",
        "seeds/s",
        "gnnkit",
        "seeds_per_s",
        "limit",
        targets=(Target("ratio", "at least", 0.55),),
    ),
    Line(
        "float16",
        "features in float16, against float32",
        "seeds/s",
        "gnnkit-float16",
        "seeds_per_s",
        "gnnkit",
        targets=(Target("ratio", "at least", 1.5),),
    ),
    Line(
        "open",
        "open to first batch, against graphlearn-torch",
        "s",
        "gnnkit",
        "first_batch_s",
        "glt",
        bigger=False,
        targets=(Target("value", "at most", 1), Target("ratio", "at least", 30)),
    ),
    Line(
        "start",
        "a fresh process to its first batch, imports included",
        "s",
        "first-cell",
        "start_to_batch_s",
        targets=(Target("value", "at most", 12),),
    ),
    Line(
        "build",
        "build two parts from arrays, against GLT's RandomPartitioner",
        "s",
        "gnnkit-build",
        "build_s",
        "glt-build",
        targets=(Target("ratio", "at most", 0.5),),
    ),
    Line(
        "build",
        "peak memory of that, the arrays included",
        "B",
        "gnnkit-build",
        "peak",
        "glt-build",
        targets=(Target("ratio", "at most", 1 / 3),),
    ),
    Line(
        "memory",
        "peak memory of epochs, without graph pages and batches",
        "B",
        "gnnkit",
        "anonymous",
        targets=(Target("value", "at most", 0.4e9),),
    ),
    Line("size", "store on disk", "B", "store", "nbytes", targets=(Target("value", "at most", 1.6e9),)),
    Line("size", "store on disk, with edge ids", "B", "store-edge-ids", "nbytes", targets=(Target("value", "at most", 2.1e9),)),
    Line(
        "ingest",
        "read OGB's csv.gz into a store, against NodePropPredDataset",
        "s",
        "gnnkit-ingest",
        "ingest_s",
        "ogb-ingest",
        bigger=False,
        targets=(Target("ratio", "at least", 3),),
    ),
)
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
        met: Whether every target is reached; None at another scale, without targets, or where a figure is missing.
        note: Why something is missing.
    """

    line: Line
    value: float | None
    peer_value: float | None
    ratio: float | None
    met: bool | None
    note: str

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
    met = None if scale < FULL_SCALE or not verdicts or None in verdicts else all(verdicts)
    names = [name for name in (line.contender, line.peer or "") if name in missing]
    return Result(line, value, peer_value, ratio, met, "; ".join(f"{name}: {missing[name]}" for name in names))
