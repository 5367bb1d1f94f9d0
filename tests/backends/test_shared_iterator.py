"""One iterator in several threads: every batch goes to one of them, at once, also while the epoch or the loader ends."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gnnkit import GraphLoader
from gnnkit.errors import GnnkitError, LoaderClosed
from tests.backends.setups import loader_of
from tests.helpers.batches import same
from tests.helpers.waiting import HANG_S, wait_until

pytestmark = pytest.mark.slow

BACKENDS = ["InProcess-2", "Colocated-2", "GraphStore-2"]
THREADS, EPOCHS = 4, 3
# Whoever waits in vain does so for longer than a test waits for him.
BATCH_TIMEOUT_S = SLOW_LOOK_S = 200.0


class Reader(threading.Thread):
    """Takes batches of an iterator that it shares, until they end."""

    def __init__(self, iterator: Iterator[Any], start: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self._iterator, self._barrier = iterator, start
        self.seeds: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._barrier.wait(HANG_S)
            for batch in self._iterator:
                self.seeds += [int(i) for i in batch.input_id]
        except BaseException as error:
            self.error = error


def readers_of(iterator: Iterator[Any]) -> tuple[list[Reader], threading.Barrier]:
    """Threads that share an iterator; they begin once the barrier is passed."""
    barrier = threading.Barrier(THREADS + 1)
    readers = [Reader(iterator, barrier) for _ in range(THREADS)]
    for reader in readers:
        reader.start()
    return readers, barrier


def ended(readers: list[Reader]) -> None:
    """Waits for threads to end."""
    assert wait_until(lambda: not any(reader.is_alive() for reader in readers)), "somebody waits for a batch that another thread had"


@pytest.fixture(params=BACKENDS)
def loader(request: pytest.FixtureRequest) -> Iterator[GraphLoader]:
    with loader_of(request.param, batch_timeout_s=BATCH_TIMEOUT_S) as made:
        yield made


def test_each_batch_goes_to_one_thread_at_once(loader: GraphLoader) -> None:
    wanted = sorted(int(i) for batch in loader for i in batch.input_id)
    for _ in range(EPOCHS):
        readers, barrier = readers_of(iter(loader))
        barrier.wait(HANG_S)
        ended(readers)
        assert [reader.error for reader in readers] == [None] * THREADS
        assert sorted(i for reader in readers for i in reader.seeds) == wanted
        assert loader.stats().batches == len(loader)


def test_an_iterator_that_is_left_for_a_newer_one_ends_in_every_thread(loader: GraphLoader) -> None:
    readers, barrier = readers_of(iter(loader))
    barrier.wait(HANG_S)
    newer = sorted(int(i) for batch in loader for i in batch.input_id)
    ended(readers)
    assert newer == sorted(set(newer)) and len(newer) == 100
    assert all(reader.error is None or "newer one" in str(reader.error) for reader in readers)


def test_closing_ends_the_wait_of_every_thread(loader: GraphLoader) -> None:
    loader.pause()
    readers, barrier = readers_of(iter(loader))
    barrier.wait(HANG_S)
    loader.unpause()
    loader.close()
    ended(readers)
    for reader in readers:
        assert reader.error is None or isinstance(reader.error, LoaderClosed), reader.error
    assert not any(isinstance(reader.error, GnnkitError) and "timeout" in str(reader.error) for reader in readers)


@pytest.mark.parametrize("kind", ["Colocated-2", "GraphStore-2"])
def test_no_answer_waits_for_a_look_around(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread may take the answers of the others from a process; it wakes those whose answers they are."""

    class Poll:
        """What the system offers, but late, and for as long as it takes: between a look at what has come and the wait others take it."""

        def __init__(self) -> None:
            self._real = poll()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def poll(self, timeout_ms: float | None = None) -> Any:
            if threading.current_thread().name.startswith("asks"):
                never.wait(0.02)
                timeout_ms = SLOW_LOOK_S * 1000
            return self._real.poll(timeout_ms)

    with loader_of("inprocess") as alone:
        wanted = [alone.sample([i, i + 1], index=i) for i in range(40)]
    with loader_of(kind) as loader:
        loader.sample([0])
        poll, never = select.poll, threading.Event()
        monkeypatch.setattr(select, "poll", Poll)
        with ThreadPoolExecutor(8, thread_name_prefix="asks") as pool:
            for _ in range(3):
                outcomes = [pool.submit(loader.sample, [i, i + 1], index=i) for i in range(40)]
                for outcome, expected in zip(outcomes, wanted, strict=True):
                    # The last answers of a burst would come later than that: nothing arrives after them.
                    same(outcome.result(HANG_S), expected)
