"""gnnkit's own measurements, each run as ``python -m tools.bench.tasks NAME ...`` and ending with one line of JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.bench import gather, in_huge_pages
from tools.bench import cluster_tasks, limit_tasks
from tools.bench.kinds import KINDS, kind_epoch, make_loader, time_epochs
from tools.bench.process import STARTED

_MOST_BATCHES_FOR_LIMIT = 32
# Edges of the store for each one that is appended: 1 M for the 124 M of OGBN-Products' size.
_OLD_EDGES_PER_NEW = 120
# Pairs of turns of loaders that are compared in one process.
_PAIRS = 11


def epoch(options: argparse.Namespace) -> dict[str, Any]:
    """Opens a store, iterates whole epochs, reports the last ones' speed, and closes in the middle of one more."""
    import torch_geometric.data  # noqa: F401 - what every user has imported before the clock starts

    import gnnkit.graph_loader
    import gnnkit.sampling.kinds

    gnnkit.sampling.kinds.warm()
    start = time.perf_counter()
    with make_loader(options) as loader:
        iterator = iter(loader)
        next(iterator)
        first_batch_s = time.perf_counter() - start
        first = sum(1 for _ in iterator)
        first_s = time.perf_counter() - start - first_batch_s
        while time.perf_counter() - start < options.settle:
            for _ in loader:
                pass
        batches, elapsed = time_epochs(loader, options)
        stats = loader.stats()
        next(iter(loader))
        block_bytes = loader.status().buffer_bytes
        begin = time.perf_counter()
        loader.close()
        close_s = time.perf_counter() - begin
    return {
        "first_batch_s": first_batch_s,
        "start_s": first_batch_s,
        "close_s": close_s,
        # A ninth of a block is room for larger batches, which nobody has touched.
        "batch_bytes": block_bytes * 8 // 9,
        "first_epoch": first / first_s * elapsed / batches,
        "seeds_per_s": batches * options.batch_size / elapsed,
        "edges_per_s": stats.edges / stats.wall_s if stats.wall_s else 0.0,
        "nodes_per_batch": stats.nodes / max(1, stats.batches),
    }


def labor(options: argparse.Namespace) -> dict[str, Any]:
    """Runs plain fan-out and LABOR in turn, in one process and on one copy of the graph, and compares the two of each pair.

    Memory differs from process to process, and other work from minute to minute, by more than the two do. Who begins changes.
    """
    with contextlib.ExitStack() as stack:
        plain, shared = (
            stack.enter_context(make_loader(argparse.Namespace(**{**vars(options), "labor": chosen}))) for chosen in (False, True)
        )
        for loader in (plain, shared):
            limit_tasks.run(loader.pipeline, options.settle / 2, None)
        ratios = []
        for pair in range(_PAIRS):
            order = (plain, shared) if pair % 2 == 0 else (shared, plain)
            speeds = {loader: limit_tasks.run(loader.pipeline, options.look, None) for loader in order}
            ratios.append(speeds[shared] / speeds[plain])
        nodes = [stats.nodes / stats.batches for stats in (plain.stats(), shared.stats())]
    return {"speed": median(ratios), "ratios": sorted(ratios), "nodes": nodes[1] / nodes[0]}


def worker_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Measures the memory of sampling processes after some epochs, by its use."""
    from tools.bench.process import children_running, footprint

    with make_loader(options) as loader:
        start = time.perf_counter()
        while loader.epoch < options.epochs or time.perf_counter() - start < options.settle:
            for _ in loader:
                pass
        return footprint(children_running("gnnkit.cluster.worker"), Path(options.path))


def limit(options: argparse.Namespace) -> dict[str, Any]:
    """Gathers the same rows as the loader does, by as many threads, into touched memory, and does nothing else."""
    from gnnkit.storage.store import Store

    with make_loader(options) as loader:
        batches = [batch.n_id.numpy().copy() for batch in islice(iter(loader), _MOST_BATCHES_FOR_LIMIT)]
    store = Store.open(options.path)
    mapped = next(iter(store.arrays().nodes.values()))[0].arrays["x"]
    rows = in_huge_pages(np.asarray(mapped))
    most = max(map(len, batches))
    outs = [np.ones((most, *rows.shape[1:]), rows.dtype) for _ in range(options.threads)]
    fastest_s = min(gather(rows, batches * 2, outs) for _ in range(5))
    seeds = 2.0 * len(batches) * int(options.batch_size)
    return {"seeds_per_s": seeds / fastest_s, "nodes_per_batch": sum(map(len, batches)) / len(batches)}


def first_cell(options: argparse.Namespace) -> dict[str, Any]:
    """Measures a notebook's first cell: from the start of the process to the first batch, imports included."""
    with make_loader(options) as loader:
        batch = next(iter(loader))
        return {"start_to_batch_s": time.time() - float(os.environ[STARTED]), "nodes": int(batch.num_nodes)}


def _edge_index(folder: Path) -> NDArray[np.int64]:
    """Both ends of the edges in one array, without ever holding them twice: the peak is to be the builder's."""
    count = len(np.load(folder / "row.npy", mmap_mode="r"))
    edge_index = np.empty((2, count), np.int64)
    for end, name in enumerate(("row", "col")):
        with (folder / f"{name}.npy").open("rb") as file:
            file.seek(-8 * count, os.SEEK_END)
            file.readinto(memoryview(edge_index[end]).cast("B"))
    return edge_index


def build(options: argparse.Namespace) -> dict[str, Any]:
    """Builds a store in two parts from arrays in memory."""
    import shutil

    import torch
    from torch_geometric.data import Data

    from gnnkit.partitioning import partition

    feat = np.load(Path(options.path) / "feat.npy")
    edge_index = _edge_index(Path(options.path))
    data = Data(x=torch.from_numpy(feat), edge_index=torch.from_numpy(edge_index))
    input_bytes = feat.nbytes + edge_index.nbytes
    del feat, edge_index
    shutil.rmtree(options.out, ignore_errors=True)
    start = time.perf_counter()
    store = partition(data, 2, options.partition, options.out)
    elapsed = time.perf_counter() - start
    nbytes = store.nbytes
    shutil.rmtree(options.out, ignore_errors=True)
    return {"build_s": elapsed, "input_bytes": input_bytes, "nbytes": nbytes}


def ingest(options: argparse.Namespace) -> dict[str, Any]:
    """Reads OGB's layout (csv.gz) into a store."""
    import shutil

    import gnnkit.sampling.kinds
    from gnnkit.datasets.ogb import open_ogb
    from gnnkit.storage.build import build_store
    from gnnkit.storage.layout import BuildOptions

    gnnkit.sampling.kinds.warm()
    shutil.rmtree(options.out, ignore_errors=True)
    start = time.perf_counter()
    store = build_store(open_ogb("ogbn-products", root=options.path, download=False), Path(options.out), BuildOptions())
    elapsed = time.perf_counter() - start
    edges = store.schema.num_edges
    shutil.rmtree(options.out, ignore_errors=True)
    return {"ingest_s": elapsed, "edges": edges}


def tables(options: argparse.Namespace) -> dict[str, Any]:
    """Reads tables of nodes and edges, found by their keys, into a store."""
    import shutil

    import gnnkit.sampling.kinds
    from gnnkit.datasets.tables import tables as read
    from gnnkit.storage.build import build_store
    from gnnkit.storage.layout import BuildOptions

    gnnkit.sampling.kinds.warm()
    key = [7] if options.keys == "int64" else ["a"]
    read({"src": key, "dst": key})  # compiles, once on a machine
    shutil.rmtree(options.out, ignore_errors=True)
    start = time.perf_counter()
    nodes, edges = (Path(options.path) / f"{name}-{options.keys}.parquet" for name in ("nodes", "edges"))
    store = build_store(read(edges, nodes, keys="key", src="src", dst="dst"), Path(options.out), BuildOptions())
    elapsed = time.perf_counter() - start
    count = store.schema.num_edges
    shutil.rmtree(options.out, ignore_errors=True)
    return {"tables_s": elapsed, "edges": count, "edges_per_s": count / elapsed}


def append(options: argparse.Namespace) -> dict[str, Any]:
    """Appends edges between nodes that are there to a store that was made of tables, and syncs the new version."""
    import shutil

    from gnnkit.schema import HOMOGENEOUS_NODE_TYPE
    from gnnkit.storage.store import Store

    store, rng = Store.open(options.path), np.random.default_rng(1)
    new, keys = store.schema.num_edges // _OLD_EDGES_PER_NEW, store.keys(HOMOGENEOUS_NODE_TYPE)
    ends = {name: keys[rng.integers(0, store.schema.num_nodes, new)] for name in ("src", "dst")}
    for count in (1, new):  # the first compiles, once on a machine, and loads what is compiled
        shutil.rmtree(options.out, ignore_errors=True)
        start = time.perf_counter()
        later = store.append({name: rows[:count] for name, rows in ends.items()}, out=options.out)
        elapsed = time.perf_counter() - start
    shutil.rmtree(options.out, ignore_errors=True)
    return {"append_s": elapsed, "new_edges": later.schema.num_edges - store.schema.num_edges}


TASKS = {
    "epoch": epoch,
    "labor": labor,
    "kind_epoch": kind_epoch,
    "host_epoch": cluster_tasks.host_epoch,
    "worker_memory": worker_memory,
    "limit": limit,
    "first_cell": first_cell,
    "build": build,
    "ingest": ingest,
    "tables": tables,
    "append": append,
    "serve": cluster_tasks.serve,
    "splits": cluster_tasks.splits,
    "server_memory": cluster_tasks.server_memory,
    "client": cluster_tasks.client,
    "wire": cluster_tasks.wire,
    "serving": cluster_tasks.serving,
    "device_epoch": limit_tasks.device_epoch,
    "bottleneck": limit_tasks.bottleneck,
    "disk_probe": limit_tasks.disk_probe,
    "disk_ahead": limit_tasks.disk_ahead,
    "disk_epoch": limit_tasks.disk_epoch,
    "launched": cluster_tasks.launched,
    "verified": cluster_tasks.verified,
}


def main() -> None:
    """Runs one task."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("path")
    parser.add_argument("--out", default="")
    parser.add_argument("--keys", default="int64", help="of tables: int64 or string")
    parser.add_argument("--partition", default="contiguous")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0, help="sampling processes; 0 samples in this one")
    parser.add_argument("--servers", type=int, default=0, help="servers with a sampling process each; 0 is none")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--address", default="", help="where servers are, or are to be")
    parser.add_argument(
        "--placement", choices=("replicate", "features", "partition"), default="partition", help="what each of several hosts holds"
    )
    parser.add_argument("--alternate", action="store_true", help="a batch of each split in turn")
    parser.add_argument("--kind", choices=sorted(KINDS))
    parser.add_argument("--bottleneck", choices=limit_tasks.BOTTLENECKS)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long questions are asked or disks are read")
    parser.add_argument("--look", type=float, default=4.0, help="seconds of one look at a loader whose bottleneck is sought")
    parser.add_argument("--nodes", type=int, default=2, help="nodes of the job that is verified")
    parser.add_argument("--procs-per-node", type=int, default=2, help="ranks on each of them")
    parser.add_argument("--rate", type=float, default=400.0, help="questions a second")
    parser.add_argument("--device", default="cuda", help="where batches are trained on")
    parser.add_argument("--cache", type=int, default=0, help="percent of the features that are kept there")
    parser.add_argument("--on-device", action="store_true", help="batches are sampled there, too")
    parser.add_argument("--arrays", help="folder of the arrays that the peers read")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--by-part", action="store_true", help="batches with seeds of one part each")
    parser.add_argument("--labor", action="store_true", help="neighbours by LABOR, as many")
    parser.add_argument("--settle", type=float, default=0.0)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(TASKS[options.task](options)) + "\n")


if __name__ == "__main__":
    main()
