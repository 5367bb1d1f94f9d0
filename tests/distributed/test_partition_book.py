"""Partition books: tables of known answers, and every kind against plain search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.distributed import RangePartitionBook, build_partition_book, get_ids_on_rank, get_total_ids
from gnnkit.distributed.store_views import NumberedPartitionBook, look_up
from gnnkit.errors import PlanError
from tests.helpers.glt import needs_glt, of_glt


def test_known_answers() -> None:
    table = torch.tensor([0, 1, 0, 1])
    assert get_ids_on_rank(table, 0).tolist() == [0, 2]
    assert get_ids_on_rank(table, 1).tolist() == [1, 3]
    assert get_total_ids(torch.tensor([0, 1, 0, 1, 0])) == 5
    book = RangePartitionBook([(0, 5), (5, 10)], 1)
    assert get_ids_on_rank(book, 0).tolist() == list(range(5))
    assert get_ids_on_rank(book, 1).tolist() == list(range(5, 10))
    assert get_total_ids(book) == 10
    assert book.id2index[torch.tensor([5, 9])].tolist() == [0, 4]
    assert book.id_filter(table, 1).tolist() == [1, 3]
    assert build_partition_book(10, 0, 2).partition_bounds.tolist() == [5, 10]
    assert build_partition_book(7, 2, 3).partition_bounds.tolist() == [3, 5, 7]
    ranges = RangePartitionBook([(0, 10), (10, 20), (20, 30)], 1)
    assert ranges[torch.tensor([0, 5, 10, 15, 20, 25])].tolist() == [0, 0, 1, 1, 2, 2]
    assert (ranges.partition_idx, ranges.device.type) == (1, "cpu")


@needs_glt
def test_graphlearn_torchs_own_book_of_ranges() -> None:
    book = of_glt("partition.RangePartitionBook")([(0, 3), (3, 5)], 0)
    assert [get_ids_on_rank(book, rank).tolist() for rank in range(2)] == [[0, 1, 2], [3, 4]] and get_total_ids(book) == 5
    assert look_up(book, torch.tensor([4, 0])).tolist() == [1, 0]


@given(st.integers(0, 60), st.integers(1, 8))
def test_balanced_books(num_entities: int, world_size: int) -> None:
    book = build_partition_book(num_entities, 0, world_size)
    sizes = [len(get_ids_on_rank(book, rank)) for rank in range(world_size)]
    assert sum(sizes) == num_entities and sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_every_kind_of_book_agrees(sizes: list[int], random: Any) -> None:
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    parts_by_number = np.repeat(np.arange(len(sizes)), sizes)
    store_ids = np.array(random.sample(range(bounds[-1]), int(bounds[-1])), np.int32)
    ids = torch.arange(int(bounds[-1]), dtype=torch.int32).flip(0)
    ranges = RangePartitionBook(list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)), 0)
    shuffled = parts_by_number[store_ids]
    calls: list[int] = []

    def table() -> Any:
        calls.append(1)
        return shuffled.astype(np.uint8)

    lazy = NumberedPartitionBook(table, np.arange(len(sizes) + 1), len(ids))
    assert not calls, "the table was made before anybody asked"
    books = [(ranges, parts_by_number), (NumberedPartitionBook(lambda: store_ids, bounds, len(ids)), shuffled), (lazy, shuffled)]
    for book, expected in [*books, (torch.from_numpy(shuffled.astype(np.uint8)), shuffled)]:
        assert get_total_ids(book) == len(ids)
        found = look_up(book, ids)
        assert found.dtype == torch.int64
        assert found.tolist() == expected[::-1].tolist()
        for part in range(len(sizes)):
            assert get_ids_on_rank(book, part).tolist() == np.flatnonzero(expected == part).tolist()
        for wrong in (-1, len(ids)):
            with pytest.raises(PlanError, match=f"there is no id {wrong}"):
                look_up(book, torch.tensor([wrong]))
        with pytest.raises(PlanError, match="whole numbers"):
            look_up(book, torch.tensor([0.5]))
    assert len(calls) <= 1


@pytest.mark.parametrize("ranges", [[], [(1, 2)], [(0, 2), (3, 4)], [(0, 3), (3, 2)]])
def test_ranges_with_gaps(ranges: Any) -> None:
    with pytest.raises(PlanError, match="without gaps"):
        RangePartitionBook(ranges, 0)


@pytest.mark.parametrize("part", [-1, 2])
def test_parts_that_are_not_there(part: int) -> None:
    with pytest.raises(PlanError, match=f"no part {part}"):
        build_partition_book(4, part, 2)


@pytest.mark.parametrize(
    ("book", "words"), [(torch.zeros(2, 2, dtype=torch.int64), "one whole number per id"), (torch.zeros(2), "float"), ([0], "list")]
)
def test_what_is_no_book(book: Any, words: str) -> None:
    for use in (get_ids_on_rank, lambda book, _: get_total_ids(book), lambda book, _: look_up(book, torch.tensor([0]))):
        with pytest.raises(PlanError, match=words):
            use(book, 0)


def test_books_of_impossible_sizes() -> None:
    for arguments in ((-1, 0, 1), (1, 0, 0)):
        with pytest.raises(PlanError, match="cannot be cut"):
            build_partition_book(*arguments)
