"""Values of calls between processes: JSON with arrays in it. Nothing that arrives is unpickled.

A value is a JSON tree and one block of memory for all of its arrays. On one host the block travels by descriptor (``encode``), between
hosts behind the tree's text (``to_pieces``). What JSON has no word for is a dict with the single key ``"#"``, which no other dict is
written as.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.runtime.wire import from_memory

# Changes with the meaning of messages: hosts that run different versions refuse each other, and so do servers and their clients.
PROTOCOL_VERSION = 8
# NumPy's kinds of numbers: what is of a fixed size in memory.
_KINDS = "biufc"
_ALIGNMENT = 64
_PADDING = memoryview(bytes(_ALIGNMENT))
_TAG = "#"
# Values that a text may hold beside its arrays, counted by what stands between them.
_MOST_VALUES, _BETWEEN = 1 << 20, (b",", b"[", b"{")


def encode(value: Any) -> tuple[Any, list[bytes]]:
    """A value as a JSON tree and descriptors, of which there is at most one.

    Args:
        value: None, bool, int, float, str, bytes, an array of numbers, or a list, tuple or dict of these; a dict's keys are strings,
            numbers or tuples of them.

    Returns:
        The tree, and descriptors that the caller owns.

    Raises:
        PlanError: There is something else in it.
    """
    arrays: list[NDArray[Any]] = []
    tree = _write(value, arrays)
    return tree, [b"".join(_pieces(arrays))] if arrays else []


def send_value(send: Callable[..., Any], kind: str, key: str, value: Any, /, **body: Any) -> None:
    """Sends a message with a value in it.

    Args:
        send: ``Wire.send`` or the like.
        kind: The message's kind.
        key: The value's key in the message.
        value: See ``encode``.
        **body: What else the message says.

    Raises:
        PlanError: See ``encode``.
    """
    tree, blocks = encode(value)
    send(kind, blocks, **{key: tree}, **body)


def decode(tree: Any, fds: Sequence[int] = ()) -> Any:
    """Reverses ``encode``; closes the descriptors.

    Raises:
        PlanError: The tree is none of its.
    """
    for fd in fds[1:]:
        os.close(fd)
    try:
        # A copy that may be written to: arrays lie in it.
        return _read(tree, np.frombuffer(bytearray(from_memory(fds[0]) if fds else b""), np.uint8))
    except (OSError, RecursionError) as error:
        raise PlanError(f"a message cannot be read: {error}") from error


def to_pieces(value: Any) -> tuple[bytes, list[memoryview]]:
    """A value as the text of its JSON tree and the pieces of its block, which are not copied; see ``encode``."""
    arrays: list[NDArray[Any]] = []
    text = json.dumps(_write(value, arrays), separators=(",", ":")).encode()
    return text, _pieces(arrays)


def from_pieces(text: bytes, block: NDArray[np.uint8]) -> Any:
    """Reverses ``to_pieces``; arrays lie in the block, which is the receiver's own.

    Raises:
        PlanError: They are none of its.
    """
    if sum(map(text.count, _BETWEEN)) > _MOST_VALUES:  # while a text is read, no other thread works
        raise PlanError(f"a message of more than {_MOST_VALUES} values cannot be read", "numbers travel in arrays")
    try:
        return _read(json.loads(text), block)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"a message cannot be read: {error}") from error


def _write(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return number if math.isfinite(number) else {_TAG: ["float", repr(number)]}
    if isinstance(value, bytes):
        return {_TAG: ["bytes", _write(np.frombuffer(value, np.uint8), arrays)]}
    if isinstance(value, np.ndarray):
        return _write_array(value, arrays)
    if isinstance(value, tuple):
        return {_TAG: ["tuple", [_write(item, arrays) for item in value]]}
    if isinstance(value, list):
        return [_write(item, arrays) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and set(value) != {_TAG}:
            return {key: _write(item, arrays) for key, item in value.items()}
        return {_TAG: ["dict", [[_write(key, arrays), _write(item, arrays)] for key, item in value.items()]]}
    raise PlanError(f"a {type(value).__name__} cannot be sent to a server", "send numbers, texts, arrays, and lists or dicts of them")


def _write_array(values: NDArray[Any], arrays: list[NDArray[Any]]) -> Any:
    if values.dtype.kind not in _KINDS:
        raise PlanError(f"an array of {values.dtype} cannot be sent to a server", "send an array of numbers")
    values = np.ascontiguousarray(values).reshape(values.shape)  # the former makes an array of a number
    offset = sum(padded(array.nbytes) for array in arrays)
    arrays.append(values)
    return {_TAG: ["array", values.dtype.str, list(values.shape), offset]}


def _read(tree: Any, block: NDArray[np.uint8]) -> Any:
    if isinstance(tree, list):
        return [_read(item, block) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if set(tree) != {_TAG}:
        return {key: _read(item, block) for key, item in tree.items()}
    try:
        kind, *rest = tree[_TAG]
        if kind == "array":
            return _read_array(rest[0], rest[1], rest[2], block)
        if kind == "tuple":
            return tuple(_read(item, block) for item in rest[0])
        if kind == "dict":
            return {_read(key, block): _read(item, block) for key, item in rest[0]}
        if kind == "float":
            return float(rest[0])
        if kind == "bytes":
            return _read(rest[0], block).tobytes()
    except PlanError:
        raise
    except (AttributeError, IndexError, OverflowError, SyntaxError, TypeError, ValueError) as error:
        raise PlanError(f"a message cannot be read: {error}") from error
    raise PlanError(f"a message has a value of the unknown kind {kind!r}")


def _read_array(name: str, shape: list[int], offset: int, block: NDArray[np.uint8]) -> NDArray[Any]:
    dtype = np.dtype(name)
    if dtype.kind not in _KINDS:
        raise PlanError(f"a message has an array of {dtype}")
    if any(size < 0 for size in shape) or offset < 0:
        raise PlanError(f"a message has an array of shape {shape} at {offset}")
    found: NDArray[Any] = np.frombuffer(block, dtype, math.prod(shape), offset).reshape(shape)
    return found if found.flags.aligned else found.copy()


def _pieces(arrays: list[NDArray[Any]]) -> list[memoryview]:
    """The memory of arrays one behind the other, each at a multiple of ``_ALIGNMENT``."""
    pieces = []
    for array in arrays:
        if array.nbytes:
            pieces.append(array.reshape(-1).view(np.uint8).data)
            if padding := padded(array.nbytes) - array.nbytes:
                pieces.append(_PADDING[:padding])
    return pieces


def padded(nbytes: int) -> int:
    """Bytes that an array takes in a block."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
