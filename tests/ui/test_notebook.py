"""Progress in notebooks: real kernels behind a small front end, and the programs that run notebooks in batches."""

from __future__ import annotations

import re
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
import tqdm.auto  # else that would take the most time of the first run
from gnnkit.events import Event
from gnnkit.ui.progress import make_sink
def said(kind, stage, label="", done=0, total=None, unit="", text="", at=None):
    return Event(kind, stage, label, done, total, unit, text, time.monotonic() if at is None else at)
def fake_run(sink, updates=6):
    began = time.monotonic() - 3
    sink(said("start", "download", "ogbn-products", 0, 1.48e9, "B", at=began))
    for step in range(updates):
        sink(said("progress", "download", "ogbn-products", step * 1e8, 1.48e9, "B"))
        time.sleep(0.2)
    sink(said("message", "download", text="synthetic sample, not <b>OGB's</b> data"))
    sink(said("end", "download", "ogbn-products", 1.48e9, 1.48e9, "B", at=began + 3.25))
"""


def only(items: Any) -> Any:
    (item,) = items
    return item


def test_a_watched_notebook_gets_tqdms_widget_that_leaves_a_line(kernel: Kernel) -> None:
    cell = kernel.run("sink = make_sink()\nfake_run(sink)\nprint(sorted(thread.name for thread in threading.enumerate()))")
    assert "tqdm_monitor" not in cell.stdout and "gnnkit-progress" not in cell.stdout and cell.stderr == ""
    shown = [message["content"]["data"] for message in kernel.of_type("display_data")]
    assert set(only(shown)) == {WIDGET, "text/plain"}
    opened = {m["content"]["data"]["state"]["_model_name"]: m["content"] for m in kernel.of_type("comm_open")}
    assert shown[0][WIDGET]["model_id"] == opened["HBoxModel"]["comm_id"] and "FloatProgressModel" in opened
    states = [m["content"]["data"]["state"] for m in kernel.of_type("comm_msg")]
    assert any(isinstance(state.get("value"), float) for state in states), "the bar moves"
    assert any("1.48G\u2007[00:0" in str(state.get("value", "")) for state in states), "and its figures with it"
    # A line stays, readable without the widget, of which no model is left in the kernel.
    final = only(cell.displays.values())
    assert set(final) == {"text/plain"}
    assert re.fullmatch(r"download ogbn-products: 100%\|█{10}\| 1.48G/1.48G \[00:03<00:00, \d+MB/s\]", final["text/plain"])
    assert "synthetic sample, not <b>OGB's</b> data\n" in cell.stdout
    assert {m["content"]["comm_id"] for m in kernel.of_type("comm_close")} == {m["content"]["comm_id"] for m in kernel.of_type("comm_open")}


def test_each_cell_gets_lines_of_its_own(kernel: Kernel) -> None:
    kernel.run("sink = make_sink(True)")
    first = kernel.run("fake_run(sink)\nfake_run(sink)")
    assert len(first.displays) == 2 and str(first.displays).count("100%") == 2
    second = kernel.run(
        "for epoch in range(12):\n"
        "    sink(said('start', 'epoch', str(epoch), 0, 10, 'batches'))\n"
        "    sink(said('end', 'epoch', str(epoch), 10, 10, 'batches'))"
    )
    lines = second.stdout.splitlines()
    assert len(lines) == 12 and all(line.startswith(f"epoch {n}: 100%|█") for n, line in enumerate(lines)) and second.displays == {}
    failed = kernel.run(
        "began = time.monotonic() - 2\n"
        "sink(said('start', 'ingest', '<x>', at=began))\n"
        "sink(said('fail', 'ingest', '<x>', 3, 10, 'rows', 'DatasetError: <row> & 4', began + 2.25))\nsink.close()"
    )
    # As a widget's last state, if there was time to draw one.
    shown = only(failed.displays.values())["text/plain"] if failed.displays else failed.stdout.rstrip("\n")
    assert re.fullmatch(r"ingest <x>:  30%\|███ +\| 3/10 \[00:02<00:0\d, +1.33 rows/s, failed: DatasetError\]", shown)


def test_events_from_a_thread_stay_in_the_cell_that_started_it(kernel: Kernel) -> None:
    first = kernel.run(
        """
sink = make_sink()
go = threading.Event()
def work():
    sink(said("start", "ingest", "thread", 0, None, "rows", at=time.monotonic() - 1))
    assert go.wait(60)
    for step in range(5):
        sink(said("progress", "ingest", "thread", step, 10.0, "rows"))
        time.sleep(0.1)
    sink(said("message", "ingest", text="half way"))
    sink(said("end", "ingest", "thread", 10.0, 10.0, "rows"))
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.5)
"""
    )
    kernel.wait_for(lambda: bool(first.displays))
    assert only(first.displays.values())["text/plain"].startswith("ingest thread: [00:01")
    second = kernel.run("print('second')\ngo.set()\nthread.join()\nprint('cell')")
    assert (second.stdout, second.stderr, second.displays) == ("second\ncell\n", "", {})
    assert only(first.displays.values())["text/plain"].startswith("ingest thread: 100%|██████████| 10/10 [00:0")
    assert first.stdout == "half way\n"


@pytest.mark.parametrize("watched", [True, False])
def test_a_thread_that_begins_late_draws_into_its_own_cell(kernel: Kernel, watched: bool) -> None:
    first = kernel.run(
        """
sink = make_sink()
go = threading.Event()
def work():
    assert go.wait(60)
    sink(said("start", "ingest", "thread", 0, 10.0, "rows", at=time.monotonic() - 1))
    time.sleep(0.4)
    sink(said("end", "ingest", "thread", 10.0, 10.0, "rows"))
thread = threading.Thread(target=work)
thread.start()
""",
        watched=watched,
    )
    second = kernel.run("go.set()\nthread.join()\nprint('cell')", watched=watched)
    assert (second.stdout, second.displays) == ("cell\n", {})
    shown = only(first.displays.values())["text/plain"] if watched else first.stdout
    assert "ingest thread: 100%" in shown


def test_captured_output_stays_captured(kernel: Kernel) -> None:
    for watched, shown in ((True, "caught.outputs[-1].data['text/plain']"), (False, "caught.stdout")):
        cell = kernel.run("%%capture caught\nsink = make_sink()\nfake_run(sink)\nsink.close()", watched=watched)
        assert (cell.stdout, cell.displays) == ("", {})
        assert "1.48G/1.48G" in kernel.run(f"print({shown})").stdout


def test_an_interrupt_leaves_the_lock_of_all_bars_free(kernel: Kernel) -> None:
    kernel.run("from tqdm.auto import tqdm\nsink = make_sink(True)")
    loop = """
with sink:
    for number in range(10**6):
        sink(said("start", "epoch", str(number), 0, 10, "batches", at=time.monotonic() - 1))
        sink(said("end", "epoch", str(number), 10, 10, "batches"))
        if number == 20:
            print("going", flush=True)
"""
    cell = kernel.begin(loop)
    kernel.wait_for(lambda: "going" in cell.stdout)
    kernel.interrupt()
    assert "KeyboardInterrupt" in str(kernel.finish(cell, may_fail=True).error)
    free = (
        "def taken():\n    if tqdm.get_lock().th_lock.acquire(timeout=20):\n        print('free')\nother = threading.Thread(target=taken)\n"
    )
    assert kernel.run(f"{free}other.start()\nother.join()").stdout == "free\n"


CHOICES = """
import importlib.util, os
from unittest import mock
def name():
    with make_sink() as sink:
        sink(said("message", "ingest", text="x"))
        return type(sink._place).__name__.replace("NoneType", "nothing")
chosen = [name()]
__vsc_ipynb_file__ = "x.ipynb"; chosen.append(name())
found = importlib.util.find_spec
with mock.patch("importlib.util.find_spec", lambda module: None if module == "ipywidgets" else found(module)):
    chosen.append(name())
with mock.patch.dict(os.environ, TQDM_DISABLE="1"):
    chosen.append(name())
print(*chosen)
"""


def test_the_place_fits_the_front_end(kernel: Kernel) -> None:
    assert kernel.run(CHOICES).stdout.splitlines()[-1] == "NotebookBars NotebookBars StageLines nothing"
    assert kernel.run(CHOICES, watched=False).stdout.splitlines()[-1] == "StageLines StageLines StageLines nothing"


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
        assert progress[-1].startswith("gnnkit: download ogbn-products: 100% 1.48G/1.48G [00:03")
        assert len(progress) <= 6  # one every few seconds, the message and the end


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
        assert "gnnkit: download ogbn-products: 100% 1.48G/1.48G" in done.stderr
