"""Places in ascending numbers of any dtype, of numbers that the dtype may not have."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.storage.arrays import place_of

DTYPES = st.sampled_from(["int32", "uint32", "int64", "uint64", "int16"])


@given(
    DTYPES,
    st.lists(st.integers(-(1 << 65), 1 << 65) | st.integers(-3, 9), max_size=9),
    st.integers(-(1 << 65), 1 << 65) | st.integers(-3, 9),
)
def test_places_are_those_of_python(dtype: str, numbers: list[int], number: int) -> None:
    ends = np.iinfo(dtype)
    values = sorted(min(max(value, ends.min), ends.max) for value in numbers)
    for wanted in (number, *values, int(ends.min), int(ends.max)):
        found = np.array(values, dtype)
        assert place_of(found, wanted) == bisect_left(values, wanted)
        assert place_of(found, wanted, "right") == bisect_right(values, wanted)
