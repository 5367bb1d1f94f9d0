"""Stopping in the middle of an epoch and going on later, with another number of ranks if need be."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from tests.helpers.batches import same
from tests.loader.graphs import make, plain, seeds

DATA = plain()


def ranks(world_size: int, **options: Any) -> list[GraphLoader]:
    return [make(DATA, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def close(loaders: list[GraphLoader]) -> None:
    for loader in loaders:
        loader.close()


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 3), st.integers(0, 15), st.booleans())
def test_resume_gives_exactly_the_remaining_batches(epochs: int, steps: int, shuffle: bool) -> None:
    with make(DATA, shuffle=shuffle, seed=6) as loader, make(DATA, shuffle=shuffle, seed=6) as resumed:
        for _ in range(epochs):
            list(loader)
        iterator = iter(loader)
        list(itertools.islice(iterator, steps))
        state = json.loads(json.dumps(loader.state_dict()))
        rest = list(iterator) or list(loader)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        again = list(resumed)
        for left, right in zip(rest, again, strict=True):
            same(left, right)
        assert resumed.epoch == loader.epoch
        same(loader.peek(), resumed.peek())  # and so does the epoch after it
        assert len(resumed) == len(loader) == 15


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2), (4, 4)])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_resume_with_another_number_of_ranks(before: int, after: int, steps: int, remainder: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "remainder": remainder}
    with make(DATA, shuffle=True) as alone:
        whole = list(alone)
    first, then = ranks(before, **options), ranks(after, **options)
    iterators = [iter(loader) for loader in first]
    seen = [next(iterator).input_id.tolist() for _ in range(steps) for iterator in iterators]
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states)
    assert [batch.input_id.tolist() for batch in whole[: len(seen)]] == seen
    if remainder == "drop" and steps == len(whole) // before:  # the rest of the list is dropped, and the epoch is over
        assert (states[0]["epoch"], states[0]["next_batch"]) == (1, 0)
        close([*first, *then])
        return
    for loader in then:
        loader.load_state_dict(states[0])
    rest = [list(loader) for loader in then]
    expected, left = [], len(whole) - len(seen)
    steps_left = {"drop": left // after, "pad": -(-left // after), "uneven": -(-left // after)}[remainder]
    for step in range(steps_left):
        for rank in range(after):
            index = len(seen) + step * after + rank
            if index < len(whole) or remainder == "pad":
                expected.append(whole[index % len(whole)].input_id.tolist())
    dealt = [batch.input_id.tolist() for turn in itertools.zip_longest(*rest) for batch in turn if batch is not None]
    assert dealt == expected
    close([*first, *then])


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
def test_every_rank_says_the_same_when_the_epoch_is_over(remainder: str) -> None:
    loaders = ranks(4, remainder=remainder)
    for loader in loaders:
        list(loader)
    assert {(loader.state_dict()["epoch"], loader.state_dict()["next_batch"]) for loader in loaders} == {(1, 0)}
    close(loaders)


def test_a_finished_epoch_resumes_with_the_next() -> None:
    with make(DATA, shuffle=True) as loader:
        list(loader)
        assert loader.state_dict()["epoch"] == 1 and loader.state_dict()["next_batch"] == 0


def test_set_epoch_and_load_count_even_in_the_middle_of_an_epoch() -> None:
    with make(DATA, shuffle=True) as loader:
        next(iter(loader))
        loader.set_epoch(1)
        assert (loader.state_dict()["epoch"], loader.state_dict()["next_batch"]) == (1, 0)
        iterator = iter(loader)
        next(iterator)
        state = {**loader.state_dict(), "epoch": 2, "next_batch": 3}
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert len(seeds(loader)) == 100 - 3 * 7


def test_peek_after_loading_shows_the_next_batch() -> None:
    with make(DATA, shuffle=True) as loader:
        loader.load_state_dict({**loader.state_dict(), "epoch": 4, "next_batch": 9})
        peeked = loader.peek()
        iterator = iter(loader)
        same(peeked, next(iterator))
        assert loader.epoch == 4 and len(iterator) == 6


@pytest.mark.parametrize("changes", [{"batch_size": 8}, {"seed": 1}, {"input_nodes": "train"}])
def test_a_state_of_another_plan_is_refused(changes: dict[str, Any]) -> None:
    with make(DATA) as loader, make(DATA, **changes) as other:
        with pytest.raises(PlanError, match=r"the state has .*=.*, this loader has") as caught:
            other.load_state_dict(loader.state_dict())
        assert caught.value.hint


OTHERS = [
    ({"shuffle": False}, "shuffle"),
    ({"drop_last": True}, "drop_last"),
    ({"num_neighbors": [2, 2]}, "sampling"),
    ({"input_nodes": torch.arange(1, 101) % 100}, "inputs"),
]


@pytest.mark.parametrize(("changes", "named"), OTHERS, ids=[named for _, named in OTHERS])
def test_a_place_in_an_epoch_of_other_batches_is_refused(changes: dict[str, Any], named: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "input_nodes": torch.arange(100)}
    with make(DATA, **options) as loader, make(DATA, **{**options, **changes}) as other:
        between = loader.state_dict()
        next(iter(loader))
        before = other.state_dict()
        with pytest.raises(PlanError, match=f"other {named}:") as caught:
            other.load_state_dict(loader.state_dict())
        assert "set_epoch(0)" in (caught.value.hint or "") and other.state_dict() == before
        other.load_state_dict(between)  # what has not begun is any loader's own


@pytest.mark.parametrize(
    "damage",
    [{"version": 99}, {"epoch": -1}, {"epoch": "1"}, {"next_batch": -1}, {"next_batch": 16}, {"next_batch": "2"}, {"next_batch": 1.5}],
    ids=str,
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage: dict[str, Any]) -> None:
    with make(DATA) as loader:
        good = loader.state_dict()
        with pytest.raises(PlanError, match=str(next(iter(damage.values())))):
            loader.load_state_dict({**good, **damage})
        for name in good:
            with pytest.raises(PlanError, match=name):
                loader.load_state_dict({key: value for key, value in good.items() if key != name})
        assert loader.state_dict() == good
