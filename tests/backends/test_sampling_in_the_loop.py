"""``InProcess``: a loop that comes back at once samples small batches itself, and everything else is as with threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gnnkit import GraphLoader, InProcess
from gnnkit.backends import inprocess
from gnnkit.errors import SamplingError
from tests.helpers.batches import same
from tests.helpers.waiting import wait_until
from tests.loader.graphs import make

_WAIT_S = 60.0


@pytest.fixture(autouse=True)
def every_loop_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is: after a few batches the loop samples."""
    monkeypatch.setattr(inprocess, "_BACK_AT_ONCE_S", _WAIT_S)
    monkeypatch.setattr(inprocess, "_SMALL_S", _WAIT_S / 2)


def loader_of(**options: Any) -> GraphLoader:
    return make(shuffle=True, batch_size=3, backend=InProcess(num_threads=2), batch_timeout_s=_WAIT_S, **options)


def reference(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    with monkeypatch.context() as patched:
        patched.setattr(inprocess, "_SMALL_S", 0.0)
        with loader_of() as loader:
            batches = list(loader)
            assert {record.worker for record in loader.records} <= {"thread 0", "thread 1"}
    return batches


def failing_in_the_loop(monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int) -> None:
    """Has the loop's sampling fail once."""
    sample, left = inprocess._sample, [after]

    def sample_or_fail(*args: Any) -> Any:
        if args[-1] == "loop":
            left[0] -= 1
            if left[0] == 0:
                raise error
        return sample(*args)

    monkeypatch.setattr(inprocess, "_sample", sample_or_fail)


def test_the_loop_samples_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = reference(monkeypatch)
    with loader_of() as loader:
        for batch, expected in zip(loader, wanted, strict=True):
            same(batch, expected)
        workers = [record.worker for record in loader.records]
        assert workers[0] in ("thread 0", "thread 1") and workers[-1] == "loop" and workers.count("loop") >= len(wanted) - 20
        assert len(list(loader)) == len(wanted)


@pytest.mark.parametrize("after", [1, 7])
def test_an_interrupt_loses_no_batch(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    wanted = reference(monkeypatch)
    failing_in_the_loop(monkeypatch, KeyboardInterrupt(), after)
    with loader_of() as loader:
        got = []
        with pytest.raises(KeyboardInterrupt):
            for batch in loader:
                got.append(batch)
        for batch, expected in zip([*got, *loader.resume()], wanted, strict=True):
            same(batch, expected)
        assert len(got) < len(wanted) == len(list(loader))


def test_what_an_interrupt_stopped_is_sampled_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody begins the epoch again: its stream has not lost the step."""
    wanted = reference(monkeypatch)
    failing_in_the_loop(monkeypatch, KeyboardInterrupt(), 3)
    with loader_of() as loader:
        stream = loader.pipeline.stream
        stream.start_epoch(0)
        indices = []
        while True:
            try:
                found = stream.recv(_WAIT_S, lambda: None)
            except KeyboardInterrupt:
                monkeypatch.setattr(inprocess, "_SMALL_S", 0.0)
                continue
            if not hasattr(found, "batch_index"):
                break
            indices.append(found.batch_index)
    assert indices == list(range(len(wanted)))


def test_an_error_comes_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_in_the_loop(monkeypatch, ValueError("no such thing"), 4)
    with loader_of() as loader:
        with pytest.raises(SamplingError, match="ValueError: no such thing"):
            list(loader)
        num_batches = len(loader.records)
        assert loader.records.of_epoch(0)[-1].worker == "loop"
        assert len(list(loader.resume())) == len(loader) - num_batches


def test_threads_go_on_once_the_loop_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = reference(monkeypatch)
    with loader_of() as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(20)]
        assert list(loader.records)[-1].worker == "loop"
        assert wait_until(lambda: loader.status().batches_ready == loader.status().slots, _WAIT_S)
        for batch, expected in zip([*got, *iterator], wanted, strict=True):
            same(batch, expected)


def test_threads_share_an_iterator_that_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = reference(monkeypatch)
    with loader_of() as loader:
        for _ in range(5):
            loader.set_epoch(0)
            iterator, got, taking = iter(loader), [], threading.Lock()

            def consume(iterator: Any = iterator, got: list[Any] = got, taking: threading.Lock = taking) -> None:
                for batch in iterator:
                    with taking:
                        got.append(batch)

            with ThreadPoolExecutor(4) as pool:
                for outcome in [pool.submit(consume) for _ in range(4)]:
                    outcome.result(_WAIT_S)
            by_seeds = {tuple(batch.input_id.tolist()): batch for batch in got}
            assert len(by_seeds) == len(got) == len(wanted)
            for expected in wanted:
                same(by_seeds[tuple(expected.input_id.tolist())], expected)


def test_many_threads_ask_for_samples_at_once() -> None:
    """Each of them gets what it would get alone, beside an epoch that goes on."""
    with loader_of() as loader:
        alone = [loader.sample([i, i + 1], index=i) for i in range(40)]
        iterator = iter(loader)
        next(iterator)
        with ThreadPoolExecutor(8) as pool:
            for _ in range(5):
                outcomes = [pool.submit(loader.sample, [i, i + 1], index=i) for i in range(40)]
                next(iterator)
                for outcome, wanted in zip(outcomes, alone, strict=True):
                    same(outcome.result(_WAIT_S), wanted)
