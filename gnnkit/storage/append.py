"""More nodes and edges for a store: a new version of it beside the old one, with the files that stay the same linked.

New nodes get the next ids, and belong to the last part: store ids of all other nodes stay as they are. Edges are put in between those of
the nodes that own them, at the places that a store of all tables has them at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage
from gnnkit.files import user_path
from gnnkit.schema import ArraySpec, EdgeType, NodeType
from gnnkit.source import GraphSource, numbered
from gnnkit.storage.arrays import EdgePart
from gnnkit.storage.build import put_in_place
from gnnkit.storage.convert import convert_rows, unmeasured
from gnnkit.storage.edge_values import TIME_NAME, as_times, check_weights, timed_edge_types, weight_exponent, weight_prefix
from gnnkit.storage.files import ArrayWriter, FileSpec, StoreFiles, link_or_copy
from gnnkit.storage.inputs import EdgeBatch, RowReader, SourceInput, measured
from gnnkit.storage.kernels import count_degrees, count_parts, insert_rows, places_by_time
from gnnkit.storage.layout import (
    EDGE_FILES,
    array_file,
    book_file,
    cache_file,
    contiguous,
    file_name,
    index_dtype,
    keys_file,
    split_file,
    store_schema,
)
from gnnkit.storage.manifest import Manifest, store_fingerprint
from gnnkit.storage.staging import check_disk, default_threads, memory_budget
from gnnkit.storage.store import Store
from gnnkit.storage.writer import BLOCK_BYTES, NO_MAP, checked_metadata, wait_all

# Bytes that a new edge takes while it is sorted, beside its arrays: both ends, its id and time, its place, and the order.
_EDGE_BYTES = 64
Recoding = Callable[[NDArray[Any]], NDArray[Any]]


def append_to_store(
    store: Store, addition: GraphSource, recoding: Callable[[Any, str], Recoding | None], path: Path | None, events: EventSink
) -> Store:
    """Writes a store of what is in another one, and more.

    Args:
        store: The store; it stays as it is.
        addition: The new rows; its schema, splits, metadata, fingerprint and ids are those of the store's rows and the new ones.
        recoding: Makes rows of an array of a type of the store what they are among all rows; None where they stay as they are.
        path: The new store's folder; None takes a name beside the store.
        events: Receives the stage "append", in bytes.

    Raises:
        PlanError: Something cannot be appended to this store.
        DatasetError: See ``GraphSource``.
        StoreError: Not all parts are open, a file that is read is damaged, the disk is full, or ``path`` is something else than a store.
    """
    sizes = {t: edges.num_edges - store.schema.edge_types[t].num_edges for t, edges in addition.schema.edge_types.items()}
    writer = _AppendWriter(store.require(), SourceInput(addition, sizes), recoding, events)
    fingerprint = writer.draft.fingerprint
    if fingerprint == store.fingerprint:
        return store
    path = version_path(store, fingerprint) if path is None else user_path(path)
    if path == store.path:
        raise PlanError(f"{path} is the store itself, which loaders may have open", "give another folder with out=..., or none")
    return put_in_place(path, fingerprint, writer.write, events)


def version_path(store: Store, fingerprint: str) -> Path:
    """Returns the place of a version of a store: beside it, with the first digits of its own fingerprint after the name."""
    digits = 12
    stem = store.path.name.removesuffix(store.fingerprint[:digits]).removesuffix("-")
    return store.path.with_name(f"{stem}-{fingerprint[:digits]}")


@dataclass(frozen=True)
class _NewEdges:
    """New edges of some owners of one part, sorted by owner, and by time where there are times.

    Attributes:
        owner: int64 ``[k]``, numbers within the part.
        places: int64 ``[k]``: before which edge of the part they come.
        columns: ``{array of the part: rows [k, ...]}``, those of the edges as they are stored; no sums of weights.
    """

    owner: NDArray[np.int64]
    places: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]

    def between(self, low: int, high: int) -> _NewEdges:
        """Those of the owners ``[low, high)``."""
        first, last = np.searchsorted(self.owner, [low, high])
        pick = slice(int(first), int(last))
        return _NewEdges(self.owner[pick], self.places[pick], {name: rows[pick] for name, rows in self.columns.items()})


class _AppendWriter:
    """Writes the files of the new version, and links those that stay the same."""

    def __init__(self, store: Store, graph: SourceInput, recoding: Callable[[Any, str], Recoding | None], events: EventSink) -> None:
        self.store, self.graph, self.events, self.recoding = store, graph, events, recoding
        old = store.manifest
        self.draft = replace(
            old,
            source_fingerprint=graph.fingerprint(),
            schema=store_schema(graph.schema, store.options, graph.metadata).with_arrays(self._with_scales),
            # New nodes are the last ones of the last part, so they count as its coldest.
            hotness={t: (*rows[:-1], (*rows[-1][:-1], rows[-1][-1] + self.num_new_nodes(t))) for t, rows in old.hotness.items()},
            node_bounds={t: (*bounds[:-1], graph.schema.node_types[t].num_nodes) for t, bounds in old.node_bounds.items()},
            edge_counts=dict(old.edge_counts),
            cuts=dict(old.cuts),
            weight_exponents=dict(old.weight_exponents),
            keys=dict(old.keys),
            splits={t: {split: len(ids) for split, ids in splits.items()} for t, splits in graph.splits.items()},
            metadata=checked_metadata(graph.metadata),
            append_state=graph.append_state,
            files={},
        )
        kept = self._kept_parts()
        fingerprint = store_fingerprint(self.draft.source_fingerprint, self.draft.options, kept)
        self.draft = replace(self.draft, kept_parts=kept, fingerprint=fingerprint)

    def write(self, root: Path) -> Manifest:
        """Writes everything but the manifest, and brings it to the disk.

        Raises:
            DatasetError: See ``GraphSource``.
            StoreError: The disk is too small.
        """
        self._check_disk(root)
        total = float(sum(t.num_edges * 16 for t in self.graph.schema.edge_types.values()))
        with (
            Stage(self.events, "append", label=self.draft.name, total=total, unit="B") as self._stage,
            ThreadPoolExecutor(default_threads(), "gnnkit-append") as self.pool,
            StoreFiles(dict.fromkeys((None, *range(self.draft.num_parts)), root)) as self.files,
        ):
            for edge_type in self.draft.schema.edge_types:
                _EdgeTypeAppend(self, edge_type).write()
                self._stage.advance(self.graph.schema.edge_types[edge_type].num_edges * 16)
            self.files.finish()
            for node_type in self.draft.schema.node_types:
                self._write_nodes(node_type)
                self._write_splits(node_type)
                self._write_keys(node_type)
            self.files.finish()
            self._link_rest(root)
        return replace(self.draft, files=self.files.entries)

    # What it will be -------------------------------------------------------------------------------------------------------

    def _with_scales(self, owner: NodeType | EdgeType, new: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
        """Returns specs with the scales of the store; refuses quantised features for which these are not the right ones."""
        old, specs = self.store.schema.arrays_of(owner), dict(new)
        for name in unmeasured(new):
            held = old[name].quantization
            assert held is not None
            found = measured(self.graph, owner, name)
            if old[name].row_shape != new[name].row_shape or not found.fits(held):
                raise PlanError(
                    f"{name!r} of {owner} is stored in {held.bits} bits, from the least to the largest value of each column, "
                    "and new rows go beyond",
                    "make a store of the whole tables: gnnkit.tables(...)",
                )
            specs[name] = old[name]
        return specs

    def _kept_parts(self) -> str | None:
        """The division into parts that the options alone would not give; None where they do."""
        options, old = self.draft.options, self.store.manifest
        if options.num_parts == 1 and options.order == "dataset":
            return None
        if options.partition == "contiguous" and options.cache_ratio == 0.0 and options.order == "dataset":
            bounds = {t: list(own) for t, own in self.draft.node_bounds.items()}
            plain = {t: contiguous(own[-1], options.num_parts).bounds.tolist() for t, own in bounds.items()}
            return None if bounds == plain else f"bounds {sorted(bounds.items())}"
        return old.kept_parts or f"parts of {old.fingerprint}"

    def num_new_nodes(self, node_type: NodeType) -> int:
        return self.graph.schema.node_types[node_type].num_nodes - self.store.schema.node_types[node_type].num_nodes

    def _check_disk(self, root: Path) -> None:
        """Refuses to begin where the disk is too small, had all edges and the last part's nodes to be written anew."""
        files = self.store.manifest.files
        last = f"part{self.draft.num_parts - 1}/nodes/"
        new = [t for t in self.draft.schema.node_types if self.num_new_nodes(t)]
        nodes = sum(e.size for name, e in files.items() if any(name.startswith(f"{last}{file_name(t)}/") for t in new))
        edges = sum(e.size for name, e in files.items() if "/edges/" in name)
        check_disk(root, nodes + edges, f"the new version of {self.store.path}")

    # Files -----------------------------------------------------------------------------------------------------------------

    def _link_rest(self, root: Path) -> None:
        """Links the files that were not written: those of the same dtype and shape hold the same rows; others only become wider."""
        for name, spec in self.draft.file_specs().items():
            if name in self.files.entries:
                continue
            entry = self.store.manifest.files[name]
            if (entry.dtype, entry.shape) == (spec.dtype.name, spec.shape):
                link_or_copy(self.store.path / name, root / name)
                self.files.entries[name] = entry
            else:
                self._copy(name, spec)

    def _copy(self, name: str, spec: FileSpec, recoding: Recoding | None = None) -> ArrayWriter:
        """Writes the rows of a file of the store to the front of the new one."""
        writer, rows = self.files.writer(name, spec), self.store.file(name)
        step = max(1, BLOCK_BYTES // max(1, spec.row_nbytes))

        def block(first: int) -> None:
            piece = rows[first : first + step]
            writer.write(first, piece if recoding is None else recoding(np.asarray(piece)))

        wait_all(self.pool.submit(block, first) for first in range(0, len(rows), step))
        return writer

    # Nodes -----------------------------------------------------------------------------------------------------------------

    def _write_nodes(self, node_type: NodeType) -> None:
        """Writes the arrays of a node type that change; new nodes are the last ones of the last part."""
        old, new = self.store.schema.node_types[node_type].num_nodes, self.num_new_nodes(node_type)
        specs, last, schema = self.draft.node_specs(node_type), self.draft.num_parts - 1, self.graph.schema.node_types[node_type]
        for name, spec in schema.arrays.items():
            recoding, stored = self.recoding(node_type, name), self.draft.schema.node_types[node_type].arrays[name]
            for part in range(self.draft.num_parts):
                files = [array_file(part, node_type, name), cache_file(part, node_type, name)]
                for file in files if recoding is not None else files[:1] if new and part == last else []:
                    if file not in specs:
                        continue
                    writer = self._copy(file, specs[file], recoding)
                    if part == last and file == files[0]:
                        before = len(self.store.file(file))
                        for first, rows in numbered(self.graph.node_array_chunks(node_type, name)):
                            writer.write(before + first, convert_rows(rows, spec, stored, f"{name!r} of {node_type!r}"))
        if new and node_type in self.draft.renumbered:
            for file in (array_file(last, node_type, "global_id"), book_file(node_type)):
                writer = self._copy(file, specs[file])
                writer.write(len(self.store.file(file)), np.arange(old, old + new))

    def _write_splits(self, node_type: NodeType) -> None:
        before = self.store.splits.get(node_type, {})
        for split, ids in self.graph.splits.get(node_type, {}).items():
            if split not in before or len(before[split]) != len(ids):
                self.files.writer(split_file(node_type, split), FileSpec(np.dtype(np.int64), (len(ids),))).write(0, ids)

    def _write_keys(self, node_type: NodeType) -> None:
        """Writes the keys of old and new nodes, and the index by which they are found."""
        new = self.graph.keys.get(node_type)
        if new is None or not len(new):
            return
        old = self.store.keys(node_type)
        specs, columns = {}, dict(old.columns)
        for name in old.arrays:
            before, after = old.arrays[name], new.arrays[name]
            if name.endswith(".end"):
                after = after[1:] + before[-1]
            elif name in ("word", "row"):
                continue
            specs[name] = FileSpec(before.dtype, (len(before) + len(after),))
            self._copy(keys_file(node_type, name), specs[name]).write(len(before), np.asarray(after))
        places = np.searchsorted(old.arrays["word"], new.arrays["word"], side="right")
        rows = new.arrays["row"].astype(np.int64) + len(old)
        total = len(old) + len(new)
        for name, values, dtype in (("word", new.arrays["word"], np.dtype(np.uint64)), ("row", rows, index_dtype(total))):
            specs[name] = FileSpec(dtype, (total,))
            merged = _inserted(old.arrays[name].astype(dtype, copy=False), places, values.astype(dtype))
            self.files.writer(keys_file(node_type, name), specs[name]).write(0, merged)
        self.draft.keys[node_type] = (columns, specs)


class _EdgeTypeAppend:
    """Puts new edges of one type in between those of a store."""

    def __init__(self, writer: _AppendWriter, edge_type: EdgeType) -> None:
        self.writer, self.edge_type, self.store = writer, edge_type, writer.store
        self.graph, self.schema = writer.graph, writer.graph.schema.edge_types[edge_type]
        self.options = writer.draft.options
        arrays = self.store.arrays()
        self.owner_type, self.other_type = arrays.frontier_type(edge_type), arrays.neighbor_type(edge_type)
        self.owner_bounds, self.other_bounds = (np.array(writer.draft.node_bounds[t], np.int64) for t in (self.owner_type, self.other_type))
        self.stored = writer.draft.schema.edge_types[edge_type].arrays
        self.recodings = {name: writer.recoding(edge_type, name) for name in self.schema.arrays}
        self.weight = self.options.weight if self.options.weight in self.schema.arrays else None
        timed = timed_edge_types(self.graph.schema, self.options.edge_dir, self.options.time_attr)
        self.timed, self.time_of = edge_type in timed, timed.get(edge_type)
        self.exponent = self.store.manifest.weight_exponents.get(edge_type, 0)
        self.degree = np.zeros(int(self.owner_bounds[-1]), np.int64)
        self._books = [partial(_to_store, arrays.checked(t).store_id[t]) for t in (self.owner_type, self.other_type)]

    def _count(self) -> None:
        """Counts the new edges of each owner, and enters in the draft what follows from that."""
        draft, owners, others = self.writer.draft, int(self.owner_bounds[-1]), int(self.other_bounds[-1])
        largest = 0.0
        for batch in self.graph.edge_batches(self.edge_type, [self.weight] if self.weight else []):
            owner, other = self._ends(batch)
            bad = count_degrees(owner, other, NO_MAP, owners, others, 0, owners, self.degree)
            assert bad < 0, "the tables have found the ids"
            if self.weight:
                largest = max(largest, check_weights(batch.rows[self.weight], self.edge_type, self.weight, batch.first))
        if self.weight and largest > 0:
            # The exponent of the largest weight of all: 0 says that all were zero.
            prefixes = (self._checked(part, ["weight_prefix"]).weight_prefix for part in range(draft.num_parts))
            had_weights = self.exponent != 0 or any(prefix is not None and prefix.any() for prefix in prefixes)
            exponent = weight_exponent(largest)
            self.exponent = min(self.exponent, exponent) if had_weights else exponent
        bounds = self.owner_bounds
        new = [int(self.degree[low:high].sum()) for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
        draft.edge_counts[self.edge_type] = tuple(map(sum, zip(draft.edge_counts[self.edge_type], new, strict=True)))
        if self.weight:
            draft.weight_exponents[self.edge_type] = self.exponent

    def write(self) -> None:
        """Writes the files of this type that change."""
        self._count()
        cuts = np.array(self.store.manifest.cuts[self.edge_type], np.int64)
        specs = self.writer.draft.edge_specs(self.edge_type)
        for part in range(self.writer.draft.num_parts):
            self._write_part(part, specs, cuts[part])
        self.writer.draft.cuts[self.edge_type] = tuple(map(tuple, cuts.tolist()))

    def _write_part(self, part: int, specs: Mapping[str, FileSpec], cut: NDArray[np.int64]) -> None:
        """Writes the files of a part that change, and counts in which parts its new edges end."""
        start, stop = int(self.owner_bounds[part]), int(self.owner_bounds[part + 1])
        degree = self.degree[start:stop]
        before = np.asarray(self._checked(part, ["indptr"]).indptr).astype(np.int64)
        indptr = np.concatenate([before, np.full(stop - start + 1 - len(before), before[-1])])
        more = np.concatenate([[0], np.cumsum(degree)])
        name = array_file(part, self.edge_type, "indptr")
        if more[-1] or len(before) < len(indptr):
            self.writer.files.writer(name, specs[name]).write(0, indptr + more)
        dirty = self._dirty(part, int(more[-1]))
        if not dirty:
            return
        old = self._checked(part, [*dirty, *([self.weight] if self.weight and "weight_prefix" in dirty else [])])
        files = {name: array_file(part, self.edge_type, name) for name in dirty}
        writers = {name: self.writer.files.writer(file, specs[file]) for name, file in files.items()}
        held: dict[str, NDArray[Any] | None] = {"indices": old.indices, "edge_id": old.edge_id, TIME_NAME: old.time, **old.arrays}

        def write(new: _NewEdges, low: int, high: int) -> None:
            """Writes the edges of the owners ``[low, high)`` of the part."""
            first, last = int(indptr[low]), int(indptr[high])
            row = first + int(more[low])
            mine = new.between(low, high)
            places = mine.places - first
            merged: dict[str, NDArray[Any]] = {}
            for name, writer in writers.items():
                if name == "weight_prefix":
                    continue
                stored = held[name]
                assert stored is not None, name
                rows, recoding = np.asarray(stored[first:last]), self.recodings.get(name)
                rows = rows if recoding is None else recoding(rows)
                dtype = writer.spec.dtype
                merged[name] = _inserted(rows.astype(dtype, copy=False), places, mine.columns[name].astype(dtype, copy=False))
                writer.write(row, merged[name])
            if "weight_prefix" in writers:
                assert self.weight is not None
                weights = merged[self.weight] if self.weight in merged else np.asarray(old.arrays[self.weight][first:last])
                own = indptr[low : high + 1] + more[low : high + 1]
                writers["weight_prefix"].write(row, weight_prefix(own - own[0], weights, self.exponent))

        # New edges of as many owners at a time as fit the memory for them; blocks of these are written at once.
        limit = max(1, memory_budget() // (_EDGE_BYTES + 2 * sum(spec.row_nbytes for spec in self.schema.arrays.values())))
        for first, last in _cut(more, 0, len(more) - 1, limit):
            new = self._read(part, first + start, last + start, indptr)
            count_parts(new.columns["indices"], self.other_bounds, cut)
            wait_all(self.writer.pool.submit(write, new, *block) for block in _cut(indptr, first, last, BLOCK_BYTES // 8))

    def _checked(self, part: int, names: list[str]) -> EdgePart:
        """The store's edges of a part, once these arrays of them have been looked through."""
        files = [array_file(part, self.edge_type, name) for name in names]
        return self.store.checked(file for file in files if file in self.store.manifest.files).arrays().edges[self.edge_type][part]

    def _dirty(self, part: int, num_new: int) -> list[str]:
        """The arrays of a part that have to be written."""
        specs = self.writer.draft.edge_specs(self.edge_type)
        names = [name for name in (*EDGE_FILES[1:], *self.stored) if array_file(part, self.edge_type, name) in specs]
        if num_new:
            return names
        dirty = [name for name in names if self.recodings.get(name) is not None]
        if self.exponent != self.store.manifest.weight_exponents.get(self.edge_type, 0):
            dirty.append("weight_prefix")
        return dirty

    def _read(self, part: int, low: int, high: int, indptr: NDArray[np.int64]) -> _NewEdges:
        """Reads the new edges of the owners with store ids in ``[low, high)``, and finds their places."""
        before = self.store.schema.edge_types[self.edge_type].num_edges
        none = {name: np.empty((0, *spec.stored_shape), spec.numpy_dtype) for name, spec in self.stored.items()}
        of_all = ("indices", "edge_id", *([TIME_NAME] if self.timed else []))
        owners, found = [np.empty(0, np.int64)], [dict.fromkeys(of_all, np.empty(0, np.int64)) | none]
        for batch in self.graph.edge_batches(self.edge_type, list(self.schema.arrays)):
            owner, other = self._ends(batch)
            mine = np.flatnonzero((owner >= low) & (owner < high))
            owners.append(owner[mine] - self.owner_bounds[part])
            columns: dict[str, NDArray[Any]] = {"indices": other[mine], "edge_id": mine + batch.first + before}
            for name, spec in self.schema.arrays.items():
                columns[name] = convert_rows(batch.rows[name][mine], spec, self.stored[name], f"{name!r} of {self.edge_type}")
            if self.timed:
                own = self.time_of is None
                columns[TIME_NAME] = as_times(batch.rows[self.options.time_attr or ""][mine]) if own else self._node_times[other[mine]]
            found.append(columns)
        owner, columns = np.concatenate(owners), {name: np.concatenate([piece[name] for piece in found]) for name in found[0]}
        order = np.lexsort((columns[TIME_NAME], owner)) if self.timed else np.argsort(owner, kind="stable")
        owner, columns = owner[order], {name: rows[order] for name, rows in columns.items()}
        if not self.timed:
            return _NewEdges(owner, indptr[owner + 1], columns)
        places, old = np.empty(len(owner), np.int64), self.store.arrays().edges[self.edge_type][part].time
        assert old is not None
        places_by_time(indptr, old, owner, columns[TIME_NAME], places)
        return _NewEdges(owner, places, columns)

    @cached_property
    def _node_times(self) -> NDArray[np.int64]:
        """Times of the nodes at the far ends, by store id."""
        name, node_type = self.options.time_attr, self.other_type
        assert name is not None
        count = self.writer.num_new_nodes(node_type)
        pieces = [as_times(self.store.file(array_file(part, node_type, name))) for part in range(self.store.num_parts)]
        return np.concatenate([*pieces, as_times(RowReader.of(self.graph, node_type, name, count).take(count))])

    def _ends(self, batch: EdgeBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Store ids of owners and others, int64 ``[k]``."""
        owner, other = (book(ids) for book, ids in zip(self._books, batch.ends(self.options.edge_dir), strict=True))
        return owner, other


def _cut(indptr: NDArray[np.int64], first: int, last: int, limit: int) -> Iterator[tuple[int, int]]:
    """Cuts owners into ranges of at most ``limit`` edges, or of one owner."""
    while first < last:
        end = min(last, max(int(np.searchsorted(indptr, indptr[first] + limit, side="right")) - 1, first + 1))
        yield first, end
        first = end


def _to_store(store_id: NDArray[Any] | None, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Store ids of dataset ids; new nodes have the same in both."""
    if store_id is None:
        return ids
    known = ids < len(store_id)
    return np.where(known, store_id[np.where(known, ids, 0)], ids).astype(np.int64)


def _inserted(old: NDArray[Any], places: NDArray[np.int64], rows: NDArray[Any]) -> NDArray[Any]:
    """Rows with others put in between, see ``insert_rows``; rows of one width are moved by the same machine code, whatever they are."""
    out = np.empty((len(old) + len(rows), *old.shape[1:]), old.dtype)
    if not len(out) or not out.nbytes:
        return out
    row_nbytes = out.nbytes // len(out)
    word = np.dtype(f"u{next(size for size in (8, 4, 2, 1) if row_nbytes % size == 0)}")

    def words(array: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(array).reshape(-1).view(word).reshape(-1, row_nbytes // word.itemsize)

    insert_rows(words(old), np.require(places, np.int64, ["C", "W"]), words(rows), words(out))
    return out
