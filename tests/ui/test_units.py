from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.units import format_bytes, format_count, format_duration, format_percent, format_quantity, format_rate, format_short


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1_480_000_000, "1.48 GB"),
        (999_499, "999 kB"),
        (999_600, "1.00 MB"),
        (14.8e12, "14.8 TB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert format_bytes(count) == text


def test_counts() -> None:
    assert format_count(2_449_029) == "2,449,029"
    assert [format_short(n) for n in (0, 1024, 9999, 10_000, 61_859_140, 999_999)] == ["0", "1,024", "9,999", "10.0k", "61.9M", "1.00M"]
    assert format_quantity(61_859_140, "edges") == "61.9M edges"
    assert format_quantity(1.48e9, "B") == "1.48 GB"
    assert format_quantity(7, "") == "7"


def test_rates() -> None:
    assert format_rate(45_100_000, "B") == "45.1 MB/s"
    assert format_rate(4_420_000, "edges") == "4.42M edges/s"
    assert format_rate(0.25, "batches") == "0.25 batches/s"
    assert format_rate(23.8, "batches") == "23 batches/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.012, "12 ms"), (0.0999, "0.1 s"), (4.24, "4.2 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (192, "3 min 12 s"),
     (7500, "2 h 5 min"), (273_600, "3 d 4 h"), (-1, "0 s"), (math.inf, "?"), (math.nan, "?"), (3, "3 s")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_hundred_percent_means_all() -> None:
    assert [format_percent(f) for f in (0, 0.29, 0.999, 1.0)] == ["0 %", "29 %", "99 %", "100 %"]


@given(st.floats())
def test_any_number_becomes_short_text(number: float) -> None:
    for text in (format_bytes(number), format_short(number), format_duration(number), format_rate(number, "edges")):
        assert text
        assert "\n" not in text
    if math.isfinite(number) and abs(number) < 1e18:
        assert len(format_bytes(number)) <= 8 and len(format_short(number)) <= 6
