"""Rows of one element type as rows of another: narrower floats, and features in 8, 4 or 2 bits a number.

``gnnkit.schema.ELEMENT_TYPES`` says which types there are, and ``Quantization`` how numbers of few bits lie in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, StoreError
from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.native import begin_of, byte_at, float_at, set_float
from gnnkit.schema import ArraySpec, Quantization, element_type


def convert_rows(rows: NDArray[Any], source: ArraySpec, target: ArraySpec, name: str) -> NDArray[Any]:
    """Rows of one kind as rows of another.

    Args:
        rows: ``[k, *row_shape]``; as they are stored.
        source: What ``rows`` are.
        target: What is wanted.
        name: What the array is called, for the error.

    Raises:
        PlanError: A finite value is beyond what the type can hold.
    """
    if source == target:
        return rows
    values = _numbers(rows, source.dtype)
    if target.quantization is not None:
        return quantize_rows(values, target.quantization, name)
    return _cast(values, target.dtype, name)


def _numbers(rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Floating-point numbers as NumPy has them."""
    decode = element_type(dtype).decode
    return rows if decode is None else decode(rows)


def _cast(values: NDArray[Any], dtype: str, name: str) -> NDArray[Any]:
    encode = element_type(dtype).encode
    with np.errstate(over="ignore"):
        converted = values.astype(dtype) if encode is None else encode(values.astype(np.float32))
    beyond = is_lost(values, _numbers(converted, dtype))
    if beyond.any():
        raise PlanError(f"{name} holds {float(values[beyond][0])!r}, which {dtype} cannot hold", KEEP_THEM)
    return converted


def is_lost(values: NDArray[Any], narrowed: NDArray[Any], *, to_zero: bool = False) -> NDArray[np.bool_]:
    """Which numbers a narrower type does not hold: finite ones that are no longer, and with ``to_zero`` others that became 0."""
    lost: NDArray[np.bool_] = ~np.isfinite(narrowed) & np.isfinite(values)
    if to_zero:
        lost |= (narrowed == 0) & (values != 0)
    return lost


@helper
def unpack_row(row: int, bits: int, columns: int, scale: int, offset: int, out: int) -> None:
    """Writes the numbers that the packed bytes of one row stand for.

    Numbers that share a byte are far apart in a row: so the inner loop goes along it, as many at once as the processor can.

    Args:
        row: Address of its bytes.
        bits: Bits of each number.
        columns: How many there are.
        scale: Address of float32 ``[columns]``.
        offset: Likewise.
        out: Address of float32 ``[columns]``.
    """
    width, mask = (columns * bits + 7) // 8, np.int32((1 << bits) - 1)
    for place in range(8 // bits):
        first, shift = place * width, np.int32(place * bits)
        numbers, scales, offsets = out + first * 4, scale + first * 4, offset + first * 4
        for j in range(min(width, columns - first)):
            set_float(numbers, j, np.float32((byte_at(row, j) >> shift) & mask) * float_at(scales, j) + float_at(offsets, j))


@kernel("void(uint8[:, ::1], int64, float32[::1], float32[::1], float32[:, ::1])")
def _dequantize(
    rows: NDArray[np.uint8], bits: int, scale: NDArray[np.float32], offset: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    nbytes, columns = rows.shape[1], out.shape[1]
    for i in range(rows.shape[0]):
        to = begin_of(out) + i * columns * 4
        unpack_row(begin_of(rows) + i * nbytes, bits, columns, begin_of(scale), begin_of(offset), to)


def dequantize_rows(rows: NDArray[np.uint8], quantization: Quantization, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Converts quantised rows to the numbers that they stand for.

    Args:
        rows: uint8 ``[n, bytes]``, see ``Quantization``.
        quantization: What their numbers stand for.
        out: float32 ``[n, columns]`` to write to; None makes it.

    Returns:
        ``out``: float32 ``[n, columns]``, at most half a step of the column away from what was quantised.

    Raises:
        StoreError: Rows have another number of bytes.
    """
    scale, offset = (np.array(numbers, np.float32) for numbers in (quantization.scale, quantization.offset))
    if rows.shape[1] != quantization.stored_nbytes(len(scale)):
        raise StoreError(f"quantised rows have {rows.shape[1]} bytes and must have {quantization.stored_nbytes(len(scale))}")
    out = np.empty((len(rows), len(scale)), np.float32) if out is None else out
    # require() copies what is read-only: the kernel is compiled for arrays that may be written.
    _dequantize(np.require(rows, requirements=["C", "W"]), quantization.bits, scale, offset, out)
    if quantization.whole:
        out[:, list(quantization.whole)] = rows[:, quantization.packed_nbytes(len(scale)) :].view(np.float32)
    return out


# Where a number cannot be held in the type that was asked for.
KEEP_THEM = "scale the features, or keep them as they are with feature_dtype=None"
_SMALLEST = np.nextafter(np.float32(0), np.float32(1))
_LARGEST = float(np.finfo(np.float32).max)
# Rows that are looked at at once: few enough to stay in the cache as float64.
_BLOCK_BYTES = 1 << 20


@dataclass
class ColumnRange:
    """The least and largest of each column so far, float64 ``[columns]``; NaN stays NaN."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of_none(cls, columns: int) -> ColumnRange:
        """The range of no rows."""
        return cls(np.full(columns, np.inf), np.full(columns, -np.inf))

    def add_rows(self, rows: NDArray[Any], spec: ArraySpec) -> None:
        """Widens the range to stored rows ``[k, columns]``."""
        block = max(1, _BLOCK_BYTES // max(1, spec.row_nbytes))
        for first in range(0, len(rows), block):
            values = _numbers(rows[first : first + block], spec.dtype)
            self.add(ColumnRange(values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)))

    def add(self, other: ColumnRange) -> None:
        """Widens the range to another one."""
        np.minimum(self.low, other.low, out=self.low)
        np.maximum(self.high, other.high, out=self.high)

    def fits(self, found: Quantization) -> bool:
        """Whether every column that is not kept whole is within what it was quantised for."""
        scale, offset = (np.array(numbers, np.float32) for numbers in (found.scale, found.offset))
        # The same arithmetic that finds the scale, so that a larger range is one that has another scale.
        needed = ((np.maximum(self.high, offset) - offset.astype(np.float64)) / found.largest).astype(np.float32)
        fitting = (self.low >= offset) & (needed <= scale)
        fitting[list(found.whole)] = True
        return bool(fitting.all())

    def quantization(self, meant: Quantization, what: str) -> Quantization:
        """Scales and offsets under which the numbers of each column go from its least to its largest value.

        Args:
            meant: Bits of each number, and the columns that are kept whole.
            what: The array, for the error.

        Raises:
            PlanError: A column that is not kept whole holds a NaN or an infinite value, or values too far apart for float32.
        """
        low, high = self.low.copy(), self.high.copy()
        left_out = list(meant.whole) if (low <= high).any() or np.isnan(low).any() else slice(None)  # all, where there are no rows
        low[left_out] = high[left_out] = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            offset = low.astype(np.float32)
            scale = ((high - low) / meant.largest).astype(np.float32)
            # A range so small that its 255th part is no float32 still has two ends.
            scale = np.where((scale == 0) & (high > low), _SMALLEST, scale)
            usable = np.isfinite(low) & np.isfinite(high) & (np.abs(low) <= _LARGEST) & (np.abs(high) <= _LARGEST)
            usable &= scale.astype(np.float64) * meant.largest <= _LARGEST
        if not usable.all():
            column = int(np.flatnonzero(~usable)[0])
            raise PlanError(
                f"column {column} of {what} goes from {float(low[column])!r} to {float(high[column])!r}, "
                f"which {meant.bits} bits cannot stand for",
                f"replace what is missing or infinite, or {KEEP_THEM}",
            )
        return replace(meant, scale=tuple(map(float, scale)), offset=tuple(map(float, offset)))


def quantize_rows(values: NDArray[Any], quantization: Quantization, name: str) -> NDArray[np.uint8]:
    """Packs numbers; ``dequantize_rows`` reverses it.

    Args:
        values: ``[n, columns]``.
        quantization: What the packed numbers are to stand for.
        name: What the array is called, for the error.

    Returns:
        uint8 ``[n, bytes]``.

    Raises:
        PlanError: A number of a column that is kept whole is beyond float32.
    """
    scale, offset = (np.array(numbers, np.float64) for numbers in (quantization.scale, quantization.offset))
    whole, bits, width = list(quantization.whole), quantization.bits, quantization.packed_nbytes(len(scale))
    steps = values.astype(np.float64)
    steps[:, whole] = 0.0
    steps -= offset
    steps /= np.where(scale > 0, scale, 1.0)
    numbers = np.clip(np.rint(steps, out=steps), 0, quantization.largest, out=steps).astype(np.uint8)
    packed = numbers[:, :width]
    for place in range(1, 8 // bits):
        others = numbers[:, place * width : (place + 1) * width]
        packed[:, : others.shape[1]] |= others << np.uint8(place * bits)
    if not whole:
        return np.ascontiguousarray(packed)
    return np.concatenate([packed, np.ascontiguousarray(_cast(values[:, whole], "float32", name)).view(np.uint8)], axis=1)


def plain_rows(rows: NDArray[Any], spec: ArraySpec) -> NDArray[Any]:
    """Stored rows as they are in a batch: quantised ones as float32, others as they are."""
    if spec.quantization is None:
        return rows
    return dequantize_rows(rows, spec.quantization)


def plain_spec(spec: ArraySpec) -> ArraySpec:
    """Returns the dtype and shape of the rows that ``plain_rows`` returns."""
    return spec if spec.quantization is None else ArraySpec(spec.batch_dtype, spec.row_shape, dim=spec.dim)


def unmeasured(arrays: Mapping[str, ArraySpec]) -> list[str]:
    """Names of the quantised arrays whose scales are not known yet."""
    return [name for name, spec in arrays.items() if spec.quantization and len(spec.quantization.scale) < spec.row_shape[0]]
