"""What inference writes: a file for each node type and layer, all of them there or none."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, StoreError
from gnnkit.runtime.registry import RunFolder, new_run
from gnnkit.schema import NodeType
from gnnkit.storage.files import ArrayWriter, FileEntry, FileSpec, map_array, sync

_INCOMPLETE = ".incomplete"


class Embeddings(Mapping[NodeType, NDArray[Any]]):
    """Embeddings of nodes on disk, ``{node type: [n, ...]}``, mapped read-only.

    Row ``i`` belongs to node ``i`` of the type, or to the ``i``-th of the input nodes where some were given. Of a graph of one node type,
    ``embeddings.array`` is the only array, and NumPy takes the object for it: ``np.asarray(embeddings)``.

    Args:
        path: The folder.
        entries: The file of each type, by path relative to the folder.
        owned: The temporary folder that goes with this object, or None.

    Attributes:
        path: The folder that holds the files.
    """

    def __init__(self, path: Path, entries: Mapping[NodeType, tuple[str, FileEntry]], owned: RunFolder | None = None) -> None:
        self.path = path
        self._arrays = {node_type: map_array(path, name, entry) for node_type, (name, entry) in entries.items()}
        for array in self._arrays.values():
            array.flags.writeable = False
        if owned is not None:
            weakref.finalize(self, _remove, owned, os.getpid())

    @property
    def array(self) -> NDArray[Any]:
        """The only array.

        Raises:
            PlanError: There are several.
        """
        if len(self._arrays) != 1:
            raise PlanError(f"there are embeddings of several node types: {list(self._arrays)}", "name one: embeddings['type']")
        (array,) = self._arrays.values()
        return array

    def __getitem__(self, node_type: NodeType) -> NDArray[Any]:
        return self._arrays[node_type]

    def __iter__(self) -> Iterator[NodeType]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False and dtype not in (None, self.array.dtype):
            raise ValueError(f"{self.array.dtype} becomes {dtype} by copying only")
        return np.array(self.array, dtype, copy=bool(copy) or dtype not in (None, self.array.dtype))

    def __repr__(self) -> str:
        shapes = ", ".join(f"{node_type}: {array.dtype} {list(array.shape)}" for node_type, array in self._arrays.items())
        return f"Embeddings({shapes}, {str(self.path)!r})"


class LayerFiles:
    """The files of one layer while they are written.

    Args:
        root: The folder of all layers.
        number: The layer's number, from 1.
    """

    def __init__(self, root: Path, number: int) -> None:
        self.root, self.folder = root, f"layer{number}"
        self.entries: dict[NodeType, tuple[str, FileEntry]] = {}
        self._writers: dict[NodeType, ArrayWriter] = {}

    def spec(self, node_type: NodeType) -> FileSpec | None:
        """What the file of a type holds; None before its first rows."""
        writer = self._writers.get(node_type)
        return None if writer is None else writer.spec

    def write(self, node_type: NodeType, first: int, rows: NDArray[Any], num_rows: int) -> None:
        """Writes the rows from number ``first`` on; the type's first ones decide dtype and shape of its file of ``num_rows`` rows."""
        with _told(self.root):
            if node_type not in self._writers:
                spec = FileSpec(rows.dtype, (num_rows, *rows.shape[1:]))
                self._writers[node_type] = ArrayWriter(self.root, f"{self._name(node_type)}{_INCOMPLETE}", spec)
            self._writers[node_type].write(first, rows)

    def finish(self, node_type: NodeType) -> None:
        """Gives the file of a type its name: all of its rows are there, and on the disk."""
        if node_type not in self._writers:
            return
        writer, name = self._writers[node_type], self._name(node_type)
        entry = writer.finish()
        with _told(self.root):
            sync(writer.path)
            writer.path.rename(self.root / name)
        self.entries[node_type] = (name, entry)

    def arrays(self) -> dict[NodeType, NDArray[Any]]:
        """The finished files, mapped."""
        return {node_type: map_array(self.root, name, entry) for node_type, (name, entry) in self.entries.items()}

    def remove(self) -> None:
        """Gives the disk space back; whoever has mapped the files keeps them."""
        shutil.rmtree(self.root / self.folder)

    def _name(self, node_type: NodeType) -> str:
        return f"{self.folder}/{node_type}.npy"


@contextlib.contextmanager
def embeddings_folder(out: str | Path | None, name: str) -> Iterator[tuple[Path, RunFolder | None]]:
    """Yields an empty folder that becomes ``out`` when the block ends well, and is gone when it does not.

    While the block runs, the folder is ``<out>.incomplete``; what a killed process has left there is thrown away.

    Args:
        out: The folder; None is a temporary one, which stays until it is closed. What a killed process has left goes with the next.
        name: What the graph is called, for the record of a temporary folder.

    Raises:
        PlanError: ``out`` exists, or another process is writing it.
        StoreError: It cannot be written, or the disk is full.
    """
    if out is None:
        from gnnkit.storage.catalog import default_root

        owned = new_run(str(default_root() / "temporary"), {"embeddings": name})
        try:
            yield owned.path, owned
        except BaseException:
            owned.close()
            raise
        return
    target = Path(out).expanduser().absolute()
    _check_free(target)
    folder = target.with_name(target.name + _INCOMPLETE)
    with _told(target):
        claim = _claim(folder)
    try:
        yield folder, None
        _check_free(target)
        with _told(target):
            sync(folder)
            folder.rename(target)
            sync(target.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(claim)


def _check_free(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise PlanError(f"out={str(target)!r} exists", "remove it, or name another folder: nothing is overwritten")


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turns errors of the system into the user's."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full" if full else error.strerror or str(error)
        raise StoreError(
            f"embeddings cannot be written to {path}: {what}; nothing was left behind", "name another folder: out=..."
        ) from error


def _claim(folder: Path) -> int:
    """Makes the folder, empty, for this process alone, until the descriptor is closed: the system takes it from a process that dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it before may have renamed or removed it meanwhile.
            if _is_same(descriptor, folder):
                for path in folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                return descriptor
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise PlanError(f"another process is writing {folder}", "wait for it, or name another folder: out=...") from None
            raise
        os.close(descriptor)


def _is_same(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


def _remove(folder: RunFolder, owner: int) -> None:
    if os.getpid() == owner:
        folder.close()
