"""The places where a dashboard is drawn, and what is drawn there: HTML and text, or widgets with buttons while it is live."""

from __future__ import annotations

import html
import math
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gnnkit.events import StageState
from gnnkit.printable import clean
from gnnkit.ui.cards import MAX_HTML_BYTES, Markup, render, tone_of
from gnnkit.ui.dashboard.observer import (
    HEIGHT,
    WIDTH,
    ProcessRow,
    Series,
    Snapshot,
    area_path,
    blocks,
    line_points,
    whole_percents,
)
from gnnkit.ui.kernel import CellPort, close_widget, widget_view
from gnnkit.ui.options import get_options
from gnnkit.units import format_bytes, format_duration, format_percent, format_quantity, format_rate, format_short

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline


_BAR_WIDTH = 24
_COLUMNS = ("process", "state", "pid", "CPU", "sampling", "own memory", "shared")
_FULL, _EMPTY = "\N{FULL BLOCK}", "\N{LIGHT SHADE}"


def number(value: float) -> str:
    """A rate or an amount in about three digits: "12.4", "0.31", "4,210", "25.1k"; "–" where it is not known."""
    if not math.isfinite(value):
        return "\N{EN DASH}"
    if 0 < value < 99.95:
        return f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
    return format_short(round(value))


def _amounts(done: float, total: float, unit: str) -> str:
    whole = format_quantity(total, clean(unit, 20))
    part = format_quantity(min(done, total), "B") if unit == "B" else format_short(min(done, total))
    # "0.31 GB of 1.48 GB" repeats its unit unless it is the same one.
    if unit == "B" and part.split()[-1:] == whole.split()[-1:]:
        part = part.split()[0]
    return f"{part} of {whole}"


# Of fewer things than this (kernels, processes, parts) it says more how many are done than how many are done in a second.
_FEW = 100


def stage_details(stage: StageState) -> list[str]:
    """Returns the progress of a stage, or its result, in words, in the order in which they are printed.

    Of one that runs: with a total percent, amounts, rate and time left; without one amount, rate and time spent. What else was said of it
    comes last.
    """
    share = [] if stage.fraction is None else [format_percent(stage.fraction)]
    amount = [format_quantity(stage.done, clean(stage.unit, 20))] if stage.done else []
    if stage.state != "running":
        return [*(share if stage.state == "failed" and share else amount), clean(stage.text, 160)]
    few = stage.unit != "B" and (stage.total or stage.done) < _FEW
    rate = [] if stage.rate is None or few else [format_rate(stage.rate, clean(stage.unit, 20))]
    note = [clean(stage.note, 80)] if stage.note else []
    if stage.total is None:
        return [*amount, *rate, format_duration(stage.elapsed_s), *note]
    left = [] if stage.eta_s is None else [f"{format_duration(max(math.ceil(stage.eta_s), 1))} left"]
    return [*share, _amounts(stage.done, stage.total, stage.unit), *rate, *left, *note]


def stage_name(stage: StageState) -> str:
    """The stage and what it works on."""
    return clean(f"{stage.stage} {stage.label}", 60)


def ready_words(snapshot: Snapshot) -> tuple[str, str]:
    """Batches that wait, and the most that can: "3" and "of 8"; no limit where it is not known."""
    now = format_short(snapshot.ready.now) if math.isfinite(snapshot.ready.now) else number(snapshot.ready.now)
    return now, f"of {snapshot.slots}" if snapshot.slots else ""


def memory_of(snapshot: Snapshot) -> str:
    """Formats the loader's memory on this host: its processes' own, this one's aside, its blocks and its copy of the graph."""
    return format_bytes(sum(p.private for p in snapshot.processes if p.name != "trainer") + snapshot.buffers + snapshot.graph)


def process_table(processes: Sequence[ProcessRow]) -> list[list[str]]:
    """Headings and rows: names and states, then numbers. A column that is known of no process is left out, but that of processors."""
    rows = [
        [
            clean(process.name, 40),
            clean(process.state, 30),
            str(process.pid),
            *("" if math.isnan(share) else f"{round(share * 100)} %" for share in (process.cpu, process.busy)),
            format_bytes(process.private),
            format_bytes(process.shared),
        ]
        for process in processes
    ]
    shown = [i for i, column in enumerate(_COLUMNS) if column == "CPU" or any(row[i] for row in rows)]
    return [[row[i] for i in shown] for row in (_COLUMNS, *rows)]


def to_block(snapshot: Snapshot) -> str:
    """The snapshot as lines for a terminal."""
    lines = [f"Dashboard of {clean(snapshot.title)} ({clean(snapshot.state, 40)}): {clean(snapshot.where)}"]
    facts = [(stage_name(stage), _stage(stage)) for stage in snapshot.stages]
    if snapshot.batches.values:
        facts += [
            ("batches/s", _series(snapshot.batches)),
            ("seeds/s", _series(snapshot.seeds)),
            ("ready batches", f"{' '.join(ready_words(snapshot)).rstrip():>8}  {blocks(snapshot.ready.values, snapshot.slots)}".rstrip()),
        ]
    facts.append(("memory", memory_of(snapshot)))
    facts += [("this process", _shares(snapshot.consumer, snapshot.split_of))] if snapshot.consumer else []
    facts += [("workers", _shares(snapshot.workers, snapshot.split_of))] if snapshot.workers else []
    facts += [("advice", clean(snapshot.advice, 400))] if snapshot.advice else []
    facts += [("last error", clean(snapshot.error, 240))] if snapshot.error else []
    width = max(len(name) for name, _ in facts)
    lines += [f"  {name:<{width}}  {value}" for name, value in facts]
    if snapshot.processes:
        rows = process_table(snapshot.processes)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        # Names and states are words, the rest are numbers.
        lines += ["", *("  " + "  ".join(f"{c:{'<' if i < 2 else '>'}{widths[i]}}" for i, c in enumerate(row)).rstrip() for row in rows)]
    return "\n".join(lines)


def _stage(stage: StageState) -> str:
    details = ", ".join(stage_details(stage))
    if stage.fraction is None or stage.state != "running":
        return f"{stage.state} {details}".strip() if stage.state == "failed" else details
    filled = round(stage.fraction * _BAR_WIDTH)
    return f"{_FULL * filled}{_EMPTY * (_BAR_WIDTH - filled)}  {details}"


def _series(series: Series) -> str:
    return f"{number(series.now):>8}  {blocks(series.values, max(series.values, default=0.0))}".rstrip()


def _shares(shares: Mapping[str, float], split_of: str) -> str:
    return ", ".join(f"{name} {percent} %" for name, percent in whole_percents(shares)) + (f" ({split_of})" if split_of else "")


# Before the first batch the parts are there, at nothing, so that the layout stays where it is.
_NO_CONSUMER = dict.fromkeys(("waiting", "building", "transfer", "your loop"), 0.0)
_NO_WORKERS = dict.fromkeys(("sampling", "gathering", "idle"), 0.0)
_NO_ADVICE = "Who is the bottleneck shows after the first batches of an epoch."
# Processes, log lines, characters of such a line and of other texts; tried in turn until the page is small enough to be kept in a
# notebook, which the last one is with any texts.
_BUDGETS = ((12, 8, 160, 400), (12, 4, 120, 400), (8, 2, 80, 400), (6, 0, 0, 400), (4, 0, 0, 20))


def style(*, live: bool) -> Markup:
    """The ``<style>`` element of dashboards.

    Args:
        live: With the rules of widgets.
    """
    return Markup(render("dashboard_style.html.j2", live=live))


def board(snapshot: Snapshot, processes: int = 12, limit: int = 400) -> Markup:
    """Everything but logs and buttons.

    Args:
        snapshot: What to draw.
        processes: The most processes to list.
        limit: The most characters of a text; sentences have four times as many.
    """

    def short(text: str, most: int) -> str:
        return clean(text, min(most, limit))

    hidden = len(snapshot.processes) - processes
    now, most_ready = ready_words(snapshot)
    own = sum(process.private for process in snapshot.processes if process.name != "trainer")
    memory = {"processes": own, "batches": snapshot.buffers, "graph copy": snapshot.graph}
    memory |= {"graph on the device": snapshot.on_device} if snapshot.on_device else {}
    values = {
        "size": (WIDTH, HEIGHT),
        "title": short(snapshot.title, 120),
        "where": short(snapshot.where, 120),
        "state": short(snapshot.state, 40),
        "tone": tone_of(snapshot.state),
        "advice": clean(snapshot.advice, min(400, 4 * limit)) or _NO_ADVICE,
        "error": clean(snapshot.error, min(240, 4 * limit)),
        "stages": [
            {
                "name": short(stage_name(stage), 60),
                "state": stage.state,
                "percent": None if stage.fraction is None else f"{stage.fraction * 100:.1f}",
                "details": [short(detail, 160) for detail in stage_details(stage)],
            }
            for stage in snapshot.stages
        ],
        "batches": _series_of_page(snapshot.batches),
        "seeds": _series_of_page(snapshot.seeds),
        "ready": _series_of_page(snapshot.ready, float(snapshot.slots)) | {"now": now, "detail": most_ready},
        "memory": {"total": memory_of(snapshot), "parts": [(name, format_bytes(value)) for name, value in memory.items()]},
        "consumer": whole_percents(snapshot.consumer or _NO_CONSUMER),
        "workers": whole_percents(snapshot.workers or _NO_WORKERS),
        "split_of": f"of the {snapshot.split_of}" if snapshot.split_of.startswith("last") else snapshot.split_of,
        "processes": [[short(cell, 40) for cell in row] for row in process_table(snapshot.processes[:processes])],
        "more": f"and {hidden} more" if hidden > 0 else "",
    }
    return Markup(render("dashboard_board.html.j2", **values))


def log(process: ProcessRow, lines: int = 8, width: int = 160) -> Markup:
    """The end of a process's log."""
    tail = [clean(line, width) for line in process.tail[-lines:]] if lines else []
    return Markup(render("dashboard_log.html.j2", tail=tail, path=clean(process.log or "", 200)))


def page(snapshot: Snapshot, note: str = "") -> str:
    """The whole snapshot as static HTML below 20 kB; what does not fit is shortened and counted.

    Args:
        snapshot: What to draw.
        note: What to say below everything.
    """
    html = ""
    for processes, lines, width, text in _BUDGETS:
        logs = logged(snapshot.processes)[:processes] if lines else []
        parts: dict[str, Any] = {
            "style": style(live=False),
            "board": board(snapshot, processes, text),
            "logs": [{"name": clean(process.name, min(40, text)), "html": log(process, lines, width)} for process in logs],
            "more": " ".join(filter(None, ("" if lines else f"{len(logged(snapshot.processes))} logs left out.", clean(note, text)))),
        }
        html = render("dashboard.html.j2", **parts)
        if len(html.encode()) < MAX_HTML_BYTES:
            break
    return html


def logged(processes: Sequence[ProcessRow]) -> list[ProcessRow]:
    """Those that write a log."""
    return [process for process in processes if process.log]


def _series_of_page(series: Series, top: float = 0.0) -> dict[str, Any]:
    values = series.values or [0.0, 0.0]
    # A line at the very top of its chart cannot be seen to rise.
    edge = top or max(max(values) * 1.08, 1e-9)
    label = f"top {number(max(values))}" if max(values) > 0 else ""
    return {"now": number(series.now), "line": line_points(values, edge), "area": area_path(values, edge), "top": label}


_BETWEEN_CELLS = "Clicks wait until the running cell has ended; to act now, interrupt it: loader.resume() goes on afterwards."


class Actions:
    """Acts on a loader. May be called from any thread; raises nothing, since a front end would show it in another cell.

    Args:
        loader: The loader.
        at_once: Whether the kernel takes clicks while a cell runs, as far as one can know beforehand.

    Attributes:
        is_busy: Whether workers are being restarted or the loader is being closed.
        late: What to say of a click that came when its cell had ended, or "".
        changed: Called when ``note`` or ``is_busy`` has changed.
    """

    def __init__(self, loader: weakref.ref[Pipeline], *, at_once: bool) -> None:
        self._loader = loader
        self.changed: Callable[[], None] = lambda: None
        self._said = ""
        self._at_once = at_once
        self.is_busy, self.late = False, ""
        # Guards ``is_busy``: two clicks may come on two threads.
        self._lock = threading.Lock()

    @property
    def note(self) -> str:
        """The text beside the buttons."""
        return " ".join(filter(None, (self._said, "" if self._at_once else _BETWEEN_CELLS)))

    def pause(self) -> None:
        """Pauses the loader, or lets it go on."""
        self._guard(self._toggle)

    def restart(self) -> None:
        """Restarts the workers, beside everything else."""
        self._begin(self._restart, "restarting the workers \N{HORIZONTAL ELLIPSIS}")

    def stop(self) -> None:
        """Closes the loader, beside everything else."""
        self._begin(lambda loader: loader.close(), "stopping \N{HORIZONTAL ELLIPSIS}", "stopped: the loader is closed")

    def _toggle(self, loader: Pipeline) -> str:
        if loader.is_paused:
            loader.unpause()
            return ""
        if _has_waited() and not any(stage.stage == "epoch" and stage.state == "running" for stage in loader.history.stages):
            return "The click came when its epoch was over, and paused nothing."
        loader.pause()
        return "paused: the loop waits for its next batch"

    def _restart(self, loader: Pipeline) -> str:
        began = time.monotonic()
        loader.restart_workers()
        return f"workers restarted in {format_duration(time.monotonic() - began)}"

    def _begin(self, act: Callable[[Pipeline], str | None], during: str, after: str = "") -> None:
        with self._lock:
            if self.is_busy:
                return
            self.is_busy, self._said = True, during
        self._learn()
        self.changed()

        def run() -> None:
            self._guard(lambda loader: act(loader) or after)
            self.is_busy = False
            self.changed()

        # What takes seconds would keep other clicks waiting.
        threading.Thread(target=run, name="gnnkit-dashboard-action", daemon=True).start()

    def _guard(self, act: Callable[[Pipeline], str]) -> None:
        loader = self._loader()
        try:
            self._said = "the loader is gone" if loader is None else act(loader)
        except Exception as error:  # whatever it is, it belongs beside the button that was pressed
            self._said = clean(f"{type(error).__name__}: {error}", 300)
        self._learn()
        self.changed()

    def _learn(self) -> None:
        self._at_once = self._at_once and not _has_waited()
        self.late = self.note if _has_waited() else ""


def _has_waited() -> bool:
    """Whether the click that is handled may have waited for a cell: where there are subshells, the main thread handles none."""
    return threading.current_thread() is threading.main_thread()


_MAX_LOGS = 12


class Panel:
    """The widgets of one dashboard. To be used by one thread at a time.

    Args:
        actions: What its buttons do.

    Attributes:
        root: The widget that has all others in it.
    """

    def __init__(self, actions: Actions) -> None:
        from ipywidgets import HTML, Accordion, HBox, VBox

        self._actions = actions
        self._board, self._note = HTML(), HTML()
        self._note.add_class("gk-note")
        self._pause = _button("Pause", "Holds the next batch back; workers fill their slots meanwhile.", actions.pause)
        self._restart = _button("Restart workers", "Starts those who sample anew; the epoch goes on.", actions.restart)
        self._stop = _button("Stop", "Closes the loader: the loop that runs ends with LoaderClosed.", actions.stop)
        self._stop.add_class("gk-stop")
        buttons = HBox([self._pause, self._restart, self._stop, self._note])
        buttons.add_class("gk-buttons")
        self._logs = Accordion()
        self._log_names: tuple[str, ...] = ()
        self.root = VBox([HTML(style(live=True)), self._board, buttons, self._logs])
        self.root.add_class("gnnkit-dash")

    def update(self, snapshot: Snapshot) -> None:
        """Shows a snapshot; sends what has changed."""
        self._board.value = board(snapshot)
        self._note.value = html.escape(self._actions.note)
        self._pause.description = "Continue" if snapshot.state == "paused" else "Pause"
        for button in (self._pause, self._restart, self._stop):
            button.disabled = self._actions.is_busy or not snapshot.live
        self._update_logs(snapshot)

    def close(self) -> None:
        """Takes the widgets from the front end."""
        close_widget(self.root)

    def _update_logs(self, snapshot: Snapshot) -> None:
        processes = logged(snapshot.processes)[:_MAX_LOGS]
        names = tuple(clean(process.name, 40) for process in processes)
        if names != self._log_names:
            from ipywidgets import HTML

            before, self._logs.children, self._log_names = self._logs.children, [HTML() for _ in names], names
            self._logs.titles = tuple(f"log of {name}" for name in names)
            for child in before:
                close_widget(child)
        for process, child in zip(processes, self._logs.children, strict=True):
            child.value = log(process)


def _button(description: str, tooltip: str, act: Callable[[], None]) -> Any:
    from ipywidgets import Button

    button = Button(description=description, tooltip=tooltip)
    button.on_click(lambda _: act())
    return button


_NO_BUTTONS = "Without widgets there are no buttons: loader.pause(), unpause(), restart_workers() and close() may be called from a thread."


class HtmlPlace:
    """One display of HTML and text, replaced as a whole.

    Args:
        port: The way to the front end.
        interval_s: Least time between two drawings: each has the front end lay out the cell again.
    """

    def __init__(self, port: CellPort, interval_s: float) -> None:
        self._port, self.interval_s = port, interval_s
        self._display_id = uuid.uuid4().hex
        self._is_shown = False
        self._still: tuple[Snapshot, str] | None = None

    def draw(self, snapshot: Snapshot, *, live: bool) -> None:
        """Replaces what is shown; a still picture by another one only if something has happened."""
        if live:
            self._still = None
            self._show(to_bundle(snapshot, _NO_BUTTONS))
        else:
            self._draw_still(snapshot)

    def close(self) -> None:
        """Nothing to release: the display holds plain HTML."""

    def _draw_still(self, snapshot: Snapshot, note: str = "") -> None:
        lasting = snapshot.lasting(), note
        if lasting != self._still:
            self._still = lasting
            self._show(to_bundle(snapshot, note))

    def _show(self, bundle: dict[str, Any]) -> None:
        self._port.display(bundle, self._display_id, update=self._is_shown)
        self._is_shown = True


class WidgetPlace(HtmlPlace):
    """Widgets while the dashboard is live, plain HTML when it is not: that is what a saved notebook can show.

    Beside the widgets goes the same as HTML and text, for front ends that do not know widgets and for readers of the file. It is
    renewed at growing intervals, because it costs the front end another view of the widgets.

    Args:
        port: The way to the front end.
        interval_s: See ``HtmlPlace``.
        actions: What the buttons do.
    """

    first_renewal_s = 30.0

    def __init__(self, port: CellPort, interval_s: float, actions: Actions) -> None:
        super().__init__(port, interval_s)
        self._actions = actions
        self._panel: Panel | None = None
        self._is_live = False
        self._renewed_s, self._renew_after_s = 0.0, self.first_renewal_s

    def draw(self, snapshot: Snapshot, *, live: bool) -> None:
        """Changes the widgets in place, or replaces them by a still picture."""
        self._port.apart(lambda: self._draw(snapshot, live=live))

    def close(self) -> None:
        """Takes the widgets from the front end."""
        panel, self._panel = self._panel, None
        if panel is not None:
            self._port.apart(panel.close)

    def _draw(self, snapshot: Snapshot, *, live: bool) -> None:
        if not live:
            self._is_live = False
            self._draw_still(snapshot, self._actions.late)
            return
        self._still = None
        if self._panel is None:
            self._panel = Panel(self._actions)
        self._panel.update(snapshot)
        now = time.monotonic()
        if not self._is_live:
            self._is_live, self._renew_after_s = True, self.first_renewal_s
        elif now - self._renewed_s < self._renew_after_s:
            return
        else:
            self._renew_after_s *= 2
        self._renewed_s = now
        self._show(widget_view(self._panel.root) | to_bundle(snapshot))


def to_bundle(snapshot: Snapshot, note: str = "") -> dict[str, Any]:
    """A snapshot as HTML and text; as text only under ``set_options(display="text")``.

    Args:
        snapshot: What to show.
        note: See ``page``.
    """
    bundle = {"text/plain": to_block(snapshot)}
    if get_options().display != "text":
        bundle["text/html"] = page(snapshot, note)
    return bundle
