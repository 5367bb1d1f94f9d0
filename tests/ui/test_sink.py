"""The receiver of events: what it has drawn, when, by whom, and what it does where nothing can be drawn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.events import Event, Stage, StageProgress
from gnnkit.ui.progress import ProgressReporter
from tests.helpers.machine import in_time
from tests.helpers.waiting import wait_until


class Recorder:
    """A place that keeps what it is to draw."""

    def __init__(self, error: Exception | None = None) -> None:
        self.frames: list[tuple[float, dict[Any, Any]]] = []
        self.lines: list[str] = []
        self.error = error

    def draw(self, bars: dict[Any, Any], lines: list[Any]) -> None:
        self.frames.append((time.monotonic(), bars))
        self.lines += [line if isinstance(line, str) else f"{line.stage} {line.label}: {line.note}" for line in lines]
        if self.error is not None:
            raise self.error

    @property
    def bars(self) -> list[Any]:
        return [bar for _, bars in self.frames for bar in bars.values()]


def reporting(place: Recorder, settle: Callable[[], None] = lambda: None, *, epochs: bool = False) -> ProgressReporter:
    return ProgressReporter(lambda: place, settle, epochs=epochs)


def ago(seconds: float) -> float:
    return time.monotonic() - seconds


def none_draws() -> bool:
    return not any(thread.name == "gnnkit-progress" for thread in threading.enumerate())


def test_ten_thousand_reports_are_drawn_a_few_times() -> None:
    place = Recorder()
    with reporting(place) as sink:
        began = time.monotonic()
        sink(Event("start", "ingest", total=20_000.0, unit="edges", time_s=began - 1))
        for done in range(20_000):
            sink(Event("progress", "ingest", done=done, total=20_000.0, unit="edges"))
        sink(Event("end", "ingest", done=20_000, total=20_000.0, unit="edges"))
        assert len(place.frames) <= 3 + (time.monotonic() - began) / 0.125
    assert place.lines == ["ingest : "] and place.bars[-1].unit == "edges"


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "progress", "end", "fail", "message"]),
        st.sampled_from(["download", "ingest", "epoch", "other"]),
        st.sampled_from(["", "a"]),
        st.floats(0, 9),
        st.floats(),
        st.none() | st.floats(),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=40)
@given(EVENTS, st.booleans())
def test_any_events_are_taken(events: list[tuple[Any, str, str, float, float, float | None]], epochs: bool) -> None:
    place = Recorder()
    with reporting(place, epochs=epochs) as sink:
        for kind, stage, label, age, done, total in events:
            sink(Event(kind, stage, label, done, total, "", "said" if kind == "message" else "", ago(age)))
    assert place.lines.count("said") == sum(kind == "message" for kind, *_ in events)
    assert all(0 <= bar.fraction <= 1 for bar in place.bars if bar.fraction is not None)
    assert epochs or not any(line.startswith("epoch") for line in place.lines)
    assert wait_until(none_draws), "no thread is left"


FAILS, LEFT = "StoreError: disk full", "GeneratorExit: "


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        pytest.param([("start", "ingest", 0.4, ""), ("end", "ingest", 0.0, "")], [], id="short stages are no news"),
        pytest.param([("start", "ingest", 0.1, ""), ("fail", "ingest", 0.0, FAILS)], ["ingest : failed: StoreError"], id="failures are"),
        pytest.param([("start", "ingest", 1, ""), ("end", "ingest", 0.0, "2 parts")], ["ingest : 2 parts"], id="a summary is a note"),
        pytest.param(
            [("start", "ingest", 2, ""), ("start", "partition", 1, ""), ("fail", "partition", 0, FAILS), ("fail", "ingest", 0, FAILS)],
            ["partition : failed: StoreError", "ingest : failed"],
            id="an error is named once on its way out",
        ),
        pytest.param([("start", "ingest", 2, ""), ("fail", "ingest", 0, "KeyboardInterrupt: ")], ["ingest : interrupted"], id="interrupts"),
        pytest.param([("start", "epoch", 2, ""), ("fail", "epoch", 0, LEFT)], ["epoch : stopped"], id="a loop that is left is no failure"),
        pytest.param([("start", "epoch", 0.01, ""), ("end", "epoch", 0, "")], ["epoch : "], id="short epochs leave a line"),
    ],
)
def test_what_stages_leave(events: list[tuple[Any, str, float, str]], lines: list[str]) -> None:
    place = Recorder()
    with reporting(place, epochs=True) as sink:
        for kind, stage, age, text in events:
            sink(Event(kind, stage, text=text, time_s=ago(age)))
    assert place.lines == lines


def test_a_stage_without_news_is_drawn_all_the_same_and_in_the_order_of_a_run() -> None:
    place = Recorder()
    with reporting(place) as sink:
        began = time.monotonic()
        sink(Event("start", "compile", "kernels"))
        assert wait_until(lambda: len(place.frames) >= 2)
        assert place.frames[0][0] - began >= 0.5 and in_time(place.frames[0][0] - began, 2)
        assert place.bars[1].elapsed_s > place.bars[0].elapsed_s
        for number in range(20):
            sink(Event("start", "custom", str(number), time_s=ago(1)))
        sink(Event("start", "download", "x", time_s=ago(1)))
        assert wait_until(lambda: len(place.frames[-1][1]) > 1)
        assert [stage for stage, _ in place.frames[-1][1]] == ["download", "compile", *["custom"] * 6], "no more than eight"
    assert place.lines[0] == "compile kernels: stopped", "closing ends what is open"


def test_the_rate_is_of_late_and_falls_when_nothing_comes() -> None:
    stage = StageProgress(Event("start", "ingest", total=1e6, unit="B", time_s=100.0))
    for step in range(400):
        done = step * 10 if step < 200 else 2000 + (step - 199) * 100
        stage.advance(Event("progress", "ingest", "", done, 1e6, "B", time_s=100.1 + step / 10))
    rates = [stage.state(now).rate for now in (140.0, 160.0)]
    assert rates == [pytest.approx(1000, rel=0.02), pytest.approx(430, rel=0.05)]
    stage.advance(Event("end", "ingest", "", 1e6, 1e6, "B", time_s=161.0))
    assert stage.state().rate == pytest.approx(1e6 / 61, rel=0.02)


def test_threads_may_report_at_will_and_one_draws() -> None:
    place, drawn_by = Recorder(), set()
    draw = place.draw
    place.draw = lambda *given: (drawn_by.add(threading.current_thread().name), draw(*given))  # type: ignore[assignment, func-returns-value]
    sink = reporting(place)

    def work(label: str) -> None:
        with Stage(sink, "ingest", label=label, total=1e9) as stage:
            sink(Event("start", "ingest", label, total=1e9, time_s=ago(1)))
            while len(place.frames) < 4:
                stage.advance()

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(place.lines) == [f"ingest {n}: " for n in range(4)]
    assert drawn_by == {"gnnkit-progress"} and wait_until(none_draws)


def test_a_blocked_terminal_does_not_block_the_work() -> None:
    unblock = threading.Event()
    place = Recorder()
    draw = place.draw
    place.draw = lambda *given: (draw(*given), unblock.wait(60))  # type: ignore[assignment, func-returns-value]
    sink = reporting(place)
    sink(Event("start", "ingest", time_s=ago(1)))
    assert wait_until(lambda: bool(place.frames))
    began = time.monotonic()
    for done in range(2000):
        sink(Event("progress", "ingest", done=done))
    sink(Event("message", "ingest", text="while it runs"))
    assert in_time(time.monotonic() - began, 5) and len(place.frames) == 1
    unblock.set()
    sink.close()
    assert place.lines == ["while it runs", "ingest : stopped"]


@pytest.mark.parametrize(
    "error", [ValueError("I/O operation on closed file"), BrokenPipeError(32, "Broken pipe"), RuntimeError("no kernel")]
)
def test_a_place_that_fails_is_dropped_and_the_run_goes_on(error: Exception) -> None:
    place = Recorder(error)
    sink = reporting(place)
    for number in range(3):
        sink(Event("message", "ingest", text=str(number)))
    sink.close()
    assert len(place.frames) == 1 and wait_until(none_draws)


def test_the_last_word_is_drawn_before_the_caller_goes_on_and_closing_is_final() -> None:
    place, settled = Recorder(), []
    sink = reporting(place, lambda: settled.append(threading.current_thread()))
    for number in range(20):
        sink(Event("message", "ingest", text=str(number)))
        assert place.lines[-1] == str(number)
    assert settled == [threading.current_thread()] * 20, "where its drawing belongs is looked up on the thread that reports"
    sink.close()
    sink.close()
    sink(Event("message", "ingest", text="too late"))
    assert place.lines[-1] == "19"
