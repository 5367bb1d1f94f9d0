"""Progress in notebooks: real kernels behind a small front end, and the programs that run notebooks in batches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.ui.kernels import Kernel, on_sockets_of_its_own

pytestmark = pytest.mark.slow

WIDGET = "application/vnd.jupyter.widget-view+json"
SETUP = """
import threading, time
from gnnkit.events import Event
from gnnkit.ui.progress import make_sink
def said(kind, stage, label="", done=0, total=None, unit="", text="", at=None):
    return Event(kind, stage, label, done, total, unit, text, time.monotonic() if at is None else at)
class Drawn:
    # Pauses until one more frame has been drawn, however busy the machine is.
    def __init__(self, sink):
        self.frames, self._draw, self._done = 0, sink.renderer.draw, threading.Semaphore(0)
        sink.renderer.draw = self.draw
    def draw(self, frame):
        self._draw(frame)
        self.frames += 1
        self._done.release()
    def __call__(self):
        assert self._done.acquire(timeout=60)
def fake_run(sink, updates=6, pause=lambda: time.sleep(0.1)):
    began = time.monotonic() - 3
    sink(said("start", "download", "ogbn-products", 0, 1.48e9, "B", at=began))
    for step in range(updates):
        sink(said("progress", "download", "ogbn-products", step * 1e8, 1.48e9, "B"))
        pause()
    sink(said("message", "download", text="synthetic sample, not <b>OGB's</b> data"))
    sink(said("end", "download", "ogbn-products", 1.48e9, 1.48e9, "B", at=began + 3.25))
"""


def only(items: Any) -> Any:
    (item,) = items
    return item


@pytest.fixture(autouse=True)
def helpers(request: pytest.FixtureRequest) -> None:
    """Defines the helpers in the kernel of tests that use it."""
    if "kernel" in request.fixturenames:
        request.getfixturevalue("kernel").run(SETUP)


def test_a_watched_notebook_gets_a_widget_that_leaves_a_line(kernel: Kernel) -> None:
    cell = kernel.run(
        "sink = make_sink()\ndrawn = Drawn(sink)\nfake_run(sink, pause=drawn)\nprint(type(sink.renderer).__name__, drawn.frames)"
    )
    name, frames = cell.stdout.split()
    assert name == "WidgetRenderer" and cell.stderr == ""
    shown = [message["content"]["data"] for message in kernel.of_type("display_data")]
    assert set(only(shown)) == {WIDGET, "text/html", "text/plain"}
    opened = {m["content"]["data"]["state"]["_model_name"]: m["content"] for m in kernel.of_type("comm_open")}
    assert shown[0][WIDGET]["model_id"] == opened["HTMLModel"]["comm_id"]
    values = [m["content"]["data"]["state"].get("value", "") for m in kernel.of_type("comm_msg")]
    assert 3 <= len(values) <= int(frames)
    assert any("1.48 GB" in value and 'role="progressbar"' in value for value in values)
    # What stays is small, static, and readable without the widget, whose models are gone.
    final = only(cell.displays.values())
    assert set(final) == {"text/html", "text/plain"}
    assert "download ogbn-products" in final["text/html"] and "progressbar" not in final["text/html"]
    assert "synthetic sample, not &lt;b&gt;OGB&#39;s&lt;/b&gt; data" in final["text/html"]
    assert final["text/plain"].splitlines()[0].startswith("download ogbn-products: 1.48 GB in 3.")
    assert len(json.dumps(final)) < 3000
    assert {m["content"]["comm_id"] for m in kernel.of_type("comm_close")} == {content["comm_id"] for content in opened.values()}


def test_each_cell_gets_a_block_of_its_own_and_the_widget_a_stand_in(kernel: Kernel) -> None:
    kernel.run("sink = make_sink('epoch')\nsink.renderer.renew_every_s = 0.0\ndrawn = Drawn(sink)")
    first = kernel.run("fake_run(sink, pause=drawn)\nfake_run(sink, pause=drawn)")
    renewed = [m["content"]["data"] for m in kernel.of_type("update_display_data") if WIDGET in m["content"]["data"]]
    # Front ends without widgets see the bar move, if more slowly.
    assert len(renewed) >= 2 and all("progressbar" in data["text/html"] for data in renewed)
    assert only(first.displays.values())["text/plain"].count("1.48 GB in") == 2
    second = kernel.run(
        "for epoch in range(12):\n"
        "    began = time.monotonic() - 2\n"
        "    sink(said('start', 'epoch', str(epoch), 0, 10, 'batches', at=began))\n"
        "    sink(said('end', 'epoch', str(epoch), 10, 10, 'batches', at=began + 2.25))"
    )
    # More than can be drawn in so short a time; the last state comes all the same.
    kernel.wait_for(lambda: "epoch 11" in str(second.displays))
    text = only(second.displays.values())["text/plain"]
    assert text.splitlines()[-1].startswith("epoch 11: 10 batches in 2.")
    assert "and 4 more before" in only(second.displays.values())["text/html"]
    assert "epoch" not in only(first.displays.values())["text/plain"]


@pytest.mark.parametrize("wanted", ["html", "text"])
def test_html_is_updated_in_place(kernel: Kernel, wanted: str) -> None:
    cell = kernel.run(f"sink = make_sink({wanted!r})\nbegun = time.monotonic()\nfake_run(sink)\nprint(time.monotonic() - begun)")
    assert not kernel.of_type("comm_open") and cell.stderr == ""
    assert 1 <= cell.updates <= 2 + float(cell.stdout) / 0.25  # four a second, and the last word
    assert set(only(cell.displays.values())) == {"text/html", "text/plain"}
    failed = kernel.run(
        "began = time.monotonic() - 2\n"
        "sink(said('start', 'ingest', '<x>', at=began))\n"
        "sink(said('fail', 'ingest', '<x>', 3, 10, 'rows', 'DatasetError: <row> & 4', began + 2.25))\nsink.close()"
    )
    final = only(failed.displays.values())
    assert ": DatasetError<" in final["text/html"] and "&lt;x&gt;" in final["text/html"] and "gk-failed" in final["text/html"]
    assert final["text/plain"].startswith("ingest <x>: failed at 30 % after 2.")


def test_events_from_a_thread_stay_in_the_cell_that_started_it(kernel: Kernel) -> None:
    first = kernel.run(
        """
sink = make_sink("html")
drawn, go = Drawn(sink), threading.Event()
def work():
    sink(said("start", "ingest", "thread", 0, 10.0, "rows", at=time.monotonic() - 1))
    assert go.wait(60)
    for step in range(5):
        sink(said("progress", "ingest", "thread", step, 10.0, "rows"))
        time.sleep(0.1)
    sink(said("message", "ingest", text="half way"))
    sink(said("end", "ingest", "thread", 10.0, 10.0, "rows"))
thread = threading.Thread(target=work)
thread.start()
drawn()
"""
    )
    assert "progressbar" in only(first.displays.values())["text/html"]
    second = kernel.run("print('second')\ngo.set()\nthread.join()\nprint('cell')")
    assert (second.stdout, second.stderr, second.displays) == ("second\ncell\n", "", {})
    assert only(first.displays.values())["text/plain"].startswith("ingest thread: 10 rows in ")
    assert "half way" in only(first.displays.values())["text/plain"]


@pytest.mark.parametrize("wanted", ["html", "plain"])
def test_a_thread_that_begins_late_draws_into_its_own_cell(kernel: Kernel, wanted: str) -> None:
    kernel.run(f"wanted = {wanted!r}")
    first = kernel.run(
        """
sink = make_sink(wanted)
go = threading.Event()
def work():
    assert go.wait(60)
    sink(said("start", "ingest", "thread", 0, 10.0, "rows", at=time.monotonic() - 1))
    time.sleep(0.4)
    sink(said("end", "ingest", "thread", 10.0, 10.0, "rows"))
thread = threading.Thread(target=work)
thread.start()
"""
    )
    second = kernel.run("go.set()\nthread.join()\nprint('cell')")
    assert (second.stdout, second.displays) == ("cell\n", {})
    shown = first.stdout if wanted == "plain" else only(first.displays.values())["text/plain"]
    assert "ingest thread: 10 rows in " in shown


def test_captured_output_stays_captured(kernel: Kernel) -> None:
    for wanted in ("plain", "html"):
        cell = kernel.run(f"%%capture caught\nsink = make_sink({wanted!r})\nfake_run(sink)\nsink.close()")
        assert (cell.stdout, cell.displays) == ("", {})
    assert "1.48 GB in" in kernel.run("print(caught.outputs[-1].data['text/plain'])").stdout


CHOICES = """
import os, sys, importlib.util
from unittest import mock
def name(): return type(make_sink().renderer).__name__.removesuffix("Renderer")
chosen = [name()]
__vsc_ipynb_file__ = "x.ipynb"; chosen.append(name()); del __vsc_ipynb_file__
with mock.patch.dict(os.environ, VSCODE_PID="1"): chosen.append(name())
with mock.patch.dict(os.environ, GNNKIT_PROGRESS="plain"): chosen.append(name())
found = importlib.util.find_spec
with mock.patch("importlib.util.find_spec", lambda module: None if module == "ipywidgets" else found(module)):
    chosen.append(name())
    with mock.patch.dict(os.environ, GNNKIT_PROGRESS="widget"): chosen.append(name())
print(*chosen)
"""


def test_the_renderer_fits_the_front_end(kernel: Kernel) -> None:
    assert kernel.run(CHOICES).stdout == "Widget Html Html Plain Html Html\n"
    assert kernel.run(CHOICES, watched=False).stdout == "Plain Plain Plain Plain Plain Html\n"


NOTICE = "sink(said('message', 'ingest', text='last word'))"
NOTEBOOK_CELLS = (SETUP, "print('before')\nsink = make_sink()\nfake_run(sink)\nprint('after')", "fake_run(sink, 2)\nprint('later')", NOTICE)


def written_notebook(folder: Path) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in NOTEBOOK_CELLS]
    notebook = nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    path = folder / "in.ipynb"
    nbformat.write(notebook, path)
    return path


def check_executed(notebook: Any) -> None:
    # Nothing may come after its cell has ended.
    assert only(notebook.cells[-1].outputs).text == "gnnkit: last word\n"
    for cell, (before, after) in zip(notebook.cells[1:-1], (("before", "after"), ("", "later")), strict=True):
        assert {output.output_type for output in cell.outputs} == {"stream"}
        assert {output.name for output in cell.outputs} == {"stdout"}
        lines = "".join(output.text for output in cell.outputs).splitlines()
        assert lines[-1] == after and (not before or lines[0] == before)
        progress = lines[1:-1] if before else lines[:-1]
        assert all(line.startswith("gnnkit: ") and "\r" not in line for line in progress)
        assert "gnnkit: synthetic sample, not <b>OGB's</b> data" in progress
        assert progress[-1].startswith("gnnkit: download ogbn-products: 1.48 GB in ")
        assert len(progress) <= 6  # at most one for each tenth that is reported, the message and the end


def test_nbclient_gets_plain_lines(jupyter_home: Path, tmp_path: Path) -> None:
    from nbclient import NotebookClient

    notebook = nbformat.read(written_notebook(tmp_path), as_version=4)
    NotebookClient(notebook, timeout=240, kernel_name="python3", config=on_sockets_of_its_own()).execute()
    check_executed(notebook)


@pytest.mark.parametrize("program", [pytest.param(name, marks=pytest.mark.packages(name)) for name in ("papermill", "nbconvert")])
def test_batch_runners_get_plain_lines(jupyter_home: Path, tmp_path: Path, program: str) -> None:
    source, target = written_notebook(tmp_path), tmp_path / "out.ipynb"
    arguments = {
        "papermill": ["papermill", str(source), str(target), "-k", "python3", "--log-output"],
        "nbconvert": ["jupyter", "nbconvert", "--execute", "--to", "notebook", "--output", str(target), str(source)],
    }[program]
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    check_executed(nbformat.read(target, as_version=4))
    if program == "papermill":
        assert "gnnkit: download ogbn-products: 1.48 GB in " in done.stderr
