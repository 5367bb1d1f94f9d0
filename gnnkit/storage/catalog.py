"""The folder of stores: found by fingerprint, built when missing, listed, removed, tidied."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnkit.callers import warn
from gnnkit.errors import StoreError, near_matches
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import (
    HOME_VARIABLE,
    gnnkit_home,
    is_writable,
    os_errors,
    private_folder,
    read_json,
    temporary_home,
    user_folder,
    user_path,
)
from gnnkit.shipped import is_shipped
from gnnkit.source import GraphSource
from gnnkit.storage.layout import FORMAT, FORMAT_VERSION, MANIFEST_NAME, BuildOptions
from gnnkit.storage.manifest import Manifest, read_manifest, store_fingerprint, uncut
from gnnkit.storage.staging import INCOMPLETE, PARTS, REPLACED, incomplete_path, locked, parts_path, remove_tree, restore
from gnnkit.storage.store import Store

# Where another process builds the wanted store: a build of hours is waited for, and a hung one not for ever.
_WAIT_TIMEOUT_S = 3600.0
_FINGERPRINT_DIGITS = 12
_HEX = frozenset("0123456789abcdef")
# Some hosts build their parts now, and others another day.
_PARTS_KEPT_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class StoreEntry:
    """A folder in the folder of stores.

    Attributes:
        path: The folder.
        manifest: Its manifest; None where it cannot be opened.
        nbytes: Bytes on disk.
        problem: Why it cannot be opened, or was removed; or None.
    """

    path: Path
    manifest: Manifest | None
    nbytes: int
    problem: str | None = None


def default_root() -> Path:
    """The folder for datasets and stores: ``$GNNKIT_HOME`` or the user's cache, the same from every directory.

    A user without a home folder that can be written has one below the temporary folder, see ``temporary_root``.
    """
    home, cache = gnnkit_home(), user_folder("cache")
    if home is None and cache is not None and (cache.exists() or is_writable(cache)):
        home = cache
    return temporary_root() if home is None else home


@functools.cache
def temporary_root() -> Path:
    """Makes this user's folder for datasets and stores below the temporary one, and warns of it once.

    Raises:
        PlanError: It cannot be made, or is not this user's alone.
    """
    folder = temporary_home()
    hint = f"set {HOME_VARIABLE} to a folder that can be written"
    with os_errors(f"neither the user's cache folder nor {folder} can be used", folder, hint):
        private_folder(folder)
    warn(f"no folder of this user can be written: data goes to {folder}, which may not last; set {HOME_VARIABLE} to a folder that does")
    return folder


def writable_root() -> Path:
    """The folder that this user's data is written to: ``default_root()``, or the user's cache where that may only be read."""
    return default_store_dir().parent


def temporary_data() -> Path:
    """The folder for stores and arrays that go with the process that makes them; see ``runs.new_run``."""
    return writable_root() / "temporary"


def default_store_dir(root: Path | None = None) -> Path:
    """The folder for stores: ``<root>/stores`` if that can be written, else the user's cache. Nothing is created for good.

    The data that comes with gnnkit is not written to, also where it could be.

    Args:
        root: Folder of datasets; None is ``default_root()``.
    """
    for candidate in (default_root() if root is None else root, default_root()):
        wanted = user_path(candidate) / "stores"
        if not is_shipped(wanted) and is_writable(wanted):
            return wanted
    cache = user_folder("cache")
    return (temporary_root() if cache is None or not is_writable(cache) else cache) / "stores"


def default_store_dirs(root: Path | None = None) -> tuple[Path, ...]:
    """The folders that stores are looked for in: ``default_store_dir(root)``, and then those that this user may read only.

    Such a folder belongs to another user, as a teacher's that a class works with. One that is there and may not even be read is warned of.

    Args:
        root: Folder of datasets; None is ``default_root()``.
    """
    own, shared = default_store_dir(root), []
    for candidate in dict.fromkeys((default_root() if root is None else root, default_root())):
        folder = user_path(candidate) / "stores"
        if folder == own or is_shipped(folder) or not os.path.isdir(folder):
            continue
        if os.access(folder, os.R_OK | os.X_OK):
            shared.append(folder)
        else:
            warn(f"{folder} cannot be read by this user, so its stores are built anew in {own}; its owner opens it: chmod -R a+rX {folder}")
    return own, *shared


def make_store_dir(folder: Path) -> None:
    """Makes a folder of stores: for this user alone where it is in ``default_root()``, as usual where a caller has named it.

    One that is there stays as it is: it is as open as its owner has made it, and so are the stores that come into it.

    Raises:
        OSError: It cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700 if folder.parent in (default_root(), user_folder("cache")) else 0o777, exist_ok=True)


def find_or_build(
    graph: GraphSource | Store,
    options: BuildOptions,
    store_dir: Path,
    events: EventSink = ignore_events,
    *,
    shared: Sequence[Path] = (),
    opener: Callable[[Path], Store] = Store.open,
) -> Store:
    """Opens the store of a dataset with these options, and builds it if there is none.

    Where the same graph lies there in other parts, it is repartitioned, which gives the same store without reading the dataset. Another
    process that builds the same store is waited for.

    Args:
        graph: The dataset, or a store of it.
        options: How to build it.
        store_dir: The folder of stores.
        events: Receives the stages of a build.
        shared: Folders of stores that are read only: a store that lies there is opened there.
        opener: Opens a folder: all of it, or the parts that belong to this host.

    Raises:
        StoreError: See ``build_store``.
        PlanError: See ``build_store``.
        DatasetError: See ``build_store``.
    """
    fingerprint = graph.manifest.source_fingerprint if isinstance(graph, Store) else graph.fingerprint()
    path = store_path(store_dir, graph.name, options, fingerprint)
    if isinstance(graph, Store) and graph.path == path:
        return graph
    for place in (*(folder / path.name for folder in shared), path):
        with contextlib.suppress(StoreError):
            store = opener(place)
            if store.fingerprint == store_fingerprint(fingerprint, options):
                return store
    with contextlib.suppress(OSError):  # the build says what is wrong there
        make_store_dir(path.parent)
    from gnnkit.storage.build import build_store  # numba

    if not isinstance(graph, Store):
        folders = (store_dir, *shared) if options.partition != "given" else ()
        others = (store for folder in folders for store in stores_of_graph(graph, options, folder, but=path))
        for store in others:
            with contextlib.suppress(StoreError):  # damaged
                graph = store.checked(events=events)
                break
    return opener(build_store(graph, path, options, events, wait_timeout_s=_WAIT_TIMEOUT_S).path)


def stores_of_graph(source: GraphSource, options: BuildOptions, store_dir: Path, *, but: Path) -> Iterator[Store]:
    """Yields stores of the same dataset, built with the same options but for those that say how it is cut into parts.

    Args:
        source: The dataset.
        options: How the wanted store is to be built.
        store_dir: The folder of stores.
        but: The wanted store's folder, which is not looked at.
    """
    fingerprint, wanted = source.fingerprint(), uncut(options)
    found = [(entry.manifest, entry.path) for entry in list_stores(store_dir) if entry.manifest is not None and entry.path != but]
    for manifest, path in sorted(found, key=lambda each: each[0].num_parts):
        if manifest.source_fingerprint == fingerprint and uncut(manifest.options) == wanted:
            with contextlib.suppress(StoreError):  # damaged, or being removed: the next one, or the dataset itself
                yield Store.open(path)


def store_path(store_dir: Path, name: str, options: BuildOptions, source_fingerprint: str) -> Path:
    """Returns the place of the store of a dataset with these options in a folder of stores."""
    return named_path(store_dir, name, options.num_parts, store_fingerprint(source_fingerprint, options))


def named_path(store_dir: Path, name: str, num_parts: int, fingerprint: str) -> Path:
    """The same, of a store whose fingerprint is known.

    Raises:
        StoreError: It is no fingerprint.
    """
    if len(fingerprint) < _FINGERPRINT_DIGITS or not set(fingerprint) <= _HEX:
        raise StoreError(f"{fingerprint[:100]!r} is no fingerprint of a store", "build the store again")
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "graph"
    return user_path(store_dir) / f"{safe}-{num_parts}p-{fingerprint[:_FINGERPRINT_DIGITS]}"


def list_stores(store_dir: Path) -> list[StoreEntry]:
    """The stores in a folder, by name; damaged ones and those of other formats with what is wrong, unfinished ones left out."""
    entries = []
    for path in _folders(Path(store_dir)):
        if path.name.endswith((INCOMPLETE, REPLACED, PARTS)) or not (path / MANIFEST_NAME).is_file():
            continue
        try:
            manifest = read_manifest(path)
            entries.append(StoreEntry(path, manifest, manifest.nbytes))
        except StoreError as error:
            entries.append(StoreEntry(path, None, _disk_usage(path), error.message))
    return entries


def remove_store(store_dir: Path, name: str) -> int:
    """Removes a store; loaders that have it open keep their arrays.

    Args:
        store_dir: The folder of stores.
        name: Name of the store's folder.

    Returns:
        Bytes that were freed.

    Raises:
        StoreError: There is no such store, or it is being built.
    """
    names = [entry.path.name for entry in list_stores(store_dir)]
    if name not in names:
        raise StoreError(f"there is no store {name!r} in {store_dir}{near_matches(name, names)}", "gnnkit stores ls shows what there is")
    path = Path(store_dir) / name
    if not is_writable(path.parent):
        raise StoreError(
            f"{name} lies in {store_dir}, which you may read and not write", "who owns that folder removes it; to use it, nothing is needed"
        )
    with locked(path, 0.0, ignore_events):
        count = _disk_usage(path)
        remove_tree(path)
    return count


def prune(store_dir: Path) -> list[StoreEntry]:
    """Removes what no loader will open again: builds whose process is gone, their lock files, and stores of older formats."""
    pruned = []
    for path in _folders(Path(store_dir)):
        final = path.with_name(path.name.removesuffix(INCOMPLETE).removesuffix(REPLACED).removesuffix(PARTS))
        reason = _reason(path, final)
        if reason is None:
            continue
        try:
            with locked(final, 0.0, ignore_events):
                if path.name.endswith(REPLACED) and not final.exists():
                    restore(final)
                    continue
                count = _disk_usage(path)
                remove_tree(path)
        except StoreError:
            continue  # another process is at work there
        pruned.append(StoreEntry(path, None, count, reason))
    for file in Path(store_dir).glob(".*.lock"):
        with contextlib.suppress(StoreError), locked(file.with_name(file.name[1:].removesuffix(".lock")), 0.0, ignore_events):
            pass  # giving a lock up removes its file
    return pruned


def _reason(path: Path, final: Path) -> str | None:
    if path == incomplete_path(final):
        return "an unfinished build"
    if path == parts_path(final):
        return "parts that several hosts built, not touched for a week" if time.time() - _last_touched(path) > _PARTS_KEPT_S else None
    if path != final:
        return "a store that was being replaced"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        value = read_json(path / MANIFEST_NAME, root=path)
        if value["format"] == FORMAT and value["format_version"] < FORMAT_VERSION:
            return f"a store of the old format {value['format_version']}"
    return None


def _last_touched(folder: Path) -> float:
    """When something last came into a folder of parts, or went from it; in seconds since the epoch."""
    found = []
    for path in (folder, *folder.glob("*"), *folder.glob("records/*")):
        with contextlib.suppress(FileNotFoundError):  # another process removes it meanwhile
            found.append(path.lstat().st_mtime)
    return max(found, default=time.time())


def _folders(store_dir: Path) -> list[Path]:
    try:
        return sorted(path for path in store_dir.iterdir() if path.is_dir() and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"{store_dir} cannot be read: {error.strerror or error}", "name another folder of stores") from error


def _disk_usage(folder: Path) -> int:
    return sum((Path(parent) / name).lstat().st_size for parent, _, names in os.walk(folder) for name in names)
