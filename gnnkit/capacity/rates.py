"""How fast one thread samples: measured here in a few seconds, or taken from what ``gnnkit bench --json`` recorded."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.capacity.batch import most
from gnnkit.errors import PlanError
from gnnkit.files import read_bounded

# Large enough that batches do not cover the graph, small enough to be made in seconds.
_SCALE, _BATCH_SIZE = 0.05, 256
_MEASURED_S, _LEAST_BATCHES = 2.0, 8
_BENCH_RUN = "gnnkit"


@dataclass(frozen=True)
class Rates:
    """What one sampling thread does in a second: it goes along edges, and copies rows of features. Either may be what holds it back.

    Attributes:
        edges_per_s: Edges sampled, with the rows that come with them.
        bytes_per_s: Bytes of the rows that were copied meanwhile.
        source: Where the numbers come from, in words.
    """

    edges_per_s: float
    bytes_per_s: float
    source: str

    def seconds(self, num_edges: float, row_bytes: float) -> float:
        """What a batch takes one thread: rows wider than those that were measured take longer in proportion."""
        return max(num_edges / self.edges_per_s, row_bytes / self.bytes_per_s)


def measure(num_neighbors: Sequence[int]) -> Rates:
    """Samples a generated graph of OGBN-Products' kind in one thread of this process for two seconds.

    Args:
        num_neighbors: The fan-outs; -1 counts as 15.
    """
    from gnnkit import datasets
    from gnnkit.backends.inprocess import InProcess
    from gnnkit.graph_loader import GraphLoader  # numba

    fan_out = [15 if count < 0 else count for count in num_neighbors]
    source = datasets.products_like(_SCALE)
    row = sum(spec.row_nbytes for nodes in source.schema.node_types.values() for spec in nodes.arrays.values())
    edges = nodes = batches = 0
    with tempfile.TemporaryDirectory(prefix="gnnkit-capacity-") as folder:
        options: dict[str, Any] = {"num_neighbors": fan_out, "batch_size": _BATCH_SIZE, "backend": InProcess(1), "progress": False}
        with GraphLoader.from_source(source, store_dir=folder, **options) as loader:
            loader.peek()  # kernels are compiled, and the graph is in memory
            start = time.perf_counter()
            for batch in loader:
                edges, nodes, batches = edges + batch.num_edges, nodes + batch.num_nodes, batches + 1
                elapsed = time.perf_counter() - start
                if elapsed > _MEASURED_S and batches >= _LEAST_BATCHES:
                    break
    what = f"measured here: {batches} batches of a generated graph of {source.num_nodes:,} nodes in memory, one thread, {elapsed:.1f} s"
    return Rates(edges / elapsed, nodes * row / elapsed, what)


def from_bench(path: Path) -> Rates:
    """The rates behind the seeds per second that ``gnnkit bench --json`` recorded for sampling in threads of one process.

    A record counts seeds: how many edges those were is bounded as for the graph that is asked about, so that both err alike.

    Raises:
        PlanError: The file is no such record.
    """
    from gnnkit import datasets

    try:
        value = json.loads(read_bounded(path))
        seeds = statistics.median(float(run["seeds_per_s"]) for run in value["runs"][_BENCH_RUN])
        scale, batch_size, threads = float(value["scale"]), int(value["batch_size"]), int(value["num_threads"])
        fan_out = [int(count) for count in value["num_neighbors"]]
        machine = value["machine"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        hint = "write one with gnnkit bench --json > bench.json; it needs the row of gnnkit's own sampling"
        raise PlanError(f"{str(path)!r} is no record of gnnkit bench: {type(error).__name__}: {error}", hint) from error
    schema = datasets.products_like(scale).schema
    (node_type,), (edge_type,) = schema.node_types, schema.edge_types
    size = most(schema, {edge_type: fan_out}, node_type, batch_size, "in")
    batches_per_s = seeds / batch_size / threads
    what = f"recorded in {path} on {machine.get('cpu', 'a machine that it does not name')}: {seeds:,.0f} seeds/s with {threads} threads"
    return Rates(batches_per_s * size.num_edges, batches_per_s * size.row_bytes(schema), what)
