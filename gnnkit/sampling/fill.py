"""The gathering kernel: copies everything that a batch holds into its block of memory, in one call without the GIL."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.native import copy_bytes, load_i64, prefetch, store_i64
from gnnkit.sampling.passes import find_part, load_id

# Columns of ``steps`` [num_steps, 7].
KIND, IDS, COUNT, WIDTH, TARGET, TABLE, BOUNDS = range(7)
# A step without its target, and the address of the target: KIND, IDS, COUNT, WIDTH, TABLE, BOUNDS.
RowStep: TypeAlias = tuple[int, tuple[int, int, int, int, int, int]]
# Kinds: copy int64 as they are; look ids up and widen them to int64; gather rows of ``WIDTH`` bytes.
COPY, LOOK_UP, GATHER = range(3)

_LINE = 64
# Rows asked of memory ahead of the one being copied: enough to cover a DRAM access at the speed of one core.
_AHEAD = 16


@helper
def _gather(parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, width: int, target: int) -> None:
    single = bounds.size == 2
    for i in range(min(count, _AHEAD)):
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        prefetch(parts[p] + (v - bounds[p]) * width)
    for i in range(count):
        if i + _AHEAD < count:
            v = load_i64(ids + (i + _AHEAD) * 8)
            p = 0 if single else find_part(bounds, v)
            ahead = parts[p] + (v - bounds[p]) * width
            for offset in range(0, width, _LINE):
                prefetch(ahead + offset)
            prefetch(ahead + width - 1)
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        source = parts[p] + (v - bounds[p]) * width
        copy_bytes(target + i * width, source, width)


@helper
def _gather_words(parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, target: int) -> None:
    """Rows of one 64-bit value, such as labels: one line each, so more of them are asked for ahead."""
    single = bounds.size == 2
    for i in range(count):
        if i + 2 * _AHEAD < count:
            v = load_i64(ids + (i + 2 * _AHEAD) * 8)
            p = 0 if single else find_part(bounds, v)
            prefetch(parts[p] + (v - bounds[p]) * 8)
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        store_i64(target + i * 8, load_i64(parts[p] + (v - bounds[p]) * 8))


@helper
def _look_up(parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, width: int, target: int) -> bool:
    """Writes the ids that rows have in the dataset; False where one is none of the dataset's."""
    single, inside = bounds.size == 2, True
    for i in range(count):
        if i + _AHEAD < count:
            v = load_i64(ids + (i + _AHEAD) * 8)
            p = 0 if single else find_part(bounds, v)
            prefetch(parts[p] + (v - bounds[p]) * width)
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        value = load_id(parts[p], v - bounds[p], width)
        inside &= 0 <= value < bounds[bounds.size - 1]
        store_i64(target + i * 8, value)
    return inside


@kernel("boolean(int64[:, ::1], int64[:, ::1], int64[:, ::1])")
def fill(steps: NDArray[np.int64], tables: NDArray[np.int64], bounds: NDArray[np.int64]) -> bool:
    """Runs the steps in order.

    Args:
        steps: int64 ``[S, 7]``, see the column names above; ``IDS`` and ``TARGET`` are addresses.
        tables: int64 ``[A, P]``: for each array, the address of every part's rows.
        bounds: int64 ``[B, P + 1]``: for each type, the id at which every part starts.

    Returns:
        Whether every id that was looked up is one that its type has.
    """
    inside = True
    for s in range(steps.shape[0]):
        step = steps[s]
        if step[KIND] == COPY:
            copy_bytes(step[TARGET], step[IDS], step[COUNT] * 8)
        elif step[KIND] == LOOK_UP:
            inside &= _look_up(tables[step[TABLE]], bounds[step[BOUNDS]], step[IDS], step[COUNT], step[WIDTH], step[TARGET])
        elif step[WIDTH] == 8:
            _gather_words(tables[step[TABLE]], bounds[step[BOUNDS]], step[IDS], step[COUNT], step[TARGET])
        else:
            _gather(tables[step[TABLE]], bounds[step[BOUNDS]], step[IDS], step[COUNT], step[WIDTH], step[TARGET])
    return inside
