"""Reading ahead keeps order, bounds what is in flight, hands errors over and ends its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.datasets.streaming import overlap, read_ahead
from tests.helpers.interrupted_starts import interrupt_the_start_of
from tests.helpers.waiting import wait_until


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("gnnkit-read", "gnnkit-feed"))]


@settings(max_examples=40, deadline=None)
@given(items=st.lists(st.integers(), max_size=50), num_threads=st.integers(1, 4), depth=st.integers(1, 5))
def test_everything_comes_once_and_in_order(items: list[int], num_threads: int, depth: int) -> None:
    assert list(overlap(items, lambda i: i * 2, num_threads=num_threads, depth=depth)) == [i * 2 for i in items]
    assert list(read_ahead(iter(items), depth=depth)) == items
    assert not reading_threads()


def test_no_more_than_depth_results_wait() -> None:
    drawn = 0
    full = threading.Event()

    def items() -> Iterator[int]:
        nonlocal drawn
        for i in range(100):
            drawn += 1
            if drawn == 6:
                full.set()
            yield i

    results = overlap(items(), lambda i: i, depth=4)
    assert next(results) == 0
    # The consumer holds one, three wait, and the fifth item is drawn but finds no room.
    assert wait_until(lambda: drawn == 5) and not full.wait(0.3)
    assert drawn == 5
    assert next(results) == 1
    assert full.wait(60)
    results.close()


@pytest.mark.parametrize("where", ["items", "work"])
def test_errors_come_in_their_place(where: str) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        if where == "items":
            raise ValueError("five")

    def work(i: int) -> int:
        if where == "work" and i == 3:
            raise ValueError("three")
        return i

    seen = []
    with pytest.raises(ValueError, match="five" if where == "items" else "three"):
        for value in overlap(items(), work):
            seen.append(value)
    assert seen == ([0, 1, 2, 3, 4] if where == "items" else [0, 1, 2])
    assert not reading_threads()


def test_leaving_half_way_closes_the_source_and_ends_the_threads() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    for value in (results := overlap(items(), lambda i: i)):
        if value == 10:
            break
    results.close()
    assert closed.is_set()
    assert not reading_threads()
    abandoned = read_ahead(range(10**9))
    next(abandoned)
    del abandoned
    assert not reading_threads()


def test_an_interrupt_while_it_begins_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_the_start_of("gnnkit-feed", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        next(overlap(iter(range(100)), lambda i: i))
    assert wait_until(lambda: not reading_threads())
