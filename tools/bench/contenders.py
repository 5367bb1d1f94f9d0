"""The measured processes, and the graph that everybody is measured on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.namespaces import host_address
from gnnkit.datasets.synthetic import GeneratedSource, papers_like, products_like
from gnnkit.events import EventSink, Stage
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE
from gnnkit.storage.layout import FEATURE_NAME, FeatureDtype, Order, Partitioner
from tools.bench.kinds import (
    HGT_SAMPLES,
    KINDS,
    SHORT_FAN_OUT,
    SPARSE_KINDS,
    TYPED_SHARE,
    WRAPPERS,
    Timed,
    Weighted,
    typed_graph,
    write_typed_graph,
)
from tools.bench.limit_tasks import BOTTLENECKS
from tools.bench.options import INGEST_SHARE, PAPERS_FAN_OUT, PAPERS_SHARE, PEERS, TABLES_SHARE, BenchOptions

# Batches that an epoch should have at least, so that there is something to measure on a small graph.
_LEAST_BATCHES = 4


@dataclass(frozen=True)
class BenchGraph:
    """Files of one generated graph, made when they are first asked for and kept.

    Attributes:
        scale: See ``products_like``.
        folder: Where they lie.
        events: Receives the stages of making them.
    """

    scale: float
    folder: Path
    events: EventSink

    @cached_property
    def source(self) -> GeneratedSource:
        """The generated graph itself."""
        return products_like(self.scale)

    @cached_property
    def arrays(self) -> Path:
        """Folder of .npy files: ``row``, ``col`` (int64 ``[E]``), ``feat`` (float32 ``[N, 100]``), ``train`` (int64), and what kinds need.

        These are ``weight`` (float32 ``[E]``) and ``time`` (int64 ``[N]``).
        """
        return self._made("arrays", self._write_arrays)

    def kind_arrays(self, kind: str) -> Path:
        """The arrays of the graph that a kind of batches is made of: a typed one or ``arrays``."""
        if kind != "typed":
            return self.arrays
        return self._made("typed-arrays", lambda folder: write_typed_graph(folder, self.scale * TYPED_SHARE))

    def kind_store(self, kind: str) -> Path:
        """A store for a kind of batches: of a typed graph, or with weights, times or labels where it needs them."""
        from gnnkit.storage.build import build_store
        from gnnkit.storage.layout import BuildOptions

        if kind == "typed":
            from gnnkit.datasets.pyg import PyGSource

            path = self.folder / "store-typed"
            if not (path / "manifest.json").exists():
                build_store(PyGSource(typed_graph(self.kind_arrays(kind))), path, BuildOptions(), self.events)
            return path
        needs = {"weighted": "weighted", "temporal": "timed", "anchors": "labeled"}.get(kind)
        if needs is None:
            return self.store()
        path = self.folder / f"store-{needs}"
        options = BuildOptions(weight="weight" if needs == "weighted" else None, time_attr="time" if needs == "timed" else None)
        if not (path / "manifest.json").exists():
            build_store(WRAPPERS[needs](self.source), path, options, self.events)
        return path

    def store(
        self,
        *,
        feature_dtype: FeatureDtype = "float32",
        with_edge: bool = False,
        num_parts: int = 1,
        partition: Partitioner = "contiguous",
        cache_ratio: float = 0.0,
    ) -> Path:
        """A store, in one part unless it is told otherwise."""
        from gnnkit.storage.build import build_store
        from gnnkit.storage.layout import BuildOptions

        parts = f"-{num_parts}-parts" if num_parts > 1 else ""
        parts += "" if partition == "contiguous" else f"-{partition}"
        parts += f"-{cache_ratio:g}-hot" if cache_ratio else ""
        path = self.folder / f"store-{feature_dtype}{'-edge-ids' if with_edge else ''}{parts}"
        options = BuildOptions(num_parts, partition, feature_dtype=feature_dtype, with_edge=with_edge, cache_ratio=cache_ratio)
        if not (path / "manifest.json").exists():
            build_store(self.source, path, options, self.events)
        return path

    def papers_store(self, order: Order = "dataset") -> Path:
        """A store of ``papers_like`` with edges in both directions, larger than the memory groups that it is read in."""
        from gnnkit.storage.build import build_store
        from gnnkit.storage.layout import BuildOptions

        path = self.folder / ("store-papers" if order == "dataset" else f"store-papers-{order}")
        if not (path / "manifest.json").exists():
            options = BuildOptions(order=order, num_neighbors=PAPERS_FAN_OUT)
            build_store(papers_like(self.scale * PAPERS_SHARE, undirected=True), path, options, self.events)
        return path

    @cached_property
    def ogb_tree(self) -> Path:
        """A root folder that holds a graph a tenth of the size as OGB lays out ogbn-products."""
        return self._made("ogb", self._write_ogb)

    @cached_property
    def tables(self) -> Path:
        """Folder of Parquet files of ``TABLES_SHARE`` of the graph: "nodes-KIND" (key), "edges-KIND" (src, dst), "int64" and "string"."""
        return self._made("tables", self._write_tables)

    @cached_property
    def tables_store(self) -> Path:
        """A store of one part of the graph, made of tables with int64 keys."""
        import pyarrow as pa

        from gnnkit.datasets.tables import tables
        from gnnkit.storage.build import build_store
        from gnnkit.storage.layout import BuildOptions

        path, keys, source = self.folder / "store-tables", _numbers(self.source), self.source
        if (path / "manifest.json").exists():
            return path

        def nodes() -> Iterator[pa.RecordBatch]:
            first = 0
            for rows in source.node_array_chunks(HOMOGENEOUS_NODE_TYPE, FEATURE_NAME):
                features = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
                yield pa.record_batch({"key": keys[first : first + len(rows)], FEATURE_NAME: features})
                first += len(rows)

        def edges() -> Iterator[pa.RecordBatch]:
            for chunk in source.edge_chunks(HOMOGENEOUS_EDGE_TYPE):
                yield pa.record_batch({"src": keys[chunk[0]], "dst": keys[chunk[1]]})

        streams = [pa.RecordBatchReader.from_batches(next(make()).schema, make()) for make in (edges, nodes)]
        read = tables(*streams, keys="key", features=FEATURE_NAME, scratch_dir=self.folder, events=self.events)
        build_store(read, path, BuildOptions(), self.events)
        return path

    def batch_size(self, wanted: int) -> int:
        """The batch size to measure with: fewer seeds on a graph that has too few for several batches."""
        train = len(self.source.splits[HOMOGENEOUS_NODE_TYPE]["train"])
        return max(1, min(wanted, train // _LEAST_BATCHES))

    def _made(self, name: str, write: Any) -> Path:
        path = self.folder / name
        if not path.exists():
            unfinished = path.with_name(f"{name}.incomplete")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            write(unfinished)
            unfinished.rename(path)
        return path

    def _write_arrays(self, folder: Path) -> None:
        nodes, edges = self.source.schema.num_nodes, self.source.schema.num_edges
        with Stage(self.events, "arrays", label=f"scale {self.scale:g}", total=edges, unit="edges") as stage:
            ends = [np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.int64, (edges,)) for name in ("row", "col")]
            done = 0
            for chunk in self.source.edge_chunks(HOMOGENEOUS_EDGE_TYPE):
                for end, values in zip(ends, chunk, strict=True):
                    end[done : done + chunk.shape[1]] = values
                done += chunk.shape[1]
                stage.advance(chunk.shape[1])
            features: Iterator[NDArray[Any]] = self.source.node_array_chunks(HOMOGENEOUS_NODE_TYPE, "x")
            _write_rows(folder / "feat.npy", features, nodes)
            _write_rows(folder / "weight.npy", Weighted(self.source).edge_array_chunks(HOMOGENEOUS_EDGE_TYPE, "weight"), edges)
            _write_rows(folder / "time.npy", Timed(self.source).node_array_chunks(HOMOGENEOUS_NODE_TYPE, "time"), nodes)
            np.save(folder / "train.npy", self.source.splits[HOMOGENEOUS_NODE_TYPE]["train"])
            (folder / "facts.json").write_text(json.dumps({"scale": self.scale, "nodes": nodes, "edges": edges}))

    def _write_ogb(self, folder: Path) -> None:
        from gnnkit.datasets.synthetic_ogb import write_ogb_layout

        write_ogb_layout(products_like(self.scale * INGEST_SHARE), folder, compresslevel=6, events=self.events)

    def _write_tables(self, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        source = products_like(self.scale * TABLES_SHARE)
        numbers = _numbers(source)
        for kind, keys in {"int64": numbers, "string": np.array([f"node-{number:010d}" for number in numbers])}.items():
            parquet.write_table(pa.table({"key": keys}), folder / f"nodes-{kind}.parquet")
            schema = pa.schema([("src", kind), ("dst", kind)])
            with parquet.ParquetWriter(folder / f"edges-{kind}.parquet", schema) as writer:
                for chunk in source.edge_chunks(HOMOGENEOUS_EDGE_TYPE):
                    writer.write_table(pa.table({"src": keys[chunk[0]], "dst": keys[chunk[1]]}, schema))


def _numbers(source: GeneratedSource) -> NDArray[np.int64]:
    """The keys of a graph's nodes: different numbers in no order, with gaps."""
    return np.random.default_rng(0).permutation(3 * source.schema.num_nodes)[: source.schema.num_nodes]


def _write_rows(path: Path, chunks: Iterator[NDArray[Any]], count: int) -> None:
    target: NDArray[Any] | None = None
    done = 0
    for chunk in chunks:
        if target is None:
            target = np.lib.format.open_memmap(path, "w+", chunk.dtype, (count, *chunk.shape[1:]))
        target[done : done + len(chunk)] = chunk
        done += len(chunk)


_PROBE_TIMEOUT_S = 180
_MEMORY_WORKERS = 4
_SERVERS = ("--servers", "2")
_MANY_CLIENTS = "8"
_SERVING_S = "10"
# Seconds of a turn of loaders that are compared in one process.
_TURN_S = "1.5"
# Percent of the features that are kept on the device.
CACHES = (0, 25, 100)
# Memory groups of a half, a quarter and an eighth of the store; sampling processes need more than the last.
MEMORY_DIVISORS, PROCESS_DIVISORS = (2, 4, 8), (2, 4)
# Python with torch and PyG, and some memory for batches: in less a process ends before it has sampled anything. And beside it, sampling
# processes or servers.
_LEAST_GROUP_BYTES, _PROCESSES_BYTES = 600_000_000, 600_000_000
_DISK_BATCH, _DISK_S = "16", "8"
# A kind's epoch: some of them, and PyG's, take long for a batch.
_KIND_BATCHES, _SHORT_KIND_BATCHES = 40, 12
_LONG_BATCHES = (*SPARSE_KINDS, "ppr", "layer-wise")
# Seeds of small batches, and batches of a peer's epoch of them: about as many seeds each.
SMALL_BATCHES = {8: 1000, 32: 500, 256: 150}
# PyG's kinds, and what each needs: torch-sparse has nothing for times, weights and neighbourhoods of their own.
_PYG_KINDS = {
    **dict.fromkeys(("link-binary", "link-triplet", "typed"), "pyg"),
    **dict.fromkeys(("disjoint", "temporal", "weighted"), "pyg-lib"),
    **dict.fromkeys(SPARSE_KINDS, "pyg-sparse"),
}
# What must be importable for a peer's scripts to run.
_PROBES = {
    "glt": "import graphlearn_torch",
    "graphbolt": "import dgl.graphbolt, torch",
    "pyg": (
        "from torch_geometric import typing as t\n"
        "if not (t.WITH_PYG_LIB or t.WITH_TORCH_SPARSE):\n"
        "    raise ImportError('PyG samples with pyg-lib or torch-sparse, and neither is installed')"
    ),
    "pyg-lib": "import pyg_lib, torch_geometric.loader",
    "pyg-sparse": "import torch_sparse, torch_geometric.loader",
    "ogb": "import ogb.nodeproppred",
    "pandas": "import pandas, torch_geometric.data",
}


@dataclass(frozen=True)
class Arena:
    """The inputs that commands are made from: the options and the graph."""

    options: BenchOptions
    graph: BenchGraph

    def own(self, task: str, path: Path, *more: str) -> list[str]:
        """A task of gnnkit's own."""
        options = self.options
        fan_out = map(str, options.num_neighbors)
        sizes = ["--threads", str(options.num_threads), "--batch-size", str(self.graph.batch_size(options.batch_size))]
        return [sys.executable, "-m", "tools.bench.tasks", task, str(path), *sizes, "--fanout", *fan_out, *more]

    def peer(self, name: str, script: str, folder: Path, *more: str) -> list[str]:
        """A peer's script, under the interpreter in which the peer is installed."""
        options = self.options
        sizes = ["--workers", str(options.num_threads), "--batches", str(options.num_batches)]
        sizes += ["--batch-size", str(self.graph.batch_size(options.batch_size)), "--fanout", *map(str, options.num_neighbors)]
        return [str(self.interpreter(name)), str(PEERS / f"{script}.py"), str(folder), *sizes, *more]

    def kind(self, kind: str) -> list[str]:
        """Epochs of a kind of batches."""
        more = ["--kind", kind, "--arrays", str(self.graph.kind_arrays(kind)), "--batches", self._batches_of(kind)]
        return self.own("kind_epoch", self.graph.kind_store(kind), *self.settle, *more)

    def pyg_kind(self, kind: str) -> list[str]:
        """The same of PyG's loaders, tuned where pyg-lib samples for them."""
        fan_out = map(str, HGT_SAMPLES if kind == "hgt" else SHORT_FAN_OUT)
        tuned = [] if kind in SPARSE_KINDS else ["--tuned"]
        more = ["--kind", kind, "--batches", self._batches_of(kind), "--fanout", *fan_out, *tuned]
        return self.peer("pyg", "pyg_kinds", self.graph.kind_arrays(kind), *more)

    @staticmethod
    def _batches_of(kind: str) -> str:
        return str(_SHORT_KIND_BATCHES if kind in _LONG_BATCHES else _KIND_BATCHES)

    def serving(self, *more: str) -> list[str]:
        """Requests for single nodes' neighbourhoods."""
        return self.own("serving", self.graph.store(), *self.settle, "--seconds", _SERVING_S, *more, "--fanout", *map(str, SHORT_FAN_OUT))

    def interpreter(self, name: str) -> Path:
        """The Python in which a peer is looked for."""
        return self.options.interpreters.get(name.split("-")[0], Path(sys.executable))

    def disk(self, task: str, *more: str, order: Order = "dataset") -> list[str]:
        """A measurement of the store that is larger than the memory."""
        sizes = ["--batch-size", _DISK_BATCH, "--fanout", *map(str, PAPERS_FAN_OUT), "--seconds", _DISK_S]
        return self.own(task, self.graph.papers_store(order), *sizes, *more)

    def group_bytes(self, divisor: int) -> int:
        """Memory of a group that holds so much of that store: 4 is a quarter."""
        return sum(path.stat().st_size for path in self.graph.papers_store().rglob("*.npy")) // divisor

    def in_group(self, divisor: int, command: list[str]) -> list[str]:
        """A command in a memory group."""
        return [sys.executable, "-m", "tools.bench.memory_groups", "--bytes", str(self.group_bytes(divisor)), *command]

    @staticmethod
    def in_processes(workers: int, threads: int) -> list[str]:
        """The options of sampling in background processes."""
        return ["--workers", str(workers), "--threads", str(threads)]

    @staticmethod
    def on_hosts(command: list[str], count: int = 2) -> list[str]:
        """A command on several hosts at the same time."""
        return [sys.executable, "-m", "tools.bench.namespaces", "--hosts", str(count), *command]

    def ranks(self, count: int, placement: str) -> list[str]:
        """Epochs of so many hosts with one trainer and one sampling process each."""
        store = self.graph.store(num_parts=2)
        return self.on_hosts(self.own("host_epoch", store, *self.in_processes(1, 1), "--placement", placement), count)

    def by_part(self, task: str, *more: str) -> list[str]:
        """The same with batches of one part each, of a graph that METIS has cut, with a fifth of all rows beside each part."""
        store = self.graph.store(num_parts=2, partition="metis", cache_ratio=0.2)
        return self.own(task, store, "--by-part", *more)

    def wire(self, *more: str) -> list[str]:
        """Epochs of a trainer on one host, sampled by servers on another."""
        return self.on_hosts(self.own("wire", self.graph.store(), *_SERVERS, "--address", host_address(1), *more))

    @property
    def settle(self) -> list[str]:
        """The option that says how long to iterate before the timing begins."""
        return ["--settle", str(self.options.settle_s)]

    def scratch(self, name: str) -> str:
        """A folder that a process may write to and removes."""
        return str(self.graph.folder / f"scratch-{name}")


@dataclass(frozen=True)
class Contender:
    """A process to be measured.

    Attributes:
        command: Makes its command line, and first the files that it reads.
        peer: Which of ``_PROBES`` must succeed; None for gnnkit itself.
        on_hosts: Whether it needs a second host.
        on_device: Whether it needs the device of the options.
        in_background: Whether others than its own process sample there.
        memory_divisor: It runs in a memory group of this fraction of the store: 4 is a quarter.
    """

    command: Callable[[Arena], list[str]]
    peer: str | None = None
    on_hosts: bool = False
    on_device: bool = False
    memory_divisor: int | None = None
    in_background: bool = False

    @property
    def least_bytes(self) -> int:
        """Memory that its group has to have."""
        return _LEAST_GROUP_BYTES + self.in_background * _PROCESSES_BYTES


def _of_device(*words: str) -> Contender:
    """Epochs of training on the device."""
    return Contender(lambda a: a.own("device_epoch", a.graph.store(), "--device", a.options.device, *words), on_device=True)


def _of_disk(divisor: int, task: str, *more: str) -> Contender:
    """A measurement in a memory group of a fraction of the store."""
    return Contender(lambda a: a.in_group(divisor, a.disk(task, *more)), memory_divisor=divisor, in_background=bool(more))


def _of_tables(kind: str) -> Contender:
    """Reads tables with a kind of keys into a store."""
    return Contender(lambda a: a.own("tables", a.graph.tables, "--keys", kind, "--out", a.scratch(f"tables-{kind}")))


def _of_pandas(kind: str) -> Contender:
    """Joins the same tables with pandas, into a PyG object."""
    return Contender(lambda a: a.peer("pandas", "pandas_tables", a.graph.tables, "--kind", kind), "pandas")


CONTENDERS = {
    "gnnkit": Contender(lambda a: a.own("epoch", a.graph.store(), *a.settle)),
    "labor": Contender(lambda a: a.own("labor", a.graph.store(), *a.settle, "--look", _TURN_S)),
    "gnnkit-float16": Contender(lambda a: a.own("epoch", a.graph.store(feature_dtype="float16"), *a.settle)),
    "gnnkit-quint8": Contender(lambda a: a.own("epoch", a.graph.store(feature_dtype="quint8"), *a.settle)),
    "gnnkit-quint4x2": Contender(lambda a: a.own("epoch", a.graph.store(feature_dtype="quint4x2"), *a.settle)),
    "gnnkit-quint2x4": Contender(lambda a: a.own("epoch", a.graph.store(feature_dtype="quint2x4"), *a.settle)),
    "colocated": Contender(lambda a: a.own("epoch", a.graph.store(), *a.settle, *a.in_processes(a.options.num_threads, 1))),
    "colocated-threads": Contender(lambda a: a.own("epoch", a.graph.store(), *a.settle, *a.in_processes(1, a.options.num_threads))),
    "colocated-memory": Contender(lambda a: a.own("worker_memory", a.graph.store(), *a.settle, *a.in_processes(_MEMORY_WORKERS, 1))),
    "colocated-first-cell": Contender(lambda a: a.own("first_cell", a.graph.store(), *a.in_processes(a.options.num_threads, 1))),
    "colocated-2-parts": Contender(
        lambda a: a.own("epoch", a.graph.store(num_parts=2), *a.settle, *a.in_processes(a.options.num_threads, 1))
    ),
    "hosts": Contender(lambda a: a.ranks(2, "partition"), on_hosts=True),
    "hosts-features": Contender(
        lambda a: a.on_hosts(a.by_part("host_epoch", *a.in_processes(1, 1), "--placement", "features")), on_hosts=True
    ),
    "colocated-by-part": Contender(lambda a: a.by_part("epoch", *a.settle, *a.in_processes(a.options.num_threads, 1))),
    "hosts-replicated": Contender(lambda a: a.ranks(2, "replicate"), on_hosts=True),
    "one-rank": Contender(lambda a: a.ranks(1, "replicate"), on_hosts=True),
    "glt-hosts": Contender(lambda a: a.on_hosts(a.peer("glt", "glt_loader", a.graph.arrays, "--workers", "1")), "glt", on_hosts=True),
    "servers": Contender(lambda a: a.own("epoch", a.graph.store(), *a.settle, *_SERVERS)),
    "glt-servers": Contender(lambda a: a.peer("glt", "glt_servers", a.graph.arrays, "--workers", "1"), "glt"),
    "glt-servers-parts": Contender(lambda a: a.peer("glt", "glt_servers", a.graph.arrays, "--workers", "1", "--parts"), "glt"),
    "servers-start": Contender(lambda a: a.own("serve", a.graph.store(), *_SERVERS)),
    "splits-alternating": Contender(lambda a: a.own("splits", a.graph.store(), *a.settle, *_SERVERS, "--alternate")),
    "splits-one-by-one": Contender(lambda a: a.own("splits", a.graph.store(), *a.settle, *_SERVERS)),
    "servers-many-clients": Contender(lambda a: a.own("server_memory", a.graph.store(), *_SERVERS, "--clients", _MANY_CLIENTS)),
    "servers-one-client": Contender(lambda a: a.own("server_memory", a.graph.store(), *_SERVERS, "--clients", "1")),
    "wire": Contender(lambda a: a.wire(), on_hosts=True),
    "wire-labor": Contender(lambda a: a.wire("--labor"), on_hosts=True),
    "serving": Contender(lambda a: a.serving()),
    "serving-servers": Contender(lambda a: a.serving(*_SERVERS)),
    **{f"device-{cache}": _of_device("--cache", str(cache)) for cache in CACHES},
    "device-sampled": _of_device("--on-device"),
    "disk-probe": _of_disk(2, "disk_probe"),
    "disk-hotness-4": Contender(lambda a: a.in_group(4, a.disk("disk_epoch", order="hotness")), memory_divisor=4),
    **{f"disk-ahead-{divisor}": _of_disk(divisor, "disk_ahead") for divisor in MEMORY_DIVISORS},
    **{f"disk-inprocess-{divisor}": _of_disk(divisor, "disk_epoch") for divisor in MEMORY_DIVISORS},
    **{f"disk-colocated-{divisor}": _of_disk(divisor, "disk_epoch", "--workers", "2") for divisor in PROCESS_DIVISORS},
    **{f"disk-servers-{divisor}": _of_disk(divisor, "disk_epoch", *_SERVERS) for divisor in PROCESS_DIVISORS},
    "limit": Contender(lambda a: a.own("limit", a.graph.store())),
    "glt": Contender(lambda a: a.peer("glt", "glt_loader", a.graph.arrays), "glt"),
    "pyg": Contender(lambda a: a.peer("pyg", "pyg_loader", a.graph.arrays), "pyg"),
    "pyg-tuned": Contender(lambda a: a.peer("pyg", "pyg_loader", a.graph.arrays, "--tuned"), "pyg"),
    "graphbolt": Contender(lambda a: a.peer("graphbolt", "graphbolt_loader", a.graph.arrays), "graphbolt"),
    "first-cell": Contender(lambda a: a.own("first_cell", a.graph.store())),
    "launch": Contender(lambda a: a.own("launched", a.graph.store())),
    "verify": Contender(lambda a: a.own("verified", a.graph.store(num_parts=2), *a.in_processes(1, 1))),
    "gnnkit-build": Contender(lambda a: a.own("build", a.graph.arrays, "--out", a.scratch("gnnkit-build"))),
    "glt-build": Contender(lambda a: a.peer("glt", "glt_partition", a.graph.arrays, "--out", a.scratch("glt-build")), "glt"),
    "gnnkit-ingest": Contender(lambda a: a.own("ingest", a.graph.ogb_tree, "--out", a.scratch("gnnkit-ingest"))),
    **{f"gnnkit-tables-{kind}": _of_tables(kind) for kind in ("int64", "string")},
    **{f"pandas-tables-{kind}": _of_pandas(kind) for kind in ("int64", "string")},
    "gnnkit-append": Contender(lambda a: a.own("append", a.graph.tables_store, "--out", a.scratch("gnnkit-append"))),
    "ogb-ingest": Contender(lambda a: a.peer("ogb", "ogb_ingest", a.graph.ogb_tree), "ogb"),
}


def _of_kind(kind: str) -> dict[str, Contender]:
    own = {f"kind-{kind}": Contender(lambda a: a.kind(kind))}
    return {**own, f"pyg-{kind}": Contender(lambda a: a.pyg_kind(kind), _PYG_KINDS[kind])} if kind in _PYG_KINDS else own


def _of_batch_size(size: int) -> dict[str, Contender]:
    """Small batches of two hops, gnnkit's and those of PyG as somebody sets it up who knows it well."""
    short = ["--batch-size", str(size), "--fanout", *map(str, SHORT_FAN_OUT)]
    return {
        f"gnnkit-of-{size}": Contender(lambda a: a.own("epoch", a.graph.store(), *a.settle, *short)),
        f"pyg-of-{size}": Contender(
            lambda a: a.peer("pyg", "pyg_loader", a.graph.arrays, "--tuned", *short, "--batches", str(SMALL_BATCHES[size])), "pyg"
        ),
    }


def _of_bottleneck(name: str) -> dict[str, Contender]:
    return {f"advice-{name}": Contender(lambda a: a.own("bottleneck", a.graph.store(), "--bottleneck", name))}


for _kind in KINDS:
    CONTENDERS |= _of_kind(_kind)
for _size in SMALL_BATCHES:
    CONTENDERS |= _of_batch_size(_size)
for _name in BOTTLENECKS:
    CONTENDERS |= _of_bottleneck(_name)


def environment() -> dict[str, str]:
    """The environment of every measurement: the caller's, with libraries kept from calling home or writing into it."""
    search = os.pathsep.join(filter(None, [str(PEERS.parents[1]), os.environ.get("PYTHONPATH")]))  # measurements are modules of tools/bench
    return {**os.environ, "PYTHONPATH": search, "OUTDATED_IGNORE": "1", "DGLBACKEND": "pytorch", "PYTHONWARNINGS": "ignore"}


def why_unavailable(peer: str, python: Path) -> str | None:
    """Why a peer cannot run under an interpreter, or None where it can.

    Args:
        peer: One of ``_PROBES``.
        python: The interpreter.
    """
    command = [str(python), "-c", _PROBES[peer]]
    try:
        done = subprocess.run(
            command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"importing it under {python} took more than {_PROBE_TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
