"""Arrays and typed keys in JSON."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import EdgeType


def array_to_json(array: NDArray[Any] | None) -> dict[str, Any] | None:
    """An array of numbers as little-endian bytes, zlib-compressed, in base64; None stays None."""
    if array is None:
        return None
    stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    data = base64.b64encode(zlib.compress(stored.tobytes())).decode()
    return {"dtype": stored.dtype.str, "shape": list(stored.shape), "data": data}


def array_from_json(value: Mapping[str, Any] | None) -> NDArray[Any] | None:
    """Reverses ``array_to_json``.

    Raises:
        ValueError: The value is none of its.
    """
    if value is None:
        return None
    dtype = np.dtype(str(value["dtype"]))
    if dtype.kind not in "biuf":
        raise ValueError(f"an array of {dtype}")
    flat = np.frombuffer(zlib.decompress(base64.b64decode(value["data"])), dtype)
    return flat.reshape([int(n) for n in value["shape"]]).astype(dtype.newbyteorder("="))


def edge_type_from_json(value: Sequence[Any]) -> EdgeType:
    """An edge type from the list that JSON makes of it."""
    source, relation, target = value
    return str(source), str(relation), str(target)
