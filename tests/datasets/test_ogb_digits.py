"""The parsing kernels give what pyarrow gives, or refuse."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnnkit.datasets.ogb_table import parse_any, parse_floats, parse_plain, parse_whole
from tests.helpers.ogb_trees import write_tree

DECIMALS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda v: str(np.float32(v))),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-1000, max_value=1000).map(str),
    st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["-0.0", "0", "16777217", "16777216.999999", "1e22", "1e23", "9007199254740993", ".5", "5."]),
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(rows=st.lists(st.tuples(DECIMALS, DECIMALS), min_size=1, max_size=4), last_end=st.booleans())
@example(rows=[("16777217", "1")], last_end=True)
@example(rows=[("1.00000005960464477540", "1")], last_end=False)
def test_floats_are_rounded_as_pyarrow_rounds_them(rows: list[tuple[str, str]], last_end: bool) -> None:
    block = ("\n".join(",".join(row) for row in rows) + ("\n" if last_end else "")).encode()
    out = np.empty((len(rows), 2), np.float32)
    if parse_floats(np.frombuffer(block, np.uint8), out):
        expected = parse_any(block, num_columns=2, dtype=np.dtype(np.float32), transposed=False)
        np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(*[st.integers(-(10**17), 10**17)] * 3), min_size=1, max_size=5))
def test_whole_numbers(rows: list[tuple[int, ...]]) -> None:
    block = "".join(",".join(map(str, row)) + "\n" for row in rows).encode()
    out = np.empty((3, len(rows)), np.int64)
    assert parse_whole(np.frombuffer(block, np.uint8), out)
    np.testing.assert_array_equal(out.T, rows)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1,2,3\n",
        "1,2\n3,4\n",
        "1,x\n",
        "1,\n",
        ",2\n",
        "1 ,2\n",
        '"1",2\n',
        "1,2\r\n",
        "1,2\n\n",
        "\n1,2\n",
        "--1,2\n",
        "1,2,",
        "1;2\n",
        "-,2\n",
    ]
    + [
        "1,1234567890123456789\n",
        "1,2e\n",
        "1,2e+\n",
        "1,nan\n",
        "1,.\n",
        "1.2.3,4\n",
        "1\n2\n",
        "1,2\x00\n",
        "1,\xff\n",
        "1,2/\n",
        "1,2:\n",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    block = np.frombuffer(text.encode("latin-1"), np.uint8)
    assert not parse_floats(block, np.empty((1, 2), np.float32))
    assert not parse_whole(block, np.empty((2, 1), np.int64))


@pytest.mark.parametrize("text", ["1.5,2\n", "1,2e3\n"])
def test_whole_numbers_have_no_fractions(text: str) -> None:
    assert not parse_whole(np.frombuffer(text.encode(), np.uint8), np.empty((2, 1), np.int64))


def test_the_large_files_of_a_tree_are_as_plain_as_the_kernels_need(tmp_path: Path) -> None:
    raw = write_tree("ogbn-proteins", tmp_path) / "raw"
    edges = gzip.decompress((raw / "edge.csv.gz").read_bytes())
    assert parse_plain(edges, np.empty((2, 200), np.int64), transposed=True)
    features = gzip.decompress((raw / "edge-feat.csv.gz").read_bytes())
    assert parse_plain(features, np.empty((200, 8), np.float32), transposed=False)
