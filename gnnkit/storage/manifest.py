"""A store's manifest, and the outline of a store that lies elsewhere.

What the files of a store are called, and their dtypes and shapes, follows from schema, options and counts, so it is derived
(``file_specs``) when they are written and compared when they are read: a manifest cannot make an array something else.

An outline is a folder like a store's, marked by a file of its own. ``Store.open(path, ())`` opens it; its parts are not there,
and reading them is an error.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import GnnkitError, PlanError, StoreError
from gnnkit.files import read_bounded, why_unwritable, write_whole
from gnnkit.schema import EdgeType, GraphSchema, NodeType, edge_type_name, plain
from gnnkit.storage.edge_values import TIME_NAME, timed_edge_types
from gnnkit.storage.files import FileEntry, FileSpec, as_count, damaged, file_crc32
from gnnkit.storage.keys import KeySpecs, key_files, keys_from_json, keys_to_json
from gnnkit.storage.layout import (
    FEATURE_NAME,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST_NAME,
    BuildOptions,
    array_file,
    book_file,
    cache_file,
    check_buildable,
    contiguous,
    contiguous_numbering,
    index_dtype,
    split_file,
    store_schema,
    weighted_edge_types,
)
from gnnkit.storage.link_splits import LINK_INDEX, LinkSplitSpecs, link_split_files, specs_from_json


@dataclass(frozen=True)
class Manifest:
    """A store's manifest. While a store is built, its dicts fill up.

    Attributes:
        name: Name of the dataset.
        notice: See ``GraphSource.notice``.
        fingerprint: Hex digest of the source's content, the options and the format.
        source_fingerprint: ``GraphSource.fingerprint()`` of what the store was built from.
        schema: The arrays as stored.
        options: How the store was built, in canonical form.
        node_bounds: ``{node type: num_parts + 1 store ids}``.
        edge_counts: ``{edge type: edges of each part}``.
        cuts: ``{edge type: num_parts x num_parts}``: edges by the part that owns them and the part of their other end.
        weight_exponents: ``{edge type: s}`` where weights were prepared; see ``gnnkit.storage.edge_values``.
        renumbered: Node types whose store ids are not the dataset's.
        cached: ``{node type: nodes that each part replicates}``, types without any left out.
        hotness: ``{node type: for each part its number of nodes of each level, hottest first}`` where nodes are in that order; see
            ``gnnkit.storage.layout``.
        splits: ``{node type: {split: number of ids}}``.
        link_splits: ``{edge type: {split: {name: dtype and shape}}}``.
        metadata: See ``GraphSource.metadata``.
        keys: ``{node type: ({column: kind}, {array: dtype and shape})}`` where keys are kept; see ``gnnkit.storage.keys``.
        append_state: All that ``Store.append`` needs to go on with the tables that the store was made of; None where it was made of none.
        kept_parts: The division into parts that was kept when something was appended, where the options alone would give another one.
        files: ``{path relative to the store: entry}``.
    """

    name: str
    notice: str | None
    fingerprint: str
    source_fingerprint: str
    schema: GraphSchema
    options: BuildOptions
    node_bounds: Mapping[NodeType, tuple[int, ...]]
    edge_counts: dict[EdgeType, tuple[int, ...]]
    cuts: dict[EdgeType, tuple[tuple[int, ...], ...]]
    weight_exponents: dict[EdgeType, int]
    renumbered: frozenset[NodeType]
    cached: dict[NodeType, tuple[int, ...]] = field(default_factory=dict)
    hotness: Mapping[NodeType, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    splits: Mapping[NodeType, Mapping[str, int]] = field(default_factory=dict)
    link_splits: LinkSplitSpecs = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    keys: KeySpecs = field(default_factory=dict)
    append_state: Mapping[str, Any] | None = None
    kept_parts: str | None = None
    files: dict[str, FileEntry] = field(default_factory=dict)

    @property
    def num_parts(self) -> int:
        """Parts of every type."""
        return self.options.num_parts

    @property
    def num_links(self) -> dict[EdgeType, dict[str, int]]:
        """``{edge type: {split: number of links}}``."""
        return {t: {split: specs[LINK_INDEX].shape[1] for split, specs in own.items()} for t, own in self.link_splits.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each array file, by its name."""
        return {name: entry.size for name, entry in self.files.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all array files."""
        return sum(entry.size for entry in self.files.values())

    @property
    def graph_fingerprint(self) -> str:
        """Fingerprint of what decides batches, the same however the graph is cut and laid out: that of its store of one part."""
        return store_fingerprint(self.source_fingerprint, uncut(self.options))

    def file_sizes(self) -> dict[str, int]:
        """Returns the bytes of every file of the store, by path, also of one that is not built yet."""
        return {name: spec.file_nbytes for name, spec in self.file_specs().items()}

    def file_specs(self) -> dict[str, FileSpec]:
        """Returns the dtype, shape and content of every file of the store, by path."""
        specs: dict[str, FileSpec] = {}
        for owner in self.schema.counts:
            specs |= self.edge_specs(owner) if isinstance(owner, tuple) else self.node_specs(owner)
        for node_type, splits in self.splits.items():
            ids = "ids", self.schema.node_types[node_type].num_nodes
            for split, count in splits.items():
                specs[split_file(node_type, split)] = FileSpec(np.dtype(np.int64), (count,), ids)
        return {**specs, **link_split_files(self.link_splits), **key_files(self.keys)}

    def node_specs(self, node_type: NodeType) -> dict[str, FileSpec]:
        """The same for one node type; needs its bounds and counts of cached nodes."""
        nodes, specs = self.schema.node_types[node_type], {}
        id_dtype, book = index_dtype(nodes.num_nodes), book_file(node_type)
        bounds, cached = self.node_bounds[node_type], self.cached.get(node_type, (0,) * self.num_parts)
        if node_type in self.renumbered:
            specs[book] = FileSpec(id_dtype, (nodes.num_nodes,), ("book",))
        for part in range(self.num_parts):
            count = bounds[part + 1] - bounds[part]
            for name, spec in nodes.arrays.items():
                specs[array_file(part, node_type, name)] = FileSpec(spec.numpy_dtype, (count, *spec.stored_shape))
            if node_type in self.renumbered:
                numbers = "numbers", book, bounds[part], node_type in self.hotness
                specs[array_file(part, node_type, "global_id")] = FileSpec(id_dtype, (count,), numbers)
            if node_type in self.cached:
                features = nodes.arrays[FEATURE_NAME]
                specs[cache_file(part, node_type, "global_id")] = FileSpec(id_dtype, (cached[part],), ("ascending_ids", nodes.num_nodes))
                specs[cache_file(part, node_type, FEATURE_NAME)] = FileSpec(features.numpy_dtype, (cached[part], *features.stored_shape))
        return specs

    def edge_specs(self, edge_type: EdgeType) -> dict[str, FileSpec]:
        """The same for one edge type; needs its counts, the bounds of its ends and whether weights are prepared."""
        edges, specs = self.schema.edge_types[edge_type], {}
        counts, timed = self.edge_counts[edge_type], timed_edge_types(self.schema, self.options.edge_dir, self.options.time_attr)
        other, owner = (edge_type[0], edge_type[2]) if self.options.edge_dir == "in" else (edge_type[2], edge_type[0])
        for part in range(self.num_parts):
            owners = self.node_bounds[owner][part + 1] - self.node_bounds[owner][part]
            num_others, of_nodes = self.schema.node_types[other].num_nodes, ("of_nodes", array_file(part, edge_type, "indptr"))
            own = {
                "indptr": FileSpec(index_dtype(max(counts)), (owners + 1,), ("offsets", counts[part])),
                "indices": FileSpec(index_dtype(num_others), (counts[part],), ("ids", num_others)),
            }
            if self.options.with_edge:
                own["edge_id"] = FileSpec(index_dtype(edges.num_edges), (counts[part],), ("ids", edges.num_edges))
            if edge_type in self.weight_exponents:
                own["weight_prefix"] = FileSpec(np.dtype(np.uint64), (counts[part],), of_nodes)
            if edge_type in timed:
                own[TIME_NAME] = FileSpec(np.dtype(np.int64), (counts[part],), of_nodes)
            for name, spec in edges.arrays.items():
                own[name] = FileSpec(spec.numpy_dtype, (counts[part], *spec.stored_shape))
            specs.update({array_file(part, edge_type, name): spec for name, spec in own.items()})
        return specs

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``manifest_from_json`` reverses it."""
        value = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **plain(self),
            "schema": self.schema.to_json(),
            "options": self.options.to_json(),
            "keys": keys_to_json(self.keys),
            "files": plain(dict(sorted(self.files.items()))),
        }
        # Manifests of stores without these are as they were before there were any.
        absent = [name for name in ("hotness", "keys") if not value[name]]
        absent += [name for name in ("append_state", "kept_parts") if value[name] is None]
        return {name: own for name, own in value.items() if name not in absent}


def chosen_parts(parts: Iterable[int] | None, manifest: Manifest, name: str) -> tuple[int, ...]:
    """The parts that are asked for, ascending; None asks for all.

    Raises:
        PlanError: The store, which is called ``name``, has no such part.
    """
    every = range(manifest.num_parts)
    wanted = tuple(every) if parts is None else tuple(sorted(set(parts)))
    if unknown := [part for part in wanted if part not in every]:
        raise PlanError(f"the store {name} has no part {unknown[0]!r}", f"its parts are 0 to {manifest.num_parts - 1}")
    return wanted


def canonical_options(options: BuildOptions) -> BuildOptions:
    """The options without those that cannot influence the result, so that equal stores have equal fingerprints."""
    default = BuildOptions()
    if options.num_parts == 1:
        options = replace(options, partition=default.partition, cache_ratio=0.0)
    if options.partition != "frequency" and options.cache_ratio == 0.0 and options.order == default.order:
        options = replace(options, num_neighbors=default.num_neighbors, input_nodes=default.input_nodes)
    if (options.partition == "contiguous" or options.part_column) and options.cache_ratio == 0.0:
        options = replace(options, seed=default.seed)
    return options


def uncut(options: BuildOptions) -> BuildOptions:
    """The options without those that only say how a graph is cut into parts and how these are laid out."""
    return canonical_options(replace(options, num_parts=1, order=BuildOptions().order))


def store_fingerprint(source_fingerprint: str, options: BuildOptions, kept_parts: str | None = None) -> str:
    """Hex digest of a source's content, the options that matter, the division into parts where it was kept, and the format version."""
    import hashlib

    value: list[Any] = [FORMAT, FORMAT_VERSION, source_fingerprint, canonical_options(options).to_json()]
    value += [] if kept_parts is None else [kept_parts]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def planned_manifest(
    name: str,
    schema: GraphSchema,
    splits: Mapping[NodeType, Mapping[str, int]],
    options: BuildOptions,
    metadata: Mapping[str, Any],
) -> Manifest:
    """The manifest of a store that is not built yet, whose parts have the same share of nodes and edges; it lists no files.

    The sizes of its files, see ``file_specs``, are exact in sum, but for the width of offsets.

    Args:
        name: Name of the dataset.
        schema: The source's schema.
        splits: ``{node type: {split: number of ids}}``.
        options: How it is to be built.
        metadata: The source's.

    Raises:
        PlanError: See ``check_buildable``.
    """
    check_buildable(schema, options, metadata)
    options, stored = canonical_options(options), store_schema(schema, options, metadata)
    parts = options.num_parts
    renumbers = (parts > 1 and options.partition != "contiguous") or options.order == "hotness"
    caches = [t for t, nodes in stored.node_types.items() if options.cache_ratio > 0 and FEATURE_NAME in nodes.arrays]
    return Manifest(
        name, None, "", "", stored, options,
        node_bounds={t: tuple(map(int, numbers.bounds)) for t, numbers in contiguous_numbering(stored, parts).items()},
        edge_counts={t: tuple(map(int, np.diff(contiguous(edges.num_edges, parts).bounds))) for t, edges in stored.edge_types.items()},
        cuts={},
        weight_exponents=dict.fromkeys(weighted_edge_types(schema, options), 0),
        renumbered=frozenset(stored.node_types if renumbers else ()),
        cached={t: (int(options.cache_ratio * stored.node_types[t].num_nodes),) * parts for t in caches},
        splits=splits,
    )  # fmt: skip


def write_manifest(root: Path, manifest: Manifest, name: str = MANIFEST_NAME, **beside: Any) -> None:
    """Writes ``manifest.json`` all at once, or a file of another name with more in it, with a checksum of itself."""
    value = {**manifest.to_json(), **beside}
    write_whole(root / name, json.dumps({**value, "checksum": checksum(value)}, indent=1) + "\n")


def read_manifest(root: Path) -> Manifest:
    """Reads and checks ``manifest.json``.

    Raises:
        StoreError: There is no store, it is of another format version, or its manifest is damaged.
    """
    path = root / MANIFEST_NAME
    try:
        text = read_bounded(path, root=root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"there is no store at {root} ({MANIFEST_NAME} is missing)", "gnnkit stores ls shows what there is") from error
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", "copy the store whole, or build it again"
        ) from error
    return parse_manifest(text, root)


def parse_manifest(text: bytes, root: Path | str) -> Manifest:
    """The manifest in the content of a ``manifest.json``, checked.

    Args:
        text: The content.
        root: The store's folder or URL, for errors.

    Raises:
        StoreError: It is of another format version, or damaged.
    """
    try:
        value = json.loads(text)
        version = value["format_version"] if value["format"] == FORMAT else None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(root, f"{MANIFEST_NAME} is not a manifest ({type(error).__name__}: {error})") from error
    check_version(root, version)
    try:
        if value.pop("checksum", None) != checksum(value):
            raise damaged(root, f"{MANIFEST_NAME} was changed (its checksum differs)")
        manifest = manifest_from_json(value)
        _check(manifest)
    except StoreError:
        raise
    # A manifest whose checksum was recomputed may hold anything at all in any place.
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError, GnnkitError) as error:
        raise damaged(root, f"{MANIFEST_NAME} does not describe a store ({type(error).__name__}: {error})") from error
    return manifest


def check_version(root: Path | str, version: object) -> None:
    """Refuses every format version but this one.

    Raises:
        StoreError: Says whether gnnkit or the store is too old.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise damaged(root, f"{MANIFEST_NAME} names no format version")
    if version > FORMAT_VERSION:
        raise StoreError(
            f"the store {root} has format {version}; this gnnkit reads up to {FORMAT_VERSION}", "upgrade gnnkit: pip install -U gnnkit"
        )
    if version < FORMAT_VERSION:
        raise StoreError(f"the store {root} has the old format {version}", "gnnkit stores prune removes it; it is then built again")


def manifest_from_json(value: Mapping[str, Any]) -> Manifest:
    """Reverses ``Manifest.to_json``; raises whatever a wrong value causes."""
    schema = GraphSchema.from_json(value["schema"])
    options = dict(value["options"])
    options["num_neighbors"] = tuple(int(n) for n in options["num_neighbors"])
    names = {edge_type_name(edge_type): edge_type for edge_type in schema.edge_types}
    return Manifest(
        name=str(value["name"]),
        notice=None if value["notice"] is None else str(value["notice"]),
        fingerprint=str(value["fingerprint"]),
        source_fingerprint=str(value["source_fingerprint"]),
        schema=schema,
        options=BuildOptions(**options),
        node_bounds={k: tuple(map(as_count, v)) for k, v in value["node_bounds"].items()},
        edge_counts={names[k]: tuple(map(as_count, v)) for k, v in value["edge_counts"].items()},
        cuts={names[k]: tuple(tuple(map(as_count, row)) for row in v) for k, v in value["cuts"].items()},
        weight_exponents={names[k]: int(v) for k, v in value["weight_exponents"].items()},
        renumbered=frozenset(map(str, value["renumbered"])),
        cached={k: tuple(map(as_count, v)) for k, v in value["cached"].items()},
        hotness={k: tuple(tuple(map(as_count, row)) for row in v) for k, v in value.get("hotness", {}).items()},
        splits={k: {str(name): as_count(n) for name, n in v.items()} for k, v in value["splits"].items()},
        link_splits=specs_from_json(value["link_splits"], names),
        metadata=dict(value["metadata"]),
        append_state=None if value.get("append_state") is None else dict(value["append_state"]),
        kept_parts=None if value.get("kept_parts") is None else str(value["kept_parts"]),
        keys=keys_from_json(value.get("keys", {}), {name: nodes.num_nodes for name, nodes in schema.node_types.items()}),
        files={
            str(name): FileEntry(str(e["dtype"]), tuple(map(as_count, e["shape"])), as_count(e["size"]), as_count(e["crc32"]))
            for name, e in value["files"].items()
        },
    )


def _check(manifest: Manifest) -> None:
    """Raises ValueError or a gnnkit error for a manifest that contradicts itself."""
    schema, parts = manifest.schema, manifest.num_parts
    check_buildable(schema, manifest.options, manifest.metadata)
    for node_type, nodes in schema.node_types.items():
        bounds = manifest.node_bounds[node_type]
        if len(bounds) != parts + 1 or bounds[0] != 0 or bounds[-1] != nodes.num_nodes or list(bounds) != sorted(bounds):
            raise ValueError(f"node bounds {bounds[:4]}... of {node_type!r}")
    _check_edge_counts(manifest)
    _check_tables(manifest)
    specs = manifest.file_specs()
    if specs.keys() != manifest.files.keys():
        raise ValueError(f"list of files differs: {sorted(specs.keys() ^ manifest.files.keys())[:3]}")
    for name, spec in specs.items():
        entry = manifest.files[name]
        if (entry.dtype, entry.shape, entry.size) != (spec.dtype.name, spec.shape, spec.file_nbytes):
            raise ValueError(f"{name} is listed as {entry.dtype} {entry.shape} of {entry.size} bytes")


def _check_edge_counts(manifest: Manifest) -> None:
    schema, parts = manifest.schema, manifest.num_parts
    for edge_type, edges in schema.edge_types.items():
        counts, cut = manifest.edge_counts[edge_type], manifest.cuts[edge_type]
        is_square = len(counts) == parts and all(len(row) == parts for row in cut)
        if not is_square or sum(counts) != edges.num_edges or tuple(map(sum, cut)) != counts:
            raise ValueError(f"edge counts of {edge_type}")


def _check_tables(manifest: Manifest) -> None:
    schema, parts = manifest.schema, manifest.num_parts
    for table in (manifest.node_bounds, manifest.cached, manifest.hotness, manifest.splits, dict.fromkeys(manifest.renumbered)):
        if unknown := set(table) - set(schema.node_types):
            raise ValueError(f"unknown node types {sorted(unknown)}")
    if any(len(counts) != parts for counts in manifest.cached.values()):
        raise ValueError("counts of cached nodes")
    for node_type, levels in manifest.hotness.items():
        if [sum(row) for row in levels] != np.diff(manifest.node_bounds[node_type]).tolist() or len({len(row) for row in levels}) != 1:
            raise ValueError(f"levels of hotness of {node_type!r}")


def checksum(value: Mapping[str, Any]) -> str:
    """The checksum of a JSON object."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True, separators=(',', ':')).encode()):08x}"


_MARK = "outline"
_HEX = frozenset("0123456789abcdef")
# Gives the pieces of a file of the store, by the file's name.
Fetch = Callable[[str], Iterable[bytes | memoryview]]


class _Elsewhere(np.ndarray[Any, Any]):
    """An array that is not here: it has a dtype and a shape, and refuses to be read."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StoreError(
            "the graph's arrays are on its servers: here is only what the store's manifest and splits say",
            "sample them with a loader, or open the store where its parts are",
        )

    __getitem__ = __iter__ = __array_ufunc__ = __array_function__ = tolist = tobytes = astype = copy = _refuse


def elsewhere(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array ``[*shape]`` that takes no memory and cannot be read."""
    return np.broadcast_to(np.zeros((), dtype), shape).view(_Elsewhere)


def is_outline(path: Path) -> bool:
    """Whether a folder holds an outline."""
    return (path / _MARK).is_file()


def find_outline(folder: Path, fingerprint: str) -> Path | None:
    """The outline of a store among those in ``folder``; None where there is none that is whole.

    Raises:
        StoreError: This is no fingerprint.
    """
    path = _place(folder, fingerprint)
    try:
        return path if is_outline(path) and read_manifest(path).fingerprint == fingerprint else None
    except StoreError:
        return None


def keep_outline(folder: Path, fingerprint: str, fetch: Fetch) -> Path:
    """Writes the outline of a store, all of it or nothing.

    Args:
        folder: The folder of outlines; made where it is not there.
        fingerprint: The store's.
        fetch: Gives the store's files.

    Returns:
        The outline's folder.

    Raises:
        StoreError: What was fetched is not of this store, or damaged, or cannot be written; or this is no fingerprint.
    """
    target = _place(folder, fingerprint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{fingerprint[:12]}-", dir=folder, ignore_cleanup_errors=True) as made:
            staging = Path(made)
            _write(staging, MANIFEST_NAME, fetch)
            manifest = read_manifest(staging)
            if manifest.fingerprint != fingerprint:
                raise StoreError(f"the store is {manifest.fingerprint}, and {fingerprint} was expected", "ask again")
            for name in outline_files(manifest):
                _write(staging, name, fetch)
                if (staging / name).stat().st_size != manifest.files[name].size or file_crc32(staging / name) != manifest.files[name].crc32:
                    raise damaged(staging, f"{name} did not arrive as the manifest says")
            (staging / _MARK).touch()
            if find_outline(folder, fingerprint) is None:  # else another process was faster
                shutil.rmtree(target, ignore_errors=True)
                staging.rename(target)
    except OSError as error:
        if find_outline(folder, fingerprint) is None:
            raise StoreError(
                f"the outline of the store cannot be kept in {folder}: {why_unwritable(error, folder)}",
                "set GNNKIT_HOME to a folder that can be written",
            ) from error
    return target


def outline_files(manifest: Manifest) -> list[str]:
    """The files of an outline beside the manifest."""
    of_nodes = [split_file(node_type, split) for node_type, splits in manifest.splits.items() for split in splits]
    return [*of_nodes, *link_split_files(manifest.link_splits)]


def _place(folder: Path, fingerprint: str) -> Path:
    """Returns the path of an outline. The fingerprint comes from the network, and must not lead out of the folder."""
    if not fingerprint or not set(fingerprint) <= _HEX:
        raise StoreError(f"{fingerprint[:100]!r} is no fingerprint of a store", "servers and trainers must run the same gnnkit")
    return folder / fingerprint


def _write(root: Path, name: str, fetch: Fetch) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        for piece in fetch(name):
            file.write(piece)
