"""The lines of the table: who is compared with whom in what, and the figures that gnnkit is to reach."""

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
    Line(
        "workers",
        "one process per thread, against threads of this process",
        "seeds/s",
        "colocated",
        "seeds_per_s",
        "gnnkit",
        targets=(Target("ratio", "at least", 0.95),),
    ),
    Line(
        "workers",
        "one process with as many threads, against threads of this process",
        "seeds/s",
        "colocated-threads",
        "seeds_per_s",
        "gnnkit",
        targets=(Target("ratio", "at least", 0.95),),
    ),
    Line(
        "workers-glt",
        "background processes, against graphlearn-torch's, seeded",
        "seeds/s",
        "colocated",
        "seeds_per_s",
        "glt",
        targets=(Target("ratio", "at least", 7),),
    ),
    Line(
        "workers-start",
        "start of background processes to the first batch, against graphlearn-torch's",
        "s",
        "colocated",
        "start_s",
        "glt",
        bigger=False,
        targets=(Target("value", "at most", 5), Target("ratio", "at least", 5)),
    ),
    Line(
        "workers-start",
        "a fresh process to its first batch from them, imports included",
        "s",
        "colocated-first-cell",
        "start_to_batch_s",
        targets=(Target("value", "at most", 5),),
    ),
    Line(
        "workers-close",
        "close() in the middle of an epoch",
        "s",
        "colocated",
        "close_s",
        targets=(Target("value", "at most", 0.5),),
    ),
    Line(
        "workers-memory",
        "memory (PSS) of 4 background processes, graph and ring aside",
        "B",
        "colocated-memory",
        "own_bytes",
        targets=(Target("value", "at most", 1.2e9),),
    ),
    Line(
        "hosts",
        "two hosts with a part each, against one with both",
        "seeds/s",
        "hosts",
        "seeds_per_s",
        "colocated-2-parts",
        targets=(Target("ratio", "at least", 0.3),),
    ),
    Line(
        "hosts",
        "the same two hosts, against graphlearn-torch's workers on them",
        "seeds/s",
        "hosts",
        "seeds_per_s",
        "glt-hosts",
        targets=(Target("ratio", "at least", 3),),
    ),
)
