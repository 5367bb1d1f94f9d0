"""Building stores: of a whole source on one host, or by several hosts that each build their parts.

A record is a manifest of which only the files and the cuts of one piece are there: a part, or what every host has (official splits, keys,
and the new numbers of renumbered nodes). It is small, and all that hosts without a common disk need of each other.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, StoreError
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import read_json, user_path, why_unwritable, write_whole
from gnnkit.schema import NodeType
from gnnkit.source import GraphSource, PartedSource
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.files import sync
from gnnkit.storage.inputs import BuildInput, KeptSourceInput, SourceInput, StoreInput
from gnnkit.storage.layout import FORMAT, FORMAT_VERSION, BuildOptions, StoreNumbering, check_buildable, part_folder, part_of
from gnnkit.storage.manifest import Manifest, canonical_options, checksum, manifest_from_json, store_fingerprint, write_manifest
from gnnkit.storage.staging import (
    check_replaceable,
    locked,
    make_folder,
    memory_budget,
    parts_path,
    remove_tree,
    restore,
    staged,
    take_place,
)
from gnnkit.storage.store import Store
from gnnkit.storage.writer import StoreWriter, Written

logger = logging.getLogger(__name__)

_SCRATCH = ".scratch"


def build_store(
    graph: GraphSource | Store,
    path: Path,
    options: BuildOptions,
    events: EventSink = ignore_events,
    *,
    wait_timeout_s: float = 0.0,
    memory_bytes: int | None = None,
) -> Store:
    """Streams a dataset into a store, or makes another store of the graph of one, byte for byte that of the dataset.

    A store of the same content and options that is already there is opened instead; any other store is replaced once the new
    one is complete.

    Args:
        graph: The dataset, or a store.
        path: The store's folder; not that of ``graph``.
        options: How to build it. ``feature_dtype=None`` keeps features as they are.
        events: Receives the stage "ingest", "partition" where nodes are assigned by topology, and "quantize" for 8-bit features; of a
            store "verify", in which its files are looked through, and "partition".
        wait_timeout_s: How long to wait for another process that builds the same store.
        memory_bytes: Memory for buffers of edges; by default a 64th of what is available, between 64 MB and 1 GB.

    Raises:
        PlanError: The options do not fit the dataset; or a store does not hold what they need: edge ids (also needed to turn ``edge_dir``
            round and to leave the order of its times, because neighbours keep the dataset's edge order), or features of full width.
        DatasetError: The dataset does not hold what it announces.
        StoreError: Disk full, no permission, another process at work, or ``path`` is something else than a store; not all parts of
            ``graph`` are open, or it is damaged.
        MemoryLimitError: The ids and degrees of the nodes would not fit memory.
    """
    return publish(build_job(graph, path, options), events, wait_timeout_s, memory_bytes)


def build_job(graph: GraphSource | Store, path: Path, options: BuildOptions) -> BuildJob:
    """Makes the job of ``build_store``.

    Raises:
        PlanError: See ``build_store``.
        StoreError: Not all parts of a store are open.
    """
    path = user_path(path)
    if isinstance(graph, Store):
        options = _resolved(graph, options)
        if path == graph.path:
            raise PlanError(f"{path} cannot be repartitioned onto itself", "give another folder with out=...")
    check_buildable(graph.schema, options, graph.metadata)
    parts = graph.parts if options.partition == "given" and isinstance(graph, PartedSource) else None
    if options.partition == "given" and parts is None:
        raise PlanError(
            "partition='given' keeps the parts of a dataset that has some, and this one has none",
            "a partition directory of graphlearn-torch has; else let gnnkit assign nodes, for example with partition='contiguous'",
        )
    if isinstance(graph, Store):
        store, fingerprint = graph.require(), store_fingerprint(graph.manifest.source_fingerprint, options)
        return BuildJob(lambda _, events: StoreInput(store.checked(events=events)), path, options, fingerprint, "partition", store.arrays())
    source = graph

    def open_input(folder: Path, events: EventSink) -> BuildInput:
        if source.edges_are_cheap:
            return SourceInput(source)
        return KeptSourceInput(source, folder, [options.weight] if options.weight else [])

    return BuildJob(open_input, path, options, store_fingerprint(source.fingerprint(), options), "ingest", parts=parts)


@dataclass(frozen=True)
class BuildJob:
    """A store to build, and its input.

    Attributes:
        open_input: Makes the input, given an existing folder for its temporary files, and what receives the stage of looking through it.
        path: The store's folder.
        options: The options to build it with.
        fingerprint: Fingerprint of the result.
        stage: Name of the stage that writes.
        topology: The same graph's edges, for partitioners; None has them sorted into a temporary store where they are needed.
        parts: Each node's part by type, for ``partition="given"``.
    """

    open_input: Callable[[Path, EventSink], BuildInput]
    path: Path
    options: BuildOptions
    fingerprint: str
    stage: str
    topology: GraphArrays | None = None
    parts: Mapping[NodeType, NDArray[Any]] | None = None

    def write(self, roots: Mapping[int | None, Path], events: EventSink, memory_bytes: int | None) -> Written:
        """Writes parts of the store into folders that exist, see ``StoreWriter``.

        Args:
            roots: See ``StoreFiles``.
            events: Receives the stages.
            memory_bytes: See ``build_store``.
        """
        scratch = next(iter(roots.values())) / _SCRATCH
        scratch.mkdir()
        graph, options = self.open_input(scratch, events), canonical_options(self.options)
        writer = StoreWriter(graph, options, self.fingerprint, roots, scratch, events, self.stage, memory_bytes or memory_budget())
        written = writer.write(self.topology, self.parts)
        remove_tree(scratch)
        return written


def publish(job: BuildJob, events: EventSink, wait_timeout_s: float = 0.0, memory_bytes: int | None = None) -> Store:
    """Writes a store beside its path, and puts it there once it is complete; opens the one that is there if it is the same.

    Args:
        job: What to build.
        events: Receives the stages.
        wait_timeout_s: See ``build_store``.
        memory_bytes: See ``build_store``.
    """

    def write(root: Path) -> Manifest:
        return job.write(dict.fromkeys((None, *range(job.options.num_parts)), root), events, memory_bytes)[0]

    return put_in_place(user_path(job.path), job.fingerprint, write, events, wait_timeout_s)


def put_in_place(path: Path, fingerprint: str, write: Callable[[Path], Manifest], events: EventSink, wait_timeout_s: float = 0.0) -> Store:
    """Opens the store at a path if it has a fingerprint, and else has one written beside it, which takes its place once it is complete.

    Args:
        path: The store's folder.
        fingerprint: Fingerprint of what is written.
        write: Writes everything but the manifest into a folder that exists.
        events: Receives one message where another process is waited for.
        wait_timeout_s: See ``build_store``.
    """
    if (store := existing(path, fingerprint)) is not None:
        return store
    check_replaceable(path)
    with locked(path, wait_timeout_s, events):
        restore(path)
        if (store := existing(path, fingerprint)) is not None:
            return store
        with staged(path) as root:
            write_manifest(root, write(root))
        return Store.open(path)


def existing(path: Path, fingerprint: str, parts: Iterable[int] | None = None) -> Store | None:
    """The store at ``path`` if it has this fingerprint and opens; with ``parts`` these parts of it."""
    try:
        store = Store.open(path, parts)
    except StoreError as error:
        logger.debug("no usable store at %s: %s", path, error)
        return None
    return store if store.fingerprint == fingerprint else None


def _resolved(store: Store, options: BuildOptions) -> BuildOptions:
    """The options with the store's own feature dtype filled in, once the store has been found to hold what they need."""
    has_ids = store.options.with_edge or store.schema.num_edges == 0
    if options.with_edge and not has_ids:
        raise PlanError(f"the store {store.path} was built without edge ids", "build it from the dataset with with_edge=True")
    if options.edge_dir != store.edge_dir and not has_ids:
        raise PlanError(
            f"turning edge_dir from {store.edge_dir!r} to {options.edge_dir!r} needs edge ids, and the store {store.path} has none",
            f"build it from the dataset with edge_dir={options.edge_dir!r}",
        )
    times = store.options.time_attr
    if times not in (None, options.time_attr) and not has_ids:
        raise PlanError(
            f"the store {store.path} has each node's edges in the order of {times!r}, and time_attr={options.time_attr!r} needs edge ids",
            f"build it from the dataset with time_attr={options.time_attr!r}",
        )
    held = store.options.feature_dtype
    if held is not None and options.feature_dtype not in (None, held):
        raise PlanError(
            f"features of the store {store.path} were reduced to {held} and cannot become {options.feature_dtype}",
            f"build it from the dataset with feature_dtype={options.feature_dtype!r}",
        )
    return replace(options, feature_dtype=options.feature_dtype or held)


SHARED = "shared"
_RECORDS = "records"


def piece_name(part: int | None) -> str:
    """Returns the name of a piece: a part, or under None what every host has."""
    return SHARED if part is None else part_folder(part)


@dataclass(frozen=True)
class PartRecord:
    """The record of one piece of a store.

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
        records = folder / _RECORDS
        records.mkdir(exist_ok=True)
        write_manifest(records, self.manifest, f"{piece_name(self.part)}.json", part=self.part, assignment=self.assignment)
        sync(records)


def _digest(numbering: Mapping[NodeType, StoreNumbering]) -> str:
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
    own = replace(manifest, cuts=cuts, files=files)
    return own if part is None else replace(own, link_splits={}, keys={})


def read_records(folder: Path) -> dict[int | None, PartRecord]:
    """The records in a folder of parts, by part.

    Raises:
        StoreError: One of them is damaged, or of another format.
    """
    paths = sorted((folder / _RECORDS).glob("*.json"))
    records = [_read(path) for path in paths if not path.name.startswith(".")]  # one that is being written
    return {record.part: record for record in records}


def _read(path: Path) -> PartRecord:
    hint = f"remove {path.parent.parent}, and build its parts again"
    try:
        value = read_json(path, root=path.parent)
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
    except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise StoreError(f"{path} is damaged: {error}", hint) from error
    return record


def merged(records: Mapping[int | None, PartRecord]) -> Manifest:
    """The manifest of a store, given the records of all its pieces.

    Raises:
        StoreError: They are of different graphs or assignments.
    """
    first, files = records[None], {}
    for record in records.values():
        _check_alike(first, record)
        files.update(record.manifest.files)
    cuts = {t: sum(np.array(record.manifest.cuts[t], np.int64) for record in records.values()) for t in first.manifest.cuts}
    return replace(first.manifest, files=files, cuts={t: tuple(map(tuple, np.asarray(cut).tolist())) for t, cut in cuts.items()})


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


_BUILD, _WHOLE = "build.json", "store"
# Putting a store together only renames folders.
_LOCK_WAIT_S = 60.0


def build_parts(
    job: BuildJob,
    parts: Iterable[int],
    events: EventSink = ignore_events,
    *,
    finish: bool = False,
    wait_timeout_s: float = 0.0,
    memory_bytes: int | None = None,
) -> Store | None:
    """Builds some parts of a store, and puts the store together once all parts are there.

    Args:
        job: The whole store.
        parts: The parts to build here. Those that are there already are not built again.
        events: Receives the stages.
        finish: Puts the store together also where the files of some parts are on other hosts, and only their records here.
        wait_timeout_s: How long to wait for another process that builds one of these parts.
        memory_bytes: See ``build_store``.

    Returns:
        The store, with the parts whose files are here; None while parts are missing.

    Raises:
        PlanError: There is no such part.
        StoreError: See ``build_store``; the folder of parts is of another build; or with ``finish``, a part is missing.
    """
    path, wanted = user_path(job.path), sorted(set(parts))
    if unknown := [part for part in wanted if not 0 <= part < job.options.num_parts]:
        raise PlanError(f"there is no part {unknown[0]} of {job.options.num_parts}", "parts count from 0")
    folder = parts_path(path)
    if (store := _finished(path, job.fingerprint, wanted)) is not None:
        _clear(folder, store)
        return store
    check_replaceable(path)
    try:
        join_parts(folder, job)
        _build(job, folder, wanted, events, wait_timeout_s, memory_bytes)
        store = _put_together(job, path, folder, wanted, finish, events)
    except (OSError, StoreError) as error:
        # Another host may have built the same parts meanwhile, and the store been put together without ours, its folder of parts gone.
        if (store := _finished(path, job.fingerprint, wanted)) is not None:
            return store
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{folder}: {why_unwritable(error, folder)}", "call it again: no part that is finished is lost") from error
    return _finished(path, job.fingerprint, wanted) if store is None else store


def missing_parts(path: Path) -> list[int]:
    """The parts of a store that several hosts build which are not finished yet."""
    folder = parts_path(user_path(path))
    try:
        num_parts = int(read_json(folder / _BUILD, root=folder)["num_parts"])
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return []
    built = read_records(folder)
    return [part for part in range(num_parts) if part not in built]


def _finished(path: Path, fingerprint: str, parts: list[int]) -> Store | None:
    """The store, if it has been put together: all of it, or the parts of it that are here; these include ``parts``."""
    try:
        here = sorted(part for entry in path.iterdir() if entry.is_dir() and (part := part_of(entry.name)) is not None)
    except OSError:
        return None
    return existing(path, fingerprint, here) if set(parts) <= set(here) else None


def join_parts(folder: Path, job: BuildJob) -> None:
    """Makes the folder of parts, or finds that it is this build's.

    Raises:
        StoreError: It is another's.
        OSError: It cannot be written.
    """
    own = {"fingerprint": job.fingerprint, "num_parts": job.options.num_parts}
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_folder(folder, exist_ok=True)
    file = folder / _BUILD
    try:
        if not file.exists():
            write_whole(file, json.dumps(own) + "\n")
        found = read_json(file, root=folder)
    except ValueError:
        found = None
    if found != own:
        raise StoreError(
            f"{folder} holds parts of another build",
            f"remove it if it is not needed any more (rm -r {folder}), or choose another folder with out=...",
        )


def _build(job: BuildJob, folder: Path, parts: list[int], events: EventSink, wait_timeout_s: float, memory_bytes: int | None) -> None:
    """Builds the parts that are not there yet, and what every host has."""
    with ExitStack() as locks:
        for part in parts:
            locks.enter_context(locked(folder / part_folder(part), wait_timeout_s, events))
        built = read_records(folder)
        pieces: list[int | None] = [part for part in parts if part not in built]
        if None not in built:
            try:
                locks.enter_context(locked(folder / SHARED, 0.0, events))
                pieces.append(None)
            except StoreError as error:  # it is another host that does it
                logger.debug("the files that every host has: %s", error)
        if not pieces:
            return
        for piece in pieces:
            restore(folder / piece_name(piece))
        with ExitStack() as stages:
            roots = {piece: stages.enter_context(staged(folder / piece_name(piece))) for piece in pieces}
            manifest, numbering = job.write(roots, events, memory_bytes)
        assignment = _digest(numbering)
        for piece in pieces:
            PartRecord(piece, assignment, _only(manifest, piece)).write(folder)


def _put_together(job: BuildJob, path: Path, folder: Path, parts: list[int], finish: bool, events: EventSink) -> Store | None:
    """Makes the store of the pieces, if they are all there."""
    records = read_records(folder)
    absent = [part for part in range(job.options.num_parts) if part not in records]
    if absent or None not in records:
        if finish:
            what = f"the parts {', '.join(map(str, absent))} of {path} are" if absent else f"what every host has of {path} is"
            raise StoreError(
                f"{what} not built, or their records are not here", "build them, or copy <store>.parts/records from the other hosts"
            )
        return None
    with locked(path, _LOCK_WAIT_S, events):
        restore(path)
        if (store := _finished(path, job.fingerprint, parts)) is None:
            here = [part for part in range(job.options.num_parts) if _place_of(folder, part).is_dir()]
            if not finish and len(here) < job.options.num_parts:
                return None
            _assemble(folder, records, here)
            take_place(folder / _WHOLE, path)
            store = Store.open(path, here)
        _clear(folder, store)
    return store


def _clear(folder: Path, store: Store) -> None:
    """Removes the folder of parts, unless it holds records of parts that are not on this disk."""
    if len(store.local_parts) == store.num_parts:
        with suppress(OSError):  # a process that comes late makes another lock in it
            while folder.exists():
                with suppress(FileNotFoundError):  # another process has given its lock up meanwhile, and removed the file
                    remove_tree(folder)


def _place_of(folder: Path, part: int) -> Path:
    """Returns the folder of a part's files: still in its piece, or in the store that is being put together."""
    moved = folder / _WHOLE / part_folder(part)
    return moved if moved.is_dir() else folder / part_folder(part) / part_folder(part)


def _assemble(folder: Path, records: dict[int | None, PartRecord], here: list[int]) -> None:
    """Moves the files of all pieces into one folder; what has been moved before stays."""
    manifest, whole = merged(records), folder / _WHOLE
    make_folder(whole, exist_ok=True)
    for part in [*here, None]:
        piece = folder / piece_name(part)
        for source in sorted(piece.iterdir()) if piece.is_dir() else []:
            source.rename(whole / source.name)
    write_manifest(whole, manifest)
    sync(whole)
