"""Building one node type: its arrays, the maps between ids, and the official splits.

Part files keep the dataset's order, so every one of them is written front to back while the arrays stream by once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.schema import ArraySpec, NodeType
from gnnkit.storage.context import BLOCK_BYTES, BuildContext, wait_all
from gnnkit.storage.files import ArrayWriter
from gnnkit.storage.inputs import RowReader
from gnnkit.storage.layout import FEATURE_NAME, book_file, cache_file, index_dtype, node_file, split_file
from gnnkit.storage.numbering import Numbering


def build_nodes(context: BuildContext, node_type: NodeType, hot: list[Mapping[NodeType, NDArray[np.int64]]]) -> None:
    """Writes the arrays and maps of one node type into the parts.

    Args:
        context: The build.
        node_type: The node type.
        hot: For each part, ``{node type: ascending dataset ids}`` of nodes that other parts own and whose features it replicates;
            empty: none does.
    """
    schema, numbering = context.graph.schema.node_types[node_type], context.numbering[node_type]
    for name, spec in schema.arrays.items():
        chunks = context.graph.node_array_chunks(node_type, name)
        stored = context.draft.schema.node_types[node_type].arrays[name]
        cached = _cached_rows(context, node_type, hot) if name == FEATURE_NAME else []
        _scatter(context, node_type, name, chunks, (spec, stored), cached)
        context.finish([(rows.name, rows.writer) for rows in cached])
    if numbering.store_id is None:
        return
    id_spec = ArraySpec(index_dtype(numbering.num_nodes).name)
    _scatter(context, node_type, "global_id", _consecutive(numbering.num_nodes, id_spec.numpy_dtype), (id_spec, id_spec), [])
    if None not in context.roots:
        return
    book = context.writer(book_file(node_type), context.draft.node_specs(node_type)[book_file(node_type)])
    context.write_rows(book, 0, numbering.store_id, (id_spec, id_spec), "store_id")
    context.finish([(book_file(node_type), book)])


@dataclass(frozen=True)
class _CachedRows:
    """The features that one part replicates: ascending dataset ids, and where their rows go."""

    ids: NDArray[np.int64]
    name: str
    writer: ArrayWriter

    def within(self, first: int, last: int) -> tuple[int, NDArray[np.int64]]:
        """The first of those with dataset ids in ``[first, last)``, and their ids less ``first``."""
        low, high = np.searchsorted(self.ids, [first, last])
        return int(low), self.ids[low:high] - first


def _cached_rows(context: BuildContext, node_type: NodeType, hot: list[Mapping[NodeType, NDArray[np.int64]]]) -> list[_CachedRows]:
    """What the parts that are written replicate of a node type; writes the ids."""
    if not any(len(ids.get(node_type, ())) for ids in hot):
        return []
    context.tables.cached[node_type] = tuple(len(ids.get(node_type, ())) for ids in hot)
    specs, found = context.draft.node_specs(node_type), []
    for part in context.parts:
        ids = hot[part].get(node_type, np.empty(0, np.int64))
        names = [cache_file(part, node_type, name) for name in ("global_id", FEATURE_NAME)]
        id_writer, row_writer = (context.writer(name, specs[name]) for name in names)
        id_writer.write(0, ids)
        context.finish([(names[0], id_writer)])
        found.append(_CachedRows(ids, names[1], row_writer))
    return found


def build_splits(context: BuildContext) -> None:
    """Writes the official splits, verbatim.

    Raises:
        DatasetError: An id of a split is out of range.
    """
    for node_type, splits in context.graph.splits.items():
        num_nodes = context.graph.schema.node_types[node_type].num_nodes
        for split, ids in splits.items():
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
                wrong = int(ids[(ids < 0) | (ids >= num_nodes)][0])
                raise DatasetError(f"split {split!r} of {node_type!r} holds node {wrong}, but there are {num_nodes} nodes")
    specs = context.draft.file_specs()
    for node_type, splits in context.graph.splits.items():
        for split, ids in splits.items():
            name = split_file(node_type, split)
            writer = context.writer(name, specs[name])
            writer.write(0, np.asarray(ids))
            context.finish([(name, writer)])


def _scatter(
    context: BuildContext,
    node_type: NodeType,
    name: str,
    chunks: Iterator[NDArray[Any]],
    specs: tuple[ArraySpec, ArraySpec],
    cached: list[_CachedRows],
) -> None:
    """Streams one array into the parts' files, and those of its rows that parts replicate."""
    if not context.parts:
        return
    numbering, file_specs = context.numbering[node_type], context.draft.node_specs(node_type)
    names = {part: node_file(part, node_type, name) for part in context.parts}
    writers = {part: context.writer(file, file_specs[file]) for part, file in names.items()}
    label = f"{name!r} of {node_type!r}"
    reader = RowReader(chunks, specs[0], label, numbering.num_nodes)
    block = max(1, BLOCK_BYTES // max(1, specs[0].row_nbytes))
    for first in range(0, numbering.num_nodes, block * context.num_threads):
        last = min(first + block * context.num_threads, numbering.num_nodes)
        rows = reader.take(last - first)
        pieces = [(start, rows[start - first : start - first + block]) for start in range(first, last, block)]
        wait_all([context.pool.submit(_scatter_block, context, numbering, writers, *piece, specs, label, cached) for piece in pieces])
        context.stage.advance(rows.nbytes)
    reader.finish()
    context.finish((names[part], writer) for part, writer in writers.items())


def _scatter_block(
    context: BuildContext,
    numbering: Numbering,
    writers: Mapping[int, ArrayWriter],
    first: int,
    rows: NDArray[Any],
    specs: tuple[ArraySpec, ArraySpec],
    label: str,
    cached: list[_CachedRows],
) -> None:
    """Writes the rows of the dataset ids from ``first`` on, each to its part, and to those that replicate it."""
    bounds, last = numbering.bounds, first + len(rows)
    for each in cached:
        position, picked = each.within(first, last)
        if len(picked):
            context.write_rows(each.writer, position, rows[picked], specs, label)
    if numbering.store_id is None:
        for part, writer in writers.items():
            start, end = max(first, int(bounds[part])), min(last, int(bounds[part + 1]))
            if end > start:
                context.write_rows(writer, start - int(bounds[part]), rows[start - first : end - first], specs, label)
        return
    store_ids = numbering.to_store(first, last)
    owners = numbering.part_of(store_ids)
    for part in np.unique(owners):
        if part not in writers:
            continue
        mine = np.flatnonzero(owners == part)
        context.write_rows(writers[part], int(store_ids[mine[0]] - bounds[part]), rows[mine], specs, label)


def _consecutive(count: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    step = 1 << 20
    for first in range(0, count, step):
        yield np.arange(first, min(first + step, count), dtype=dtype)
