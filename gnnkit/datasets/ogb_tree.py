"""Finding an OGB dataset on disk, and telling which of its files are meant.

A tree is what unpacking OGB's archive gives: ``raw/``, ``split/<name>/`` and ``RELEASE_v<n>.txt``. Trees are only read: they
may lie on a read-only disk, and may have been left there by ``ogb`` or by PyG.
"""

from __future__ import annotations

import hashlib
import logging
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gnnkit.datasets.registry import OgbInfo
from gnnkit.errors import DatasetError
from gnnkit.events import EventSink, Stage
from gnnkit.files import open_regular

logger = logging.getLogger(__name__)

# A line that must be shown wherever the tree's data is; written beside generated trees.
NOTICE_FILE = "NOTICE.gnnkit"
_NOTICE_BYTES = 500
_HASHED_BYTES = 4096
# Places at which a file without a checksum is looked at.
_SPREAD = 64


@dataclass(frozen=True, slots=True)
class OgbTree:
    """A dataset's folder.

    Attributes:
        path: The folder itself.
        raw: Its raw files.
        split: The files of the official split.
    """

    path: Path
    raw: Path
    split: Path

    @property
    def notice(self) -> str | None:
        """The first line of the notice file, or None where there is none."""
        try:
            with open(open_regular(self.path / NOTICE_FILE), encoding="utf-8", errors="replace") as file:
                return file.read(_NOTICE_BYTES).strip().partition("\n")[0].strip() or None
        except FileNotFoundError:
            return None


def folder_names(info: OgbInfo) -> list[str]:
    """Folders under a root that may hold the dataset, best first: ogb's, PyG's, and the archive's own."""
    return [info.folder, f"{info.folder}_pyg", info.download_name]


def find_tree(info: OgbInfo, root: Path) -> OgbTree | None:
    """The dataset's tree under ``root`` (or ``root`` itself, where it is that tree), or None.

    Raises:
        DatasetError: This user may not look there.
    """
    for path in _candidates(info, root):
        raw = path / "raw"
        try:
            is_there = any((raw / name).exists() for name in _key_files(info))
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error.strerror or error}", "name another folder: root=...") from error
        if is_there:
            inner = raw / "split" / info.split
            # PyG's OGB_MAG moves the splits into raw/.
            return OgbTree(path, raw, inner if inner.is_dir() else path / "split" / info.split)
    return None


def damaged_tree(info: OgbInfo, root: Path) -> tuple[Path, str] | None:
    """A folder that should hold the dataset and does not: the folder and the file that is missing."""
    for path in _candidates(info, root):
        if path.is_dir() and any(path.iterdir()):
            return path, f"raw/{_key_files(info)[0]}"
    return None


def check_release(info: OgbInfo, tree: OgbTree, events: EventSink) -> None:
    """Compares the tree's release marker with the release that the installed ``ogb`` describes, and never asks.

    Raises:
        DatasetError: The tree is of another release: the same name would mean other data.
    """
    if (tree.path / f"RELEASE_v{info.version}.txt").exists():
        return
    others = sorted(path.name for path in tree.path.glob("RELEASE_v*.txt"))
    if others:
        raise DatasetError(
            f"{tree.path} holds {info.name} of release {', '.join(others)}; the current one is RELEASE_v{info.version}.txt",
            f"move {tree.path} away and download again, or pass another root=",
        )
    text = f"{tree.path} has no RELEASE_v{info.version}.txt: gnnkit cannot tell whether it is the current release of {info.name}"
    logger.warning(text)
    Stage(events, "ingest", label=info.name).message(text)


def content_digest(base: Path, files: Iterable[Path], facts: Mapping[str, object]) -> str:
    """A hex digest of files' content in constant time per file.

    A .gz file is known by its size, first and last bytes, the last of which hold the checksum and length of what is
    inside (RFC 1952); an .npz or a zipped .pt by its central directory, which holds a checksum for every member; a .pt of
    torch before 1.6, which holds none, by bytes from all over it.

    Args:
        base: Folder to which file names are relative.
        files: The files, in any order.
        facts: What else decides how the files are read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for key, value in sorted(facts.items()):
        digest.update(f"{key}={value!r}\n".encode())
    for path in sorted(set(files)):
        digest.update(f"{path.relative_to(base).as_posix()}\n".encode())
        try:
            for part in _identity(path):
                digest.update(part)
        except (OSError, zipfile.BadZipFile) as error:
            raise DatasetError(f"cannot read {path}: {error}", "restore the file, or move the folder away and download again") from error
    return digest.hexdigest()


def _identity(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{size}\n".encode()
    with open(open_regular(path), "rb") as file:
        yield file.read(_HASHED_BYTES)
        file.seek(max(0, size - _HASHED_BYTES))
        yield file.read(_HASHED_BYTES)
        if path.suffix == ".pt":
            for place in range(1, _SPREAD):
                file.seek(size * place // _SPREAD)
                yield file.read(_HASHED_BYTES)
    if path.suffix == ".npz" or (path.suffix == ".pt" and zipfile.is_zipfile(path)):
        with open(open_regular(path), "rb") as file, zipfile.ZipFile(file) as archive:
            for item in archive.infolist():
                yield f"{item.filename} {item.file_size} {item.CRC}\n".encode()


def _candidates(info: OgbInfo, root: Path) -> list[Path]:
    names = folder_names(info)
    paths = [root / name for name in names]
    if root.name in names and (root / "raw").is_dir():
        paths.insert(0, root)
    return paths


def _key_files(info: OgbInfo) -> list[str]:
    if info.is_binary:
        return ["edge_index_dict.npz" if info.is_hetero else "data.npz"]
    # PyG's OGB_MAG keeps relations/ without the list of their names.
    return ["triplet-type-list.csv.gz", f"relations{os.sep}"] if info.is_hetero else ["edge.csv.gz"]
