from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnnkit.printable import clean, encodable


@given(st.text(st.characters(), max_size=400), st.integers(1, 80))
def test_cleaned_text_is_one_printable_line(text: str, limit: int) -> None:
    line = clean(text, limit)
    assert len(line) <= limit
    assert all(character.isprintable() for character in line)
    line.encode()


@given(st.text(max_size=50), st.sampled_from(["ascii", "latin-1", "utf-8", "cp1252", None, "no-such-codec"]))
def test_encodable_text_can_be_written(text: str, encoding: str | None) -> None:
    encodable(clean(text), encoding).encode("ascii" if encoding in (None, "no-such-codec") else encoding)
