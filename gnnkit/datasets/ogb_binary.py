"""OGB's binary files: arrays inside ``.npz`` files, and what ``torch.save`` wrote, read without torch and without running what is in it.

``numpy.load`` reads a member whole, which for ogbn-papers100M means 57 GB of features and 26 GB of edges.

OGB keeps the splits of its link datasets in such files. A pickle names functions and has them called; here every name that may come up
stands for a small function of this module that makes arrays, numbers, text and plain containers and nothing else, and any other name is
refused. Both formats are read: the zip archive of torch 1.6 and later, and the one before.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.ogb_table import RESTORE_HINT, unreadable
from gnnkit.datasets.streaming import read_ahead
from gnnkit.errors import DatasetError
from gnnkit.files import open_regular
from gnnkit.storage.files import NPY_DAMAGE
from gnnkit.storage.staging import check_memory
from gnnkit.unpickling import PickleRefused, RestrictedUnpickler, encode_latin1

# Deflate makes at most 1032 bytes of one (RFC 1951: 258 bytes for two bits).
_MOST_DEFLATED = 1032
_CHUNK_BYTES = 2 << 20
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_DAMAGE = (*NPY_DAMAGE, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)


@dataclass(frozen=True, slots=True)
class NpzMember:
    """One array of an ``.npz`` file.

    Attributes:
        path: The ``.npz`` file.
        name: The array's name.
        shape: Its shape.
        dtype: Its element type.
        fortran_order: Whether the first axis varies fastest in the file.
        header_bytes: Bytes before the first element.
        stored_at: Position in the file of the first element, where the member is stored as it is, and elements can be read without those
            before them; None where it is deflated.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    header_bytes: int
    stored_at: int | None = None

    def range(self, first: int, last: int) -> NDArray[Any]:
        """Elements ``[first, last)``, flat, of a member that is stored as it is; no checksum is looked at.

        Raises:
            DatasetError: The file cannot be read, or ends before them.
        """
        assert self.stored_at is not None, "what is deflated is read from its beginning"
        try:
            with open(open_regular(self.path), "rb", buffering=0) as file:
                found = np.fromfile(file, self.dtype, last - first, offset=self.stored_at + first * self.dtype.itemsize)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(found) < last - first:
            raise DatasetError(f"{self.path}: {self.name} ends early", RESTORE_HINT)
        return found.astype(self.dtype.newbyteorder("="), copy=False)

    def row_range(self, first: int, last: int) -> NDArray[Any]:
        """Rows ``[last - first, *shape[1:]]`` from ``first`` on; see ``range``.

        Raises:
            DatasetError: See ``range`` and ``rows``.
        """
        self._check_order()
        width = math.prod(self.shape[1:])
        return self.range(first * width, last * width).reshape(last - first, *self.shape[1:])

    def load(self) -> NDArray[Any]:
        """The whole array; for small ones."""
        count = math.prod(self.shape)
        check_memory(2 * count * self.dtype.itemsize, f"reading {self.name} of {self.path}")
        flat = [np.empty(0, self.dtype), *self._elements(0, count)]
        return np.concatenate(flat).reshape(self.shape, order="F" if self.fortran_order else "C")

    def rows(self) -> Iterator[NDArray[Any]]:
        """Yields ``[k, *shape[1:]]`` in order, about 2 MB at a time, inflated ahead in a thread.

        Raises:
            DatasetError: The member is truncated or corrupt (its checksum is verified at its end), or lies in the file
                column by column.
        """
        self._check_order()
        width = math.prod(self.shape[1:])
        for chunk in read_ahead(self._elements(0, self.shape[0] * width, multiple=max(1, width))):
            yield chunk.reshape(-1, *self.shape[1:])

    def _check_order(self) -> None:
        if self.fortran_order and sum(n > 1 for n in self.shape) > 1:
            message = f"{self.path}: {self.name} lies column by column (Fortran order); its rows cannot be streamed"
            raise DatasetError(message, "save it in C order")

    def pairs(self) -> Iterator[NDArray[Any]]:
        """Yields both rows of a ``[2, n]`` array side by side, as ``[2, k]``.

        In C order the second row starts behind the whole first one: two readers go through the member at once, one of
        which reads up to there first.
        """
        half = self.shape[1]
        if self.fortran_order:
            for chunk in read_ahead(self._elements(0, 2 * half, multiple=2)):
                yield np.stack([chunk[0::2], chunk[1::2]])
            return
        first = read_ahead(self._elements(0, half))
        second = read_ahead(self._elements(half, half))
        try:
            yield from map(np.stack, zip(first, second, strict=True))
        finally:
            first.close()
            second.close()

    def _elements(self, start: int, count: int, *, multiple: int = 1) -> Iterator[NDArray[Any]]:
        """Yields ``count`` elements from ``start`` on, flat, in the file's order, in chunks of a multiple of ``multiple``.

        What lies before ``start`` is read rather than skipped: a deflated member cannot be skipped, and a stored one is
        checked that way.
        """
        step = max(multiple, _CHUNK_BYTES // max(1, self.dtype.itemsize) // multiple * multiple)
        check_memory(step * self.dtype.itemsize, f"reading {self.name} of {self.path}")  # a file may have rows of any length
        with _reading(self.path, self.name) as file:
            _skip(file, self.header_bytes + start * self.dtype.itemsize)
            done = 0
            while done < count:
                size = min(step, count - done)
                # bytearray: arrays that the consumer keeps are writable, as those that were parsed are.
                data = bytearray(file.read(size * self.dtype.itemsize))
                if len(data) < size * self.dtype.itemsize:
                    raise EOFError("the data ends too early")
                yield np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder("="), copy=False)
                done += size
            if start + count == math.prod(self.shape) and file.read(1):
                raise ValueError("more data than its header says")


def npz_members(path: Path) -> dict[str, NpzMember]:
    """Every array of an ``.npz`` file, by name; reads headers only.

    Raises:
        DatasetError: The file is missing or no ``.npz``, or a member is no array or holds Python objects.
    """
    try:
        with open(open_regular(path), "rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except _DAMAGE as error:
        raise unreadable(path, error) from error
    return {item.filename.removesuffix(".npy"): _member(path, item) for item in members}


def _member(path: Path, item: zipfile.ZipInfo) -> NpzMember:
    name = item.filename.removesuffix(".npy")
    with _reading(path, name) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f".npy version {version} is not known")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the file is of Python 2
            shape, fortran_order, dtype = _HEADERS[version](file)
        if dtype.hasobject or dtype.fields is not None:
            raise ValueError(f"elements of type {dtype} would have to be unpickled; gnnkit does not")
        if any(n < 0 for n in shape):
            raise ValueError(f"it has the shape {shape}")
        # What a zip file says of a member's size may be as wrong as the member's header.
        nbytes, on_disk = math.prod(shape) * dtype.itemsize, path.stat().st_size
        if nbytes > on_disk * (1 if item.compress_type == zipfile.ZIP_STORED else _MOST_DEFLATED):
            raise ValueError(f"its header claims {nbytes} bytes, which a file of {on_disk} bytes cannot hold")
        header_bytes = file.tell()
        stored_at = _data_position(path, item) + header_bytes if item.compress_type == zipfile.ZIP_STORED else None
        return NpzMember(path, name, tuple(int(n) for n in shape), dtype, fortran_order, header_bytes, stored_at)


# Of the header before each member's data (APPNOTE 4.3.7): its length without name and extra field, and where the lengths of these are.
_LOCAL_HEADER, _LOCAL_LENGTHS = 30, 26


def _data_position(path: Path, item: zipfile.ZipInfo) -> int:
    """The position of a member's data in the file; its header has been read, so there is one."""
    with open(open_regular(path), "rb") as file:
        file.seek(item.header_offset + _LOCAL_LENGTHS)
        name, extra = np.frombuffer(file.read(4), "<u2").tolist()
    return item.header_offset + _LOCAL_HEADER + int(name) + int(extra)


@contextmanager
def _reading(path: Path, name: str) -> Iterator[IO[bytes]]:
    try:
        with open(open_regular(path), "rb") as packed, zipfile.ZipFile(packed) as archive, archive.open(f"{name}.npy") as file:
            yield file
    except KeyError as error:
        raise DatasetError(f"{path} has no array {name!r}", RESTORE_HINT) from error
    except _DAMAGE as error:
        raise unreadable(path / f"{name}.npy", error) from error


def _skip(file: IO[bytes], count: int) -> None:
    while count > 0:
        data = file.read(min(count, _CHUNK_BYTES))
        if not data:
            raise EOFError("the data ends too early")
        count -= len(data)


# torch/serialization.py: the first two pickles of the format before torch 1.6.
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_ZIP_HEADER = b"PK\x03\x04"
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_DTYPE = re.compile(r"[<>|=]?[biufSU?]\d{0,6}")


def read_saved(path: Path) -> Any:
    """The value in a file of ``torch.save``, tensors as arrays.

    Returns:
        Arrays, numbers, text, None, and dicts, lists and tuples of them.

    Raises:
        DatasetError: The file is missing or damaged, or holds anything else, which is named.
    """
    try:
        with open(open_regular(path), "rb") as file:
            zipped = file.read(len(_ZIP_HEADER)) == _ZIP_HEADER
            file.seek(0)
            return _plain(_read_zip(file) if zipped else _read_legacy(file, os.fstat(file.fileno()).st_size))
    except PickleRefused as error:
        raise DatasetError(f"{path} {error}", "gnnkit runs nothing that a dataset's files ask for; restore OGB's own file") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except (Exception, RecursionError) as error:  # damaged bytes raise nearly anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DatasetError(f"{path} cannot be read as torch.save wrote it: {reason}", RESTORE_HINT) from error


class _FromFile:
    """Something that a file has had made; it cannot set anything on it afterwards."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise PickleRefused(f"changes {getattr(self, 'name', type(self).__name__)}")


class _TensorStorage(_FromFile):
    """The numbers of tensors: one-dimensional, there once ``values`` is set."""

    __slots__ = ("dtype", "numel", "values")

    def __init__(self, dtype: str, numel: int) -> None:
        self.dtype, self.numel = np.dtype(dtype), numel
        self.values: NDArray[Any] | None = None


class _Tensor(_FromFile):
    """A view of a storage."""

    __slots__ = ("offset", "size", "storage", "stride")

    def __init__(self, storage: _TensorStorage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> None:
        if not isinstance(storage, _TensorStorage) or len(size) != len(stride):
            raise PickleRefused("holds a tensor that is none")
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride

    def array(self) -> NDArray[Any]:
        """The view's values, after it was found to lie in its storage."""
        values = self.storage.values
        assert values is not None
        if not all(isinstance(n, int) and n >= 0 for n in (self.offset, *self.size, *self.stride)):
            raise PickleRefused(f"holds a tensor of size {self.size} and strides {self.stride}")
        if 0 in self.size:
            return np.empty(self.size, values.dtype)
        last = self.offset + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        if last >= len(values):
            raise PickleRefused(f"holds a tensor that reaches to number {last} of {len(values)}")
        if math.prod(self.size) > len(values):
            raise PickleRefused(f"holds a tensor of {math.prod(self.size)} numbers that is made of {len(values)}")
        strides = tuple(step * values.itemsize for step in self.stride)
        return np.lib.stride_tricks.as_strided(values[self.offset :], self.size, strides, writeable=False)


class _Dtype:
    """A NumPy dtype of plain numbers or text."""

    __slots__ = ("dtype",)

    def __init__(self, text: str, *_: Any) -> None:
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise PickleRefused(f"holds an array of dtype {str(text)[:40]!r}, where numbers or text may be")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        if order not in ("<", ">", "=", "|") or any(part is not None for part in state[2:5]):
            raise PickleRefused("holds an array of a dtype with fields, where numbers or text may be")
        self.dtype = self.dtype if order == "|" else self.dtype.newbyteorder(order)


class _Array:
    """A NumPy array, there once its state is set."""

    __slots__ = ("values",)

    def __init__(self, *_: Any) -> None:
        self.values: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise PickleRefused("holds an array of objects, where numbers or text may be")
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise PickleRefused(f"holds an array of shape {shape}")
        self.values = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if is_fortran else "C")


class _Name(_FromFile):
    """The stand-in for a name in the file.

    Args:
        name: The name.
        make: Makes the value of a call of it; None for a name that is only mentioned.
    """

    __slots__ = ("_make", "name")

    def __init__(self, name: str, make: Callable[..., Any] | None = None) -> None:
        self.name, self._make = name, make

    def __call__(self, *arguments: Any) -> Any:
        if self._make is None:
            raise PickleRefused(f"calls {self.name}")
        return self._make(*arguments)


def _names() -> dict[str, _Name]:
    made: dict[str, Callable[..., Any] | None] = {
        "torch._utils._rebuild_tensor_v2": _Tensor,
        "torch._utils._rebuild_tensor": _Tensor,
        "collections.OrderedDict": dict,
        "_codecs.encode": encode_latin1,
        "__builtin__.bytes": lambda: b"",  # protocol 2 has bytes called for those of an empty array
        "numpy.dtype": _Dtype,
        "numpy.ndarray": None,
    }

    def scalar(dtype: _Dtype, data: bytes) -> Any:
        return np.frombuffer(data, dtype.dtype)[0].item()

    for package in ("numpy.core", "numpy._core"):
        made |= {f"{package}.multiarray._reconstruct": _Array, f"{package}.multiarray.scalar": scalar}
    made |= {f"torch.{storage}": None for storage in _STORAGES}
    return {name: _Name(name, make) for name, make in made.items()}


_NAMES = _names()


def _unpickler(file: BinaryIO, storage: Callable[[str, str, int], _TensorStorage]) -> RestrictedUnpickler:
    """Unpickles with the names above, and no others."""

    def persistent_load(pid: Any) -> _TensorStorage:
        kind, storage_type, key, _, numel, *view = pid
        name = storage_type.name.rpartition(".")[2] if isinstance(storage_type, _Name) else ""
        if kind != "storage" or name not in _STORAGES or any(part is not None for part in view):
            raise PickleRefused("holds a tensor of an unknown kind")
        if not isinstance(numel, int) or numel < 0:
            raise PickleRefused(f"holds a storage of {numel} numbers")
        return storage(str(key), _STORAGES[name], numel)

    return RestrictedUnpickler(file, _NAMES, persistent_load)


def _read_zip(file: BinaryIO) -> Any:
    """The format of torch 1.6 and later: one pickle, and a member for each storage, none of them compressed."""
    with zipfile.ZipFile(file) as archive:
        members = {item.filename: item for item in archive.infolist()}
        (main,) = (name for name in members if name.count("/") == 1 and name.endswith("/data.pkl"))
        folder = main.partition("/")[0]
        if any(item.compress_type != zipfile.ZIP_STORED for item in members.values()):
            raise PickleRefused("is a compressed archive, which torch.save does not write")
        order = f"{folder}/byteorder"
        if order in members and archive.read(order) != b"little":
            raise PickleRefused("was written on a machine of the other byte order")
        storages: dict[str, _TensorStorage] = {}

        def storage(key: str, dtype: str, numel: int) -> _TensorStorage:
            if key not in storages:
                made = storages[key] = _TensorStorage(dtype, numel)
                made.values = np.frombuffer(archive.read(f"{folder}/data/{key}"), made.dtype)
                if len(made.values) < numel:
                    raise PickleRefused(f"holds {len(made.values)} numbers where {numel} must be")
            return storages[key]

        return _unpickler(io.BytesIO(archive.read(main)), storage).load()


def _read_legacy(file: BinaryIO, size: int) -> Any:
    """The format before torch 1.6: five pickles in a row, then the storages."""
    storages: dict[str, _TensorStorage] = {}

    def storage(key: str, dtype: str, numel: int) -> _TensorStorage:
        return storages.setdefault(key, _TensorStorage(dtype, numel))

    def load() -> Any:
        return _unpickler(file, storage).load()

    if load() != _MAGIC or load() != _PROTOCOL:
        raise PickleRefused("is no file of torch.save")
    system = load()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise PickleRefused("was written on a machine of the other byte order")
    value, keys = load(), load()
    for key in keys:
        if key not in storages:
            raise PickleRefused(f"holds a storage {str(key)[:40]!r} that nothing uses")
        made = storages[key]
        (count,) = struct.unpack("<q", file.read(8))
        if count != made.numel or count * made.dtype.itemsize > size:
            raise PickleRefused(f"holds {count} numbers where {made.numel} must be")
        made.values = np.frombuffer(file.read(count * made.dtype.itemsize), made.dtype)
        if len(made.values) != count:
            raise PickleRefused("ends early")
    if any(made.values is None for made in storages.values()):
        raise PickleRefused("lacks the numbers of a tensor")
    return value


def _plain(value: Any) -> Any:
    """The value with arrays in the place of what stands for them."""
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, _Tensor):
        return value.array()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        # Lists of millions of names are left as they are.
        return value if kinds <= {str, int, float, bool} else type(value)(map(_plain, value))
    if value is None or isinstance(value, (str, int, float, bool, bytes)):
        return value
    raise PickleRefused(f"holds {getattr(value, 'name', type(value).__name__)}, which is neither an array nor a plain container")
