"""Files of tables at URLs: fetched into the cache folder, and used again as long as they are the same there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gnnkit.cluster.urls.cache import latest, record_folder
from gnnkit.cluster.urls.transfer import Move, RemoteFile, Transfer, Unreachable
from gnnkit.errors import DatasetError, interruptible
from gnnkit.events import EventSink, Stage
from gnnkit.files import read_json, why_unwritable, write_whole
from gnnkit.storage.staging import check_disk, locked
from gnnkit.units import format_bytes
from gnnkit.urls import check_url

_LISTING = "files.json"
_WAIT_TIMEOUT_S = 3600.0


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
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(folder, _WAIT_TIMEOUT_S, events, "fetched"))
            folder.mkdir(parents=True, exist_ok=True)
            known, transfer = _known(folder), []

            def ask() -> list[RemoteFile]:
                transfer.append(stack.enter_context(Transfer(url, DatasetError)))
                return [file for file in transfer[0].find(url) if is_table(file.url)]

            files, cut = latest(url, ask, known, DatasetError, events)
            if not files:
                raise DatasetError(f"{what}: there is no table at {url}", "a glob has * in it; suffixes are those of the how-to on tables")
            missing = [file for file in files if not _place(folder, file).exists()]
            if missing and cut is not None:
                raise cut.error
            if missing:
                _fetch(transfer[0], url, folder, missing, events)
            if cut is None:
                _forget_others(folder, files)
                write_whole(folder / _LISTING, json.dumps([asdict(file) for file in files]))
            return [(str(_place(folder, file)), file.url) for file in files]
    except OSError as error:
        hint = "free some space, or set GNNKIT_HOME to a folder on another disk"
        raise DatasetError(f"{folder} cannot be written: {why_unwritable(error, folder)}", hint) from error


def _fetch(transfer: Transfer, url: str, folder: Path, files: list[RemoteFile], events: EventSink) -> None:
    total = sum(file.size for file in files)
    check_disk(folder, total, f"fetching {url}")
    moves = [Move(file.url, str(_place(folder, file)), file.size, version=file.version) for file in files]
    with Stage(events, "download", label=url, unit="B", total=float(total)) as stage:
        stage.message(f"{url}: {format_bytes(total)} to {folder}")
        try:
            transfer.get(moves, stage)
        except Unreachable as cut:
            raise cut.error from cut


def _place(folder: Path, file: RemoteFile) -> Path:
    """The place of a file of this content: another version of it has another place."""
    digest = hashlib.sha256(json.dumps(asdict(file), sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"{digest}-{os.path.basename(file.url)[-100:]}"


def _known(folder: Path) -> list[RemoteFile] | None:
    """The files that were there the last time; None where nobody has asked, or the record is of no use."""
    try:
        return [RemoteFile(str(file["url"]), int(file["size"]), str(file["version"])) for file in read_json(folder / _LISTING, root=folder)]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _forget_others(folder: Path, files: list[RemoteFile]) -> None:
    """Removes what an earlier version of the table has left."""
    kept = {_LISTING, *(_place(folder, file).name for file in files)}
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()
