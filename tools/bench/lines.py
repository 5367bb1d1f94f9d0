"""The lines of the table: who is compared with whom in what, how each is computed, and the figures to reach."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tools.bench.kinds import SPARSE_KINDS
from tools.bench.process import ProcessMeasurement

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
class TableLine:
    """One line of the table.

    Attributes:
        row: The row of ``BenchOptions.rows`` that it belongs to.
        title: What is compared.
        unit: "seeds/s", "answers/s", "nodes", "s", "µs", "B", "x" (a share).
        contender: Who is measured, and ``key`` of its values.
        peer: Who it is compared with, or None.
        key: Name of the measured value; "peak", "anonymous" and "without_batches" are seen from outside.
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


Measurements = Mapping[str, Sequence[ProcessMeasurement]]
# Figures to reach hold for a graph of OGBN-Products' size; on a small one fixed costs are all there is.
FULL_SCALE = 1.0
_SEEN: dict[str, Callable[[ProcessMeasurement], float]] = {
    "peak": lambda m: m.peak_bytes,
    "anonymous": lambda m: m.anonymous_bytes,
    "without_batches": lambda m: m.anonymous_bytes - m.values["batch_bytes"],
}


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
        peer_engine: What the peer says that it sampled with, and how; None where it says nothing.
    """

    line: TableLine
    value: float | None
    peer_value: float | None
    ratio: float | None
    met: bool | None
    note: str
    bound_share: float | None = None
    own_share: float | None = None
    limited: bool = False
    peer_engine: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        line = self.line
        return {
            "row": line.row,
            "title": line.title,
            "unit": line.unit,
            "gnnkit": self.value,
            "peer": line.peer,
            "peer_engine": self.peer_engine,
            "peer_value": self.peer_value,
            "ratio": self.ratio,
            "targets": [{"of": t.of, "better": t.better, "limit": t.limit} for t in line.targets],
            "met": self.met,
            "bound": line.bound
            and {"what": line.bound.what, "least": line.bound.least, "share": self.bound_share, "own_share": self.own_share},
            "limited": self.limited,
            "note": self.note,
        }


def evaluate(line: TableLine, measurements: Measurements, missing: Mapping[str, str], scale: float) -> Result:
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
    said = {str(run.values["engine"]) for run in measurements.get(line.peer or "", ()) if "engine" in run.values}
    return Result(line, value, peer_value, ratio, met, note, share, own_share, limited, "; ".join(sorted(said)) or None)


_PROCESSORS = Bound("processors", "busy", "own_busy", 0.9)
_TWO_RANKS = {
    "hosts-replicated": "two hosts with a rank, a process and the whole graph each, against one such host",
    "hosts": "two hosts with a rank, a process and a part each, against one with both parts",
}
JOB_LINES = (
    *(
        TableLine(
            "ranks", what, "seeds/s", contender, "seeds_per_s", "one-rank", targets=(Target("ratio", "at least", 1.3),), bound=_PROCESSORS
        )
        for contender, what in _TWO_RANKS.items()
    ),
    TableLine(
        "launch",
        "start of launch() with two ranks to the end of the first training step",
        "s",
        "launch",
        "first_step_s",
        targets=(Target("value", "at most", 10),),
    ),
    TableLine(
        "verify",
        "an exported job's 2 x 2 ranks and this process, through an epoch of 100 batches each compared",
        "s",
        "verify",
        "verify_s",
        targets=(Target("value", "at most", 60),),
    ),
)


# Where it is sampled, by contender, and the most microseconds that all but one answer in a hundred may take.
_SERVING = {"serving": ("in this process", 3000), "serving-servers": ("through two servers", 6000)}
_SERVING_LINES = tuple(
    line
    for contender, (where, limit) in _SERVING.items()
    for line in (
        TableLine(
            "serving",
            f"p99 of sample([id]) {where}, eight threads that ask 400 times a second",
            "µs",
            contender,
            "p99_us",
            targets=(Target("value", "at most", limit),),
        ),
        TableLine(
            "serving", f"answers {where}, eight threads that ask as soon as they are answered", "answers/s", contender, "answers_per_s"
        ),
    )
)


# What is on the device, the seconds that an epoch may take, and the seeds a second of sampling with rows and nothing else.
_ON_DEVICE: dict[str, tuple[str, float, tuple[Target, ...]]] = {
    "device-0": ("no features", 3.0, ()),
    "device-25": ("25 % of the features", 3.0, ()),
    "device-100": ("all features", 3.0, ()),
    "device-sampled": ("the whole graph", 1.5, (Target("value", "at least", 400_000.0),)),
}
_DEVICE_LINES = tuple(
    TableLine("device", f"{what}, {kept} there", unit, contender, key, targets=targets)
    for contender, (kept, most_s, least) in _ON_DEVICE.items()
    for what, unit, key, targets in (
        ("an epoch of GraphSAGE on the device", "s", "epoch_s", (Target("value", "at most", most_s),)),
        ("... against the same steps with batches there already", "x", "ratio", (Target("value", "at most", 1.15),)),
        ("... share of it in which the device computes", "x", "compute_share", ()),
        ("... share of copies that is hidden behind steps, at least", "x", "copies_hidden", ()),
        ("sampling with rows and nothing else", "seeds/s", "feed_seeds_per_s", least),
    )
)


_SHARES = {2: "half", 4: "a quarter", 8: "an eighth"}
_DISK_LINES = (
    *(
        TableLine(
            "disk",
            f"InProcess, memory for {share} of the store, against asking ahead for its rows and nothing else",
            "rows/s",
            f"disk-inprocess-{divisor}",
            "rows_per_s",
            f"disk-ahead-{divisor}",
            targets=(Target("ratio", "at least", 0.8),),
        )
        for divisor, share in _SHARES.items()
    ),
    TableLine(
        "disk",
        "InProcess, a quarter, against random reads past the page cache, the best of 1 to 256 at a time",
        "pages/s",
        "disk-inprocess-4",
        "pages_per_s",
        "disk-probe",
        targets=(Target("ratio", "at least", 0.8),),
    ),
    TableLine(
        "disk",
        'pages read for a batch with order="hotness", a quarter, against the dataset\'s order',
        "pages",
        "disk-hotness-4",
        "pages_per_batch",
        "disk-inprocess-4",
        targets=(Target("ratio", "at most", 0.5),),
    ),
    *(
        TableLine(
            "disk",
            f"{what}, {_SHARES[divisor]}, against InProcess",
            "rows/s",
            f"disk-{contender}-{divisor}",
            "rows_per_s",
            f"disk-inprocess-{divisor}",
            targets=(Target("ratio", "at least", 0.7),),
        )
        for contender, what in (("colocated", "two processes"), ("servers", "two servers"))
        for divisor in (2, 4)
    ),
)


_KINDS = {
    "link-binary": ("links and as many drawn pairs", "LinkNeighborLoader"),
    "link-triplet": ("links and a drawn target each", "LinkNeighborLoader"),
    "anchors": ("anchors and their labels", None),
    "induced": ("induced subgraphs", "NeighborLoader"),
    "shadow": ("an induced subgraph for each seed", "ShaDowKHopSampler"),
    "disjoint": ("a neighbourhood for each seed", "NeighborLoader"),
    "temporal": ("a neighbourhood for each seed and its time", "NeighborLoader"),
    "weighted": ("neighbours by weight", "NeighborLoader"),
    "typed": ("a graph of four types, a quarter of ogbn-mag", "NeighborLoader"),
    "ppr": ("personalised PageRank", None),
    "hgt": ("HGT's budgets", "HGTLoader"),
    "layer-wise": ("layer-wise", None),
}
_LEAST_OF_KINDS = {"link-binary": 6, "typed": 6, "temporal": 5}
_KIND_LINES = tuple(
    TableLine(
        "kinds",
        f"{kind}: {what}, against PyG {peer}{'' if kind in SPARSE_KINDS else ', tuned'}",
        "seeds/s",
        f"kind-{kind}",
        "seeds_per_s",
        f"pyg-{kind}",
        targets=(Target("ratio", "at least", _LEAST_OF_KINDS.get(kind, 4)),),
    )
    if peer is not None
    else TableLine("kinds", f"{kind}: {what}", "seeds/s", f"kind-{kind}", "seeds_per_s")
    for kind, (what, peer) in _KINDS.items()
)
_SMALL_LINES = tuple(
    TableLine(
        "small",
        f"batches of {size} at 10/5, against PyG NeighborLoader, tuned",
        "seeds/s",
        f"gnnkit-of-{size}",
        "seeds_per_s",
        f"pyg-of-{size}",
        targets=(Target("ratio", "at least", least),),
    )
    for size, least in ((8, 3), (32, 3), (256, 6))
)
# At fan-out 15/10/5. What is aimed at over the wire follows from the rows that do not cross.
_LABOR_LINES = tuple(
    TableLine("labor", f"LABOR, against plain fan-out: {what}", unit, contender, key, peer, targets=(target,))
    for what, unit, contender, key, peer, target in (
        ("nodes of a batch", "x", "labor", "nodes", None, Target("value", "at most", 0.65)),
        ("in memory, in turn in one process", "x", "labor", "speed", None, Target("value", "at least", 1.15)),
        ("over the wire", "seeds/s", "wire-labor", "seeds_per_s", "wire", Target("ratio", "at least", 1.3)),
    )
)
# What is made slow, and what advising on it has to name.
_BOTTLENECKS = {
    "consumer": "a slow loop body, against one of half the time",
    "workers": "one worker, against as many as advised",
    "slots": "a tiny ring, against one as advised",
    "disk": "a dropped page cache, against a copy in memory as advised",
}
_ADVICE_LINES = tuple(
    TableLine("advice", f"{name}: {what}", "x", f"advice-{name}", "gain", targets=(Target("value", "at least", 1.2),))
    for name, what in _BOTTLENECKS.items()
)
LINES = (
    TableLine(
        "seeds-glt",
        "against graphlearn-torch, seeded",
        "seeds/s",
        "gnnkit",
        "seeds_per_s",
        "glt",
        targets=(Target("ratio", "at least", 8),),
    ),
    *(
        TableLine("seeds-pyg", what, "seeds/s", "gnnkit", "seeds_per_s", peer, targets=(Target("ratio", "at least", least),))
        for what, peer, least in (
            ("against PyG NeighborLoader, as it comes", "pyg", 10),
            ("against PyG NeighborLoader, tuned", "pyg-tuned", 6),
        )
    ),
    TableLine(
        "first-epoch",
        "batches/s of the first epoch, against the later ones",
        "x",
        "gnnkit",
        "first_epoch",
        targets=(Target("value", "at least", 0.8),),
    ),
    TableLine("seeds-graphbolt", "against DGL GraphBolt", "seeds/s", "gnnkit", "seeds_per_s", "graphbolt"),
    TableLine(
        "limit",
        "against gathering the same rows and nothing else",
        "seeds/s",
        "gnnkit",
        "seeds_per_s",
        "limit",
        targets=(Target("ratio", "at least", 0.55),),
    ),
    TableLine(
        "float16",
        "features in float16, against float32",
        "seeds/s",
        "gnnkit-float16",
        "seeds_per_s",
        "gnnkit",
        targets=(Target("ratio", "at least", 1.5),),
    ),
    TableLine("quint8", "features in 8 bits, against float32", "seeds/s", "gnnkit-quint8", "seeds_per_s", "gnnkit"),
    TableLine("quint4x2", "features in 4 bits, against float32", "seeds/s", "gnnkit-quint4x2", "seeds_per_s", "gnnkit"),
    TableLine("quint2x4", "features in 2 bits, against float32", "seeds/s", "gnnkit-quint2x4", "seeds_per_s", "gnnkit"),
    TableLine(
        "open",
        "open to first batch, against graphlearn-torch",
        "s",
        "gnnkit",
        "first_batch_s",
        "glt",
        bigger=False,
        targets=(Target("value", "at most", 1), Target("ratio", "at least", 30)),
    ),
    TableLine(
        "start",
        "a fresh process to its first batch, imports included",
        "s",
        "first-cell",
        "start_to_batch_s",
        targets=(Target("value", "at most", 12),),
    ),
    TableLine(
        "build",
        "build two parts from arrays, against GLT's RandomPartitioner",
        "s",
        "gnnkit-build",
        "build_s",
        "glt-build",
        targets=(Target("ratio", "at most", 0.5),),
    ),
    TableLine(
        "build",
        "peak memory of that, the arrays included",
        "B",
        "gnnkit-build",
        "peak",
        "glt-build",
        targets=(Target("ratio", "at most", 1 / 3),),
    ),
    TableLine(
        "memory",
        "peak memory of epochs, without graph pages and batches",
        "B",
        "gnnkit",
        "without_batches",
        targets=(Target("value", "at most", 0.4e9),),
    ),
    TableLine("size", "store on disk", "B", "store", "nbytes", targets=(Target("value", "at most", 1.6e9),)),
    TableLine("size", "store on disk, with edge ids", "B", "store-edge-ids", "nbytes", targets=(Target("value", "at most", 2.1e9),)),
    TableLine(
        "ingest",
        "read OGB's csv.gz into a store, against NodePropPredDataset",
        "s",
        "gnnkit-ingest",
        "ingest_s",
        "ogb-ingest",
        bigger=False,
        targets=(Target("ratio", "at least", 3),),
    ),
    *(
        line
        for kind, least in (("int64", 5e6), ("string", 1.5e6))
        for line in (
            TableLine(
                "tables",
                f"read Parquet with {kind} keys into a store, against pandas and PyG in memory",
                "edges/s",
                f"gnnkit-tables-{kind}",
                "edges_per_s",
                f"pandas-tables-{kind}",
                targets=(Target("value", "at least", least), Target("ratio", "at least", 3)),
            ),
            TableLine(
                "tables",
                f"peak memory of it, {kind} keys",
                "B",
                f"gnnkit-tables-{kind}",
                "anonymous",
                f"pandas-tables-{kind}",
                bigger=False,
                targets=(Target("ratio", "at least", 5),),
            ),
        )
    ),
    TableLine(
        "append",
        "append 1 M edges with int64 keys to a store of one part, synced",
        "s",
        "gnnkit-append",
        "append_s",
        bigger=False,
        targets=(Target("value", "at most", 5),),
    ),
    TableLine(
        "workers",
        "one process per thread, against threads of this process",
        "seeds/s",
        "colocated",
        "seeds_per_s",
        "gnnkit",
        targets=(Target("ratio", "at least", 0.95),),
    ),
    TableLine(
        "workers",
        "one process with as many threads, against threads of this process",
        "seeds/s",
        "colocated-threads",
        "seeds_per_s",
        "gnnkit",
        targets=(Target("ratio", "at least", 0.95),),
    ),
    TableLine(
        "workers-glt",
        "background processes, against graphlearn-torch's, seeded",
        "seeds/s",
        "colocated",
        "seeds_per_s",
        "glt",
        targets=(Target("ratio", "at least", 7),),
    ),
    TableLine(
        "workers-start",
        "start of background processes to the first batch, against graphlearn-torch's",
        "s",
        "colocated",
        "start_s",
        "glt",
        bigger=False,
        targets=(Target("value", "at most", 5), Target("ratio", "at least", 5)),
    ),
    TableLine(
        "workers-start",
        "a fresh process to its first batch from them, imports included",
        "s",
        "colocated-first-cell",
        "start_to_batch_s",
        targets=(Target("value", "at most", 5),),
    ),
    TableLine(
        "workers-close",
        "close() in the middle of an epoch",
        "s",
        "colocated",
        "close_s",
        targets=(Target("value", "at most", 0.5),),
    ),
    TableLine(
        "workers-memory",
        "memory (PSS) of 4 background processes, graph and ring aside",
        "B",
        "colocated-memory",
        "own_bytes",
        targets=(Target("value", "at most", 1.2e9),),
    ),
    TableLine(
        "hosts",
        "two hosts with a part each, against one with both",
        "seeds/s",
        "hosts",
        "seeds_per_s",
        "colocated-2-parts",
        targets=(Target("ratio", "at least", 0.3),),
    ),
    TableLine(
        "hosts",
        "two hosts with the structure, a METIS part's features and a fifth of the others' hottest each, against one with all",
        "seeds/s",
        "hosts-features",
        "seeds_per_s",
        "colocated-by-part",
        targets=(Target("ratio", "at least", 0.7),),
    ),
    TableLine(
        "hosts",
        "the same two hosts, against graphlearn-torch's workers on them",
        "seeds/s",
        "hosts",
        "seeds_per_s",
        "glt-hosts",
        targets=(Target("ratio", "at least", 3),),
    ),
    TableLine(
        "servers",
        "two servers on loopback with a process each, against background processes",
        "seeds/s",
        "servers",
        "seeds_per_s",
        "colocated",
        targets=(Target("ratio", "at least", 0.85),),
    ),
    TableLine(
        "servers-glt",
        "the same servers, against graphlearn-torch's with the whole graph in each, seeded",
        "seeds/s",
        "servers",
        "seeds_per_s",
        "glt-servers",
        targets=(Target("ratio", "at least", 6),),
    ),
    TableLine(
        "servers-glt",
        "the same servers, against graphlearn-torch's with a part in each, seeded",
        "seeds/s",
        "servers",
        "seeds_per_s",
        "glt-servers-parts",
        targets=(Target("ratio", "at least", 6),),
    ),
    TableLine(
        "servers-start",
        "start of servers to the first batch, against graphlearn-torch's",
        "s",
        "servers-start",
        "first_batch_s",
        "glt-servers",
        bigger=False,
        targets=(Target("value", "at most", 6),),
    ),
    TableLine(
        "servers-alternating",
        "a batch of three splits in turn from the same servers, against one loader at a time",
        "seeds/s",
        "splits-alternating",
        "seeds_per_s",
        "splits-one-by-one",
        targets=(Target("ratio", "at least", 0.9),),
    ),
    TableLine(
        "servers-memory",
        "memory (PSS) of two servers, clients' rings aside: 8 clients against 1",
        "B",
        "servers-many-clients",
        "server_bytes",
        "servers-one-client",
        targets=(Target("ratio", "at most", 1.3),),
    ),
    TableLine(
        "wire",
        "a trainer and two servers on two hosts, against one host",
        "seeds/s",
        "wire",
        "seeds_per_s",
        "servers",
        targets=(Target("ratio", "at least", 0.3),),
    ),
    TableLine(
        "wire",
        "bytes on the cable, headers included, as a share of the batches'",
        "x",
        "wire",
        "wire_share",
        targets=(Target("value", "at most", 1.1),),
    ),
    *_SERVING_LINES,
    *_DEVICE_LINES,
    *_DISK_LINES,
    *JOB_LINES,
    *_KIND_LINES,
    *_SMALL_LINES,
    *_LABOR_LINES,
    *_ADVICE_LINES,
)
