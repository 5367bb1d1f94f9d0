"""What a host that has built some parts of a store says of them, and how that of all parts becomes the manifest.

A record is a manifest of which only the files and the cuts of one piece are there: a part, or what every host has (official splits, and
the books of renumbered nodes). It is small, and all that hosts without a common disk need of each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.errors import StoreError
from gnnkit.files import read_bounded, write_whole
from gnnkit.schema import NodeType
from gnnkit.storage.files import sync
from gnnkit.storage.layout import FORMAT, FORMAT_VERSION, part_folder, part_of
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.manifest_io import checksum, manifest_from_json
from gnnkit.storage.numbering import Numbering

SHARED = "shared"
_RECORDS = "records"


def piece_name(part: int | None) -> str:
    """What a piece is called: a part, or under None what every host has."""
    return SHARED if part is None else part_folder(part)


@dataclass(frozen=True)
class PartRecord:
    """What is known of one piece of a store.

    Attributes:
        part: The part; None for what every host has.
        assignment: Digest of all nodes' numbers: hosts must have assigned them alike.
        manifest: The manifest, with the files and the cuts of this piece alone.
    """

    part: int | None
    assignment: str
    manifest: Manifest

    def write(self, folder: Path) -> None:
        """Writes the record, all at once: from then on the piece counts as built."""
        value = {**self.manifest.to_json(), "part": self.part, "assignment": self.assignment}
        value["checksum"] = checksum(value)
        records = folder / _RECORDS
        records.mkdir(exist_ok=True)
        write_whole(records / f"{piece_name(self.part)}.json", json.dumps(value, indent=1) + "\n")
        sync(records)


def records_of(manifest: Manifest, numbering: Mapping[NodeType, Numbering], parts: Mapping[int | None, Any]) -> list[PartRecord]:
    """The records of the pieces that one host has written.

    Args:
        manifest: What it knows of the store.
        numbering: Store ids of each node type.
        parts: The pieces; only the keys are looked at.
    """
    assignment = _digest(numbering)
    return [PartRecord(part, assignment, _only(manifest, part)) for part in parts]


def _digest(numbering: Mapping[NodeType, Numbering]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for node_type, numbers in sorted(numbering.items()):
        digest.update(repr((node_type, numbers.bounds.tolist())).encode())
        if numbers.store_id is not None:
            digest.update(np.ascontiguousarray(numbers.store_id).view(np.uint8).data)
    return digest.hexdigest()


def _only(manifest: Manifest, part: int | None) -> Manifest:
    """A manifest with what belongs to one piece."""
    nothing = (0,) * manifest.num_parts
    cuts = {t: tuple(row if number == part else nothing for number, row in enumerate(rows)) for t, rows in manifest.cuts.items()}
    files = {name: entry for name, entry in manifest.files.items() if part_of(name) == part}
    return replace(manifest, cuts=cuts, files=files, link_splits={} if part is not None else manifest.link_splits)


def read_records(folder: Path) -> dict[int | None, PartRecord]:
    """The records in a folder of parts, by part.

    Raises:
        StoreError: One of them is damaged, or of another format.
    """
    found = {}
    for path in sorted((folder / _RECORDS).glob("*.json")):
        if not path.name.startswith("."):  # one that is being written
            record = _read(path)
            found[record.part] = record
    return found


def _read(path: Path) -> PartRecord:
    hint = f"remove {path.parent.parent}, and build its parts again"
    try:
        value = json.loads(read_bounded(path, root=path.parent))
        version = value["format_version"] if value["format"] == FORMAT else None
        if version != FORMAT_VERSION:
            raise StoreError(f"{path} is of store format {version}, this gnnkit writes {FORMAT_VERSION}", "use one version on all hosts")
        if value.pop("checksum") != checksum(value):
            raise ValueError("its checksum differs")
        part, assignment = value.pop("part"), str(value.pop("assignment"))
        record = PartRecord(None if part is None else int(part), assignment, manifest_from_json(value))
        if path.stem != piece_name(record.part):
            raise ValueError(f"it is that of {piece_name(record.part)}")
    except StoreError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} is damaged: {error}", hint) from error
    return record


def merged(records: Mapping[int | None, PartRecord]) -> Manifest:
    """The manifest of a store, given the records of all its pieces.

    Raises:
        StoreError: They are of different graphs or assignments.
    """
    first = records[None]
    whole = first.manifest
    cuts = {edge_type: list(rows) for edge_type, rows in whole.cuts.items()}
    files = dict(whole.files)
    for part, record in records.items():
        _check_alike(first, record)
        files.update(record.manifest.files)
        if part is not None:
            for edge_type, rows in record.manifest.cuts.items():
                cuts[edge_type][part] = rows[part]
    return replace(whole, files=files, cuts={edge_type: tuple(rows) for edge_type, rows in cuts.items()})


def _check_alike(first: PartRecord, second: PartRecord) -> None:
    left, right = (_only(record.manifest, -1).to_json() for record in (first, second))
    differ = [name for name in left if left[name] != right[name]]
    if first.assignment != second.assignment:
        differ.append("the numbering of nodes")
    if differ:
        raise StoreError(
            f"{piece_name(first.part)} and {piece_name(second.part)} do not belong together: {', '.join(differ)} differ",
            "build them with the same versions of gnnkit and its libraries on all hosts",
        )
