"""Errors as a reader of a notebook sees them: what happened, where, and what to do; the traceback is an option away."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from gnnkit import set_options
from gnnkit.errors import PlanError, TrainingFailed, WorkerDied, interruptible, note_interrupt
from gnnkit.events import Stage
from gnnkit.runtime.remote import RemoteTraceback
from gnnkit.ui.ipython import report_of
from tests.ui.kernels import Kernel

SETUP = """
import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import DatasetError, WorkerDied, interruptible
def train(loader):
    for batch in loader:
        pass
def broken(log):
    try:
        raise ValueError("<b>row</b> 7\\nis odd")
    except ValueError as cause:
        message = "sampling process 0 (pid 12) was killed by SIGKILL; the end of its log /x/<y>:\\n" + log
        raise WorkerDied(message, "call loader.resume()") from cause
def fail(log="    line one\\n    Traceback of its own"):
    broken(log)
"""
UNKNOWN = "GraphLoader.from_ogb('ogbn-prodcts', num_neighbors=[3], batch_size=10)"


@pytest.mark.parametrize("watched", [True, False])
def test_an_error_appears_once_in_a_few_lines(kernel: Kernel, watched: bool) -> None:
    cell = kernel.run(UNKNOWN, may_fail=True, watched=watched)
    assert cell.error is not None and cell.error["ename"] == "DatasetError" and not cell.displays
    lines = cell.traceback.splitlines()
    assert lines[0].startswith("DatasetError: there is no OGB dataset 'ogbn-prodcts'; did you mean 'ogbn-products' or ")
    assert lines[1].startswith("  -> known: ") and "ogbl-biokg" in lines[1] and lines[2].startswith("  at In[")
    assert lines[2].endswith(f"line 1: {UNKNOWN}") and lines[3].startswith("  full traceback: ") and len(lines) == 4
    # Caught, it shows nothing.
    caught = kernel.run(f"try:\n    {UNKNOWN}\nexcept DatasetError:\n    pass", watched=watched)
    assert not caught.displays and not caught.stdout + caught.stderr


def test_an_error_has_the_log_the_cause_and_the_readers_own_frames(kernel: Kernel) -> None:
    lines = kernel.run("def mine():\n    fail()\nmine()", may_fail=True).traceback.splitlines()
    assert lines[1:3] == ["        line one", "        Traceback of its own"] and lines[3] == "  -> call loader.resume()"
    assert [line.split(", ")[1] for line in lines if line.startswith("  at ")][:2] == ["line 3: mine()", "line 2 in mine(): fail()"]
    assert "  because of ValueError: <b>row</b> 7" in lines
    long = kernel.run("fail('\\n'.join(f'{k} ' + 'x' * 300 for k in range(2000)))", may_fail=True)
    assert len(long.traceback) < 4000 and "lines left out" in long.traceback


def test_the_full_traceback_is_an_option_away(kernel: Kernel) -> None:
    kernel.run(UNKNOWN, may_fail=True)
    cell = kernel.run("with gnnkit.set_options(tracebacks='full'):\n    get_ipython().run_line_magic('tb', '')", may_fail=True)
    shown = cell.traceback or cell.stdout + cell.stderr
    assert "graph_loader.py" in shown and "ogb.py" in shown and "Traceback" in shown
    kernel.run("gnnkit.set_options(tracebacks='full')")
    cell = kernel.run("fail()", may_fail=True)
    assert not cell.displays and cell.traceback.count("Cell In[") >= 2 and "ValueError" in cell.traceback
    kernel.run("gnnkit.set_options(tracebacks='short')")
    other = kernel.run("1 / 0", may_fail=True)
    assert (
        not other.displays and "ZeroDivisionError                         Traceback" in other.traceback
    )  # other people's errors are theirs


def test_interrupts_of_waits_are_short_and_those_of_other_code_are_not(kernel: Kernel) -> None:
    cell = kernel.run("with interruptible('start servers'):\n    raise KeyboardInterrupt", may_fail=True)
    lines = cell.traceback.splitlines()
    assert lines[:2] == ["KeyboardInterrupt: stopped in start servers", "  -> run the cell again"] and not cell.displays
    assert "Traceback" in kernel.run("raise KeyboardInterrupt", may_fail=True).traceback


def test_outside_of_ipython_errors_are_as_always() -> None:
    with pytest.raises(PlanError) as caught:
        raise PlanError("x must be 1, got 2", "give 1")
    text = "".join(traceback.format_exception(caught.value))
    assert text.startswith("Traceback") and text.endswith("gnnkit.errors.PlanError: x must be 1, got 2\n  -> give 1\n")


def causes_of(error: Exception) -> list[str]:
    before = "  because of "
    return [line.removeprefix(before) for line in report_of(error) if line.startswith(before)]


def test_a_report_survives_strange_errors() -> None:
    for error in (WorkerDied(""), WorkerDied("\x1b[31m\x00\ud800", "\n"), PlanError("a\n" * 5000, "b" * 5000)):
        assert 0 < len("\n".join(report_of(error)).encode()) < 10_000
    cause = error = ValueError("first")
    for number in range(9):
        error = ValueError(f"more {number}")
        error.__cause__, cause = cause, error
    looped = PlanError("loop")
    looped.__cause__ = looped
    assert causes_of(looped) == ["PlanError: loop"] and len(causes_of(error)) == 3
    remote = PlanError("x")
    remote.__cause__ = ValueError('Traceback (most recent call last):\n  File "a"\nKeyError: 3')
    assert causes_of(remote) == ["KeyError: 3"]


def test_a_stage_notes_what_an_interrupt_broke_off() -> None:
    told: list[Any] = []
    try:
        with Stage(told.append, "epoch", label="3", total=193, unit="batches") as stage:
            stage.advance(12)
            raise KeyboardInterrupt
    except KeyboardInterrupt as interrupt:
        note_interrupt(interrupt, "something further out")
        lines = interrupt._render_traceback_()  # type: ignore[attr-defined]
    assert lines[0] == "KeyboardInterrupt: stopped in epoch 3 at 12 of 193 batches" and "loader.resume()" in lines[1]
    assert [event.kind for event in told] == ["start", "progress", "fail"]

    def draws(event: Any) -> None:
        told.append(event)
        if event.kind == "start":
            raise KeyboardInterrupt

    told.clear()
    with pytest.raises(KeyboardInterrupt), Stage(draws, "ingest"):
        raise AssertionError("never got here")
    assert [event.kind for event in told] == ["start", "fail"]  # one that was interrupted while it was drawn has ended, too

    @interruptible("partition()")
    def work() -> None:
        raise ValueError

    with pytest.raises(ValueError) as other:
        work()
    assert not hasattr(other.value, "_render_traceback_")


def test_the_error_of_another_process_says_where_in_the_readers_code() -> None:
    library = traceback.__file__
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{report_of.__code__.co_filename}", line 9, in called\n    return train()\n'
        '  File "/somewhere/mine.py", line 5, in helper\n    return loss(out, y)\n           ^^^^\n'
        f'  File "{library}", line 7, in loss\n    raise error\n'
        "ValueError: sizes differ\nand more\n  -> another hint\n"
    )
    error = TrainingFailed("rank 1 failed: ValueError: sizes differ")
    error.__cause__ = RemoteTraceback(text)
    assert causes_of(error) == ["ValueError: sizes differ; at /somewhere/mine.py, line 5 in helper(): return loss(out, y)"]
    error.__cause__ = RemoteTraceback("Traceback (most recent call last):\ngnnkit.errors.PlanError: no\n  -> a hint\n")
    assert causes_of(error) == ["gnnkit.errors.PlanError: no"]


def test_words_of_the_option_are_checked() -> None:
    with pytest.raises(PlanError, match="tracebacks must be 'short' or 'full', got 'long'"):
        set_options(tracebacks="long")  # type: ignore[arg-type]
