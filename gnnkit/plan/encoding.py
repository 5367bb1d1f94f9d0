"""Arrays and typed keys in JSON."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.host import available_memory
from gnnkit.schema import EdgeType

# NumPy 1.26 knows no more axes.
_MOST_AXES = 32
# zlib makes no byte stand for more.
_MOST_INFLATION = 1032
_PIECE = 1 << 20


def array_to_json(array: NDArray[Any] | None) -> dict[str, Any] | None:
    """An array of numbers as little-endian bytes, zlib-compressed, in base64; None stays None."""
    if array is None:
        return None
    stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    data = base64.b64encode(zlib.compress(stored.tobytes())).decode()
    return {"dtype": stored.dtype.str, "shape": list(stored.shape), "data": data}


def array_from_json(value: Mapping[str, Any] | None) -> NDArray[Any] | None:
    """Reverses ``array_to_json``. A few bytes inflate to gigabytes: what they say they are is held against what is free before any are.

    Raises:
        ValueError: The value is none of its, or says that it is larger than a quarter of the memory that is free.
    """
    if value is None:
        return None
    dtype, shape, data = np.dtype(str(value["dtype"])), value["shape"], value["data"]
    if dtype.kind not in "biuf":
        raise ValueError(f"an array of {dtype}")
    if (
        not isinstance(data, str)
        or not isinstance(shape, list)
        or any(type(n) is not int or n < 0 for n in shape)
        or len(shape) > _MOST_AXES
    ):
        raise ValueError(f"an array of shape {str(shape)[:100]}")
    nbytes, limit = math.prod(shape) * dtype.itemsize, available_memory() // 4
    if nbytes > limit:
        raise ValueError(f"an array of {nbytes / 1e6:.0f} MB; {limit / 1e6:.0f} MB are allowed, a quarter of the memory that is free")
    packed = base64.b64decode(data, validate=True)
    if nbytes > (len(packed) + 1) * _MOST_INFLATION:
        raise ValueError(f"an array of {nbytes} bytes whose data are {len(packed)}")
    flat, inflater, filled = np.empty(nbytes, np.uint8), zlib.decompressobj(), 0
    piece = inflater.decompress(packed, _PIECE)
    while piece:
        if filled + len(piece) > nbytes:
            raise ValueError(f"an array of {nbytes} bytes whose data are more")
        flat[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
        piece = inflater.decompress(inflater.unconsumed_tail, _PIECE)
    if filled != nbytes or not inflater.eof:
        raise ValueError(f"an array of {nbytes} bytes whose data are {filled}")
    return flat.view(dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def edge_type_from_json(value: Sequence[Any]) -> EdgeType:
    """An edge type from the list that JSON makes of it."""
    source, relation, target = value
    return str(source), str(relation), str(target)
