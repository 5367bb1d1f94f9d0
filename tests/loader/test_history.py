"""What a loader remembers of its stages, its messages and its errors."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from gnnkit.errors import LoaderClosed, SamplingError
from gnnkit.events import Event, Stage, ignore_events
from gnnkit.loader.history import History
from tests.helpers.watched import Watched
from tests.loader.graphs import make


def said(history: History) -> list[tuple[str, str, str, float]]:
    return [(stage.stage, stage.label, stage.state, stage.done) for stage in history.stages]


def test_stages_are_followed_and_sent_on() -> None:
    seen: list[Event] = []
    history = History(seen.append)
    with Stage(history, "download", label="x", total=10, unit="B") as stage:
        assert history.stages[0].fraction == 0.0 and history.stages[0].rate is None
        stage.update(5)
        stage.message("half way")
        (running,) = history.stages
        assert (running.state, running.done, running.total, running.fraction, running.unit) == ("running", 5, 10, 0.5, "B")
        stage.update(20)
        stage.summary = "more than there was"
    with pytest.raises(ZeroDivisionError), Stage(history, "ingest"):
        _ = 1 / 0
    done, failed = history.stages
    assert (done.state, done.fraction, done.text) == ("done", 1.0, "more than there was") and failed.fraction is None
    assert (failed.state, failed.text) == ("failed", "ZeroDivisionError: division by zero")
    assert done.started_s + done.elapsed_s <= failed.started_s + failed.elapsed_s
    assert history.messages == ("half way",) and [event.kind for event in seen] == [
        "start",
        "progress",
        "message",
        "progress",
        "end",
        "start",
        "fail",
    ]
    with Stage(history, "ingest"):  # once more
        assert said(history)[1:] == [("ingest", "", "failed", 0), ("ingest", "", "running", 0)]
    assert history.stages[-1].fraction == 1.0


def test_processes_that_do_the_same_report_one_stage() -> None:
    def event(kind: Any, done: float) -> Event:
        return Event(kind, "compile", "kernels", done, 40, "kernels")

    history = History(ignore_events)
    for kind, done, state in (
        ("start", 0, "running"),
        ("start", 0, "running"),
        ("progress", 30, "running"),
        ("end", 40, "done"),
        ("progress", 35, "running"),  # the other one is still at it
        ("end", 40, "done"),
    ):
        history(event(kind, done))  # type: ignore[arg-type]
        assert said(history) == [("compile", "kernels", state, done)]
    history(Event("end", "start", "", 1, 1, "processes"))  # whose beginning nobody has seen
    assert said(history)[1:] == [("start", "", "done", 1)]


def test_only_the_last_ones_are_kept() -> None:
    history = History(ignore_events)
    for number in range(100):
        with Stage(history, "epoch", label=str(number)) as stage:
            stage.message(str(number))
    assert [stage.label for stage in history.stages] == [str(number) for number in range(36, 100)]
    assert history.messages == tuple(str(number) for number in range(68, 100))


def test_listeners_hear_until_they_fail_or_leave(caplog: pytest.LogCaptureFixture) -> None:
    history, heard, failing = History(ignore_events), [], []

    def fails(event: Event) -> None:
        failing.append(event)
        raise ValueError("no")

    leave_first, leave_second = history.listen(heard.append), history.listen(heard.append)
    history.listen(fails)
    with caplog.at_level(logging.WARNING):
        history(Event("message", "epoch", text="a"))
        history(Event("message", "epoch", text="b"))
    assert len(heard) == 4 and len(failing) == 1 and "hears no more" in caplog.text
    leave_first()
    leave_first()
    history(Event("message", "epoch", text="c"))
    leave_second()
    history(Event("message", "epoch", text="d"))
    assert [event.text for event in heard] == ["a", "a", "b", "b", "c"]


def test_events_may_come_from_several_threads() -> None:
    history = History(ignore_events)

    def work(name: str) -> None:
        for number in range(50):
            with Stage(history, name, label=str(number), total=2) as stage:
                stage.advance()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("download", "ingest")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history.stages) == 64 and {stage.state for stage in history.stages} == {"done"}


class Big:
    """Something that a frame holds."""


@pytest.mark.slow
def test_an_error_is_kept_as_text() -> None:
    history, big = History(ignore_events), Big()
    gone = weakref.ref(big)

    def fails(held: Big) -> None:
        try:
            raise OSError("the disk is full")
        except OSError as error:
            raise SamplingError("no batch\nsecond line", "get a larger one") from error

    with pytest.raises(SamplingError), history.noting():
        fails(big)
    error = history.last_error
    assert error is not None and error.kind == "SamplingError" and error.line == "SamplingError: no batch"
    assert "-> get a larger one" in error.message and "OSError: the disk is full" in error.trace and "in fails" in error.trace
    del big
    gc.collect()
    assert gone() is None
    for other in (LoaderClosed("closed"), KeyboardInterrupt()):  # nothing went wrong
        with pytest.raises(type(other)), history.noting():
            raise other
    assert history.last_error is error


def test_a_loader_remembers_what_it_raised() -> None:
    broken = is_damaged = False

    def read() -> None:
        if is_damaged:
            raise OSError("a disk")

    def transform(batch: Any) -> Any:
        if broken:
            raise ValueError("not this one")
        return batch

    with make(backend=Watched(1, read), transform=transform) as loader, loader.for_split("valid") as sibling:
        next(iter(loader))
        assert loader.history.last_error is None
        broken = True
        with pytest.raises(ValueError, match="not this one"):
            list(loader)
        error = loader.history.last_error
        assert error is not None and error.kind == "ValueError" and "in transform" in error.trace
        assert loader.history.stages[-1].state == "failed" and "ValueError: not this one" in repr(loader)
        broken = False
        assert len(list(loader.resume())) > 0 and loader.history.last_error is error
        with pytest.raises(StopIteration):  # which is none
            next(iter(loader.resume()))
        assert loader.history.last_error is error
        is_damaged = True
        with pytest.raises(SamplingError):
            loader.peek()
        latest = loader.history.last_error
        assert latest is not None and latest.kind == "SamplingError" and "OSError: a disk" in latest.trace
        assert sibling.history.last_error is None and not sibling.records and sibling.history is not loader.history
        text, html = str(loader), loader._repr_mimebundle_()["text/html"]
    assert "last error" in text and "OSError: a disk" in text and "OSError: a disk" in html and len(html) < 20_000
