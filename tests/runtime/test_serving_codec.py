"""Values that travel to servers and back: whatever goes in comes out, by descriptor and as bytes, and nothing else gets through."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gnnkit.cluster.network.codec import decode, encode, from_pieces
from gnnkit.errors import PlanError
from gnnkit.runtime.wire import in_memory
from tests.helpers.wires import sent

NUMBERS = st.sampled_from(["?", "i1", "<i4", "<i8", "u2", "<u8", "<f2", "<f4", "<f8", "<c8"]).map(np.dtype)
ARRAYS = NUMBERS.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
KEYS = st.one_of(st.text(max_size=4), st.integers(-3, 3), st.tuples(st.text(max_size=3), st.text(max_size=3)), st.just("#"))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5), ARRAYS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3), st.tuples(inner, inner)),
    max_leaves=8,
)


def assert_same(ours: Any, other: Any) -> None:
    if isinstance(other, np.ndarray):
        assert isinstance(ours, np.ndarray) and ours.dtype == other.dtype and ours.flags.writeable
        np.testing.assert_array_equal(ours, other)
        return
    assert type(ours) is type(other)
    if isinstance(other, dict):
        assert list(ours) == list(other)
        for key in other:
            assert_same(ours[key], other[key])
    elif isinstance(other, (list, tuple)):
        assert len(ours) == len(other)
        for one, two in zip(ours, other, strict=True):
            assert_same(one, two)
    else:
        assert ours == other


@given(VALUES)
def test_a_value_comes_back(value: Any) -> None:
    assert_same(sent(value), value)
    tree, blocks = encode(value)
    fds = list(map(in_memory, blocks))
    assert_same(decode(json.loads(json.dumps(tree)), fds), value)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize("value", [{1, 2}, object(), np.array([object()]), np.array(["a"]), {"a": [print]}, np.array(["2024"], "M8[D]")])
def test_nothing_else_travels(value: Any) -> None:
    with pytest.raises(PlanError, match="cannot be sent"):
        encode(value)


def test_a_number_that_json_has_no_word_for() -> None:
    found = sent([float("inf"), -float("inf"), float("nan")])
    assert found[:2] == [float("inf"), -float("inf")] and np.isnan(found[2])


@pytest.mark.parametrize(
    "tree",
    [
        {"#": ["code", "print"]},
        {"#": []},
        {"#": 3},
        {"#": ["array", "O", [1], 0]},
        {"#": ["array", "<i8", [1 << 40], 0]},
        {"#": ["array", "<i8", [-1], 0]},
        {"#": ["array", "<i8", [1], -8]},
        {"#": ["array", "|S4", [1], 0]},
        {"#": ["dict", [[[1], 2]]]},
        {"#": ["bytes", 3]},
    ],
)
def test_damaged_trees_are_refused(tree: Any) -> None:
    with pytest.raises(PlanError):
        decode({"a": tree})


@pytest.mark.parametrize("text", [b"", b"1234567x", b"][", b"\xff\xfe", b"[" * 100_000])
def test_damaged_texts_are_refused(text: bytes) -> None:
    with pytest.raises(PlanError, match="message"):
        from_pieces(text, np.empty(0, np.uint8))


def test_arrays_lie_in_the_block_and_are_aligned() -> None:
    """Where a sender says otherwise they are copied."""
    block = np.zeros(256, np.uint8)
    at = from_pieces(b'{"#":["array","<i8",[2],64]}', block)
    at[:] = 7
    assert block[64:80].tolist() == [7, 0, 0, 0, 0, 0, 0, 0] * 2
    beside = from_pieces(b'{"#":["array","<i8",[2],65]}', block)
    assert beside.flags.aligned and beside.flags.writeable and not np.shares_memory(beside, block)
