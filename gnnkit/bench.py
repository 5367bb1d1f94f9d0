"""``gnnkit bench``: what this machine samples from a graph on each backend, held against the gathering of rows alone."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.colocated import Colocated
from gnnkit.backends.graph_store import GraphStore
from gnnkit.backends.inprocess import InProcess
from gnnkit.datasets.synthetic import products_like
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.graph_loader import GraphLoader
from gnnkit.kernels.row_copies import RowCopies, row_copies
from gnnkit.runtime.ring import SharedBlock
from gnnkit.sampling.batch_writer import GATHER, fill
from gnnkit.sampling.copying import measure_once
from gnnkit.sampling.kinds import warm
from gnnkit.sampling.tables import NUM_WHOLE
from gnnkit.schema import plain
from gnnkit.storage.arrays import ReadAhead
from gnnkit.storage.build import build_store
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.store import Store
from gnnkit.units import format_bytes, format_duration, format_number, format_rate

# Backends take turns, so that whatever else the machine does hits all of them alike.
_TURNS = 3
_MOST_BATCHES_FOR_LIMIT = 32
# Of a neighbour's id in a store.
_ID_BYTES = 4


@dataclass(frozen=True)
class BenchOptions:
    """The options of a measurement.

    Attributes:
        source: Folder of a store; None is a generated graph.
        scale: Size of that graph, 1 is OGBN-Products' size.
        num_neighbors: Fan-outs.
        batch_size: Seeds of a batch.
        num_threads: Sampling threads or processes; None leaves it to the backends.
        seconds: How long each backend is timed in a turn.
    """

    source: str | None = None
    scale: float = 0.1
    num_neighbors: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    num_threads: int | None = None
    seconds: float = 4.0


@dataclass
class BackendFigures:
    """The figures of one backend.

    Attributes:
        start_s: From opening a loader to its first batch, in seconds.
        seeds_per_s: Seeds a second, in each turn.
        edges_per_s: Edges of batches a second, likewise.
        bytes_per_s: Bytes of batches a second, likewise.
    """

    start_s: float
    seeds_per_s: list[float] = field(default_factory=list)
    edges_per_s: list[float] = field(default_factory=list)
    bytes_per_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class BenchReport:
    """The figures of all backends.

    Attributes:
        graph: The graph's name.
        num_threads: Threads that ``InProcess`` has sampled with.
        backends: Figures by the backend's name.
        batch_size: Seeds of a batch.
        least_bytes: Bytes that a batch moves at least: rows and neighbours' ids read once, and what it consists of written once.
        gather_bytes_per_s: Bytes of rows that as many threads gather a second when they do nothing else; None without features.
        copy_bytes_per_s: Bytes of rows that they copy a second where these lie in order.
        row_copies: The way in which rows are copied here, measured before the backends were.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("backend", "first batch", "seeds/s", "least", "most", "bytes of batches")

    graph: str
    num_threads: int
    backends: dict[str, BackendFigures]
    batch_size: int
    least_bytes: float
    gather_bytes_per_s: float | None
    copy_bytes_per_s: float
    row_copies: RowCopies

    def cells(self) -> list[tuple[str, ...]]:
        """Returns the rows of the table, in the order of ``COLUMNS``."""
        return [
            (
                name,
                format_duration(found.start_s),
                *(f"{value:,.0f}" for value in (statistics.median(found.seeds_per_s), min(found.seeds_per_s), max(found.seeds_per_s))),
                format_rate(statistics.median(found.bytes_per_s), "B"),
            )
            for name, found in self.backends.items()
        ]

    def lines(self) -> list[str]:
        """Returns what the figures mean, in sentences."""
        best, found = max(self.backends.items(), key=lambda item: statistics.median(item[1].seeds_per_s))
        lines = [f"{best} is the fastest here: {format_rate(statistics.median(found.seeds_per_s), 'seeds')}."]
        if self.gather_bytes_per_s is not None:
            moved = statistics.median(found.seeds_per_s) / self.batch_size * self.least_bytes
            in_order, limit = 2 * self.copy_bytes_per_s, 2 * self.gather_bytes_per_s
            lines += [
                f"A batch moves {format_bytes(self.least_bytes)} at least: rows and neighbours read once, its tensors written once.",
                f"Memory moves {format_rate(in_order, 'B')} here for {format_number(self.num_threads, 'thread')} that copy rows in order, "
                f"{format_rate(limit, 'B')} for as many that gather them: the limit.",
                f"{best} moves {format_rate(moved, 'B')} of what is least beside choosing neighbours, {moved / limit:.0%} of the limit.",
            ]
        return [*lines, f"Rows are copied by {self.row_copies}, chosen from {self.row_copies.reason}."]

    def to_json(self) -> dict[str, Any]:
        """Returns everything, single turns included, as JSON values."""
        return dict(plain(self))


def measure(options: BenchOptions, events: EventSink = ignore_events) -> BenchReport:
    """Measures each backend, in turn.

    Args:
        options: What to measure.
        events: Receives the stages of making the graph, and "bench" with a unit for each turn of a backend.

    Raises:
        PlanError: The options do not fit the graph.
        StoreError: The store cannot be opened, or the generated graph not be stored.
    """
    warm(events)
    measure_once(again=True)
    with contextlib.ExitStack() as held:
        if options.source is None:
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="gnnkit-bench-"))
            store = build_store(products_like(options.scale), Path(folder) / "store", BuildOptions(), events)
        else:
            store = Store.open(options.source)
        given: dict[str, Any] = {"num_neighbors": list(options.num_neighbors), "batch_size": options.batch_size, "progress": False}
        loaders: dict[str, GraphLoader] = {}
        figures: dict[str, BackendFigures] = {}
        for name, backend in _backends(options.num_threads).items():
            begin = time.perf_counter()
            loader = loaders[name] = held.enter_context(GraphLoader.from_store(store.path, backend=backend, **given))
            next(iter(loader))
            figures[name] = BackendFigures(time.perf_counter() - begin)
        with Stage(events, "bench", label=store.name, total=_TURNS * len(loaders), unit="turns") as stage:
            for _ in range(_TURNS):
                for name, loader in loaders.items():
                    _time(loader, options.seconds, figures[name])
                    stage.advance()
        threads = loaders["InProcess"].status().workers
        limit = _limit(loaders["InProcess"], store, threads)
        return BenchReport(store.name, threads, figures, options.batch_size, *limit, row_copies())


def _backends(num_threads: int | None) -> dict[str, Any]:

    count: Any = "auto" if num_threads is None else num_threads
    return {"InProcess": InProcess(count), "Colocated": Colocated(count), "GraphStore": GraphStore(1, workers_per_server=num_threads or 1)}


def _time(loader: GraphLoader, seconds: float, figures: BackendFigures) -> None:
    """Iterates for so long, over as many epochs as that takes, and adds a turn's figures."""
    seeds, edges, nbytes, elapsed = 0, 0, 0, 0.0
    while elapsed < seconds:
        begin = time.perf_counter()
        for _ in loader:
            if elapsed + time.perf_counter() - begin >= seconds:
                break
        elapsed += time.perf_counter() - begin
        stats = loader.stats()
        seeds, edges, nbytes = seeds + stats.seeds, edges + stats.edges, nbytes + stats.nbytes
    figures.seeds_per_s.append(seeds / elapsed)
    figures.edges_per_s.append(edges / elapsed)
    figures.bytes_per_s.append(nbytes / elapsed)


def _limit(loader: GraphLoader, store: Store, num_threads: int) -> tuple[float, float | None, float]:
    """Measures the gathering of batches' features alone, from huge pages into memory that is there.

    Returns:
        The three of ``BenchReport``, rows of the type with the widest ones; 0, None and 0 without features.
    """
    stored = {node_type: parts[0].arrays["x"] for node_type, parts in store.arrays().nodes.items() if "x" in parts[0].arrays}
    if not stored:
        return 0.0, None, 0.0
    node_type = max(stored, key=lambda name: stored[name].nbytes)
    batches = [
        (batch if store.schema.is_homogeneous else batch[node_type]).n_id.numpy().copy()
        for batch in islice(iter(loader), _MOST_BATCHES_FOR_LIMIT)
    ]
    stats = loader.stats()
    rows = in_huge_pages(np.asarray(stored[node_type]))
    batches = [ids[ids < len(rows)] for ids in batches]  # of several parts, the first one's
    outs = [in_huge_pages(np.ones((max(map(len, batches)), *rows.shape[1:]), rows.dtype)) for _ in range(num_threads)]
    copied = sum(map(len, batches)) * rows[0].nbytes
    if not copied:
        return 0.0, None, 0.0
    in_order = [np.arange(len(ids)) for ids in batches]
    gather_s, copy_s = (min(gather(rows, 2 * own, outs) for _ in range(5)) for own in (batches, in_order))
    least = (stats.nbytes + copied + _ID_BYTES * stats.edges) / stats.batches
    return least, 2 * copied / gather_s, 2 * copied / copy_s


def in_huge_pages(rows: NDArray[Any]) -> NDArray[Any]:
    """Copies rows to where random reads are cheapest."""
    block = SharedBlock.create("gnnkit-bench", rows.nbytes)
    copy = block.bytes[: rows.nbytes].view(rows.dtype).reshape(rows.shape)
    copy[:] = rows
    block.collapse()
    return copy


def gather(rows: NDArray[Any], batches: Sequence[NDArray[np.int64]], outs: Sequence[NDArray[Any]]) -> float:
    """Gathers the rows of batches, by a thread for each place for them, which takes the next batch as soon as it has done one.

    Args:
        rows: Table of rows.
        batches: Ids of rows.
        outs: Rows of a batch, of as many as the largest has.

    Returns:
        The seconds that it takes.
    """
    width = rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    tables, bounds, ahead = np.array([[rows.ctypes.data]]), np.array([[0, len(rows)]]), row_copies().entered(ReadAhead([]).table)
    todo, lock = iter(batches), threading.Lock()

    def work(out: NDArray[Any]) -> None:
        while True:
            with lock:
                ids = next(todo, None)
            if ids is None:
                return
            step = [GATHER, ids.ctypes.data, len(ids), width, out.ctypes.data, 0, 0]
            fill(ahead, np.array([step], np.int64), tables, bounds, np.zeros((1, NUM_WHOLE + 1), np.int64))

    threads = [threading.Thread(target=work, args=(out,)) for out in outs]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start
