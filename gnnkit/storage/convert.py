"""Element types of stored arrays, bfloat16 included: NumPy has none, so it is kept as uint16 bit patterns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import ArraySpec


def convert_rows(rows: NDArray[Any], source: ArraySpec, target: ArraySpec, name: str) -> NDArray[Any]:
    """Rows of one kind as rows of another.

    Args:
        rows: ``[k, *row_shape]``; uint16 bit patterns where ``source`` is bfloat16.
        source: What ``rows`` are.
        target: What is wanted.
        name: What the array is called, for the error.

    Raises:
        PlanError: A finite value is beyond the largest float16.
    """
    if source == target:
        return rows
    values = bfloat16_to_float32(rows) if source.dtype == "bfloat16" else rows
    if target.quantization is not None:
        from gnnkit.storage.quantize import quantize_rows

        return quantize_rows(values, target.quantization)
    with np.errstate(over="ignore"):
        converted = float32_to_bfloat16(values.astype(np.float32)) if target.dtype == "bfloat16" else values.astype(target.dtype)
    if target.dtype == "float16":
        overflow = np.isinf(converted) & np.isfinite(values)
        if overflow.any():
            raise PlanError(
                f"{name} holds {float(values[overflow][0])!r}, which is beyond the largest float16 (65504)",
                'use feature_dtype="bfloat16", or scale the features',
            )
    return converted


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns of the nearest bfloat16 (ties to even); NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    patterns: NDArray[np.uint16] = np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16))
    return patterns


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloat16 bit patterns, exactly."""
    values: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values
