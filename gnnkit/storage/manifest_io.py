"""Reading and writing ``manifest.json``. What is read is believed only as far as it agrees with itself."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import GnnkitError, StoreError
from gnnkit.files import read_bounded
from gnnkit.schema import GraphSchema, edge_type_name
from gnnkit.storage.files import FileEntry, damaged, sync
from gnnkit.storage.layout import FORMAT, FORMAT_VERSION, MANIFEST_NAME, check_buildable
from gnnkit.storage.link_splits import specs_from_json
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.options import BuildOptions


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Writes and syncs ``manifest.json``, with a checksum of itself."""
    value = manifest.to_json()
    value["checksum"] = checksum(value)
    path = root / MANIFEST_NAME
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    sync(path)


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


def check_version(root: Path, version: object) -> None:
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
        node_bounds={k: tuple(map(_count, v)) for k, v in value["node_bounds"].items()},
        edge_counts={names[k]: tuple(map(_count, v)) for k, v in value["edge_counts"].items()},
        cuts={names[k]: tuple(tuple(map(_count, row)) for row in v) for k, v in value["cuts"].items()},
        weight_exponents={names[k]: int(v) for k, v in value["weight_exponents"].items()},
        renumbered=frozenset(map(str, value["renumbered"])),
        cached={k: tuple(map(_count, v)) for k, v in value["cached"].items()},
        splits={k: {str(name): _count(n) for name, n in v.items()} for k, v in value["splits"].items()},
        link_splits=specs_from_json(value["link_splits"], names),
        metadata=dict(value["metadata"]),
        files={
            str(name): FileEntry(str(e["dtype"]), tuple(map(_count, e["shape"])), _count(e["size"]), _count(e["crc32"]))
            for name, e in value["files"].items()
        },
    )


def _check(manifest: Manifest) -> None:
    """Raises ValueError or a gnnkit error for a manifest that contradicts itself."""
    schema, parts = manifest.schema, manifest.num_parts
    check_buildable(schema, manifest.options)
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
        if len(counts) != parts or sum(counts) != edges.num_edges:
            raise ValueError(f"edge counts of {edge_type}")
        if tuple(map(sum, cut)) != counts or any(len(row) != parts for row in cut):
            raise ValueError(f"edge counts of {edge_type}")


def _check_tables(manifest: Manifest) -> None:
    schema, parts = manifest.schema, manifest.num_parts
    for table in (manifest.node_bounds, manifest.cached, manifest.splits, dict.fromkeys(manifest.renumbered)):
        if unknown := set(table) - set(schema.node_types):
            raise ValueError(f"unknown node types {sorted(unknown)}")
    if any(len(counts) != parts for counts in manifest.cached.values()):
        raise ValueError("counts of cached nodes")
    if any(os.sep in split or split.startswith(".") for splits in manifest.splits.values() for split in splits):
        raise ValueError("name of a split")


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def checksum(value: Mapping[str, Any]) -> str:
    """The checksum of a JSON object."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True, separators=(',', ':')).encode()):08x}"
