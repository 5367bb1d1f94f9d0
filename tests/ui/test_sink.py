from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.events import Event, Stage
from gnnkit.ui.progress import ProgressReporter
from tests.helpers.machine import in_time


class Recorder:
    """A renderer that keeps its frames, with the times at which it was asked to draw them."""

    interval_s = 0.125

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.frames: list[tuple[float, Any]] = []
        self.closed = 0
        self.clock = clock

    def settle(self) -> None:
        pass

    def draw(self, frame: Any) -> None:
        self.frames.append((self.clock(), frame))

    def close(self) -> None:
        self.closed += 1

    @property
    def lines(self) -> list[tuple[str, str, str]]:
        return [(line.kind, f"{line.stage} {line.label}".strip(), line.text) for _, frame in self.frames for line in frame.lines]

    def most_in_a_second(self) -> int:
        times = [at for at, _ in self.frames]
        return max((sum(start <= at < start + 1 for at in times) for start in times), default=0)


class Clock:
    """A clock that tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Script:
    """A sink on a clock of its own, which draws only when events come."""

    def __init__(self, *, epochs: bool = False) -> None:
        self.clock = Clock()
        self.recorder = Recorder(self.clock)
        self.sink = ProgressReporter(self.recorder, epochs=epochs, clock=self.clock, background=False)

    def say(self, kind: str, stage: str = "ingest", *, wait: float = 0.0, **fields: object) -> None:
        self.clock.now += wait
        self.sink(Event(kind, stage, time_s=self.clock.now, **fields))  # type: ignore[arg-type]


def test_ten_thousand_reports_a_second_are_drawn_at_most_ten_times() -> None:
    script = Script()
    script.say("start", total=50_000.0, unit="edges")
    for done in range(50_000):
        script.say("progress", wait=1e-4, done=done, total=50_000.0, unit="edges")
    script.say("end", done=50_000, total=50_000.0, unit="edges")
    assert 30 <= len(script.recorder.frames) <= 50
    assert script.recorder.most_in_a_second() <= 10
    bars = [frame.bars[0] for _, frame in script.recorder.frames if frame.bars]
    assert bars[-1].rate == pytest.approx(10_000, rel=0.01)
    assert bars[-1].eta_s == pytest.approx(0.1, abs=0.15)
    assert script.recorder.lines == [("done", "ingest", "")]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "progress", "end", "fail", "message"]),
        st.sampled_from(["download", "ingest", "epoch", "other"]),
        st.sampled_from(["", "a"]),
        st.sampled_from([0.0, 0.001, 0.05, 0.3, 0.7, 4.0]),
        st.floats(),
        st.none() | st.floats(),
    ),
    max_size=80,
)


@settings(deadline=None)
@given(EVENTS, st.booleans())
def test_any_events_are_drawn_at_most_ten_times_a_second(
    events: list[tuple[str, str, str, float, float, float | None]], epochs: bool
) -> None:
    script = Script(epochs=epochs)
    for kind, stage, label, wait, done, total in events:
        script.say(kind, stage, wait=wait, label=label, done=done, total=total)
    assert script.recorder.most_in_a_second() <= 10
    script.sink.close()
    messages = sum(kind == "message" for kind, *_ in events)
    assert sum(kind == "message" for kind, *_ in script.recorder.lines) == messages
    assert all(0 <= bar.fraction <= 1 for _, frame in script.recorder.frames for bar in frame.bars if bar.fraction is not None)
    assert epochs or not any(name.startswith("epoch") for kind, name, _ in script.recorder.lines if kind != "message")


def test_short_stages_are_drawn_only_if_they_fail() -> None:
    script = Script()
    for number in range(100):
        script.say("start", wait=0.01, label=str(number))
        script.say("end", wait=0.4, label=str(number))
    assert not script.recorder.frames
    script.say("start", label="last")
    script.say("fail", wait=0.01, label="last", text="DatasetError: truncated")
    assert script.recorder.lines == [("failed", "ingest last", "DatasetError")]


def test_an_error_is_named_once_on_its_way_out() -> None:
    """By its class: the error itself, which the reader gets as well, has the text."""
    script = Script()
    for stage in ("ingest", "partition"):
        script.say("start", stage)
    for stage in ("partition", "ingest"):
        script.say("fail", stage, wait=1.0, text="StoreError: disk full")
    assert script.recorder.lines == [("failed", "partition", "StoreError"), ("failed", "ingest", "")]


def test_epochs_are_drawn_on_request_and_leave_a_line_each() -> None:
    for epochs, expected in ((False, []), (True, ["epoch 0", "epoch 1"])):
        script = Script(epochs=epochs)
        for label in ("0", "1"):
            script.say("start", "epoch", label=label, total=10.0, unit="batches")
            for done in range(10):
                script.say("progress", "epoch", wait=0.2, label=label, done=done + 1, total=10.0, unit="batches")
            script.say("end", "epoch", label=label, done=10, total=10.0, unit="batches")
        assert [name for kind, name, _ in script.recorder.lines] == expected
        assert bool(script.recorder.frames) == epochs


def test_leaving_an_epoch_early_is_no_failure() -> None:
    recorder = Recorder()
    sink = ProgressReporter(recorder, epochs=True)

    def batches() -> object:
        with Stage(sink, "epoch", total=10, unit="batches") as stage:
            for number in range(10):
                stage.advance()
                yield number

    sink(Event("start", "ingest", time_s=time.monotonic() - 9))
    iterator = batches()
    next(iterator)  # type: ignore[call-overload]
    iterator.close()  # type: ignore[attr-defined]
    sink.close()
    assert {kind for kind, *_ in recorder.lines} == {"stopped"}


def test_stages_that_overlap_are_listed_in_their_order() -> None:
    script = Script()
    for stage, label in (("custom", ""), ("compile", "kernels"), ("ingest", "b"), ("download", "x"), ("ingest", "c")):
        script.say("start", stage, wait=0.1, label=label)
    script.say("progress", "ingest", wait=1.0, label="b", done=1)
    assert [(bar.stage, bar.label) for bar in script.recorder.frames[-1][1].bars] == [
        ("download", "x"),
        ("ingest", "b"),
        ("ingest", "c"),
        ("compile", "kernels"),
        ("custom", ""),
    ]
    for number in range(20):
        script.say("start", "part", label=str(number))
    script.say("progress", "ingest", wait=1.0, label="b", done=2)
    assert (len(script.recorder.frames[-1][1].bars), script.recorder.frames[-1][1].hidden) == (8, 17)


def test_the_rate_is_of_late_and_falls_when_nothing_comes() -> None:
    script = Script()
    script.say("start", total=1e6, unit="B")
    for step in range(400):
        speed = 100 if step < 200 else 1000
        script.say("progress", wait=0.1, done=step * 10 if step < 200 else 2000 + (step - 199) * speed // 10, total=1e6, unit="B")
    assert script.recorder.frames[-1][1].bars[0].rate == pytest.approx(1000, rel=0.02)
    script.say("start", "compile", wait=20)
    assert script.recorder.frames[-1][1].bars[0].rate == pytest.approx(430, rel=0.05)
    script.say("end", wait=1, done=1e6, total=1e6, unit="B")
    done = script.recorder.frames[-1][1].lines[0].bar
    assert done is not None and done.rate == pytest.approx(1e6 / 61, rel=0.02)


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    tick = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        tick.wait(0.01)


def test_a_stage_without_news_is_drawn_all_the_same() -> None:
    recorder = Recorder()
    with ProgressReporter(recorder) as sink:
        began = time.monotonic()
        sink(Event("start", "compile", label="kernels"))
        wait_for(lambda: len(recorder.frames) >= 2)
        first, second = recorder.frames[0][0] - began, recorder.frames[1][0] - recorder.frames[0][0]
        assert first >= 0.5 and in_time(first, 2)
        assert second > 0.9 and in_time(second, 3)
        assert recorder.frames[1][1].bars[0].elapsed_s > recorder.frames[0][1].bars[0].elapsed_s
    assert recorder.lines == [("stopped", "compile kernels", "")]
    assert recorder.closed == 1


def test_threads_may_report_at_will() -> None:
    last = threading.local()

    def clock() -> float:
        last.reading = time.monotonic()
        return float(last.reading)

    recorder = Recorder(lambda: last.reading)  # the time at which a frame was due; a busy machine draws it late
    sink = ProgressReporter(recorder, clock=clock)

    def work(label: str) -> None:
        sink(Event("start", "ingest", label, total=1e9, time_s=time.monotonic() - 1))
        began, done = time.monotonic(), 0
        while time.monotonic() < began + 1.0 or (len(recorder.frames) < 5 and time.monotonic() < began + 60.0):
            done += 1
            sink(Event("progress", "ingest", label, done, 1e9))
        sink(Event("end", "ingest", label, done, 1e9))

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert sorted(recorder.lines) == [("done", f"ingest {n}", "") for n in range(4)]
    assert len(recorder.frames) >= 5 and recorder.most_in_a_second() <= 11  # the last frame is close()'s
    wait_for(lambda: not any(thread.name == "gnnkit-progress" for thread in threading.enumerate()))


def test_a_blocked_terminal_does_not_block_the_work() -> None:
    unblock = threading.Event()

    class Blocked(Recorder):
        def draw(self, frame: Any) -> None:
            super().draw(frame)
            assert unblock.wait(60)

    recorder = Blocked()
    sink = ProgressReporter(recorder)
    sink(Event("start", "ingest", time_s=time.monotonic() - 1))
    wait_for(lambda: bool(recorder.frames))
    began = time.monotonic()
    for done in range(2000):
        sink(Event("progress", "ingest", done=done))
    assert in_time(time.monotonic() - began, 5)
    assert len(recorder.frames) == 1
    unblock.set()
    sink.close()


@pytest.mark.parametrize(
    "error", [ValueError("I/O operation on closed file"), BrokenPipeError(32, "Broken pipe"), RuntimeError("no front end")]
)
def test_a_renderer_that_fails_is_dropped_and_the_run_goes_on(error: Exception) -> None:
    class Failing(Recorder):
        def draw(self, frame: Any) -> None:
            super().draw(frame)
            raise error

    recorder = Failing()
    sink = ProgressReporter(recorder)
    for number in range(3):
        sink(Event("start", "ingest", time_s=time.monotonic() - 1))
        sink(Event("end", "ingest"))
        sink(Event("message", "ingest", text=str(number)))
    sink.close()
    assert len(recorder.frames) == 1


def test_closing_is_final_and_may_be_repeated() -> None:
    recorder = Recorder()
    sink = ProgressReporter(recorder)
    sink(Event("message", "ingest", text="last words"))
    sink.close()
    sink.close()
    assert recorder.lines == [("message", "ingest", "last words")]
    sink(Event("message", "ingest", text="too late"))
    assert len(recorder.lines) == 1 and recorder.closed == 1


def test_a_forgotten_sink_is_collected_and_closed() -> None:
    recorder = Recorder()
    sink = ProgressReporter(recorder)
    sink(Event("start", "ingest"))
    sink(Event("message", "ingest", text="hello"))
    del sink
    gc.collect()
    wait_for(lambda: recorder.closed == 1)
    assert recorder.lines == [("message", "ingest", "hello")]
    wait_for(lambda: not any(thread.name == "gnnkit-progress" for thread in threading.enumerate()))


def test_a_summary_stands_in_for_the_numbers() -> None:
    script = Script()
    script.say("start")
    script.say("end", wait=1, text="2 parts, edge cut 12 %")
    assert script.recorder.lines == [("done", "ingest", "2 parts, edge cut 12 %")]
