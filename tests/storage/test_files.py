"""Array files, checksums, integer weights."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.errors import PlanError, StoreError
from gnnkit.storage.edge_values import check_weights, weight_exponent, weight_prefix
from gnnkit.storage.files import ArrayWriter, FileSpec, file_crc32, open_array
from gnnkit.storage.kernels import count_parts


@pytest.mark.parametrize("dtype", ["int32", "int64", "float16", "uint16", "uint64", "bool"])
@pytest.mark.parametrize("shape", [(0,), (7,), (0, 3), (5, 3), (4, 2, 2), (3, 0)])
def test_numpy_reads_what_is_written_in_any_order(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    values = (np.arange(math.prod(shape)).reshape(shape) % 2).astype(dtype)
    writer = ArrayWriter(tmp_path, "a/b.npy", FileSpec(np.dtype(dtype), shape))
    for row in reversed(range(shape[0])):
        writer.write(row, values[row : row + 1])
    entry = writer.finish()
    loaded = np.load(tmp_path / "a/b.npy")
    assert loaded.dtype == values.dtype and loaded.shape == shape
    np.testing.assert_array_equal(loaded, values)
    np.testing.assert_array_equal(open_array(tmp_path, "a/b.npy", entry)[0], values)
    assert entry.crc32 == file_crc32(tmp_path / "a/b.npy") and entry.size == (tmp_path / "a/b.npy").stat().st_size


def test_mapping_compares_the_file_with_its_entry(tmp_path: Path) -> None:
    writer = ArrayWriter(tmp_path, "a.npy", FileSpec(np.dtype(np.int32), (4,)))
    writer.write(0, np.arange(4))
    entry, path = writer.finish(), tmp_path / "a.npy"
    good = path.read_bytes()
    assert not open_array(tmp_path, "a.npy", entry)[0].flags.writeable
    for bad, text in [(good[:-1], "143 bytes instead of 144"), (good + b"x", "145 bytes"), (good.replace(b"<i4", b"<f4"), "header")]:
        path.write_bytes(bad)
        with pytest.raises(StoreError, match=text):
            open_array(tmp_path, "a.npy", entry)
    path.unlink()
    with pytest.raises(StoreError, match="missing"):
        open_array(tmp_path, "a.npy", entry)
    path.mkdir()
    with pytest.raises(StoreError):
        open_array(tmp_path, "a.npy", entry)


FINITE = st.floats(min_value=0, allow_infinity=False, width=32) | st.floats(min_value=0, allow_infinity=False)


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1), st.data())
def test_integer_weights_are_exact(values: list[float], data: st.DataObject) -> None:
    weights = np.array(values)
    exponent = weight_exponent(check_weights(weights, ("a", "b", "c"), "w"))
    if weights.any():
        assert 2**31 <= Fraction(max(values)) * Fraction(2) ** exponent < 2**32
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    indptr = np.array([0, *cuts, len(values)])
    prefix = weight_prefix(indptr, weights, exponent)
    assert prefix.dtype == np.uint64
    for low, high in zip(indptr[:-1], indptr[1:], strict=True):
        total = 0
        for k in range(low, high):
            total += 0 if values[k] == 0 else max(1, round(Fraction(values[k]) * Fraction(2) ** exponent))
            assert int(prefix[k]) == total


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.uint8, np.int64])
def test_weights_of_every_dtype(dtype: type, tmp_path: Path) -> None:
    weights = np.array([0, 1, 2, 100], dtype)
    weights.flags.writeable = False
    exponent = weight_exponent(float(weights.max()))
    expected = [0, 1 << exponent, 3 << exponent, 103 << exponent]
    assert weight_prefix(np.array([0, 4], np.int32), weights, exponent).tolist() == expected
    assert weight_prefix(np.array([0]), weights[:0], 0).tolist() == []


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf])
def test_unusable_weights_name_edge_and_value(value: float) -> None:
    with pytest.raises(PlanError, match=rf"'w' of edge 12 of \('a', 'b', 'c'\) is {value!r}"):
        check_weights(np.array([1.0, 0.0, value]), ("a", "b", "c"), "w", first_edge=10)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 16, 17, 40])
def test_nodes_are_counted_by_part(num_parts: int) -> None:
    rng = np.random.default_rng(num_parts)
    bounds = np.concatenate([[0], np.sort(rng.integers(0, 10_000, num_parts - 1)), [10_000]]).astype(np.int64)
    nodes = rng.integers(0, 10_000, 9000).astype(np.int32)
    counts = np.zeros(num_parts, np.int64)
    count_parts(nodes, bounds, counts)
    assert counts.tolist() == [int(((nodes >= low) & (nodes < high)).sum()) for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
