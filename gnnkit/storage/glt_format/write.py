"""A store as a partition directory that graphlearn-torch 0.2.4 loads."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage
from gnnkit.schema import ArraySpec, EdgeType, GraphSchema, NodeType
from gnnkit.storage.arrays import EdgePart, GraphArrays
from gnnkit.storage.convert import plain_rows, plain_spec
from gnnkit.storage.glt_format.read import (
    EDGE_FEATURE_NAME,
    FEATURE_NAME,
    HOMOGENEOUS,
    LABEL_NAME,
    TYPED,
    WEIGHT_NAME,
    GltLayout,
    to_tensor,
    write_pickled_tensors,
)
from gnnkit.storage.part_ids import all_dataset_ids

if TYPE_CHECKING:
    from gnnkit.storage.store import Store

# graphlearn-torch pickles 10 000 rows at a time.
_CHUNK_ROWS = 10_000


def write_glt_partitions(store: Store, out: str | Path, events: EventSink) -> None:
    """Writes a store's parts in graphlearn-torch's layout (``gnnkit.storage.glt_format.read``).

    Edges keep the part of the node that owns them: pass the store's ``edge_dir`` to graphlearn-torch's datasets. Where the
    store has no edge ids, edges are numbered by their place in it. A part without nodes of a type has no feature folder for
    it: graphlearn-torch cannot load an empty one. Each part is put together in memory, as graphlearn-torch reads it.

    Args:
        store: What to write.
        out: A folder that does not exist yet; it appears when everything is in it.
        events: Receives the stage "export".

    Raises:
        PlanError: ``out`` exists already.
        StoreError: Not all parts of ``store`` are open.
    """
    out = Path(out).expanduser()
    if out.exists():
        raise PlanError(f"{out} exists already", "give a folder that does not exist, or remove this one")
    graph = store.require().arrays()
    partial = out.parent / f"{out.name}.incomplete"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    total = graph.schema.num_nodes + graph.schema.num_edges
    try:
        with Stage(events, "export", label=f"{out.name} for graphlearn-torch", total=total, unit="rows") as stage:
            if any(part.edge_id is None for parts in graph.edges.values() for part in parts):
                stage.message("the store has no edge ids: edges are numbered by their place in it")
            _Writer(store, graph, GltLayout(partial, typed=not graph.schema.is_homogeneous), stage).write()
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


class _Writer:
    def __init__(self, store: Store, graph: GraphArrays, layout: GltLayout, stage: Stage) -> None:
        self._store, self._graph, self._layout, self._stage = store, graph, layout, stage
        self._weight = store.options.weight or WEIGHT_NAME
        # graphlearn-torch knows no quantised features: they are written as what they stand for.
        self._schema = _plain_schema(graph.schema)
        self._dataset_ids = {t: all_dataset_ids(graph, t) for t in graph.schema.node_types}

    def write(self) -> None:
        for part in range(self._graph.num_parts):
            self._layout.part(part).mkdir()
        for node_type in self._graph.schema.node_types:
            self._write_nodes(node_type)
        for edge_type in self._graph.schema.edge_types:
            self._write_edges(edge_type)
        self._write_about()
        # Last, so that nothing that has it is incomplete.
        typed = self._layout.typed
        meta = {
            "num_parts": self._graph.num_parts,
            "data_cls": TYPED if typed else HOMOGENEOUS,
            "node_types": list(self._graph.schema.node_types) if typed else None,
            "edge_types": list(self._graph.schema.edge_types) if typed else None,
        }
        self._layout.meta.write_bytes(pickle.dumps(meta))

    def _write_nodes(self, node_type: NodeType) -> None:
        nodes, stored = self._schema.node_types[node_type], self._graph.schema.node_types[node_type].arrays
        bounds, ids = self._graph.node_bounds[node_type], self._dataset_ids[node_type]
        book = np.empty(nodes.num_nodes, np.int64)
        book[ids] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        _save(self._layout.node_book(node_type), torch.from_numpy(book))
        for name, spec in nodes.arrays.items():
            columns = [plain_rows(part.arrays[name], stored[name]) for part in self._graph.nodes[node_type]]
            if name == FEATURE_NAME and len(spec.row_shape) == 1:
                for part, rows in enumerate(columns):
                    folder = self._layout.node_features(part, node_type)
                    _write_rows(folder, ids[bounds[part] : bounds[part + 1]], rows, spec.dtype)
                self._write_caches(node_type, stored[name])
                continue
            whole = _whole(columns, [ids[bounds[p] : bounds[p + 1]] for p in range(len(columns))], spec, nodes.num_nodes)
            if name == LABEL_NAME:
                _save(self._layout.labels(node_type), to_tensor(whole, spec.dtype))
            else:
                _save_npy(self._layout.node_array(node_type, name), whole)
        self._stage.advance(nodes.num_nodes)

    def _write_caches(self, node_type: NodeType, spec: ArraySpec) -> None:
        for part in range(self._graph.num_parts):
            cache = self._store.cache(part).get(node_type)
            folder = self._layout.node_features(part, node_type)
            if cache is not None and len(cache.global_id) and folder.exists():
                _save(folder / "cache_ids.pt", torch.from_numpy(np.array(cache.global_id, np.int64)))
                _save(folder / "cache_feats.pt", to_tensor(plain_rows(cache.x, spec), spec.batch_dtype))

    def _write_edges(self, edge_type: EdgeType) -> None:
        edges, stored = self._schema.edge_types[edge_type], self._graph.schema.edge_types[edge_type].arrays
        book = np.empty(edges.num_edges, np.int64)
        edge_ids, orders = [], []
        for part, arrays in enumerate(self._graph.edges[edge_type]):
            rows, cols, eids = self._dataset_edges(edge_type, part, arrays)
            order = np.argsort(eids, kind="stable")
            eids = eids[order]
            book[eids] = part
            folder = self._layout.graph(part, edge_type)
            for name, values in (("rows", rows[order]), ("cols", cols[order]), ("eids", eids)):
                _save(folder / f"{name}.pt", torch.from_numpy(values))
            if (weights := self._weights(edge_type, arrays)) is not None:
                _save(folder / "weights.pt", torch.from_numpy(np.array(weights[order], np.float32)))
            edge_ids.append(eids)
            orders.append(order)
            self._stage.advance(len(eids))
        _save(self._layout.edge_book(edge_type), torch.from_numpy(book))
        for name, spec in edges.arrays.items():
            columns = [plain_rows(part.arrays[name], stored[name]) for part in self._graph.edges[edge_type]]
            if name == EDGE_FEATURE_NAME and len(spec.row_shape) == 1:
                for part, values in enumerate(columns):
                    _write_rows(self._layout.edge_features(part, edge_type), edge_ids[part], values, spec.dtype, orders[part])
            elif (name, self._weight, spec) != (WEIGHT_NAME, WEIGHT_NAME, ArraySpec("float32")):
                columns = [values[order] for values, order in zip(columns, orders, strict=True)]
                _save_npy(self._layout.edge_array(edge_type, name), _whole(columns, edge_ids, spec, edges.num_edges))

    def _weights(self, edge_type: EdgeType, arrays: EdgePart) -> NDArray[Any] | None:
        spec = self._graph.schema.edge_types[edge_type].arrays.get(self._weight)
        return arrays.arrays[self._weight] if spec is not None and spec.row_shape == () else None

    def _dataset_edges(
        self, edge_type: EdgeType, part: int, arrays: EdgePart
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Source, target and id of a part's edges, each int64 ``[num_local_edges]``, all in the dataset's numbers."""
        frontier, neighbor = self._graph.frontier_type(edge_type), self._graph.neighbor_type(edge_type)
        first = int(self._graph.node_bounds[frontier][part])
        indptr = arrays.indptr.astype(np.int64)
        degrees = indptr[1:] - indptr[:-1]
        own = np.repeat(self._dataset_ids[frontier][first : first + len(degrees)], degrees)
        other = self._dataset_ids[neighbor][arrays.indices]
        if arrays.edge_id is not None:
            eids = np.array(arrays.edge_id, dtype=np.int64)
        else:
            begin, end = self._graph.edge_bounds[edge_type][part : part + 2]
            eids = np.arange(begin, end, dtype=np.int64)
        return (other, own, eids) if self._graph.edge_dir == "in" else (own, other, eids)

    def _write_about(self) -> None:
        splits = self._store.splits
        about = {
            "name": self._store.name,
            "notice": self._store.notice,
            "metadata": dict(self._store.metadata),
            "edge_dir": self._graph.edge_dir,
            "schema": self._schema.to_json(),
            "splits": {node_type: list(ids) for node_type, ids in splits.items()},
        }
        self._layout.about.parent.mkdir(exist_ok=True)
        self._layout.about.write_text(json.dumps(about, indent=1))
        for node_type, by_name in splits.items():
            for split, ids in by_name.items():
                _save_npy(self._layout.split(node_type, split), np.asarray(ids, dtype=np.int64))


def _plain_schema(schema: GraphSchema) -> GraphSchema:
    """The schema with quantised arrays as what they stand for."""
    nodes = {t: replace(s, arrays={k: plain_spec(a) for k, a in s.arrays.items()}) for t, s in schema.node_types.items()}
    edges = {t: replace(s, arrays={k: plain_spec(a) for k, a in s.arrays.items()}) for t, s in schema.edge_types.items()}
    return replace(schema, node_types=nodes, edge_types=edges)


def _whole(columns: list[NDArray[Any]], ids: list[NDArray[np.int64]], spec: ArraySpec, count: int) -> NDArray[Any]:
    whole = np.empty((count, *spec.row_shape), spec.numpy_dtype)
    for rows, row_ids in zip(columns, ids, strict=True):
        whole[row_ids] = rows
    return whole


def _write_rows(folder: Path, ids: NDArray[np.int64], rows: NDArray[Any], dtype: str, order: NDArray[np.int64] | None = None) -> None:
    """Writes ``feats.pkl`` and ``ids.pkl``; ``rows`` are in the order of ``ids`` once ``order`` has been applied to them."""
    if not len(ids):
        return
    folder.mkdir(parents=True)

    def chunks() -> Iterator[torch.Tensor]:
        for first in range(0, len(ids), _CHUNK_ROWS):
            last = first + _CHUNK_ROWS
            yield to_tensor(rows[first:last] if order is None else rows[order[first:last]], dtype)

    write_pickled_tensors(folder / "feats.pkl", chunks())
    write_pickled_tensors(
        folder / "ids.pkl", (torch.from_numpy(np.array(ids[f : f + _CHUNK_ROWS])) for f in range(0, len(ids), _CHUNK_ROWS))
    )


def _save(path: Path, tensor: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensor, path)


def _save_npy(path: Path, values: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, values, allow_pickle=False)
