"""Stores and tables at URLs, and the folder in which what was fetched is kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from gnnkit.cluster.urls.transfer import Move, RemoteFile, Transfer
from gnnkit.errors import DatasetError, GnnkitError, PlanError, StoreError, interruptible
from gnnkit.events import Event, EventSink, Stage, ignore_events
from gnnkit.files import os_errors, read_bounded, read_json, write_whole
from gnnkit.plan import Held, StoreRef
from gnnkit.storage.catalog import default_store_dir, make_store_dir, named_path, writable_root
from gnnkit.storage.files import sync
from gnnkit.storage.layout import MANIFEST_NAME, is_held, part_folder, part_of
from gnnkit.storage.manifest import Manifest, chosen_parts, is_outline, parse_manifest, read_manifest, write_manifest
from gnnkit.storage.staging import check_disk, disown, locked, remove_tree, restore, resumed, take_place
from gnnkit.storage.store import Store
from gnnkit.units import format_bytes
from gnnkit.urls import OFFLINE_VARIABLE, check_url, is_offline

R = TypeVar("R")


def record_folder(url: str) -> Path:
    """The folder of what is known of a URL."""
    return writable_root() / "urls" / hashlib.sha256(url.encode()).hexdigest()[:32]


def latest(url: str, transfer: Transfer, ask: Callable[[], R], known: R | None, events: EventSink) -> tuple[R, GnnkitError | None]:
    """Returns what there is at a URL: as its server says, or as it was the last time where the server cannot be asked.

    Args:
        url: The URL.
        transfer: Its transfer.
        ask: Asks the server, by the transfer.
        known: What it said the last time; None where it was never asked.
        events: Receives a message where the last time's is taken because the server cannot be reached.

    Returns:
        What there is, and why the server could not be asked, or None.

    Raises:
        GnnkitError: The server refuses, or cannot be asked and never was.
    """
    if is_offline():
        cut = transfer.error(f"{url} is not in the cache of this machine, and nothing may be fetched ({OFFLINE_VARIABLE} is set)")
    else:
        try:
            return ask(), None
        except GnnkitError as error:
            if not transfer.is_cut:
                raise
            cut = error
    if known is None:
        raise cut
    if not is_offline():
        events(Event("message", "download", url, text=f"{cut.message}; what was fetched before is used"))
    return known, cut


# Another process fetches the same store: hours are waited for, a hung one not for ever.
_WAIT_TIMEOUT_S = 3600.0
# Lies where a store is being pushed, until its manifest does; holds its fingerprint.
_BEGUN = "pushing.json"
# Says what is to be opened of all that a manifest names.
HeldOf = Callable[[Manifest], Held]


@interruptible("opening a store at a URL")
def open_url(
    url: str,
    parts: Iterable[int] | HeldOf | None = None,
    events: EventSink = ignore_events,
    planned: StoreRef | None = None,
    *,
    whole_structure: bool = False,
) -> Store:
    """Opens the store at a URL, in the folder of stores; of what is not there yet the parts that are opened are fetched.

    The server is asked whether it still has the same store, except for one that a plan names and that is here.

    Args:
        url: The URL.
        parts: The parts to open, or what says it once the manifest is known; None opens all.
        events: Receives the stage "download", in bytes.
        planned: The store that is expected; another one of the same graph is opened, too.
        whole_structure: See ``Store.open``.

    Raises:
        PlanError: The URL cannot be used, or the store has no such part.
        StoreError: There is no store, the server cannot be reached, or what came is damaged, and nothing of it is kept then.
    """
    url = check_url(url, "the store")
    known = _known(url)
    if planned is not None and known is not None and known.fingerprint == planned.fingerprint:
        store = _opened(url, known, _chosen(parts, whole_structure, known))
        if store is not None:
            return store
    with Transfer(url, StoreError) as transfer:
        manifest, cut = latest(url, transfer, lambda: _asked(transfer, url), known, events)
        wanted = _chosen(parts, whole_structure, manifest)
        store = _opened(url, manifest, wanted)
        if store is not None:
            return store
        if cut is not None:
            raise cut
        _fetch(transfer, url, manifest, wanted, events)
    return Store.open(_path(manifest), url=url, **wanted)


def url_manifest(url: str, events: EventSink = ignore_events) -> Manifest:
    """The manifest of the store at a URL, of which nothing else is fetched; see ``open_url``."""
    url = check_url(url, "the store")
    with Transfer(url, StoreError) as transfer:
        return latest(url, transfer, lambda: _asked(transfer, url), _known(url), events)[0]


def _chosen(parts: Iterable[int] | HeldOf | None, whole_structure: bool, manifest: Manifest) -> Held:
    if callable(parts):
        return parts(manifest)
    return {"parts": chosen_parts(parts, manifest, repr(manifest.name)), "whole_structure": whole_structure}


def _path(manifest: Manifest) -> Path:
    return named_path(default_store_dir(), manifest.name, manifest.num_parts, manifest.fingerprint)


def _known(url: str) -> Manifest | None:
    """The manifest that was there the last time; None where it was never asked for, or the record is of no use."""
    folder = record_folder(url)
    with suppress(OSError, StoreError):
        return parse_manifest(read_bounded(folder / MANIFEST_NAME, root=folder), url)
    return None


def _asked(transfer: Transfer, url: str) -> Manifest:
    """The manifest that is there now, which is written down."""
    text = transfer.read(f"{url}/{MANIFEST_NAME}")
    manifest = parse_manifest(text, url)
    folder = record_folder(url)
    with _written_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / MANIFEST_NAME, text.decode("utf-8"))
    return manifest


def _written_to(path: Path, kind: type[GnnkitError] = StoreError) -> AbstractContextManager[None]:
    return os_errors(f"{path} cannot be written", path, "free some space, or set GNNKIT_HOME to a folder on another disk", kind)


def _same_store_at(path: Path, manifest: Manifest) -> bool:
    with suppress(StoreError):
        return read_manifest(path).fingerprint == manifest.fingerprint
    return False


def _missing(path: Path, manifest: Manifest, wanted: Held) -> tuple[list[str], bool]:
    """The files that have yet to be fetched, and whether some of the store is there."""
    is_there = _same_store_at(path, manifest)
    return [name for name in manifest.files if is_held(name, **wanted) and not (is_there and (path / name).exists())], is_there


def _opened(url: str, manifest: Manifest, wanted: Held) -> Store | None:
    """The store in the folder of stores; None where it is not there, or a file of it is not."""
    path = _path(manifest)
    missing, is_there = _missing(path, manifest, wanted)
    return Store.open(path, url=url, **wanted) if is_there and not missing else None


def _fetch(transfer: Transfer, url: str, manifest: Manifest, wanted: Held, events: EventSink) -> None:
    """Fetches what is wanted of a store, and what every host has of it."""
    path = _path(manifest)
    with _written_to(path):
        make_store_dir(path.parent)
        with locked(path, _WAIT_TIMEOUT_S, events, "fetched"):
            restore(path)
            missing, is_there = _missing(path, manifest, wanted)  # another process may have been faster
            if missing or not is_there:
                folder = resumed(path, manifest.fingerprint)
                _fetch_into(transfer, url, manifest, folder, missing, events)
                _put_in_place(manifest, folder, path, missing, is_there=is_there)


def _fetch_into(transfer: Transfer, url: str, manifest: Manifest, folder: Path, names: list[str], events: EventSink) -> None:
    total = sum(manifest.files[name].size for name in names)
    moves = []
    for name in names:
        entry, target = manifest.files[name], folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():  # else it came before, and was compared with its checksum then
            moves.append(Move(f"{url}/{name}", str(target), entry.size, entry.crc32))
    parts = _parts(names)
    of_parts = f", {len(parts)} of {manifest.num_parts} parts" if len(parts) < manifest.num_parts else ""
    _download(transfer, moves, total, folder, manifest.name, f"from {url} to {folder.parent}{of_parts}", events)


def _download(transfer: Transfer, moves: list[Move], total: int, folder: Path, name: str, where: str, events: EventSink) -> None:
    """Fetches what is left of ``total`` bytes.

    Raises:
        GnnkitError: See ``Transfer.get``; or the disk is too small.
    """
    left = sum(move.size for move in moves)
    check_disk(folder, left, f"fetching {name}")
    with Stage(events, "download", label=name, unit="B", total=float(total)) as stage:
        stage.message(f"{name}: {format_bytes(left)} {where}")
        transfer.get(moves, stage, total - left)


def _parts(names: Iterable[str]) -> set[int]:
    return {part for name in names if (part := part_of(name)) is not None}


def _put_in_place(manifest: Manifest, folder: Path, path: Path, names: list[str], *, is_there: bool) -> None:
    """Moves what was fetched to its place: a file at a time, or all of the store. A part that was not asked for is not complete."""
    for other in set(range(manifest.num_parts)) - _parts(names):
        shutil.rmtree(folder / part_folder(other), ignore_errors=True)
    disown(folder)
    if not is_there:
        write_manifest(folder, manifest)
        take_place(folder, path)
        return
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).rename(path / name)
    sync(path)
    remove_tree(folder)


# Pushing ----------------------------------------------------------------------------------------------------------------------


@interruptible("push()")
def push(store: Store, url: str, *, overwrite: bool = False, events: EventSink = ignore_events) -> str:
    """Puts a store at a URL; see ``Store.push``."""
    url = check_url(url, "the store")
    if url.startswith(("http://", "https://")):
        raise PlanError(f"nothing can be put at {url}", "push to s3:// or gs://, or copy the store's folder to where the server has it")
    if is_outline(store.path):
        raise StoreError("the store's parts are on its servers", "push it where they are")
    with Transfer(url, StoreError) as transfer:
        _push(transfer, store, url, overwrite, events)
    return url


def _push(transfer: Transfer, store: Store, url: str, overwrite: bool, events: EventSink) -> None:
    manifest, there = store.manifest, _sizes(transfer, url)
    if _is_pushed(transfer, manifest, url, there, overwrite=overwrite):
        events(Event("message", "upload", store.name, text=f"{store.name} is at {url} already"))
        return
    mark = json.dumps({"fingerprint": manifest.fingerprint}).encode()
    begun = _BEGUN in there and transfer.read(f"{url}/{_BEGUN}") == mark
    if not begun:
        # Before anything else: files of two stores must never be taken for those of one.
        transfer.write(f"{url}/{_BEGUN}", mark)
        transfer.remove([f"{url}/{name}" for name in sorted(there, key=lambda name: name != MANIFEST_NAME) if name != _BEGUN])
        there = {}
    files = {name: manifest.files[name] for name in store.files}
    missing = [name for name, entry in files.items() if there.get(name) != entry.size]
    moves = [Move(f"{url}/{name}", str(store.path / name), files[name].size, files[name].crc32) for name in missing]
    total, left = sum(entry.size for entry in files.values()), sum(move.size for move in moves)
    with Stage(events, "upload", label=store.name, unit="B", total=float(total)) as stage:
        transfer.put(moves, stage, total - left)
    there = _sizes(transfer, url)
    parts = sorted({part_of(name) or 0 for name, entry in manifest.files.items() if there.get(name) != entry.size})
    if parts:
        events(
            Event(
                "message", "upload", store.name, text=f"parts {', '.join(map(str, parts))} are yet to be pushed by the hosts that have them"
            )
        )
        return
    transfer.write(f"{url}/{MANIFEST_NAME}", (store.path / MANIFEST_NAME).read_bytes())
    transfer.remove([f"{url}/{_BEGUN}"])


def _sizes(transfer: Transfer, url: str) -> dict[str, int]:
    """Files below a URL, with their sizes."""
    return {file.url.removeprefix(f"{url}/"): file.size for file in transfer.find(url)}


def _is_pushed(transfer: Transfer, manifest: Manifest, url: str, there: dict[str, int], *, overwrite: bool) -> bool:
    """Whether the store is there, all of it.

    Raises:
        StoreError: Something else is, and is not to be replaced.
    """
    if MANIFEST_NAME not in there:
        if there and _BEGUN not in there:
            raise StoreError(f"{url} holds something else than a store", "choose a prefix that does not exist yet")
        return False
    try:
        found: Manifest | None = parse_manifest(transfer.read(f"{url}/{MANIFEST_NAME}"), url)
    except StoreError:
        if transfer.is_cut:
            raise
        found = None  # damaged, or of another version
    if found is not None and found.fingerprint == manifest.fingerprint:
        return all(there.get(name) == entry.size for name, entry in manifest.files.items()) and not overwrite
    if not overwrite:
        name = "a damaged store" if found is None else f"another store, of {found.name!r}"
        raise StoreError(f"{url} holds {name}", "choose another prefix, or overwrite=True to replace it")
    return False


_LISTING = "files.json"


@interruptible("fetching tables")
def fetch_tables(url: str, what: str, is_table: Callable[[str], bool], events: EventSink) -> list[tuple[str, str]]:
    """Fetches the files of a table.

    Args:
        url: The URL of a file, a folder or a glob.
        what: Whose table it is, for errors: "nodes 'user'".
        is_table: Whether a file's name is that of a table; others in a folder are left out.
        events: Receives the stage "download", in bytes.

    Returns:
        The files on this disk, in the order of their names, each with its own URL.

    Raises:
        PlanError: The URL cannot be used.
        DatasetError: There is no such file, the server cannot be reached, or a file was replaced meanwhile.
        StoreError: There is too little disk, or another process has been fetching the same for an hour.
    """
    url = check_url(url, what)
    folder = record_folder(url)
    with _written_to(folder, DatasetError), locked(folder, _WAIT_TIMEOUT_S, events, "fetched"), Transfer(url, DatasetError) as transfer:
        folder.mkdir(parents=True, exist_ok=True)

        def ask() -> list[RemoteFile]:
            return [file for file in transfer.find(url) if is_table(file.url)]

        files, cut = latest(url, transfer, ask, _known_files(folder), events)
        if not files:
            raise DatasetError(f"{what}: there is no table at {url}", "a glob has * in it; suffixes are those of the how-to on tables")
        missing = [file for file in files if not _place(folder, file).exists()]
        if missing and cut is not None:
            raise cut
        if missing:
            moves = [Move(file.url, str(_place(folder, file)), file.size, version=file.version) for file in missing]
            _download(transfer, moves, sum(move.size for move in moves), folder, url, f"to {folder}", events)
        if cut is None:
            _forget_others(folder, files)
            write_whole(folder / _LISTING, json.dumps([asdict(file) for file in files]))
        return [(str(_place(folder, file)), file.url) for file in files]


def _place(folder: Path, file: RemoteFile) -> Path:
    """The place of a file of this content: another version of it has another place."""
    digest = hashlib.sha256(json.dumps(asdict(file), sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"{digest}-{os.path.basename(file.url)[-100:]}"


def _known_files(folder: Path) -> list[RemoteFile] | None:
    """The files that were there the last time; None where it was never asked for, or the record is of no use."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return [RemoteFile(str(file["url"]), int(file["size"]), str(file["version"])) for file in read_json(folder / _LISTING, root=folder)]
    return None


def _forget_others(folder: Path, files: list[RemoteFile]) -> None:
    """Removes what an earlier version of the table has left."""
    kept = {_LISTING, *(_place(folder, file).name for file in files)}
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()
