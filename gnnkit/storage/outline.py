"""Outlines: what a trainer knows of a store whose parts are on other machines, i.e. its manifest and its splits.

An outline is a folder like a store's, marked by a file of its own. ``Store.open(path, ())`` opens it; its parts and books are not there,
and reading them is an error.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import StoreError
from gnnkit.files import why_unwritable
from gnnkit.storage.files import damaged, file_crc32
from gnnkit.storage.layout import MANIFEST_NAME, split_file
from gnnkit.storage.link_splits import link_split_files
from gnnkit.storage.manifest import Manifest, read_manifest

_MARK = "outline"
_HEX = frozenset("0123456789abcdef")
# Gives the pieces of a file of the store, by the file's name.
Fetch = Callable[[str], Iterable[bytes | memoryview]]


class _Elsewhere(np.ndarray[Any, Any]):
    """An array that is not here: it has a dtype and a shape, and refuses to be read."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StoreError(
            "the graph's arrays are on its servers: here is only what the store's manifest and splits say",
            "sample them with a loader, or open the store where its parts are",
        )

    __getitem__ = __iter__ = __array_ufunc__ = __array_function__ = tolist = tobytes = astype = copy = _refuse


def elsewhere(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array ``[*shape]`` that takes no memory and cannot be read."""
    return np.broadcast_to(np.zeros((), dtype), shape).view(_Elsewhere)


def is_outline(path: Path) -> bool:
    """Whether a folder holds an outline."""
    return (path / _MARK).is_file()


def find_outline(folder: Path, fingerprint: str) -> Path | None:
    """The outline of a store among those in ``folder``; None where there is none that is whole.

    Raises:
        StoreError: This is no fingerprint.
    """
    path = _place(folder, fingerprint)
    try:
        return path if is_outline(path) and read_manifest(path).fingerprint == fingerprint else None
    except StoreError:
        return None


def keep_outline(folder: Path, fingerprint: str, fetch: Fetch) -> Path:
    """Writes the outline of a store, all of it or nothing.

    Args:
        folder: The folder of outlines; made where it is not there.
        fingerprint: The store's.
        fetch: Gives the store's files.

    Returns:
        The outline's folder.

    Raises:
        StoreError: What was fetched is not of this store, or damaged, or cannot be written; or this is no fingerprint.
    """
    target = _place(folder, fingerprint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{fingerprint[:12]}-", dir=folder))
    except OSError as error:
        raise StoreError(
            f"the outline of the store cannot be kept in {folder}: {why_unwritable(error, folder)}",
            "set GNNKIT_HOME to a folder that can be written",
        ) from error
    try:
        _write(staging, MANIFEST_NAME, fetch)
        manifest = read_manifest(staging)
        if manifest.fingerprint != fingerprint:
            raise StoreError(f"the store is {manifest.fingerprint}, and {fingerprint} was expected", "ask again")
        for name in outline_files(manifest):
            _write(staging, name, fetch)
            if (staging / name).stat().st_size != manifest.files[name].size or file_crc32(staging / name) != manifest.files[name].crc32:
                raise damaged(staging, f"{name} did not arrive as the manifest says")
        (staging / _MARK).touch()
        if find_outline(folder, fingerprint) is None:  # else somebody else was faster
            shutil.rmtree(target, ignore_errors=True)
            staging.rename(target)
    except OSError as error:
        if find_outline(folder, fingerprint) is None:
            raise StoreError(f"the outline of the store cannot be written to {folder}: {why_unwritable(error, folder)}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def outline_files(manifest: Manifest) -> list[str]:
    """The files of an outline beside the manifest."""
    of_nodes = [split_file(node_type, split) for node_type, splits in manifest.splits.items() for split in splits]
    return [*of_nodes, *link_split_files(manifest.link_splits)]


def _place(folder: Path, fingerprint: str) -> Path:
    """Returns the path of an outline. The fingerprint comes from the network, and must not lead out of the folder."""
    if not fingerprint or not set(fingerprint) <= _HEX:
        raise StoreError(f"{fingerprint[:100]!r} is no fingerprint of a store", "servers and trainers must run the same gnnkit")
    return folder / fingerprint


def _write(root: Path, name: str, fetch: Fetch) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        for piece in fetch(name):
            file.write(piece)
