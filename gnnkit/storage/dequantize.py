"""Turns quantised rows into the numbers that they stand for (``gnnkit.schema.Quantization``), in one pass.

``q * scale + offset`` is rounded to float32 after each operation: the compiler may not make one of the two, so every CPU agrees.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import kernel
from gnnkit.schema import Quantization


@kernel("void(uint8[:, ::1], float32[::1], float32[::1], float32[:, ::1])")
def _dequantize(rows: NDArray[np.uint8], scale: NDArray[np.float32], offset: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            out[i, j] = np.float32(rows[i, j]) * scale[j] + offset[j]


def dequantize_rows(rows: NDArray[np.uint8], quantization: Quantization, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """What quantised rows stand for.

    Args:
        rows: uint8 ``[n, columns]``.
        quantization: What their numbers stand for.
        out: float32 ``[n, columns]`` to write to; None makes it.

    Returns:
        ``out``: float32 ``[n, columns]``, at most half a step of the column away from what was quantised.
    """
    scale, offset = (np.array(numbers, np.float32) for numbers in (quantization.scale, quantization.offset))
    out = np.empty(rows.shape, np.float32) if out is None else out
    # require() copies what is read-only: the kernel is compiled for arrays that may be written.
    _dequantize(np.require(rows, requirements=["C", "W"]), scale, offset, out)
    return out
