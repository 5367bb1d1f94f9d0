"""Epochs: how long they are, in which order, and that nothing disturbs the next one."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import signal
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit import GraphLoader, InProcess
from gnnkit.errors import LoaderClosed, MemoryLimitError, PlanError
from tests.helpers.batches import same
from tests.helpers.devices import pretend_copies_overlap
from tests.loader.graphs import NUM_NODES, make, plain, seeds, typed


@pytest.mark.parametrize(
    ("num_seeds", "batch_size", "drop_last", "expected"),
    [(0, 2, False, 0), (1, 2, True, 0), (1, 2, False, 1), (5, 2, False, 3), (5, 2, True, 2), (6, 2, True, 3), (5, 100, False, 1)],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_lengths(num_seeds: int, batch_size: int, drop_last: bool, shuffle: bool, expected: int) -> None:
    with make(input_nodes=torch.arange(num_seeds), batch_size=batch_size, drop_last=drop_last, shuffle=shuffle) as loader:
        batches = list(loader)
        assert len(loader) == len(batches) == len(iter(loader)) == expected
    sizes = [batch.batch_size for batch in batches]
    assert all(size == batch_size for size in sizes[:-1]) and sum(sizes) == (expected * batch_size if drop_last else num_seeds)


def test_batches_in_order_hold_consecutive_seeds() -> None:
    with make(input_nodes=torch.arange(6) + 10, batch_size=2) as loader:
        assert [batch.n_id[:2].tolist() for batch in loader] == [[10, 11], [12, 13], [14, 15]]
        assert [batch.input_id.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


def test_the_train_split_is_shuffled_and_others_are_not() -> None:
    with make(input_nodes="train") as train, train.for_split("valid") as valid, train.for_split("test", shuffle=True) as test:
        assert sorted(first := seeds(train)) == list(range(60)) and first != sorted(first) and seeds(train) != first
        assert seeds(valid) == seeds(valid) == list(range(20))
        assert sorted(last := seeds(test)) == list(range(20)) and last != sorted(last)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("break"), st.integers(0, 16)),
        st.tuples(st.just("next"), st.integers(0, 16)),
        st.tuples(st.just("peek"), st.just(0)),
        st.tuples(st.just("sample"), st.integers(0, NUM_NODES - 1)),
        st.tuples(st.just("interrupt"), st.integers(0, 13)),
        st.tuples(st.just("error"), st.integers(0, 13)),
        st.tuples(st.just("hold"), st.integers(0, 14)),
        st.tuples(st.just("epoch"), st.just(0)),
    ),
    max_size=6,
)


class Disturbance:
    """A transform that interrupts or fails at a chosen batch, once."""

    def __init__(self) -> None:
        self.kind, self.left = "", 0

    def __call__(self, batch: Any) -> Any:
        self.left -= 1
        if self.kind and self.left < 0:
            kind, self.kind = self.kind, ""
            if kind == "error":
                raise ZeroDivisionError
            signal.raise_signal(signal.SIGINT)
        return batch

    def run(self, loader: GraphLoader, kind: str, number: int) -> None:
        self.kind, self.left = kind, number
        with pytest.raises(KeyboardInterrupt if kind == "interrupt" else ZeroDivisionError):
            list(loader)


def act(loader: GraphLoader, action: str, number: int, disturbance: Disturbance) -> list[Any]:
    """Does something to a loader; returns what is to be kept alive."""
    if action in ("break", "hold"):
        return list(itertools.islice(loader, number))
    if action == "next":
        iterator = iter(loader)
        return [next(iterator) for _ in range(min(number, len(loader)))]
    if action == "peek":
        return [loader.peek()]
    if action == "sample":
        return [loader.sample([number])]
    if action in ("interrupt", "error"):
        disturbance.run(loader, action, number)
        return []
    assert sorted(seeds(loader)) == list(range(NUM_NODES))
    return []


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(ACTIONS, st.booleans(), st.integers(1, 3), st.integers(0, 3))
def test_whatever_came_before_an_epoch_has_every_seed_once(
    actions: list[tuple[str, int]], shuffle: bool, threads: int, prefetch: int
) -> None:
    disturbance, held = Disturbance(), []
    with make(shuffle=shuffle, backend=InProcess(num_threads=threads), prefetch=prefetch, transform=disturbance) as loader:
        for action, number in actions:
            kept = act(loader, action, number, disturbance)
            held.append(kept if action == "hold" else None)
        before = loader.epoch
        assert sorted(seeds(loader)) == list(range(NUM_NODES))
        assert loader.epoch == before + 1


@pytest.mark.filterwarnings("ignore:Exception ignored in. <function gc_cumulative_time:pytest.PytestUnraisableExceptionWarning")
# psutil is interrupted between opening the file and the block that closes it.
@pytest.mark.filterwarnings("ignore:unclosed file .*'/proc/meminfo':ResourceWarning")
@pytest.mark.parametrize("delay_s", [0.002, 0.01, 0.03, 0.07])
def test_an_interrupt_at_any_moment(delay_s: float) -> None:
    """Ctrl-C while the loader waits, collates or hands over: the next epoch is whole."""
    over = threading.Event()

    def interrupt() -> None:
        """Once more where it was lost: Hypothesis has a callback of the garbage collection, which passes no interrupt on."""
        wait_s = delay_s
        while not over.wait(wait_s):
            _thread.interrupt_main()
            wait_s = 5.0

    with make(batch_size=1) as loader:
        thread = threading.Thread(target=interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            thread.start()
            while True:
                for _ in loader:
                    pass
        over.set()
        thread.join()
        assert sorted(seeds(loader)) == list(range(NUM_NODES))


def test_each_iteration_is_the_next_epoch() -> None:
    with make(shuffle=True) as loader:
        assert loader.epoch == -1
        epochs = [seeds(loader) for _ in range(3)]
        assert loader.epoch == 2
        assert len({tuple(epoch) for epoch in epochs}) == 3
        next(iter(loader))
        assert loader.epoch == 3
        loader.set_epoch(1)
        assert seeds(loader) == epochs[1]
        assert seeds(loader) == epochs[2]
        loader.set_epoch(np.int64(0))
        assert seeds(loader) == epochs[0]


def test_peek_shows_what_comes_next_and_changes_nothing() -> None:
    with make(shuffle=True) as loader, make(shuffle=True) as other:
        peeked = loader.peek()
        same(peeked, loader.peek())
        assert loader.epoch == -1 and loader.state_dict() == other.state_dict()
        iterator = iter(loader)
        same(peeked, next(iterator))
        ahead = loader.peek()  # of the next epoch, in the middle of this one
        rest = seeds(iterator)
        assert len(rest) == NUM_NODES - 7
        same(ahead, next(iter(loader)))
        assert loader.epoch == 1


def test_nothing_to_peek_at() -> None:
    for options in ({"input_nodes": []}, {"batch_size": 1000, "drop_last": True}):
        with make(**options) as loader, pytest.raises(PlanError, match="no batch to peek at"):
            loader.peek()


def test_sample_is_a_pure_function() -> None:
    with make(shuffle=True) as loader, make(shuffle=True, backend=InProcess(num_threads=2)) as other:
        first = loader.sample([5, 3, 5])
        assert first.n_id[:3].tolist() == [5, 3, 5] and first.batch_size == 3 and first.input_id.tolist() == [0, 1, 2]
        list(loader)
        same(first, loader.sample(torch.tensor([5, 3, 5])))
        same(first, other.sample(np.array([5, 3, 5], np.int32)))
        assert not first.n_id.equal(loader.sample([5, 3, 5], index=1).n_id) or not first.n_id.equal(loader.sample([5, 3, 5], epoch=1).n_id)
        mask = torch.zeros(NUM_NODES, dtype=torch.bool)
        mask[[8, 2]] = True
        assert loader.sample(mask).n_id[:2].tolist() == [2, 8]
        assert loader.sample([]).num_nodes == 0
        assert loader.sample(range(NUM_NODES)).batch_size == NUM_NODES  # more than batch_size


def test_sampling_from_several_threads_beside_an_epoch() -> None:
    with make(shuffle=True) as loader:
        expected = [loader.sample([i], index=i) for i in range(20)]
        found: dict[int, Any] = {}

        def work(start: int) -> None:
            for i in range(start, 20, 4):
                found[i] = loader.sample([i], index=i)

        threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        epoch = seeds(loader)
        for thread in threads:
            thread.join()
    assert sorted(epoch) == list(range(NUM_NODES))
    for i, batch in enumerate(expected):
        same(batch, found[i])


def test_a_second_iterator_ends_the_first_with_an_error() -> None:
    with make() as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        assert seeds([next(second)]) == list(range(7))
        with pytest.raises(LoaderClosed, match="newer one") as caught:
            next(first)
        assert caught.value.hint and "for_split" in caught.value.hint
        assert len(seeds(second)) == NUM_NODES - 7
        with pytest.raises(LoaderClosed):
            list(zip(loader, loader, strict=True))


def test_an_iterator_that_has_ended_stays_ended() -> None:
    with make() as loader:
        iterator = iter(loader)
        list(iterator)
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(iterator)
        iterator = iter(loader)
        next(iterator)
    with pytest.raises(LoaderClosed):
        next(iterator)


def test_for_split_keeps_what_it_is_not_told() -> None:
    with make(input_nodes="train", num_neighbors=[2, 1], seed=4, drop_last=True) as train:
        with train.for_split("valid", num_neighbors=[-1, -1], batch_size=20) as valid:
            assert valid.plan.batching.seed == 4 and valid.plan.batching.drop_last and not valid.plan.batching.shuffle
            assert valid.plan.sampling.num_hops == 2 and valid.plan.inputs.split == "valid"
            (batch,) = valid
            assert batch.n_id[:20].tolist() == plain().val_mask.nonzero().view(-1).tolist()
            both = list(zip(train, valid, strict=False))  # two streams side by side
            assert len(both) == 1
        assert len(seeds(train)) == 56  # closing a sibling leaves the others


def test_for_split_refuses_what_it_cannot_change() -> None:
    with make() as loader:
        for name in ("num_parts", "weight", "edge_dir", "nonsense", "edge_label_index", "neg_sampling"):
            with pytest.raises(PlanError, match=f"unknown option '{name}'"):
                loader.for_split("valid", **{name: 1})
        with pytest.raises(PlanError, match="unknown option 'input_time'"):
            loader.for_links([[0], [1]], input_time=[1])
        with pytest.raises(PlanError, match="unknown option 'edge_label_index'"):
            loader.with_backend("inprocess", edge_label_index=[[0], [1]])


def test_transform_is_called_on_everything_that_is_handed_out() -> None:
    def transform(batch: Any) -> Any:
        batch.doubled = batch.x * 2
        return batch

    with make(transform=transform) as loader:
        for batch in (*loader, loader.peek(), loader.sample([1])):
            assert batch.doubled.equal(batch.x * 2)
        with loader.for_split(None, transform=lambda batch: batch.num_nodes) as counts:
            assert all(isinstance(number, int) for number in counts)


def test_typed_input_in_every_form() -> None:
    mask = torch.zeros(60, dtype=torch.bool)
    mask[[3, 50]] = True
    for input_nodes, expected in (
        ("paper", 60),
        (("paper", None), 60),
        (("paper", torch.tensor([4, 4])), 2),
        (("paper", mask), 2),
        (("tag", range(5)), 5),
    ):
        with make(typed(), input_nodes=input_nodes) as loader:
            node_type = input_nodes if isinstance(input_nodes, str) else input_nodes[0]
            assert sum(batch[node_type].batch_size for batch in loader) == expected


def test_a_batch_that_is_ready_comes_before_the_error_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_copies_overlap(monkeypatch)
    count = itertools.count()

    def broken(batch: Any) -> Any:
        if next(count) == 2:
            raise ValueError("the third")
        return batch

    with make(input_nodes=torch.arange(10), batch_size=2, device="meta", transform=broken, prefetch=4) as loader:
        batches = iter(loader)
        ready = threading.Event()
        while loader.status().batches_ready < 3:  # so that the next one is looked at when the one before is handed out
            ready.wait(0.01)
        assert [next(batches).x.device.type for _ in range(2)] == ["meta", "meta"]
        with pytest.raises(ValueError, match="the third"):
            next(batches)


def test_an_epoch_that_cannot_begin_is_still_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(epoch: int, first_batch: int = 0) -> None:
        raise MemoryLimitError("no room")

    with make(input_nodes=torch.arange(9), batch_size=2) as loader, make(input_nodes=torch.arange(9), batch_size=2) as other:
        whole = list(loader)
        state = loader.state_dict()
        with monkeypatch.context() as broken:
            broken.setattr(loader.pipeline.stream, "start_epoch", fail)
            for begin in (loader.__iter__, loader.resume):
                with pytest.raises(MemoryLimitError):
                    begin()
                assert loader.epoch == 0 and loader.state_dict() == state
        assert len(list(loader)) == len(whole) and loader.epoch == 1
        found = [next(iter(other))]
        with monkeypatch.context() as broken:
            broken.setattr(other.pipeline.stream, "start_epoch", fail)
            with pytest.raises(MemoryLimitError):
                iter(other)
        found += list(other.resume())  # of the epoch that broke off, not of the one that could not begin
        assert other.epoch == 0
        for batch, expected in zip(found, whole, strict=True):
            same(batch, expected)
