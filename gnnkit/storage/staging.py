"""Building beside the final place: under a lock, in ``<path>.incomplete``, after a look at memory and disk, renamed at the end."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from gnnkit.errors import MemoryLimitError, StoreError
from gnnkit.events import Event, EventSink
from gnnkit.files import give_up_lock, os_errors, read_json, take_lock, why_unwritable, write_whole
from gnnkit.host import available_cpus, available_memory
from gnnkit.schema import GraphSchema
from gnnkit.storage.files import sync
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.units import format_bytes
from gnnkit.waiting import Deadline

_MIN_BUDGET, _MAX_BUDGET = 64 << 20, 1 << 30
_MAX_THREADS = 4
# Disk that is left alone: other programs' temporary files, and the file system's own tables.
_DISK_MARGIN = 64 << 20


def default_threads() -> int:
    """Threads that a build uses: the CPUs it may run on, at most 4 (more only wait for memory and disk)."""
    return min(available_cpus(), _MAX_THREADS)


def memory_budget() -> int:
    """Bytes for buffers of edges during a build: a small share of what is available, so that a build disturbs no other program."""
    return max(_MIN_BUDGET, min(_MAX_BUDGET, available_memory() // 64))


def check_memory(needed: int, what: str, schema: GraphSchema | None = None) -> None:
    """Refuses work that would not fit.

    Args:
        needed: Bytes.
        what: What needs them, for the error.
        schema: The graph's, where its numbers of nodes decide the size.

    Raises:
        MemoryLimitError: Says both sizes.
    """
    available = available_memory()
    if needed <= available:
        return
    hint = "close other programs, or raise the memory limit of this container"
    if schema is not None and schema.num_nodes > 2 * schema.num_edges:
        hint = (
            f"{schema.num_edges:,} edges name few of {schema.num_nodes:,} nodes: GraphLoader.from_tables((edge_index[0], edge_index[1])) "
            "keeps such ids as keys, and has the nodes that edges name"
        )
    raise MemoryLimitError(f"{what} needs about {format_bytes(needed)} of memory, {format_bytes(available)} are available", hint)


def check_disk(folder: Path, needed: int, what: str) -> None:
    """Refuses work that would fill the disk.

    Args:
        folder: An existing folder on the disk in question.
        needed: Bytes to be written.
        what: What is to be written, for the error.

    Raises:
        StoreError: Says both sizes.
    """
    free = shutil.disk_usage(folder).free
    if needed + _DISK_MARGIN > free:
        raise StoreError(
            f"{what} needs {format_bytes(needed)} of disk at {folder}, {format_bytes(free)} are free",
            "free some space, or choose another folder with store_dir=... or GNNKIT_HOME",
        )


logger = logging.getLogger(__name__)

# What a store's folder is called while it is built, while it is replaced, and while several hosts build parts of it.
INCOMPLETE, REPLACED, PARTS = ".incomplete", ".replaced", ".parts"
_OWNER_NAME = "owner.json"
_POLL_S = 0.05


def incomplete_path(path: Path) -> Path:
    """Returns the folder in which a store is built before it has its name."""
    return path.with_name(path.name + INCOMPLETE)


def parts_path(path: Path) -> Path:
    """Returns the folder in which several hosts leave the parts of a store before it has its name."""
    return path.with_name(path.name + PARTS)


@contextmanager
def locked(path: Path, wait_timeout_s: float, events: EventSink, work: str = "built") -> Iterator[None]:
    """Holds the lock of a store.

    Args:
        path: The store.
        wait_timeout_s: How long to wait for another process that builds it; 0 gives up at once.
        events: Receives one message when another process is waited for.
        work: What others may do there meanwhile, for messages.

    Raises:
        StoreError: Another process holds it; names the process.
    """
    file, held, deadline = path.with_name(f".{path.name}.lock"), None, Deadline(wait_timeout_s)
    try:
        for tries in count():
            with os_errors(f"{path.parent} cannot be written", path.parent, "choose another folder with store_dir=...", StoreError):
                path.parent.mkdir(parents=True, exist_ok=True)  # the last owner of the lock may have removed it
                held = take_lock(file)
            if held is not None:
                break
            if deadline.has_passed:
                raise _busy(path, wait_timeout_s, work)
            if not tries:
                events(Event("message", "ingest", path.name, text=f"waiting: {path.name} is being {work} by {_owner(path)}"))
            time.sleep(deadline.within(_POLL_S))
        yield
    finally:
        if held is not None:
            give_up_lock(file, held)


def make_folder(folder: Path, *, exist_ok: bool = False) -> None:
    """Makes a folder that is as open to other users as the one that it is in."""
    folder.mkdir(mode=folder.parent.stat().st_mode & 0o777, exist_ok=exist_ok)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yields an empty folder that takes the place of ``path`` when the block ends well, and is gone when it does not.

    Must run under the store's lock, so that whatever an earlier, killed build left behind can be thrown away.

    Raises:
        StoreError: The disk is full, or cannot be written. Whatever was at ``path`` is still there.
    """
    folder = incomplete_path(path)
    try:
        remove_tree(folder)
        make_folder(folder)
        _own(folder)
        yield folder
        disown(folder)
        take_place(folder, path)
    except OSError as error:
        remove_tree(folder)
        what = why_unwritable(error, path)
        hint = "free some space, or choose another folder with store_dir=... or GNNKIT_HOME"
        raise StoreError(f"{path} could not be written: {what}; nothing was left behind", hint) from error
    except BaseException:
        remove_tree(folder)
        raise


def resumed(path: Path, key: str) -> Path:
    """The folder beside a store that is being fetched, with what an earlier call for the same files has left there, else empty.

    Must run under the store's lock. The process that makes the store whole there then calls ``disown`` and ``take_place``.

    Args:
        path: The store.
        key: What says that the files are the same: the store's fingerprint.

    Raises:
        OSError: It cannot be written.
    """
    folder = incomplete_path(path)
    left = None
    with suppress(OSError, ValueError, AttributeError):
        left = read_json(folder / _OWNER_NAME).get("key")
    if left != key:
        remove_tree(folder)
        make_folder(folder)
    _own(folder, key)
    return folder


def _own(folder: Path, key: str | None = None) -> None:
    """Says in a folder who is at work there; others read it at any time."""
    write_whole(folder / _OWNER_NAME, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "key": key}))


def disown(folder: Path) -> None:
    """Ends the work in a folder: everything in it is on the disk then."""
    (folder / _OWNER_NAME).unlink()
    for parent, _, _ in os.walk(folder):
        sync(Path(parent))


def take_place(folder: Path, path: Path) -> None:
    """Puts a finished folder in the place of ``path``; what was there is removed. ``restore`` undoes or ends what was killed in between."""
    replaced = path.with_name(path.name + REPLACED)
    if path.exists():
        path.rename(replaced)
    folder.rename(path)
    sync(path.parent)
    remove_tree(replaced)


def restore(path: Path) -> None:
    """Undoes a replacement that was killed between its two renames, and ends one that was killed after them."""
    replaced = path.with_name(path.name + REPLACED)
    if replaced.exists() and not path.exists():
        replaced.rename(path)
    remove_tree(replaced)


def check_replaceable(path: Path) -> None:
    """Refuses to build over something that is not a store.

    Raises:
        StoreError: ``path`` is a file, or a folder with other things in it.
    """
    if path.is_dir() and not (path / MANIFEST_NAME).is_file() and any(path.iterdir()):
        raise StoreError(f"{path} is a folder that holds something else than a store", "choose a path that does not exist yet")
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path} is not a folder", "choose a path that does not exist yet")


def remove_tree(folder: Path) -> None:
    """Removes a store's folder if there is one; the manifest goes first, so that a half-removed store is never opened."""
    if folder.exists():
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _owner(path: Path) -> str:
    try:
        owner = read_json(incomplete_path(path) / _OWNER_NAME)
        return f"process {int(owner['pid'])} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _busy(path: Path, waited_s: float, work: str) -> StoreError:
    waited = f" (waited {waited_s:g} s)" if waited_s else ""
    return StoreError(f"{path} is being {work} by {_owner(path)}{waited}", "wait for it to finish, or end that process")
