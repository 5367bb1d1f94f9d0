"""The pieces of a dashboard: sums over a minute, small charts, when it is live, and how a snapshot is drawn."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnkit.events import StageState
from gnnkit.loader.history import BatchRecord
from gnnkit.ui.dashboard.live import Liveness
from gnnkit.ui.dashboard.observer import (
    HEIGHT,
    SECONDS,
    WIDTH,
    ProcessRow,
    Series,
    Snapshot,
    ThroughputWindow,
    area_path,
    blocks,
    line_points,
    whole_percents,
)
from gnnkit.ui.dashboard.places import board, number, page, process_table, to_block
from tests.ui.budgets import MAX_HTML_BYTES
from tests.ui.test_cards import NASTY, Reader


def record(
    asked_s: float, *, consumer_s: float = 0.0, wait_s: float = 0.0, paused_s: float = 0.0, worker: str = "process 0"
) -> BatchRecord:
    times = {"began_s": math.nan, "sample_s": 0.2, "gather_s": 0.1, "collate_s": 0.0, "transform_s": 0.0, "transfer_s": 0.0}
    sizes = {"seeds": 100, "nodes": 500, "edges": 900, "nbytes": 1000, "ready": 2}
    given = {"asked_s": asked_s, "paused_s": paused_s, "wait_s": wait_s, "consumer_s": consumer_s}
    return BatchRecord(epoch=0, index=0, worker=worker, **times, **given, **sizes)  # type: ignore[arg-type]


def test_a_slow_batch_is_spread_over_the_seconds_that_it_took() -> None:
    minute = ThroughputWindow()
    # Two seconds of training and one of waiting: a third of a batch in each second from 1000 to 1003.
    minute.add([record(1002.0, consumer_s=2.0, wait_s=1.0)])
    batches, seeds = minute.rates(1004.0)
    assert batches[-4:] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0]) and seeds[-4:] == pytest.approx([100 / 3, 100 / 3, 100 / 3, 0.0])
    assert len(batches) == SECONDS and sum(batches) == pytest.approx(1.0)
    assert minute.times(1004.0, 10)["wait"] == 1.0 and minute.times(1004.0, 10)["consumer"] == 2.0
    assert minute.times(1004.0, 0).get("wait", 0.0) == 0.0
    assert minute.busy(1004.0, 10) == {"process 0": pytest.approx(0.3)}
    assert minute.occupancy(1005.0)[-3:] == [0.0, 2.0, 2.0]
    assert minute.seen_s == 1002.0 and minute.until_s == 1003.0


def test_a_batch_counts_once_and_pauses_are_nobodys() -> None:
    minute = ThroughputWindow()
    minute.add([record(1000.5)])
    minute.add([record(1000.5), record(1001.5, consumer_s=1.0)])
    assert sum(minute.rates(1003.0)[0]) == pytest.approx(2.0)
    minute.add([record(1002.0, consumer_s=0.5, paused_s=100.0)])
    # Delivered after the pause: in its last second, not spread over all of it; and the minute before it is forgotten.
    assert minute.rates(1103.0)[0][-2:] == pytest.approx([0.0, 1.0]) and sum(minute.rates(1103.0)[0]) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 5), st.floats(0, 5)), max_size=60))
def test_no_batch_is_lost_or_counted_twice(steps: list[tuple[float, float, float]]) -> None:
    minute, now, records = ThroughputWindow(), 5000.0, []
    for gap, consumer_s, wait_s in steps:
        asked_s = now + gap + consumer_s
        records.append(record(asked_s, consumer_s=consumer_s, wait_s=wait_s))
        now = asked_s + wait_s
    minute.add(records)
    batches, seeds = minute.rates(now + 1)
    last = [r for r in records if r.asked_s - r.consumer_s >= math.floor(now + 1) - SECONDS]
    # Batches that have the same moment are one to the minute, which knows them by it.
    least = len({r.asked_s for r in last})
    assert least - 1e-6 <= sum(batches) <= len({r.asked_s for r in records}) + 1e-6
    assert sum(seeds) == pytest.approx(100 * sum(batches))


def test_charts() -> None:
    points = [tuple(map(int, point.split(","))) for point in line_points([0.0, 5.0, 10.0], 10.0).split()]
    assert [x for x, _ in points] == [0, WIDTH // 2, WIDTH]
    assert points[0][1] > points[1][1] > points[2][1] and all(0 < y < HEIGHT for _, y in points)
    assert area_path([1.0, 2.0], 2.0).startswith(f"M0,{HEIGHT}L0,") and area_path([1.0, 2.0], 2.0).endswith("z")
    assert blocks([0.0, 1.0, 2.0, 99.0], 2.0) == "▁▅██" and blocks([1.0], 0.0) == "" and blocks([1.0] * 50, 1.0, 7) == "█" * 7


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda values: sum(values) > 0))
def test_percents_sum_to_a_hundred(values: list[float]) -> None:
    percents = [percent for _, percent in whole_percents({str(number): value / sum(values) for number, value in enumerate(values)})]
    assert sum(percents) == 100 and all(abs(p - 100 * v / sum(values)) < 1 + 1e-6 for p, v in zip(percents, values, strict=True))


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.nan, "–"), (0.0, "0"), (0.042, "0.04"), (0.95, "0.95"), (0.996, "1.0"), (12.44, "12.4"), (99.96, "100"), (25_100.0, "25.1k")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def beats(pulse: Liveness, *looks: tuple[float, bool], asked_s: float = -math.inf) -> list[bool]:
    return [pulse.beat(now, running=running, asked_s=asked_s) for now, running in looks]


def test_a_dashboard_to_which_nothing_happens_becomes_a_still_picture() -> None:
    assert beats(Liveness(0.0), (1, False), (29, False), (31, False), (32, False)) == [True, True, False, False]


def test_an_epoch_between_two_looks_ends_the_freshness() -> None:
    pulse = Liveness(0.0)
    assert beats(pulse, (1, False)) == [True]
    pulse.cell_ended(2)
    assert beats(pulse, (2, False), asked_s=1.5) == [False]


def test_it_is_live_while_an_epoch_runs_and_between_those_of_a_cell() -> None:
    pulse = Liveness(0.0)
    assert beats(pulse, (1, True), (9, False), (100, False), (101, True), (102, False)) == [True] * 5
    pulse.cell_ended(103)
    assert beats(pulse, (103, False), (104, False)) == [False, False]
    pulse.cell_began()
    # The next one has to last until it is worth it.
    assert beats(pulse, (110, True), (110.5, True), (111, True), (112, False)) == [False, False, True, True]
    pulse.cell_ended(112.5)
    assert beats(pulse, (112.5, False)) == [False]


def test_it_is_live_while_a_loop_runs_in_a_thread() -> None:
    pulse = Liveness(0.0)
    pulse.cell_ended(0.5)
    assert [pulse.beat(now, running=True, asked_s=now) for now in (1.0, 2.0, 3.0)] == [True] * 3
    pulse.cell_ended(3.5)
    assert [pulse.beat(now, running=True, asked_s=now) for now in (4.0, 6.0, 9.0)] == [True] * 3
    assert beats(pulse, (9.5, False), (10.9, False), (11.1, False), asked_s=9.0) == [True, True, False]


def test_a_loop_that_was_left_is_over_when_its_cell_has_ended() -> None:
    pulse = Liveness(0.0)
    assert beats(pulse, (1, True), (50, True), asked_s=1.0) == [True, True] and not pulse.is_quiet
    pulse.cell_ended(51)
    assert beats(pulse, (51, True), (52, True), asked_s=1.0) == [True, True] and not pulse.is_quiet
    assert beats(pulse, (52.6, True), (60, True), asked_s=1.0) == [False, False] and pulse.is_quiet
    # Whoever goes on with the iterator in another cell has it live again.
    pulse.cell_began()
    assert beats(pulse, (61, True), (62, True), asked_s=61.0) == [False, True] and not pulse.is_quiet


EPOCH = StageState("epoch", "3", "running", 40, 193, "batches", "", "", 1000.0, 3.2, 12.5)


FULL = Snapshot(
    title="ogbn-products",
    where="Colocated, 2 processes",
    state="sampling",
    stages=(
        replace(EPOCH, stage="start", label="", unit="processes", done=2, total=2, state="done", text="3.1 s"),
        EPOCH,
    ),
    batches=Series([0.0] * 30 + [12.5] * 30, 12.5),
    seeds=Series([0.0] * 30 + [12_800.0] * 30, 12_800.0),
    ready=Series([3.0] * 60, 3.0),
    slots=8,
    consumer={"waiting": 0.255, "building": 0.105, "transfer": 0.0, "your loop": 0.64},
    workers={"sampling": 0.5, "gathering": 0.25, "idle": 0.25},
    split_of="last 10 s",
    processes=(
        ProcessRow("trainer", 4242, "running", 1.02, math.nan, 330_000_000, 10_000_000, None),
        ProcessRow(
            "process 0", 4243, "stopped (SIGSTOP)", math.nan, 0.52, 54_000_000, 1_600_000_000, "/logs/worker-0.log", ("one <b>", "two")
        ),
    ),
    buffers=50_000_000,
    graph=2_000_000,
    advice="Sampling is the bottleneck: try num_workers=4.",
    error="WorkerDied: process 0 was killed & gone",
)


def test_a_snapshot_as_text() -> None:
    lines = to_block(FULL).splitlines()
    assert lines[0] == "Dashboard of ogbn-products (sampling): Colocated, 2 processes"
    text = "\n".join(lines)
    assert (
        "start          2 processes, 3.1 s" in text
        and "epoch 3        █████░" in text
        and "20 %, 40 of 193 batches, 12 batches/s, 13 s left" in text
    )
    assert "batches/s          12.5  " + "█" * 30 in text and "ready batches    3 of 8  " + "▄" * 30 in text
    assert "this process   waiting 26 %, building 10 %, transfer 0 %, your loop 64 % (last 10 s)" in text
    assert "workers        sampling 50 %, gathering 25 %, idle 25 % (last 10 s)" in text
    assert "memory         106 MB" in text  # this process's own is not the loader's
    assert lines[-3:] == [
        "  process    state               pid    CPU  sampling  own memory   shared",
        "  trainer    running            4242  102 %                330 MB  10.0 MB",
        "  process 0  stopped (SIGSTOP)  4243             52 %     54.0 MB  1.60 GB",
    ]
    empty = to_block(Snapshot("tiny", "InProcess, 1 thread", "ready"))
    assert empty.splitlines() == ["Dashboard of tiny (ready): InProcess, 1 thread", "  memory  0 B"]


def test_the_memory_of_a_device_is_beside_the_hosts() -> None:
    assert "graph on the device" not in page(FULL)
    sampled_there = replace(FULL, on_device=3_000_000)
    assert "graph on the device" in page(sampled_there) and "3.00 MB" in page(sampled_there) and "106 MB" in page(sampled_there)


def test_a_column_that_says_nothing_is_left_out() -> None:
    head, *rows = process_table([replace(process, busy=math.nan, cpu=math.nan) for process in FULL.processes])
    assert head == ["process", "state", "pid", "CPU", "own memory", "shared"] and [len(row) for row in rows] == [6, 6]


def test_a_snapshot_as_html() -> None:
    reader = Reader(page(FULL, "a note"))
    assert {"script", "link", "iframe", "object"}.isdisjoint(reader.tags) and not any(name.startswith("on") for name in reader.attributes)
    for text in (
        "ogbn-products",
        "sampling",
        "12.5",
        "of 8",
        "26 %",
        "52 %",
        "1.60 GB",
        FULL.advice,
        f"last error: {FULL.error}",
        "/logs/worker-0.log",
        "a note",
    ):
        assert text in reader.texts, text
    assert "one <b>\ntwo" in reader.texts and reader.tags.count("polyline") == 3 and reader.tags.count("details") == 1
    assert 'aria-valuenow="20.7"' in page(FULL) and "prefers-color-scheme:dark" in page(FULL) and "data-jp-theme-light=false" in page(FULL)
    # The layout is the same before anything is known, and a bar without a total does not pretend to have one.
    empty = board(Snapshot("tiny", "", "ready", stages=(replace(EPOCH, total=None),)))
    assert "bottleneck shows after" in empty and "gk-some" in empty and "aria-valuenow" not in empty and empty.count("<svg") == 4


def test_a_page_is_small_however_much_there_is() -> None:
    process = FULL.processes[1]
    many = [replace(process, name=f"server {i}, process 0", tail=tuple("x" * 160 for _ in range(8))) for i in range(200)]
    html = page(replace(FULL, processes=tuple(many), stages=(FULL.stages[1],) * 7))
    assert len(html.encode()) < MAX_HTML_BYTES and re.search("and 1[89][0-9] more<", html) and html.count("<details>") >= 6
    # At its worst, every character takes several bytes.
    for character in "&", "\N{MATHEMATICAL BOLD SCRIPT CAPITAL G}", '"':
        text = character * 1000
        rows = tuple(replace(p, name=text, state=text, log=text, tail=(text,) * 8) for p in many)
        stage = replace(EPOCH, stage=text, label=text, unit=text, state="failed", text=text)
        changes = {"title": text, "where": text, "state": text, "advice": text, "error": text}
        html = page(replace(FULL, processes=rows, stages=(stage,) * 7, **changes), text)
        assert len(html.encode()) < MAX_HTML_BYTES and "200 logs left out." in html


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=25)
@given(NASTY, NASTY, NASTY, NASTY)
def test_nothing_that_is_shown_becomes_markup(title: str, label: str, name: str, line: str) -> None:
    process = replace(FULL.processes[1], name=name, state=label, log=title or None, tail=(line, label))
    stage = replace(EPOCH, stage=title, label=label, unit=name, state="failed", text=line)
    snapshot = replace(FULL, title=title, where=name, state=label, advice=line, error=line, stages=(stage,), processes=(process,))
    assert set(Reader(page(snapshot, line)).tags) <= set(Reader(page(FULL, "note")).tags)
    assert "\x1b" not in to_block(snapshot)


def test_what_changes_by_itself_makes_no_new_picture() -> None:
    first = replace(FULL, processes=(replace(FULL.processes[0], cpu=math.nan), FULL.processes[1]), batches=Series([1.0], math.nan))
    second = replace(
        first, processes=(replace(FULL.processes[0], private=1, cpu=0.5), FULL.processes[1]), buffers=7, batches=Series([1.0], math.nan)
    )
    assert first.lasting() == second.lasting()
    assert replace(first, state="paused").lasting() != first.lasting() != replace(first, stages=()).lasting()
