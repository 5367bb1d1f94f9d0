"""A directory of files that is there whole or not at all, and keeps what was changed in it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.export.job import RECORD
from gnnkit.files import os_errors, read_bounded, read_json
from gnnkit.version import __version__
from gnnkit.waiting import begin_apart

_RECORD_VERSION = 1
_DIGEST_BYTES = 16
# The largest file of a job whose digest is asked for: a plan, see ``gnnkit.plan.files``.
_MOST_BYTES = 1 << 30


def digest_of(content: bytes) -> str:
    """32 hexadecimal digits (BLAKE2b)."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def read_record(directory: Path) -> dict[str, Any]:
    """Reads ``export.json``: ``{"options": ..., "files": {name: digest}, ...}``.

    Raises:
        PlanError: The directory is none that was exported, or by a newer gnnkit.
    """
    try:
        value = read_json(directory / RECORD, root=directory)
        version = value["version"]
        if not isinstance(value["options"], dict) or not all(isinstance(digest, str) for digest in value["files"].values()):
            raise ValueError("it lacks options or files")
        if strange := [name for name in value["files"] if name in ("", "..") or Path(name).name != name]:
            raise ValueError(f"{strange[0]!r} is no file of the directory")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(
            f"{str(directory)!r} is no exported job: {RECORD}: {error}", "name a directory that loader.export() wrote"
        ) from error
    if version != _RECORD_VERSION:
        raise PlanError(f"{str(directory / RECORD)!r} is of version {version!r}, this gnnkit reads {_RECORD_VERSION}", "export it again")
    checked: dict[str, Any] = value
    return checked


def changed_files(directory: Path) -> list[str]:
    """The exported files that are not as they were written, those that are gone included.

    Raises:
        PlanError: See ``read_record``.
    """
    return [name for name, digest in sorted(read_record(directory)["files"].items()) if _digest_at(directory / name) != digest]


def check_target(directory: Path, files: Mapping[str, bytes], *, overwrite: bool) -> None:
    """Refuses to write over files that were made or changed otherwise.

    Args:
        directory: Where the files are to go.
        files: ``{name: content}``.
        overwrite: Whether changed files of an earlier export may be replaced.

    Raises:
        PlanError: The directory is something else than an earlier export, or files of it have been changed; names them.
    """
    if not os.path.lexists(directory):
        return
    if not directory.is_dir():
        raise PlanError(f"{str(directory)!r} is a file", "name a directory")
    if not any(directory.iterdir()):
        return
    if not (directory / RECORD).exists():
        raise PlanError(f"{str(directory)!r} holds something else than an exported job", "name a new directory, or empty this one")
    known: dict[str, str] = read_record(directory)["files"]
    written = {name: digest_of(content) for name, content in files.items()}
    # What is as it will be is fine, too: an earlier attempt was broken off.
    found = {name: _digest_at(directory / name) for name in sorted({*known, *written} - {RECORD})}
    changed = [name for name, digest in found.items() if digest not in (None, known.get(name), written.get(name))]
    if changed and not overwrite:
        raise PlanError(
            f"{', '.join(changed)} in {str(directory)!r} {'has' if len(changed) == 1 else 'have'} been changed since the export",
            "overwrite=True (--overwrite) writes over that, or export to another directory",
        )


def write_directory(directory: Path, files: Mapping[str, bytes], options: Mapping[str, Any], *, overwrite: bool) -> None:
    """Writes a job's files and the record of them.

    They are written beside the directory first. A new directory then appears whole; in one that is there, files are replaced together, and
    what is not of the export stays. An interrupt leaves it as it was, or complete.

    Args:
        directory: Where they go.
        files: ``{name: content}``; ``.sh`` files are made executable.
        options: What the record says of the export.
        overwrite: See ``check_target``.

    Raises:
        PlanError: See ``check_target``; or the directory cannot be written.
    """
    check_target(directory, files, overwrite=overwrite)
    record = {
        "version": _RECORD_VERSION,
        "gnnkit": __version__,
        "options": dict(options),
        "files": {name: digest_of(content) for name, content in sorted(files.items())},
    }
    staged = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.incomplete")
    with os_errors(f"{str(directory)!r} cannot be written", directory, "choose another directory"):
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            staged.mkdir()
            for name, content in {**files, RECORD: f"{json.dumps(record, indent=1)}\n".encode()}.items():
                _write(staged / name, content)
            # In a thread of its own, which is done to its end: an interrupt is raised in the main thread.
            put = begin_apart(lambda: _put(staged, directory, [*files, RECORD]), "gnnkit-export", daemon=False)
            try:
                put.result()
            finally:
                wait([put])
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    mode = 0o755 if path.suffix == ".sh" else 0o644
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _put(staged: Path, directory: Path, names: list[str]) -> None:
    """Moves staged files to their place; the record is the last of them."""
    if not os.path.lexists(directory) or not any(directory.iterdir()):
        staged.rename(directory)  # over an empty directory as well
        return
    before = read_record(directory)["files"]
    for name in names:
        (staged / name).replace(directory / name)
    for name in set(before) - set(names):  # of a launcher that is not the job's any more
        (directory / name).unlink(missing_ok=True)


def _digest_at(path: Path) -> str | None:
    try:
        return digest_of(read_bounded(path, _MOST_BYTES))
    except FileNotFoundError:
        return None
    except OSError:
        return ""
