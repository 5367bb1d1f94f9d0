"""Unpacking an archive that came over the network: nothing outside the folder, no links, no bombs, every checksum verified."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from gnnkit.datasets.preflight import require_disk
from gnnkit.errors import DatasetError
from gnnkit.events import Stage

# Datasets are compressed before they are archived: members shrink by a few per cent, not by 50 times.
_MAX_RATIO = 50
_ALWAYS_ALLOWED_BYTES = 100 << 20
_MAX_MEMBERS = 100_000
_CHUNK_BYTES = 1 << 20


class DamagedArchive(DatasetError):
    """The archive itself is to blame: keeping it would be of no use."""


_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)


def unpack(archive: Path, folder: Path, *, stage: Stage) -> None:
    """Unpacks a zip into ``folder``, which must be empty or missing.

    Files are on the disk, not only in its cache, when this returns.

    Args:
        archive: The zip.
        folder: Where to; left half-filled if this raises.
        stage: Progress, in bytes written.

    Raises:
        DamagedArchive: The archive is truncated, corrupt or malicious.
        DatasetError: It does not fit the disk, or the folder cannot be written.
    """
    try:
        with zipfile.ZipFile(archive) as zipped:
            items = zipped.infolist()
            targets = [_target(archive, item) for item in items]
            _check_sizes(archive, items, folder)
            if len(set(targets)) != len(targets):
                raise DamagedArchive(f"{archive} has two members of one name")
            stage.update(0, sum(item.file_size for item in items))
            for item, target in zip(items, targets, strict=True):
                _write(zipped, item, folder / target, stage)
    except _DAMAGE as error:
        raise DamagedArchive(f"{archive} is corrupt: {error}") from error
    except OSError as error:
        message = f"cannot unpack {archive} into {folder}: {error.strerror or error}"
        raise DatasetError(message, "is there space, and may you write there?") from error


def _target(archive: Path, item: zipfile.ZipInfo) -> PurePosixPath:
    """The member's path inside the folder."""
    path = PurePosixPath(item.filename)
    mode = item.external_attr >> 16
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in item.filename or ":" in path.parts[0]:
        raise DamagedArchive(f"{archive} would write outside its folder: {item.filename!r}", "do not use this archive")
    if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_IFMT(mode) == 0):
        raise DamagedArchive(f"{archive} holds {item.filename!r}, which is neither a file nor a folder", "do not use this archive")
    return path


def _check_sizes(archive: Path, items: list[zipfile.ZipInfo], folder: Path) -> None:
    unpacked, packed = sum(item.file_size for item in items), archive.stat().st_size
    if len(items) > _MAX_MEMBERS or unpacked > max(_ALWAYS_ALLOWED_BYTES, _MAX_RATIO * packed):
        raise DamagedArchive(f"{archive} would unpack from {packed} bytes to {unpacked} in {len(items)} files", "do not use this archive")
    require_disk(folder, {"unpacked": unpacked}, f"unpacking {archive.name}")


def _write(zipped: zipfile.ZipFile, item: zipfile.ZipInfo, target: Path, stage: Stage) -> None:
    if item.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # The member's checksum is compared when its end is read; it gives no more bytes than the size it declares.
    with zipped.open(item) as source, target.open("xb") as file:
        while data := source.read(_CHUNK_BYTES):
            file.write(data)
            stage.advance(len(data))
        file.flush()
        os.fsync(file.fileno())
