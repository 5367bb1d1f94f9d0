"""A store, opened: the manifest read, every array mapped, nothing copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.errors import PlanError, StoreError, near_matches
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import user_path
from gnnkit.plan import StoreRef
from gnnkit.printable import printable_line
from gnnkit.rendering import Shown, renderer
from gnnkit.schema import EdgeType, NodeType
from gnnkit.storage.arrays import EdgePart, GraphArrays, NodePart, placeholder
from gnnkit.storage.files import damaged, open_array
from gnnkit.storage.keys import NodeKeys
from gnnkit.storage.layout import (
    EDGE_FILES,
    FEATURE_NAME,
    array_file,
    book_file,
    cache_file,
    is_held,
    keys_file,
    part_folder,
    part_of,
    split_file,
)
from gnnkit.storage.manifest import Manifest, chosen_parts, elsewhere, is_outline, outline_files, read_manifest
from gnnkit.storage.report import StoreReport, report_of
from gnnkit.storage.verify import OpenFiles
from gnnkit.units import format_bytes
from gnnkit.urls import is_url

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ReplicatedFeatures:
    """Features that a part replicates from other parts.

    Attributes:
        global_id: int32 or int64 ``[k]``, the dataset's ids, ascending.
        x: ``[k, *row_shape]``, their features.
    """

    global_id: NDArray[Any]
    x: NDArray[Any]


@checks_calls()
class Store(Shown):
    """A partitioned graph on disk. Made by ``Store.open``, ``build_store`` and ``partition``.

    Opening reads the manifest and each file's header and size; ``verify`` reads everything. A store pickles as its path and parts.
    Arrays stay usable when the store is removed while they are in use.

    A host that holds some of the parts opens those only: the files of the others need not be there. One that holds none may have an outline
    (``gnnkit.storage.manifest``).

    Args:
        path: The store's folder.
        manifest: Its manifest.
        parts: The parts to open, ascending.
        url: The URL that it was fetched from.

    Attributes:
        path: The store's folder.
        manifest: Its manifest.
        local_parts: The parts that are open.
        whole_structure: Whether the structure of the other parts is open, too.
        url: The URL that it was fetched from; None where it was built here.
        name: Name of the dataset.
        notice: A line to be shown wherever the dataset is, or None.
        metadata: The dataset's facts ("num_classes", "task_type", ...).
        schema: Types, sizes and arrays, with the dtypes in which they are stored.
        options: The options that the store was built with, in canonical form.
        edge_dir: Which end owns an edge: "in" for the target, "out" for the source.
        num_parts: Number of parts.
        fingerprint: Hex digest of the dataset's content, the options and the format.

    Example:
        >>> import gnnkit
        >>> store = gnnkit.partition(gnnkit.datasets.products_like(0.0005), 2, out="store", overwrite=True)
        >>> store.schema.num_nodes, store.manifest.num_parts
        (1225, 2)
    """

    def __init__(
        self, path: Path, manifest: Manifest, parts: tuple[int, ...], url: str | None = None, *, whole_structure: bool = False
    ) -> None:
        self.path, self.manifest, self.local_parts, self.url, self.whole_structure = path, manifest, parts, url, whole_structure
        self.name, self.notice, self.metadata, self.schema = manifest.name, manifest.notice, manifest.metadata, manifest.schema
        self.options, self.edge_dir = manifest.options, manifest.options.edge_dir
        self.num_parts, self.fingerprint = manifest.num_parts, manifest.fingerprint
        self._check_parts_are_there()
        self._is_outline = is_outline(path)
        held = {name for name in manifest.files if is_held(name, parts, whole_structure)}
        here = set(outline_files(manifest)) if self._is_outline else held
        mapped = {name: open_array(path, name, entry) for name, entry in manifest.files.items() if name in here}
        self._files = {name: array for name, (array, _) in mapped.items()}
        every = tuple(range(manifest.num_parts)) if whole_structure else parts
        self._opened = OpenFiles(path, manifest, every, self._files, {name: identity for name, (_, identity) in mapped.items()})
        self._arrays = self._assemble()
        self._check_ends()

    @classmethod
    def open(cls, path: str | Path, parts: Iterable[int] | None = None, url: str | None = None, *, whole_structure: bool = False) -> Store:
        """Opens the store in the folder ``path``, or the one at a URL: the parts that are opened are fetched where they are not here yet.

        Args:
            path: The folder, or a URL such as ``"s3://bucket/store"``.
            parts: The parts to open; None opens all.
            url: The URL that the store in the folder was fetched from.
            whole_structure: Opens the structure of the other parts, too: all but the features of their nodes and edges.

        Raises:
            StoreError: There is none, it is of a newer format, a part is not there, or a file is missing, truncated or not what the
                manifest says.
            PlanError: The store has no such part.
        """
        if is_url(path):
            fetched: Store = renderer("open_url")(path, parts, whole_structure=whole_structure)
            return fetched
        path = user_path(path)
        manifest = read_manifest(path)
        return cls(path, manifest, chosen_parts(parts, manifest, str(path)), url, whole_structure=whole_structure)

    @property
    def reference(self) -> StoreRef:
        """The reference to this store that a plan holds."""
        return StoreRef(str(self.path), self.fingerprint, self.manifest.graph_fingerprint, self.url)

    @property
    def nbytes(self) -> int:
        """Bytes of all array files, those of parts that are not open included."""
        return self.manifest.nbytes

    @cached_property
    def node_bounds(self) -> dict[NodeType, NDArray[np.int64]]:
        """``{node type: int64 [num_parts + 1]}``: part ``p`` owns the store ids ``[bounds[p], bounds[p + 1])``."""
        return {node_type: np.array(bounds, np.int64) for node_type, bounds in self.manifest.node_bounds.items()}

    @cached_property
    def splits(self) -> dict[NodeType, dict[str, NDArray[np.int64]]]:
        """``{node type: {"train" | "valid" | "test": int64 [k]}}``, dataset ids, mapped."""
        return {t: {split: self._files[split_file(t, split)] for split in splits} for t, splits in self.manifest.splits.items()}

    @cached_property
    def link_splits(self) -> dict[EdgeType, dict[str, dict[str, NDArray[Any]]]]:
        """``{edge type: {split: {name: array}}}``, dataset ids, mapped; see ``GraphSource.link_splits``."""
        return {
            t: {split: {name: self._files[split_file(t, split, name)] for name in arrays} for split, arrays in by_split.items()}
            for t, by_split in self.manifest.link_splits.items()
        }

    def arrays(self) -> GraphArrays:
        """Every array that sampling reads, mapped read-only; placeholders for parts that are not open."""
        return self._arrays

    def require(self, parts: Iterable[int] | None = None) -> Store:
        """The store itself, if the parts are open; None asks for all.

        Raises:
            StoreError: One is not.
        """
        missing = [part for part in (range(self.num_parts) if parts is None else parts) if part not in self.local_parts]
        if missing:
            raise StoreError(
                f"part {missing[0]} of the store {self.path} is not open here; open: {list(self.local_parts)} of {self.num_parts}",
                "Store.open(path) opens every part, where the files of all are there",
            )
        return self

    def cache(self, part: int) -> dict[NodeType, ReplicatedFeatures]:
        """The features that ``part`` replicates from other parts; empty unless the store was built with a ``cache_ratio``.

        Raises:
            StoreError: The part is not open, or the ids are damaged.
        """
        self.require((part,))
        ids = {t: self.file(cache_file(part, t, "global_id")) for t in self.manifest.cached}
        return {t: ReplicatedFeatures(of_type, self._files[cache_file(part, t, FEATURE_NAME)]) for t, of_type in ids.items()}

    def keys(self, node_type: NodeType | None = None) -> NodeKeys:
        """The keys of the nodes of a type, as the tables that the graph was made of name them.

        Args:
            node_type: The type; None where there is only one.

        Raises:
            PlanError: The store keeps no keys of this type.
            StoreError: This is an outline of a store: its keys are where its parts are. Or the keys are damaged.
        """
        kept = self.manifest.keys
        if node_type is None and len(self.schema.node_types) == 1:
            (node_type,) = self.schema.node_types
        if node_type is None or node_type not in kept:
            raise PlanError(
                f"the store {self.path} keeps no keys of {node_type!r}{near_matches(str(node_type), list(kept))}",
                f"node types with keys: {sorted(kept)}" if kept else "gnnkit.tables(...) keeps them; here ids are all that there is",
            )
        columns, files = kept[node_type]
        if self._is_outline:
            raise StoreError(f"the keys of {node_type!r} are where the store's parts are", "open the store there")
        return NodeKeys(node_type, columns, {name: self.file(keys_file(node_type, name)) for name in files})

    def add_keys(self, batch: Any) -> Any:
        """Adds ``key`` to a batch, for each node type whose keys the store keeps: ``transform=store.add_keys`` of a loader.

        Args:
            batch: A PyG ``Data`` or ``HeteroData`` with ``n_id``.

        Returns:
            The batch; ``key`` is an int64 tensor as long as ``n_id``, or a list of texts or tuples.
        """
        for node_type in self.manifest.keys:
            nodes = batch[node_type] if node_type in getattr(batch, "node_types", ()) else batch
            if nodes is batch and not self.schema.is_homogeneous:
                continue  # this batch has no nodes of the type
            found = self.keys(node_type)[nodes.n_id.cpu().numpy()]
            nodes.key = found.tolist() if found.dtype == object else nodes.n_id.new_tensor(found)
        return batch

    def to_store_ids(self, node_type: NodeType, ids: NDArray[Any]) -> NDArray[Any]:
        """Store ids of dataset ids.

        Args:
            node_type: Their type.
            ids: Integers ``[k]``.

        Returns:
            ``[k]``; ``ids`` itself where both numberings agree.

        Raises:
            PlanError: The node type is unknown, or an id is out of range.
        """
        if node_type not in self.schema.node_types:
            known = list(self.schema.node_types)
            raise PlanError(f"unknown node type {node_type!r}{near_matches(node_type, known)}", f"node types: {known}")
        num_nodes = self.schema.node_types[node_type].num_nodes
        ids = np.asarray(ids)
        if not np.issubdtype(ids.dtype, np.integer):
            raise PlanError(f"ids of {node_type!r} nodes must be integers, got {ids.dtype}")
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
            wrong = int(ids[(ids < 0) | (ids >= num_nodes)].flat[0])
            raise PlanError(f"there is no {node_type!r} node {wrong}", f"ids go from 0 to {num_nodes - 1}")
        book = self._arrays.checked(node_type).store_id[node_type]
        return ids if book is None else book[ids]

    def verify(self, events: EventSink = ignore_events) -> None:
        """Reads everything that is open: checksums, and that every index is one that sampling may follow.

        Args:
            events: Receives the stage "verify", in bytes.

        Raises:
            StoreError: Something differs; names the file and what is wrong.
        """
        self._opened.check(self._files, events, again=True)

    def checked(self, names: Iterable[str] | None = None, events: EventSink = ignore_events) -> Store:
        """The store itself, once files of it have been looked through as ``verify`` does, unless they have been before.

        Args:
            names: Files of the manifest that are open; None is all that are.
            events: Receives the stage "verify", in bytes, where there is something to do.

        Raises:
            StoreError: See ``verify``.
        """
        self._opened.check(self._files if names is None else names, events)
        return self

    def push(self, url: str, *, overwrite: bool = False, events: EventSink = ignore_events) -> str:
        """Puts the parts that are open at a URL, from where ``GraphLoader.from_store(url)`` fetches them.

        The manifest comes last, once every part is there: where hosts have some parts each, they push one after the other. A push that was
        broken off goes on with the files that are missing.

        Args:
            url: Such as ``"s3://bucket/store"`` or ``"gs://bucket/store"``; credentials are those that fsspec finds.
            overwrite: Replaces another store there.
            events: Receives the stage "upload", in bytes.

        Returns:
            The URL.

        Raises:
            PlanError: The URL names a user or a password, or nothing can be put there.
            StoreError: Something else lies there, a file here is damaged, or the server refuses or cannot be reached.
        """
        pushed: str = renderer("push")(self, url, overwrite=overwrite, events=events)
        return pushed

    def append(
        self,
        edges: Any = None,
        nodes: Any = None,
        *,
        out: str | Path | None = None,
        fill: Mapping[str, Any] | None = None,
        events: EventSink = ignore_events,
    ) -> Store:
        """Writes a new version of the store beside it: the graph of its tables with these rows after them.

        This store stays as it is, and so does every loader that has it open; files that are the same in both are linked. New nodes
        have the next ids and belong to the last part, new edges have the next edge ids, and columns are used as in the call of
        ``gnnkit.tables`` that the store was made of. A version of the same rows that is there already is opened.

        Args:
            edges: The table of new edges, in any form that ``gnnkit.tables`` takes; ``{edge type: table}`` for a typed graph. Their
                ends are keys of nodes that are there or are new, or row numbers where the tables have no keys.
            nodes: The table of new nodes, or how many there are; ``{node type: either}`` for a typed graph. Where a type of nodes has no
                table, new keys in edges make new nodes, in ascending order.
            out: Folder of the new version; None takes a name beside the store.
            fill: ``{column: value}``, which takes the place of nulls in columns of which the store's tables said nothing.
            events: Receives progress.

        Returns:
            The new version; ``GraphLoader.from_store(store.append(...))`` trains on it.

        Raises:
            PlanError: The store was not made of tables, there is no such type, a column that it uses is missing, or 8-bit features go
                beyond its range.
            DatasetError: A table is damaged, a key is there already, or edges name no node.
            StoreError: Not all parts are open, or the disk is full. Nothing is left behind.
        """
        appended: Store = renderer("append")(self, edges, nodes, fill=fill, path=None if out is None else user_path(out), events=events)
        return appended

    def report(self) -> StoreReport:
        """Sizes, balance and edge cut of the parts."""
        return report_of(self.manifest, self.path)

    def plot(self) -> Figure:
        """A picture of the degrees of its nodes, the sizes of its parts, and the edges between them.

        Returns:
            A matplotlib figure; its ``data`` are the numbers (``gnnkit.ui.plots.StoreNumbers``).

        Raises:
            PlanError: matplotlib is not installed.
            StoreError: A part is not open.
        """
        figure: Figure = renderer("store_plot")(self)
        return figure

    def file(self, name: str) -> NDArray[Any]:
        """The mapped array of the file ``name`` of the manifest, looked through.

        Raises:
            StoreError: It belongs to a part that is not open, or is damaged.
        """
        part = part_of(name)
        if part is not None:
            self.require((part,))
        return self.checked((name,))._files[name]

    @property
    def files(self) -> list[str]:
        """The manifest's files without those of parts that are not open."""
        return list(self._files)

    def __reduce__(self) -> tuple[Any, ...]:
        return (partial(Store.open, whole_structure=self.whole_structure), (str(self.path), self.local_parts, self.url))

    def __repr__(self) -> str:
        schema, parts = self.schema, f"{self.num_parts} part{'s' if self.num_parts > 1 else ''}"
        parts += "" if self._arrays.is_whole else f", {list(self.local_parts)} open"
        notice = f", {self.notice}" if self.notice else ""
        sizes = f"{schema.num_nodes:,} nodes, {schema.num_edges:,} edges, {parts} ({self.options.partition}), {format_bytes(self.nbytes)}"
        return printable_line(f"Store({self.name}: {sizes}{notice}, {str(self.path)!r})")

    def _assemble(self) -> GraphArrays:
        manifest, parts = self.manifest, range(self.num_parts)
        files = dict(self._files)
        for name, entry in manifest.files.items():
            if name not in files:
                files[name] = (elsewhere if self._is_outline else placeholder)(np.dtype(entry.dtype), entry.shape)

        def rows(part: int, owner: NodeType | EdgeType) -> dict[str, NDArray[Any]]:
            named = {name: array_file(part, owner, name) for name in manifest.schema.arrays_of(owner)}
            return {name: files[file] for name, file in named.items() if not self.whole_structure or file in self._files}

        def node_part(part: int, node_type: NodeType) -> NodePart:
            return NodePart(rows(part, node_type), files.get(array_file(part, node_type, "global_id")))

        def edge_part(part: int, edge_type: EdgeType) -> EdgePart:
            indptr, indices, edge_id, weight_prefix, time = (files.get(array_file(part, edge_type, name)) for name in EDGE_FILES)
            assert indptr is not None and indices is not None
            return EdgePart(indptr, indices, edge_id, weight_prefix, rows(part, edge_type), time)

        return GraphArrays(
            manifest.schema,
            manifest.options.edge_dir,
            {t: tuple(node_part(p, t) for p in parts) for t in manifest.schema.node_types},
            {t: tuple(edge_part(p, t) for p in parts) for t in manifest.schema.edge_types},
            self.node_bounds,
            {t: files[book_file(t)] if t in manifest.renumbered else None for t in manifest.schema.node_types},
            self.local_parts,
            self.whole_structure,
            manifest.hotness,
            check=self._opened.check_types,
        )

    def _check_parts_are_there(self) -> None:
        """Refuses parts that were not copied here: they are missing and not damaged."""
        for part in range(self.num_parts) if self.whole_structure else self.local_parts:
            if not (self.path / part_folder(part)).is_dir():
                here = [other for other in range(self.num_parts) if (self.path / part_folder(other)).is_dir()]
                raise StoreError(
                    f"part {part} of the store {self.path} is not on this host; of {self.num_parts} parts, {here} are",
                    f"copy the folder {part_folder(part)} here, or name the parts to open: Store.open(path, parts={here}), "
                    f"or placement={{host: parts}} for a loader",
                )

    def _check_ends(self) -> None:
        """The part of ``verify`` that costs nothing: each adjacency begins at 0 and ends at its number of edges."""
        for edge_type, parts in self._arrays.edges.items():
            for part in self._arrays.structure_parts:
                edges = parts[part]
                if edges.indptr[0] != 0 or edges.indptr[-1] != len(edges.indices):
                    name = array_file(part, edge_type, "indptr")
                    found = f"{int(edges.indptr[0])} to {int(edges.indptr[-1])}"
                    raise damaged(self.path, f"{name} goes from {found} instead of 0 to {len(edges.indices)}")
