"""Reading a store from end to end: that its bytes are those written, and that sampling can follow every index.

Checksums find damage. The other checks hold for any bytes at all: a store that passes them cannot make a sampler read out of
bounds, even if somebody recomputed its checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.events import EventSink, Stage
from gnnkit.schema import EdgeType, NodeType
from gnnkit.storage.edge_values import TIME_NAME
from gnnkit.storage.files import damaged, file_crc32
from gnnkit.storage.layout import book_file, cache_file, edge_file, keys_file, link_split_file, node_file, split_file
from gnnkit.storage.link_splits import id_rows
from gnnkit.storage.writer import default_threads

if TYPE_CHECKING:
    from gnnkit.storage.store import Store

_STEP = 1 << 20
Check = Callable[[], None]


def verify_store(store: Store, events: EventSink) -> None:
    """Checks everything; see ``Store.verify``."""
    files = {name: store.manifest.files[name] for name in store.files}
    total = float(sum(entry.size for entry in files.values()))
    stage = Stage(events, "verify", label=store.name, total=total, unit="B")
    with stage, ThreadPoolExecutor(default_threads(), "gnnkit-verify") as pool:
        sums = pool.map(lambda name: file_crc32(store.path / name), files)
        for (name, entry), crc in zip(files.items(), sums, strict=True):
            if crc != entry.crc32:
                raise damaged(store.path, f"{name} was changed: its CRC-32 is {crc:08x}, it was written with {entry.crc32:08x}")
            stage.advance(entry.size)
        list(pool.map(lambda check: check(), _checks(store)))


def _checks(store: Store) -> Iterator[Check]:
    """Every check beside the checksums, independent of each other."""
    for edge_type in store.schema.edge_types:
        for part in store.local_parts:
            yield lambda e=edge_type, p=part: _check_edges(store, e, p)  # type: ignore[misc]
    for node_type in store.schema.node_types:
        yield lambda t=node_type: _check_numbering(store, t)  # type: ignore[misc]
        for split, ids in store.splits.get(node_type, {}).items():
            name = split_file(node_type, split)
            yield lambda t=node_type, n=name, i=ids: _check_range(store, n, i, store.schema.node_types[t].num_nodes)  # type: ignore[misc]
    for edge_type, by_split in store.link_splits.items():
        for split, arrays in by_split.items():
            for name in arrays:
                yield lambda e=edge_type, s=split, n=name: _check_links(store, e, s, n)  # type: ignore[misc]
    for node_type in store.manifest.keys:
        yield lambda t=node_type: _check_keys(store, t)  # type: ignore[misc]
    for part in store.local_parts:
        for node_type, cached in store.cache(part).items():
            name = cache_file(part, node_type, "global_id")
            yield lambda t=node_type, n=name, i=cached.global_id: _check_ascending(store, n, i, t)  # type: ignore[misc]


def _check_keys(store: Store, node_type: NodeType) -> None:
    keys = store.keys(node_type)
    _check_range(store, keys_file(node_type, "row"), keys.arrays["row"], len(keys))
    for name, rows in keys.arrays.items():
        ordered = name == "word" or name.endswith(".end")
        for first in range(0, len(rows) - 1 if ordered else 0, _STEP):
            piece = rows[first : first + _STEP + 1]
            if (piece[1:] < piece[:-1]).any():
                raise damaged(store.path, f"{keys_file(node_type, name)} does not ascend")


def _check_links(store: Store, edge_type: EdgeType, split: str, name: str) -> None:
    file = link_split_file(edge_type, split, name)
    for ids, count in id_rows(store.schema, edge_type, name, store.link_splits[edge_type][split][name]):
        _check_range(store, file, ids, count)


def _check_edges(store: Store, edge_type: EdgeType, part: int) -> None:
    arrays = store.arrays()
    edges = arrays.edges[edge_type][part]
    indptr = edge_file(part, edge_type, "indptr")
    for first in range(0, len(edges.indptr) - 1, _STEP):
        piece = edges.indptr[first : first + _STEP + 1]
        if (piece[1:] < piece[:-1]).any():
            raise damaged(store.path, f"{indptr} decreases")
    if edges.indptr[0] != 0 or edges.indptr[-1] != len(edges.indices):
        raise damaged(store.path, f"{indptr} does not go from 0 to {len(edges.indices)}")
    num_neighbors = store.schema.node_types[arrays.neighbor_type(edge_type)].num_nodes
    _check_range(store, edge_file(part, edge_type, "indices"), edges.indices, num_neighbors)
    if edges.edge_id is not None:
        _check_range(store, edge_file(part, edge_type, "edge_id"), edges.edge_id, store.schema.edge_types[edge_type].num_edges)
    if edges.weight_prefix is not None:
        _check_within_nodes(store, edge_file(part, edge_type, "weight_prefix"), edges.indptr, edges.weight_prefix)
    if edges.time is not None:
        _check_within_nodes(store, edge_file(part, edge_type, TIME_NAME), edges.indptr, edges.time)


def _check_within_nodes(store: Store, name: str, indptr: NDArray[Any], values: NDArray[Any]) -> None:
    """Running sums and times may decrease only where another node begins."""
    for first in range(0, len(values) - 1, _STEP):
        piece = values[first : first + _STEP + 1]
        falls = np.flatnonzero(piece[1:] < piece[:-1]) + first + 1
        begins = np.searchsorted(indptr, falls)
        if not np.array_equal(indptr[begins], falls):
            raise damaged(store.path, f"{name} decreases within a node")


def _check_numbering(store: Store, node_type: NodeType) -> None:
    """The maps between dataset ids and store ids are each other's inverse."""
    arrays = store.arrays()
    book, bounds = arrays.store_id[node_type], arrays.node_bounds[node_type]
    if book is None:
        return
    _check_range(store, book_file(node_type), book, len(book))
    for part in store.local_parts:
        nodes = arrays.nodes[node_type][part]
        name = node_file(part, node_type, "global_id")
        assert nodes.global_id is not None
        if node_type in store.manifest.hotness:
            _check_range(store, name, nodes.global_id, store.schema.node_types[node_type].num_nodes)
        else:
            _check_ascending(store, name, nodes.global_id, node_type)
        for first in range(0, len(nodes.global_id), _STEP):
            ids = nodes.global_id[first : first + _STEP]
            if not np.array_equal(book[ids], np.arange(first, first + len(ids)) + bounds[part]):
                raise damaged(store.path, f"{name} and {book_file(node_type)} contradict each other")


def _check_ascending(store: Store, name: str, ids: NDArray[Any], node_type: NodeType) -> None:
    _check_range(store, name, ids, store.schema.node_types[node_type].num_nodes)
    if (ids[1:] <= ids[:-1]).any():
        raise damaged(store.path, f"{name} does not ascend")


def _check_range(store: Store, name: str, values: NDArray[Any], count: int) -> None:
    for first in range(0, len(values), _STEP):
        piece = values[first : first + _STEP]
        if not 0 <= int(piece.min()) <= int(piece.max()) < count:
            wrong = int(piece[(piece < 0) | (piece >= count)][0])
            raise damaged(store.path, f"{name} holds {wrong}, which is not from 0 to {count - 1}")
