"""``InProcess``: a loop that comes back at once samples small batches itself, and everything else is as with threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from gnnkit import GraphLoader, InProcess
from gnnkit.backends.base import EndOfEpoch
from gnnkit.backends.inprocess import LoopSampling
from gnnkit.errors import SamplingError
from tests.helpers.batches import same
from tests.helpers.system import pretend_processors
from tests.helpers.waiting import wait_until
from tests.helpers.watched import Watched
from tests.loader.graphs import make

_WAIT_S = 60.0


@dataclass(frozen=True)
class InTheLoop(Watched):
    """However busy this machine is: after a few batches the loop samples, some together, and leaves most of the epoch to the next group."""

    loop_sampling: ClassVar = LoopSampling(_WAIT_S, _WAIT_S / 2, 0.35e-3)


class InLargeGroups(InTheLoop):
    """As many batches together as it may be."""

    loop_sampling: ClassVar = LoopSampling(_WAIT_S, _WAIT_S / 2, _WAIT_S)


class InThreads(InProcess):
    """However quick the loop is: threads sample."""

    loop_sampling: ClassVar = LoopSampling(small_s=0.0)


def loader_of(backend: InProcess | None = None) -> GraphLoader:
    return make(shuffle=True, batch_size=3, backend=backend or InTheLoop(num_threads=2), batch_timeout_s=_WAIT_S)


def reference() -> list[Any]:
    with loader_of(InThreads(2)) as loader:
        batches = list(loader)
        assert {record.worker for record in loader.records} <= {"thread 0", "thread 1"}
    return batches


def failing_in_the_loop(error: BaseException, *calls: int, backend: type[InTheLoop] = InTheLoop) -> InProcess:
    """Samples in the loop, and fails there at calls of these numbers: of several batches together, or of one where that has failed."""
    loop, count = threading.current_thread(), [0]

    def fail() -> None:
        if threading.current_thread() is loop:
            count[0] += 1
            if count[0] in calls:
                raise error

    return backend(2, fail)


def test_the_loop_samples_the_same_batches() -> None:
    wanted = reference()
    with loader_of() as loader:
        for batch, expected in zip(loader, wanted, strict=True):
            same(batch, expected)
        workers = [record.worker for record in loader.records]
        assert workers[0] in ("thread 0", "thread 1") and workers.count("loop") >= (len(wanted) - 20) / 2
        assert len(list(loader)) == len(wanted)


@pytest.mark.parametrize("processors", [1, 2])
def test_a_thread_samples_beside_the_loop(processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though threads are at rest by then; on a busy machine the loop may be first with all of an epoch's batches."""
    pretend_processors(monkeypatch, processors)
    with loader_of() as loader:

        def is_beside() -> bool:
            first = len(loader.records)
            assert list(loader)
            return {record.worker for record in list(loader.records)[first + 20 :]} > {"loop"}

        assert is_beside() is False if processors == 1 else wait_until(is_beside, _WAIT_S)


@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupt_loses_no_batch(after: int) -> None:
    wanted = reference()
    with loader_of(failing_in_the_loop(KeyboardInterrupt(), after)) as loader:
        got = []
        with pytest.raises(KeyboardInterrupt):
            for batch in loader:
                got.append(batch)
        for batch, expected in zip([*got, *loader.resume()], wanted, strict=True):
            same(batch, expected)
        assert len(got) < len(wanted) == len(list(loader))


def test_what_an_interrupt_stopped_is_sampled_by_a_thread() -> None:
    """Also where nobody begins the epoch again: its stream has not lost the step."""
    wanted = reference()
    with loader_of(failing_in_the_loop(KeyboardInterrupt(), 2)) as loader:
        stream = loader.pipeline.stream
        stream.start_epoch(0, loader.pipeline.schedule())
        indices, stopped = [], -1
        while True:
            try:
                found = stream.recv(_WAIT_S, lambda: None)
            except KeyboardInterrupt:
                stopped = len(indices)
                assert wait_until(lambda: stream.status().batches_ready > 0, _WAIT_S), "threads go on once the loop stays away"
                continue
            if isinstance(found, EndOfEpoch):
                break
            if len(indices) == stopped:
                assert found.worker in ("thread 0", "thread 1")
            indices.append(found.batch_index)
    assert indices == list(range(len(wanted))) and stopped > 0


def test_an_error_comes_in_its_turn() -> None:
    """The batches before it come, also those that are sampled together with it."""
    with loader_of(failing_in_the_loop(ValueError("no such thing"), 2, 5, backend=InLargeGroups)) as loader:
        with pytest.raises(SamplingError, match="ValueError: no such thing"):
            list(loader)
        num_batches = len(loader.records)
        assert [record.worker for record in loader.records.of_epoch(0)][-2:] == ["loop"] * 2
        assert len(list(loader.resume())) == len(loader) - num_batches


def test_threads_go_on_once_the_loop_stays_away() -> None:
    wanted = reference()
    with loader_of() as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(20)]
        assert "loop" in [record.worker for record in loader.records]
        assert wait_until(lambda: loader.status().batches_ready == loader.status().slots, _WAIT_S)
        for batch, expected in zip([*got, *iterator], wanted, strict=True):
            same(batch, expected)


def test_threads_share_an_iterator_that_samples() -> None:
    wanted = reference()
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
