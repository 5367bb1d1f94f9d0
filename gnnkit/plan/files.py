"""Plans in JSON and as files: written whole or not at all, with the store's path as it is seen from the file."""

from __future__ import annotations

import base64
import inspect
import json
import math
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.bounds import check_text, is_whole, shown
from gnnkit.errors import PlanError
from gnnkit.files import os_errors, read_json, write_whole
from gnnkit.host import available_memory
from gnnkit.schema import EdgeType
from gnnkit.urls import is_url

T = TypeVar("T")
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
        DamagedPart: The value is none of its, or says that it is larger than a quarter of the memory that is free.
    """
    if value is None:
        return None
    try:
        return _array_from(value)
    except DamagedPart:
        raise
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise DamagedPart(f"{shown(value)} is no array as a plan holds it") from error


class DamagedPart(ValueError):
    """The fault of a part of a plan, in words."""


def _array_from(value: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape, data = np.dtype(str(value["dtype"])), value["shape"], value["data"]
    if dtype.kind not in "biuf":
        raise DamagedPart(f"an array of {dtype}")
    if not (isinstance(data, str) and isinstance(shape, list) and len(shape) <= _MOST_AXES and all(map(is_whole, shape))):
        raise DamagedPart(f"an array of shape {str(shape)[:100]}")
    nbytes, limit = math.prod(shape) * dtype.itemsize, available_memory() // 4
    if nbytes > limit:
        raise DamagedPart(f"an array of {nbytes / 1e6:.0f} MB; {limit / 1e6:.0f} MB are allowed, a quarter of the memory that is free")
    packed = base64.b64decode(data, validate=True)
    if nbytes > (len(packed) + 1) * _MOST_INFLATION:
        raise DamagedPart(f"an array of {nbytes} bytes whose data are {len(packed)}")
    flat, inflater, filled = np.empty(nbytes, np.uint8), zlib.decompressobj(), 0
    piece = inflater.decompress(packed, _PIECE)
    while piece:
        if filled + len(piece) > nbytes:
            raise DamagedPart(f"an array of {nbytes} bytes whose data are more")
        flat[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
        piece = inflater.decompress(inflater.unconsumed_tail, _PIECE)
    if filled != nbytes or not inflater.eof:
        raise DamagedPart(f"an array of {nbytes} bytes whose data are {filled}")
    return flat.view(dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def edge_type_from_json(value: Sequence[Any]) -> EdgeType:
    """An edge type from the list that JSON makes of it.

    Raises:
        PlanError: It is none.
    """
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        raise PlanError(f"an edge type of the plan must be [source, relation, target], got {shown(value)}", _HINT)
    source, relation, target = map(type_from_json, value)
    return source, relation, target


def type_from_json(value: Any) -> str:
    """The name of a type.

    Raises:
        PlanError: It is none.
    """
    check_text("a type of the plan", value)
    return str(value)


def part_of(value: Mapping[str, Any], name: str, read: Callable[[Any], T]) -> T:
    """Reads a part of a plan.

    Args:
        value: The plan.
        name: The part's name.
        read: Reads it.

    Raises:
        PlanError: It is missing, or cannot be read.
    """
    if name not in value:
        raise PlanError(f"the plan cannot be read: it says nothing of {name!r}", _HINT)
    try:
        return read(value[name])
    except PlanError:
        raise
    except KeyError as error:
        raise PlanError(f"the plan's {name} lacks {error}", _HINT) from error
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        what = error if isinstance(error, DamagedPart) else shown(value[name])
        raise PlanError(f"the plan's {name} cannot be read: {what}", _HINT) from error


def options_of(kind: Callable[..., T], value: Mapping[str, Any]) -> T:
    """Makes an object of its values by name.

    Raises:
        DamagedPart: There is a name too many, or one is missing.
    """
    try:
        inspect.signature(kind).bind(**value)
    except TypeError as error:
        raise DamagedPart(f"{error}, in {shown(value)}" if isinstance(value, dict) else shown(value)) from error
    return kind(**value)


_HINT = "write it with loader.plan.save('plan.json')"
# Of a plan: seeds that are written out are compressed, about 3 bytes each.
_MOST_BYTES = 1 << 30


def write_plan_file(value: Mapping[str, Any], path: Path) -> None:
    """Puts the JSON of a plan into a file, all at once: no reader sees half of it, and a full disk leaves what was there.

    Raises:
        PlanError: The file cannot be written.
    """
    with os_errors(f"the plan {str(path)!r} cannot be written", None, "choose another folder"):
        write_whole(path, json.dumps(value, indent=1) + "\n")


def read_plan_file(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        PlanError: The file cannot be read or holds none.
    """
    try:
        value = read_json(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise PlanError(f"cannot read the plan {str(path)!r}: {error}", _HINT) from error
    if not isinstance(value, dict):
        raise PlanError(f"{str(path)!r} holds no plan", _HINT)
    return value


def path_from(folder: Path, target: str) -> str:
    """A path as it is to be written into a file of ``folder``: relative where both lie below a common folder, so that this can be moved.

    The root of all folders is none: what shares only that moves apart, and is written as it is.
    """
    if not os.path.isabs(target):
        return target
    here = folder.absolute()
    if Path(target).is_relative_to(here):
        return os.path.relpath(target, here)
    # ".." leads to where a folder really is, whatever links lead into it.
    real, base = os.path.realpath(target), os.path.realpath(here)
    common = os.path.commonpath([real, base])
    return target if common == os.path.dirname(common) else os.path.relpath(real, base)


def path_in(folder: Path, written: str) -> str:
    """Reverses ``path_from``: an absolute path to the same place, or the URL that was written."""
    if os.path.isabs(written) or is_url(written):
        return written
    here = os.path.realpath(folder) if ".." in Path(written).parts else str(folder.absolute())
    return os.path.normpath(os.path.join(here, written))
