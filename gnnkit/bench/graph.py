"""The graph that everybody is measured on: .npy files for the peers, stores for gnnkit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.bench.options import INGEST_SHARE, PAPERS_FAN_OUT, PAPERS_SHARE, TABLES_SHARE
from gnnkit.datasets.synthetic import GeneratedSource, papers_like, products_like
from gnnkit.events import EventSink, Stage
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE
from gnnkit.storage.layout import FEATURE_NAME
from gnnkit.storage.options import FeatureDtype, Order

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
        """Folder of ``row``, ``col`` (int64 ``[E]``), ``feat`` (float32 ``[N, 100]``) and ``train`` (int64), each a .npy file."""
        return self._made("arrays", self._write_arrays)

    def kind_store(self, kind: str) -> Path:
        """A store for a kind of batches: with weights, times or labels where it needs them."""
        from gnnkit.bench.kinds import WRAPPERS
        from gnnkit.storage.build import build_store
        from gnnkit.storage.options import BuildOptions

        needs = {"weighted": "weighted", "temporal": "timed", "anchors": "labeled"}.get(kind)
        if needs is None:
            return self.store()
        path = self.folder / f"store-{needs}"
        options = BuildOptions(weight="weight" if needs == "weighted" else None, time_attr="time" if needs == "timed" else None)
        if not (path / "manifest.json").exists():
            build_store(WRAPPERS[needs](self.source), path, options, self.events)
        return path

    def store(self, *, feature_dtype: FeatureDtype = "float32", with_edge: bool = False, num_parts: int = 1) -> Path:
        """A store, in one part unless it is told otherwise."""
        from gnnkit.storage.build import build_store
        from gnnkit.storage.options import BuildOptions

        parts = f"-{num_parts}-parts" if num_parts > 1 else ""
        path = self.folder / f"store-{feature_dtype}{'-edge-ids' if with_edge else ''}{parts}"
        options = BuildOptions(num_parts, feature_dtype=feature_dtype, with_edge=with_edge)
        if not (path / "manifest.json").exists():
            build_store(self.source, path, options, self.events)
        return path

    def papers_store(self, order: Order = "dataset") -> Path:
        """A store of ``papers_like`` with edges in both directions, larger than the memory groups that it is read in."""
        from gnnkit.storage.build import build_store
        from gnnkit.storage.options import BuildOptions

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
        from gnnkit.storage.options import BuildOptions

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
