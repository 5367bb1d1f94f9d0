"""The dashboard of a loader: what it says, when it ends, what its buttons do. Without a notebook; see ``test_dashboard_kernel``."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnnkit import GraphLoader, set_options
from gnnkit.errors import LoaderClosed, PlanError
from gnnkit.ui.dashboard import live as live_module
from gnnkit.ui.dashboard.live import DashboardWatch
from gnnkit.ui.dashboard.observer import Observer
from gnnkit.ui.dashboard.places import Actions, HtmlPlace, WidgetPlace
from tests.helpers.waiting import wait_until
from tests.loader.graphs import make


class Wall:
    """A place that keeps what is drawn on it."""

    interval_s = 0.01

    def __init__(self) -> None:
        self.drawn: list[tuple[Any, bool]] = []
        self.is_closed = False
        self.failure: Exception | None = None

    def draw(self, snapshot: Any, *, live: bool) -> None:
        self.drawn.append((snapshot, live))
        if self.failure is not None and live:
            raise self.failure

    def close(self) -> None:
        self.is_closed = True

    @property
    def last(self) -> Any:
        return self.drawn[-1][0]


@pytest.fixture
def loader() -> Iterator[GraphLoader]:
    with make() as loader:
        yield loader


def watch_of(loader: GraphLoader, wall: Wall) -> DashboardWatch:
    watch = DashboardWatch(loader.pipeline, Observer("tiny"), wall, 0.01)
    watch.start()
    return watch


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gnnkit-dashboard")]


def test_it_says_what_the_loader_does(loader: GraphLoader) -> None:
    dashboard = loader.dashboard()
    assert not dashboard.is_live
    first = dashboard.snapshot()
    assert (first.title, first.where, first.state, first.batches.now, first.live) == ("Data", "InProcess, 1 thread", "ready", 0.0, True)
    running = status = None
    for step, _ in enumerate(loader):
        if step == 5:
            running, status = dashboard.snapshot(), loader.status()
    assert running is not None and status is not None
    epoch = running.stages[-1]  # compiling may have taken long enough to be listed before it
    assert (epoch.stage, epoch.label, epoch.state, epoch.done, epoch.total) == ("epoch", "0", "running", 6, 15)
    assert [*running.consumer] == ["waiting", "building", "transfer", "your loop"]
    assert sum(running.consumer.values()) == pytest.approx(1)
    assert [*running.workers] == ["sampling", "gathering", "idle"] and running.split_of == "last 1 s"
    assert running.slots == status.slots and running.batches.now > 0
    after = dashboard.snapshot()
    assert (after.stages[-1].state, after.split_of) == ("done", "epoch 0")
    assert after.batches.now == pytest.approx(loader.stats().batches_per_s) and after.seeds.now == pytest.approx(loader.stats().seeds_per_s)
    assert sum(after.batches.values) == pytest.approx(15) and sum(after.seeds.values) == pytest.approx(100)
    assert after.processes[0].name == "trainer" and after.processes[0].shared > 0
    # Not in a run this short, but of it.
    assert running.advice == "" and after.advice != ""
    # Nothing happens any more, so the picture stays.
    assert dashboard.snapshot().lasting() == after.lasting()


def test_it_shows_itself_as_text_and_html(loader: GraphLoader, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard = loader.dashboard()
    assert repr(dashboard).startswith("Dashboard of Data (ready): InProcess, 1 thread\n")
    assert str(dashboard).startswith("Dashboard of Data (ready): InProcess, 1 thread\n")
    bundle = dashboard._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"} and 'class="gnnkit-dash"' in bundle["text/html"]
    with set_options(display="text"):
        assert set(dashboard._repr_mimebundle_()) == {"text/plain"}
    dashboard._ipython_display_()  # outside of a notebook
    assert capsys.readouterr().out.startswith("Dashboard of Data (ready)") and not dashboard.is_live and not threads()
    dashboard.close()


@pytest.mark.parametrize("interval_s", [0, 0.05, 61, "1", True, float("nan"), None])
def test_an_interval_that_makes_no_sense(loader: GraphLoader, interval_s: Any) -> None:
    with pytest.raises(PlanError, match="interval_s must be between 0.1 and 60 seconds"):
        loader.dashboard(interval_s)


def test_a_loop_that_was_left_makes_a_picture_that_stays(loader: GraphLoader) -> None:
    observer = Observer("tiny")
    for step, _ in enumerate(loader):
        if step == 3:
            break
    first = observer.look(loader.pipeline, still=True)
    assert first.stages[-1].state == "running" and first.batches.now > 0 and first.consumer
    assert all(observer.look(loader.pipeline, still=True).lasting() == first.lasting() for _ in range(3))


def test_errors_and_other_stages_have_their_place() -> None:
    def transform(batch: Any) -> Any:
        raise ValueError("no good <b>")

    with make(transform=transform) as loader:
        dashboard = loader.dashboard()
        with pytest.raises(ValueError, match="no good"):
            list(loader)
        snapshot = dashboard.snapshot()
        assert snapshot.error == "ValueError: no good <b>"
        assert snapshot.stages[-1].state == "failed" and snapshot.stages[-1].text.startswith("ValueError: no good <b> after ")
        assert "last error: ValueError: no good &lt;b&gt;" in dashboard._repr_mimebundle_()["text/html"]
        iterator = iter(loader)
        with pytest.raises(ValueError, match="no good"):
            next(iterator)


def test_it_is_drawn_until_the_loader_is_closed(loader: GraphLoader) -> None:
    wall = Wall()
    watch = watch_of(loader, wall)
    assert wall.last.state == "ready" and wall.drawn[-1][1]
    for _ in loader:
        pass
    watch.cell_ended()
    assert wall.last.stages[-1].state == "done" and not wall.drawn[-1][1]
    loader.close()
    watch.wake()
    assert wait_until(lambda: watch.has_ended and not threads())
    assert wall.last.state == "closed" and not wall.last.live and not wall.drawn[-1][1] and wall.is_closed
    # What there was to see still is.
    assert wall.last.stages[-1].state == "done" and sum(wall.last.batches.values) == pytest.approx(15) and wall.last.processes
    count = len(wall.drawn)
    watch.look()
    watch.cell_ended()
    watch.end()
    assert len(wall.drawn) == count


def test_it_ends_with_a_loader_that_nobody_holds() -> None:
    loader = make()
    wall = Wall()
    dashboard, watch, gone = loader.dashboard(), watch_of(loader, wall), weakref.ref(loader)
    list(loader)
    del loader
    gc.collect()
    assert gone() is None
    assert wait_until(lambda: watch.has_ended and not threads()) and wall.last.state == "closed" and wall.is_closed
    assert dashboard.snapshot().state == "closed" and "(closed)" in repr(dashboard)


def test_one_that_cannot_be_drawn_ends_and_says_so(loader: GraphLoader) -> None:
    wall = Wall()
    watch = watch_of(loader, wall)
    wall.failure = RuntimeError("the front end is gone")
    watch.wake()
    assert wait_until(lambda: watch.has_ended and not threads())
    assert wall.last.error == "the dashboard is no longer updated: RuntimeError: the front end is gone"
    assert len(list(loader)) == 15


def test_looking_takes_little_time(loader: GraphLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.5, 1.0, 1.04, 2.0, 2.002])
    wall = Wall()
    watch = DashboardWatch(loader.pipeline, Observer("tiny"), wall, 0.5)
    monkeypatch.setattr(time, "thread_time", lambda: next(times))
    # A first look that imports and compiles, one on a busy machine, and one as they are.
    waits = [watch.look() for _ in range(3)]
    assert waits == pytest.approx([5.0, 5.0, 5.0])
    monkeypatch.setattr(time, "thread_time", lambda: 3.0)
    assert [watch.look() for _ in range(5)][-1] == 0.5
    watch.end()


class Note:
    """Whoever is told that something about the buttons has changed."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


def in_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_the_buttons_act_on_the_loader(loader: GraphLoader) -> None:
    actions, note = Actions(weakref.ref(loader), at_once=True), Note()
    actions.changed = note
    batches = iter(loader)
    next(batches)
    in_thread(actions.pause)
    assert loader.is_paused and "paused" in actions.note and note.calls == 1
    in_thread(actions.pause)
    assert not loader.is_paused and actions.note == ""
    in_thread(actions.restart)
    assert wait_until(lambda: not actions.is_busy) and actions.note.startswith("workers restarted in ")
    assert len(list(batches)) == 14
    batches = iter(loader)
    next(batches)
    in_thread(actions.stop)
    assert wait_until(lambda: not actions.is_busy) and actions.note == "stopped: the loader is closed"
    with pytest.raises(LoaderClosed):
        next(batches)
    # Nothing that is said or fails leaves the buttons.
    in_thread(actions.pause)
    assert actions.note == "LoaderClosed: the loader is closed -> create a new one"
    in_thread(Actions(weakref.ref(make()), at_once=True).pause)


def test_a_kernel_that_takes_clicks_between_cells_only_is_told(loader: GraphLoader) -> None:
    assert "Clicks wait until the running cell has ended" in Actions(weakref.ref(loader), at_once=False).note
    actions = Actions(weakref.ref(loader), at_once=True)
    actions.pause()  # on the main thread: so that is where clicks come from
    assert not loader.is_paused and actions.late == actions.note
    batches = iter(loader)
    next(batches)
    actions.pause()  # its loop may run in a thread
    assert loader.is_paused and "Clicks wait until the running cell has ended" in actions.note
    loader.unpause()


class Shell:
    """What a kernel's shell looks like to the dashboard; ``allows_input`` tells a person from a program."""

    def __init__(self, *, allows_input: bool) -> None:
        self.user_ns: dict[str, Any] = {}
        self.kernel, self.display_pub = object(), object()
        self._parent = {"content": {"allow_stdin": allows_input}}

    def get_parent(self) -> dict[str, Any]:
        return self._parent


def test_the_place_fits_the_front_end(loader: GraphLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VSCODE_PID", "VSCODE_CWD"):
        monkeypatch.delenv(name, raising=False)
    actions = Actions(weakref.ref(loader), at_once=True)

    def place(*, watched: bool = True, **variables: Any) -> tuple[type, float]:
        shell = Shell(allows_input=watched)
        shell.user_ns.update(variables)
        chosen = live_module._place(shell, 0.5, actions)
        return type(chosen), chosen.interval_s

    assert place() == (WidgetPlace, 0.5)
    assert place(watched=False) == (HtmlPlace, 5.0)
    assert place(__vsc_ipynb_file__="x.ipynb") == (HtmlPlace, 1.0)
    with set_options(display="text"):
        assert place() == (HtmlPlace, 1.0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert place() == (HtmlPlace, 1.0)
