"""The options of a benchmark run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gnnkit.errors import PlanError, near_matches

ROWS = (
    "seeds-glt",
    "seeds-pyg",
    "first-epoch",
    "seeds-graphbolt",
    "limit",
    "float16",
    "quint8",
    "quint4x2",
    "quint2x4",
    "open",
    "start",
    "build",
    "memory",
    "size",
    "ingest",
    "tables",
    "append",
    "workers",
    "workers-glt",
    "workers-start",
    "workers-close",
    "workers-memory",
    "hosts",
    "servers",
    "servers-glt",
    "servers-start",
    "servers-alternating",
    "servers-memory",
    "wire",
    "serving",
    "device",
    "disk",
    "kinds",
    "small",
    "labor",
    "advice",
    "ranks",
    "launch",
    "verify",
)
# The graph of the row "ingest" is a tenth of OGBN-Products: reading CSV at full size takes the peers a quarter of an hour.
INGEST_SHARE = 0.1
# That of the row "tables" is three tenths of it, 37 M edges: joining them with pandas takes 5 GB with numbers as keys, and 9 GB with texts.
TABLES_SHARE = 0.3
# That of the row "disk" is papers_like of a tenth of the scale: 6.5 GB at scale 1.
PAPERS_SHARE = 0.1
# Of GraphBolt's fan-out: some 10,000 rows a batch of 16 seeds.
PAPERS_FAN_OUT = (10, 10, 10)


# The scripts that drive the peers, under interpreters of their own; they know nothing of gnnkit.
PEERS = Path(__file__).resolve().parents[1] / "peers"


@dataclass(frozen=True)
class BenchOptions:
    """The options of a benchmark run.

    Attributes:
        scale: Size of the graph, 1 is OGBN-Products' size.
        rows: Rows of the table, of ``ROWS``.
        work_dir: Where the graph and the stores are kept between runs; some 19 GB at scale 1.
        num_threads: Threads or workers that every loader samples with.
        batch_size: Seeds of a batch; fewer where the graph has fewer than four batches.
        num_neighbors: Fan-out.
        num_batches: Batches of a peer's epoch; gnnkit runs whole epochs.
        repeats: How often every contender runs, in turn: A-B-A-B.
        interpreters: ``{"glt" | "pyg" | "graphbolt": a Python in which it can be imported}``; this one where none is named.
        device: Device of the row "device".
        memory_hogs: Other processes that copy memory meanwhile, as a machine's other users do.
        settle_s: How long gnnkit iterates before it is timed: its copy of the graph in huge pages is in use then.
        timeout_s: Longest time for one process.
    """

    scale: float = 1.0
    rows: tuple[str, ...] = ROWS
    work_dir: Path = Path(".bench")
    num_threads: int = 2
    batch_size: int = 1024
    num_neighbors: tuple[int, ...] = (15, 10, 5)
    num_batches: int = 40
    repeats: int = 2
    interpreters: dict[str, Path] = field(default_factory=dict)
    device: str = "cuda"
    memory_hogs: int = 0
    settle_s: float = 4.0
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        for row in self.rows:
            if row not in ROWS:
                raise PlanError(f"unknown row {row!r}{near_matches(row, list(ROWS))}", f"rows: {', '.join(ROWS)}")
        for name, least in (("num_threads", 1), ("batch_size", 1), ("num_batches", 1), ("repeats", 1), ("memory_hogs", 0)):
            if getattr(self, name) < least:
                raise PlanError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name, python in self.interpreters.items():
            if not python.exists():
                raise PlanError(f"the interpreter for {name} does not exist: {python}", f"name a Python in which {name} is installed")
