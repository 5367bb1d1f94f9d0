"""Reading and writing the tensors and pickles of graphlearn-torch's files without running what is in them."""

from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.files import open_regular


def _load_storage(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _encode_latin1(text: str, encoding: str) -> bytes:
    # Protocol 2 pickles bytes as text; nothing but the inverse of that is allowed.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin1")


def _tensor_globals() -> dict[tuple[str, str], Callable[..., Any]]:
    """The only callables that a pickled tensor needs, and what stands for them here."""
    return {
        ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
        ("torch.storage", "_load_from_bytes"): _load_storage,
        ("collections", "OrderedDict"): OrderedDict,
        ("_codecs", "encode"): _encode_latin1,
    }


class _Unpickler(pickle.Unpickler):
    """Unpickles plain values and, where asked to, tensors; refuses everything else."""

    def __init__(self, file: BinaryIO, allowed: dict[tuple[str, str], Callable[..., Any]]) -> None:
        super().__init__(file)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        found = self._allowed.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed here")
        return found


def damaged(path: Path, reason: object) -> DatasetError:
    """The error for a file that cannot be what the layout says it is."""
    return DatasetError(
        f"{path} cannot be read as graphlearn-torch wrote it: {reason}", "partition the graph again, or copy the folder again"
    )


def _unreadable(path: Path, exc: Exception) -> DatasetError:
    """The error for whatever reading ``path`` raised: unpickling damaged bytes can raise nearly anything."""
    if isinstance(exc, FileNotFoundError):
        return DatasetError(f"{path} does not exist", "give the folder that a graphlearn-torch partitioner wrote")
    return damaged(path, f"{type(exc).__name__}: {exc}".splitlines()[0])


def read_plain_pickle(path: Path) -> Any:
    """Unpickles numbers, text and plain containers.

    Raises:
        DatasetError: The file is missing, damaged, or asks for any class or function.
    """
    try:
        with open(open_regular(path), "rb") as file:
            return _Unpickler(file, {}).load()
    except Exception as exc:
        raise _unreadable(path, exc) from exc


def read_tensor(path: Path) -> torch.Tensor:
    """Maps a tensor that ``torch.save`` wrote; nothing in it is run.

    Raises:
        DatasetError: The file is missing, damaged or holds anything but a plain tensor.
    """
    try:
        os.close(open_regular(path))  # a pipe would be waited for
        try:
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            # Files of the format before torch 1.6 cannot be mapped.
            value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:
        raise _unreadable(path, exc) from exc
    if not isinstance(value, torch.Tensor):
        raise damaged(path, f"it holds a {type(value).__name__} instead of a tensor")
    return value


def read_ids(path: Path) -> NDArray[np.int64]:
    """Maps a one-dimensional tensor of ids as int64.

    Raises:
        DatasetError: As ``read_tensor``, or the tensor has another shape or kind.
    """
    return as_ids(path, read_tensor(path))


def as_ids(path: Path, tensor: torch.Tensor) -> NDArray[np.int64]:
    """A tensor of ids as int64 ``[n]``; ``path`` is for the error."""
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise damaged(path, f"it holds {tensor.dtype} of shape {list(tensor.shape)} instead of ids")
    return tensor.numpy().astype(np.int64, copy=False)


def read_pickled_tensors(path: Path) -> Iterator[torch.Tensor]:
    """Yields the tensors of a ``.pkl`` file one by one.

    Raises:
        DatasetError: The file is missing, damaged or holds anything but plain tensors.
    """
    allowed = _tensor_globals()
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while file.tell() < size:
                value = _Unpickler(file, allowed).load()
                if not isinstance(value, torch.Tensor):
                    raise damaged(path, f"it holds a {type(value).__name__} instead of a tensor")
                yield value
    except DatasetError:
        raise
    except Exception as exc:
        raise _unreadable(path, exc) from exc


def write_pickled_tensors(path: Path, tensors: Iterator[torch.Tensor]) -> None:
    """Pickles tensors one after another; each must own its storage, all of which is written."""
    with path.open("wb") as file:
        for tensor in tensors:
            pickle.dump(tensor, file, pickle.HIGHEST_PROTOCOL)


def to_tensor(values: NDArray[Any], dtype: str) -> torch.Tensor:
    """Copies an array of an ``ArraySpec``'s dtype into a tensor."""
    if dtype == "bfloat16":
        return torch.from_numpy(np.array(values, dtype=np.uint16).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(values))


def to_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's values; bfloat16 as uint16 bit patterns."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def dtype_name(tensor: torch.Tensor) -> str:
    """The dtype as an ``ArraySpec`` spells it."""
    return str(tensor.dtype).removeprefix("torch.")
