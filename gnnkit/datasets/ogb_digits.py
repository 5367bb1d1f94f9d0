"""Kernels that parse the plain tables of numbers which OGB's large files consist of.

pyarrow takes 50 ns for a number, half of it to find where fields end; these take 10, which is what makes ingest bound by
inflating. They know digits, one point, an exponent, commas and line feeds. Text with anything else in it (quotes, spaces, empty
fields, "nan", more digits than are exact) they refuse as a whole, and pyarrow parses it, or says what is wrong with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64, int64, uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, lazy_kernel

_MINUS, _PLUS, _POINT, _ZERO, _COMMA, _LINE, _E = (np.uint8(ord(char)) for char in "-+.0,\ne")
_LOWER_CASE = np.uint8(32)
_NINE = np.uint8(9)
_MAX_EXPONENT_DIGITS = 4
_NO_EXPONENT = 1 << 30
# 10 ** 18 < 2 ** 63: so many digits never overflow.
_MAX_DIGITS = 18
# Up to here a whole number, and below that power of ten, is exact in double precision, so that one multiplication or division
# rounds correctly (W. D. Clinger, How to read floating point numbers accurately, 1990).
_EXACT = np.uint64(1 << 53)
_POWERS = np.array([float(f"1e{power}") for power in range(23)], np.float64)
_MAX_POWER = len(_POWERS) - 1
# A double halfway between two singles: rounding once more could go the wrong way.
_BELOW_SINGLE, _HALFWAY = (1 << 29) - 1, 1 << 28


@helper
def _digits(text: NDArray[np.uint8], at: int, number: np.uint64) -> tuple[int, np.uint64]:
    """Appends the digits at ``at`` to a number: where they end, and the number (wrong if there were too many)."""
    while at < len(text):
        digit = text[at] - _ZERO
        if digit > _NINE:
            break
        number = uint64(number) * uint64(10) + uint64(digit)
        at += 1
    return at, number


@helper
def _exponent(text: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """The exponent after an "e": where it ends, and what it is; a huge number if it is none."""
    down = at < len(text) and text[at] == _MINUS
    if at < len(text) and (text[at] == _MINUS or text[at] == _PLUS):
        at += 1
    end, number = _digits(text, at, uint64(0))
    if end == at or end - at > _MAX_EXPONENT_DIGITS:
        return end, _NO_EXPONENT
    return end, -int64(number) if down else int64(number)


@helper
def _is_certain(value: float) -> bool:
    """Whether rounding a correctly rounded double to single precision gives the correctly rounded single."""
    return bool(np.float64(value).view(np.int64) & _BELOW_SINGLE != _HALFWAY)


@helper
def _is_followed(text: NDArray[np.uint8], at: int, ends_row: bool, ends_table: bool) -> bool:
    """Whether what stands after a number is what must stand there."""
    if at == len(text):
        return ends_table
    return bool(text[at] == (_LINE if ends_row else _COMMA))


@lazy_kernel
def parse_floats(text: NDArray[np.uint8], out: NDArray[np.float32]) -> bool:
    """Parses a table of decimal numbers, each correctly rounded to single precision.

    Args:
        text: uint8 ``[k]``, rows of numbers, the last row's line feed optional.
        out: float32 ``[num_rows, num_columns]``, filled; undefined where the result is False.

    Returns:
        Whether the text is such a table of exactly that shape, and every number's rounding is certain.
    """
    num_rows, num_columns = out.shape
    at = 0
    for row in range(num_rows):
        for column in range(num_columns):
            negative = at < len(text) and text[at] == _MINUS
            start = at + negative
            at, number = _digits(text, start, uint64(0))
            num_digits, power = at - start, 0
            if at < len(text) and text[at] == _POINT:
                start = at + 1
                at, number = _digits(text, start, number)
                num_digits += at - start
                power = start - at
            if num_digits == 0 or num_digits > _MAX_DIGITS or number > _EXACT:
                return False
            if at < len(text) and (text[at] | _LOWER_CASE) == _E:
                at, exponent = _exponent(text, at + 1)
                power += exponent
            if power < -_MAX_POWER or power > _MAX_POWER:
                return False
            value = float64(number) / _POWERS[-power] if power < 0 else float64(number) * _POWERS[power]
            ends_row = column == num_columns - 1
            if not _is_certain(value) or not _is_followed(text, at, ends_row, ends_row and row == num_rows - 1):
                return False
            out[row, column] = float32(-value if negative else value)
            at += 1
    return at >= len(text)


@lazy_kernel
def parse_whole(text: NDArray[np.uint8], out: NDArray[np.int64]) -> bool:
    """Parses a table of whole numbers, column by column in the output.

    Args:
        text: As for ``parse_floats``.
        out: int64 ``[num_columns, num_rows]``, filled; undefined where the result is False.

    Returns:
        Whether the text is such a table of exactly that shape.
    """
    num_columns, num_rows = out.shape
    at = 0
    for row in range(num_rows):
        for column in range(num_columns):
            negative = at < len(text) and text[at] == _MINUS
            start = at + negative
            at, number = _digits(text, start, uint64(0))
            ends_row = column == num_columns - 1
            if at == start or at - start > _MAX_DIGITS or not _is_followed(text, at, ends_row, ends_row and row == num_rows - 1):
                return False
            out[column, row] = -int64(number) if negative else int64(number)
            at += 1
    return at >= len(text)


def parse_plain(block: bytes, out: NDArray[Any], *, transposed: bool) -> bool:
    """Fills ``out`` from a block of text, if there is a kernel for its type and the text is plain.

    Args:
        block: Rows of text.
        out: ``[num_columns, num_rows]`` if ``transposed``, else ``[num_rows, num_columns]``.
        transposed: See ``out``.
    """
    text = np.frombuffer(block, np.uint8)
    if out.dtype == np.float32 and not transposed:
        return bool(parse_floats(text, out))
    if out.dtype == np.int64 and transposed:
        return bool(parse_whole(text, out))
    return False
