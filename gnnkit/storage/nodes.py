"""Building one node type: its arrays, the maps between ids, and the official splits.

Part files keep the dataset's order, so every one of them is written front to back while the arrays stream by once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.schema import ArraySpec, NodeType
from gnnkit.storage.context import BLOCK_BYTES, BuildContext, wait_all
from gnnkit.storage.files import ArrayWriter, map_array
from gnnkit.storage.inputs import RowReader
from gnnkit.storage.layout import FEATURE_NAME, book_file, cache_file, index_dtype, node_file, split_file, stored_spec
from gnnkit.storage.numbering import Numbering


def build_nodes(context: BuildContext, node_type: NodeType) -> None:
    """Writes the arrays and maps of one node type into all parts."""
    schema, numbering = context.graph.schema.node_types[node_type], context.numbering[node_type]
    for name, spec in schema.arrays.items():
        chunks = context.graph.node_array_chunks(node_type, name)
        stored = stored_spec(name, spec, context.draft.options)
        _scatter(context, node_type, name, chunks, (spec, stored))
    if numbering.store_id is None:
        return
    id_spec = ArraySpec(index_dtype(numbering.num_nodes).name)
    _scatter(context, node_type, "global_id", _consecutive(numbering.num_nodes, id_spec.numpy_dtype), (id_spec, id_spec))
    book = context.writer(book_file(node_type), context.draft.node_specs(node_type)[book_file(node_type)])
    context.write_rows(book, 0, numbering.store_id, (id_spec, id_spec), "store_id")
    context.finish([(book_file(node_type), book)])


def build_cached_nodes(context: BuildContext, hot: list[Mapping[NodeType, NDArray[np.int64]]]) -> None:
    """Writes the features that each part replicates from others, gathered from the finished part files.

    Args:
        context: The build, with all nodes written.
        hot: For each part, ``{node type: ascending dataset ids}`` of nodes that other parts own.
    """
    for node_type, schema in context.graph.schema.node_types.items():
        if FEATURE_NAME not in schema.arrays or not any(len(ids.get(node_type, ())) for ids in hot):
            continue
        context.tables.cached[node_type] = tuple(len(ids.get(node_type, ())) for ids in hot)
        specs = context.draft.node_specs(node_type)
        features = [
            map_array(context.root, name, context.tables.files[name])
            for name in (node_file(part, node_type, FEATURE_NAME) for part in range(len(hot)))
        ]
        for part, ids in enumerate(hot):
            names = [cache_file(part, node_type, name) for name in ("global_id", FEATURE_NAME)]
            writers = {name: context.writer(name, specs[name]) for name in names}
            _copy_rows(writers, ids.get(node_type, np.empty(0, np.int64)), features, context.numbering[node_type])
            context.finish(writers.items())


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
    context: BuildContext, node_type: NodeType, name: str, chunks: Iterator[NDArray[Any]], specs: tuple[ArraySpec, ArraySpec]
) -> None:
    """Streams one array into the parts' files."""
    numbering, file_specs = context.numbering[node_type], context.draft.node_specs(node_type)
    names = [node_file(part, node_type, name) for part in range(context.draft.num_parts)]
    writers = [context.writer(file, file_specs[file]) for file in names]
    label = f"{name!r} of {node_type!r}"
    reader = RowReader(chunks, specs[0], label, numbering.num_nodes)
    block = max(1, BLOCK_BYTES // max(1, specs[0].row_nbytes))
    for first in range(0, numbering.num_nodes, block * context.num_threads):
        last = min(first + block * context.num_threads, numbering.num_nodes)
        rows = reader.take(last - first)
        pieces = [(start, rows[start - first : start - first + block]) for start in range(first, last, block)]
        wait_all([context.pool.submit(_scatter_block, context, numbering, writers, *piece, specs, label) for piece in pieces])
        context.stage.advance(rows.nbytes)
    reader.finish()
    context.finish(zip(names, writers, strict=True))


def _scatter_block(
    context: BuildContext,
    numbering: Numbering,
    writers: list[ArrayWriter],
    first: int,
    rows: NDArray[Any],
    specs: tuple[ArraySpec, ArraySpec],
    label: str,
) -> None:
    """Writes the rows of the dataset ids from ``first`` on, each to its part."""
    bounds = numbering.bounds
    if numbering.store_id is None:
        low, high = numbering.part_of(np.array([first, first + len(rows) - 1])) if len(rows) else (0, -1)
        for part in range(low, high + 1):
            start, end = max(first, int(bounds[part])), min(first + len(rows), int(bounds[part + 1]))
            if end > start:
                context.write_rows(writers[part], start - int(bounds[part]), rows[start - first : end - first], specs, label)
        return
    store_ids = numbering.to_store(first, first + len(rows))
    owners = numbering.part_of(store_ids)
    for part in np.unique(owners):
        mine = np.flatnonzero(owners == part)
        context.write_rows(writers[part], int(store_ids[mine[0]] - bounds[part]), rows[mine], specs, label)


def _consecutive(count: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    step = 1 << 20
    for first in range(0, count, step):
        yield np.arange(first, min(first + step, count), dtype=dtype)


def _copy_rows(writers: dict[str, ArrayWriter], ids: NDArray[np.int64], features: list[NDArray[Any]], numbering: Numbering) -> None:
    """Writes replicated nodes: their dataset ids, and their rows from the parts that own them."""
    id_writer, row_writer = writers.values()
    block = max(1, BLOCK_BYTES // max(1, row_writer.spec.row_nbytes))
    for first in range(0, len(ids), block):
        some = ids[first : first + block]
        store_ids = some if numbering.store_id is None else numbering.store_id[some]
        owners = numbering.part_of(store_ids)
        rows = np.empty((len(some), *row_writer.spec.shape[1:]), row_writer.spec.dtype)
        for part in np.unique(owners):
            mine = np.flatnonzero(owners == part)
            rows[mine] = features[part][store_ids[mine] - numbering.bounds[part]]
        id_writer.write(first, some)
        row_writer.write(first, rows)
