"""Holding a loader back: the gate alone, and what pauses mean to iterations. What every backend does is in ``tests/backends``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gnnkit.errors import BatchTimeout, LoaderClosed
from gnnkit.loader.history import Gate
from tests.helpers.waiting import wait_until
from tests.loader.graphs import make
from tests.loader.test_stats_and_repr import busy


def test_a_gate_lets_pass_while_it_is_open() -> None:
    gate, looks = Gate(), 0

    def look() -> None:
        nonlocal looks
        looks += 1

    assert not gate.is_shut and gate.wait(0.0, look) and looks == 0
    gate.shut()
    assert gate.is_shut and not gate.wait(0.0, look) and not gate.wait(0.12, look)
    looks = 0

    def open_in_the_end() -> None:
        look()
        if looks == 3:
            gate.open()

    assert gate.wait(60.0, open_in_the_end) and not gate.is_shut and looks == 3


def test_whoever_waits_at_a_gate_looks_whether_it_is_wanted() -> None:
    gate = Gate()
    gate.shut()

    def look() -> None:
        raise LoaderClosed("gone")

    with pytest.raises(LoaderClosed, match="gone"):
        gate.wait(float("inf"), look)


def later(call: Callable[[], Any], after_s: float) -> None:
    """Has something done in another thread, while this one waits at a gate."""
    threading.Timer(after_s, call).start()


def test_a_pause_is_not_the_batchs_fault() -> None:
    """Neither its time nor a timeout runs, and the epoch goes on where it was."""
    with make(batch_timeout_s=1.0) as loader:
        iterator: Any = iter(loader)
        first = next(iterator)
        loader.pause()
        later(loader.unpause, 2.5)
        rest = list(iterator)
        stats = loader.stats()
        assert 1 + len(rest) == len(loader) and first is not None and 1.4 < stats.paused_s <= stats.wall_s
        assert sum(record.paused_s for record in loader.records) == pytest.approx(stats.paused_s)
        assert "paused" in str(loader) and loader.status().state == "ready"


def test_a_paused_loader_starts_paused_epochs() -> None:
    with make() as loader:
        loader.pause()
        iterator: Any = iter(loader)
        with pytest.raises(BatchTimeout, match=r"unpause\(\)"):
            iterator.within(0.0)
        assert loader.history.last_error is None and loader.status().state == "paused"
        newer: Any = iter(loader)
        loader.unpause()
        with pytest.raises(LoaderClosed, match="newer"):
            next(iterator)
        assert len(list(newer)) == len(loader)


@pytest.mark.parametrize("ends", ["newer", "interrupt"])
def test_what_ends_a_pause(ends: str) -> None:
    import signal

    with make() as loader:
        iterator: Any = iter(loader)
        next(iterator)
        loader.pause()
        if ends == "newer":
            others: list[Any] = []
            with pytest.raises(LoaderClosed, match="newer"):
                later(lambda: others.append(iter(loader)), 0.1)
                next(iterator)
            assert wait_until(lambda: len(others) == 1) and loader.is_paused
        else:
            with pytest.raises(KeyboardInterrupt):
                later(lambda: signal.raise_signal(signal.SIGINT), 0.5)
                next(iterator)
            assert loader.is_paused and loader.history.last_error is None and loader.history.stages[-1].state == "failed"
        loader.unpause()
        assert sum(1 for _ in loader.resume()) == (len(loader) if ends == "newer" else len(loader) - 1)


def test_a_loader_that_is_closed_while_its_epoch_begins() -> None:
    """Nobody waits for it, paused though it is."""
    with make() as loader:
        loader.pause()
        loader.history.listen(lambda event: loader.close() if event.stage == "epoch" and event.kind == "start" else None)
        iterator: Any = iter(loader)
        with pytest.raises(LoaderClosed, match="the loader is closed"):
            iterator.within(60.0)
        assert loader.history.stages[-1].text == "stopped"


def test_the_time_before_a_pause_is_the_consumers() -> None:
    with make() as loader:
        iterator: Any = iter(loader)
        next(iterator)
        busy(0.03)
        loader.pause()
        later(loader.unpause, 0.5)
        next(iterator)
        second = list(loader.records)[1]
    assert second.consumer_s >= 0.03 and second.paused_s > 0
