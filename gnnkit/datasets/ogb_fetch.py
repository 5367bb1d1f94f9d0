"""Getting an OGB dataset that is not there: asked for at most once by any number of processes, and never half there.

Everything happens inside the root: ``.<folder>.zip.part`` (what has been downloaded), ``.<folder>.incomplete`` (what has been
unpacked), then a rename to ``<folder>``. A killed process leaves the first two, with which the next one goes on.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from gnnkit.datasets.download import PATIENT, DamagedArchive, RetryPolicy, discard, download, free_disk, require_disk, unpack
from gnnkit.datasets.ogb_tree import find_tree
from gnnkit.datasets.registry import OgbInfo
from gnnkit.errors import DatasetError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import give_up_lock, take_lock
from gnnkit.storage.staging import check_memory
from gnnkit.units import format_bytes
from gnnkit.urls import OFFLINE_VARIABLE, is_offline

AUTO_LIMIT_BYTES = 2_000_000_000
# Where OGB's archives are mirrored: stands for everything before "nodeproppred/products.zip".
MIRROR_VARIABLE = "GNNKIT_OGB_URL"
_OFFICIAL_BASE = "/ogb/data/"
# A store's size over its archive's. Text of proteins' edge features, 8 numbers in [0, 1], shrinks like no other.
_STORE_PER_ARCHIVE = {"ogbn-proteins": 14.0}
_STORE_PER_ARCHIVE_ELSE = 1.3
_UNPACKED_PER_ARCHIVE = 1.1
# Reading a tree: blocks of text, arrays made of them, and the libraries.
_MEMORY_BYTES = 400 << 20
_LOCK_POLL_S = 0.25
_WRITABLE_HINT = "pass root= with a folder you may write to"


def fetch(
    info: OgbInfo, root: Path, allowed: Literal["auto"] | bool, events: EventSink = ignore_events, *, patience: RetryPolicy = PATIENT
) -> None:
    """Downloads and unpacks a dataset into ``<root>/<folder>``.

    An archive that lies in the root under its own name (``products.zip``) is used in place of a download, and kept.

    Args:
        info: The dataset.
        root: Folder that will hold the dataset's folder.
        allowed: Whether to download, as ``open_ogb``'s ``download``.
        events: Where progress goes.
        patience: How long to wait for the server, and for another process that gets the dataset.

    Raises:
        DatasetError: It is not there and may not or cannot be downloaded, or what came is damaged.
        MemoryLimitError: There is too little memory to read it afterwards.
    """
    _Fetch(info, root, allowed, events, patience).run()


class _Fetch:
    def __init__(self, info: OgbInfo, root: Path, allowed: Literal["auto"] | bool, events: EventSink, patience: RetryPolicy) -> None:
        self._info, self._root, self._allowed, self._events, self._patience = info, root, allowed, events, patience
        self._url = archive_url(info)
        self._by_hand = root / self._url.rpartition("/")[2]
        self._part = root / f".{info.folder}.zip.part"
        self._incomplete = root / f".{info.folder}.incomplete"
        self._hint = (
            f"by hand: download {self._url} and put it at {self._by_hand}, or unpack it and name its folder {root / info.folder}; "
            f"or pass root= with the folder that holds {info.folder}/"
        )

    def run(self) -> None:
        self._refuse_unless_allowed()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatasetError(f"cannot make the folder {self._root}: {error.strerror}", _WRITABLE_HINT) from error
        with self._locked():
            # Another process may have been faster.
            if find_tree(self._info, self._root) is not None:
                return
            if self._by_hand.exists():
                self._unpack(self._by_hand)
                return
            self._download()
            try:
                self._unpack(self._part)
            except DamagedArchive as error:
                discard(self._part)
                raise DatasetError(f"{self._url}: what was downloaded cannot be used: {error.message}", self._hint) from error
            # Only now: an interrupt or a full disk leaves it, complete, for the next call.
            discard(self._part)

    def _refuse_unless_allowed(self) -> None:
        if self._by_hand.exists():
            return
        offline = is_offline()
        if offline or self._allowed is False:
            why = f"{OFFLINE_VARIABLE} is set" if offline else "download=False"
            raise DatasetError(f"{self._info.name} is not in {self._root}, and nothing may be downloaded ({why})", self._hint)
        check_memory(_MEMORY_BYTES, f"reading {self._info.name}")

    def _download(self) -> None:
        with Stage(self._events, "download", label=self._info.name, unit="B") as stage:

            def on_size(total: int | None, have: int) -> None:
                self._check_size(total, have, stage)

            download(self._url, self._part, stage=stage, on_size=on_size, hint=self._hint, patience=self._patience)

    def _check_size(self, total: int | None, have: int, stage: Stage) -> None:
        """Shows what is about to happen, and refuses what was not asked for or cannot end well."""
        name = self._info.name
        if self._allowed == "auto" and (total is None or total > AUTO_LIMIT_BYTES):
            size = "of unknown size" if total is None else f"of {format_bytes(total)}"
            raise DatasetError(
                f"{name} is a download {size}; without being asked, gnnkit downloads up to {format_bytes(AUTO_LIMIT_BYTES)}",
                f"GraphLoader.from_ogb({name!r}, root={str(self._root)!r}, download=True, ...)  # your other arguments as they are",
            )
        if total is None:
            stage.message(f"{name}: {self._url} to {self._root / self._info.folder}, of unknown size")
            return
        needs = {
            "to download": total - have,
            "unpacked": int(total * _UNPACKED_PER_ARCHIVE),
            "for its store": int(total * _STORE_PER_ARCHIVE.get(name, _STORE_PER_ARCHIVE_ELSE)),
        }
        stage.message(
            f"{name}: {format_bytes(total)} from {self._url} to {self._root / self._info.folder}; "
            f"{format_bytes(sum(needs.values()))} of disk needed, {format_bytes(free_disk(self._root))} free"
        )
        require_disk(self._root, needs, name)

    def _unpack(self, archive: Path) -> None:
        shutil.rmtree(self._incomplete, ignore_errors=True)
        try:
            with Stage(self._events, "download", label=f"{self._info.name}, unpacking", unit="B") as stage:
                unpack(archive, self._incomplete, stage=stage)
            self._move_into_place(archive)
        except BaseException:
            shutil.rmtree(self._incomplete, ignore_errors=True)
            raise

    def _move_into_place(self, archive: Path) -> None:
        inside = [path for path in (self._incomplete / self._info.download_name, self._incomplete) if (path / "raw").is_dir()]
        if not inside:
            found = sorted(path.name for path in self._incomplete.iterdir())[:5]
            raise DamagedArchive(f"{archive} does not hold {self._info.download_name}/raw; it holds {found}")
        target = self._root / self._info.folder
        try:
            # Replaces an empty folder, and no other.
            inside[0].rename(target)
        except OSError as error:
            raise DatasetError(f"cannot put the dataset at {target}: {error.strerror}", f"move {target} away and try again") from error
        shutil.rmtree(self._incomplete, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one process at a time; the system takes the lock from a process that dies."""
        path = self._root / f".{self._info.folder}.lock"
        held = None
        seen, since = self._progress(), time.monotonic()
        waiting = False
        try:
            while True:
                try:
                    held = take_lock(path)
                except OSError as error:
                    raise DatasetError(f"cannot write in {self._root}: {error.strerror}", _WRITABLE_HINT) from error
                if held is not None:
                    break
                if not waiting:
                    waiting = True
                    text = f"waiting for another process that downloads {self._info.name}"
                    Stage(self._events, "download", label=self._info.name).message(text)
                if (now := self._progress()) != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > self._patience.lock_s:
                    stalled = f"has not got on with {self._info.name} for {self._patience.lock_s:.0f} s"
                    message = f"another process holds {path} and {stalled}"
                    raise DatasetError(message, "end that process and try again")
                time.sleep(_LOCK_POLL_S)
            yield
        finally:
            if held is not None:
                give_up_lock(path, held)

    def _progress(self) -> int:
        """A number that changes while the process that holds the lock gets on."""
        files = [self._part, *(self._incomplete.rglob("*") if self._incomplete.exists() else ())]
        total = 0
        for path in files:
            try:
                total += 1 + path.stat().st_size
            except FileNotFoundError:
                continue
        return total


def archive_url(info: OgbInfo) -> str:
    """Returns the address of the dataset's archive: OGB's own server, or the mirror that ``GNNKIT_OGB_URL`` names.

    Raises:
        DatasetError: The variable holds no http or https address.
    """
    mirror = os.environ.get(MIRROR_VARIABLE, "").strip()
    if not mirror:
        return info.url
    if not mirror.startswith(("http://", "https://")):
        raise DatasetError(
            f"{MIRROR_VARIABLE} is {mirror!r}, which is no http:// or https:// address", f"{MIRROR_VARIABLE}=https://host/ogb/data"
        )
    return f"{mirror.rstrip('/')}/{info.url.partition(_OFFICIAL_BASE)[2]}"
