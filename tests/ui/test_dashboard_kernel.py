"""The dashboard in a notebook: a real kernel behind a small front end, which presses buttons while a cell runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.kernels import Cell, Kernel
from tests.ui.test_cards import Reader

WIDGET = "application/vnd.jupyter.widget-view+json"
TIMEOUT_S = 120.0
SETUP = """
import gc, pathlib, threading, time
from unittest import mock
import torch
from torch_geometric.data import Data
from gnnkit import GraphLoader, set_options

edges = torch.randint(500, (2, 4000), generator=torch.Generator().manual_seed(1))
data = Data(x=torch.zeros(500, 4), edge_index=edges)

def make():
    return GraphLoader.from_pyg(data, num_neighbors=[3, 2], batch_size=5, backend="inprocess", progress=False)

def run(loader, *, paced=True):
    # Slow until the test has seen and done what it wants to: a loop that ends before would take no clicks any more.
    for step, batch in enumerate(loader):
        time.sleep(0.3 if paced and not released.exists() else 0.0)
        print(step, end=" ")

def left():
    # What a dashboard that has ended may not leave behind.
    calls = [call for name in ("pre_run_cell", "post_run_cell") for call in get_ipython().events.callbacks[name]]
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("gnnkit-dashboard")]
    return [call for call in calls if "dashboard" in call.__module__] + names
"""


class FrontEnd:
    """What JupyterLab does beside running cells: keeps widgets, and clicks on them by way of a subshell of the kernel's."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel, self._client, self._released = kernel, kernel._client, folder / "released"
        kernel.run(f"{SETUP}\nreleased = pathlib.Path({str(self._released)!r})")
        self.forget()
        self._subshell = self._create_subshell()

    def release(self) -> None:
        """Lets the loop that runs go on as fast as it can."""
        self._released.touch()

    def hold(self) -> None:
        """Has the next loop be slow again."""
        self._released.unlink(missing_ok=True)

    def forget(self) -> None:
        self.hold()
        self.kernel.cells.clear()
        self.kernel.messages.clear()

    def click(self, description: str, *, over_subshell: bool = True) -> None:
        """Presses the button that says so, as soon as one does and can be pressed."""

        def found() -> list[str]:
            return [model for model, s in self.widgets().items() if s.get("description") == description and not s["disabled"]]

        self.kernel.wait_for(lambda: bool(found()))
        (model,) = found()
        message = self._client.session.msg("comm_msg", {"comm_id": model, "data": {"method": "custom", "content": {"event": "click"}}})
        if over_subshell:
            message["header"]["subshell_id"] = self._subshell
        self._client.shell_channel.send(message)

    def widgets(self) -> dict[str, dict[str, Any]]:
        """The state of each widget by its model's id, as the messages so far have made it."""
        states: dict[str, dict[str, Any]] = {}
        for message in self.kernel.messages:
            content = message["content"]
            if message["msg_type"] == "comm_open":
                states[content["comm_id"]] = dict(content["data"]["state"])
            elif message["msg_type"] == "comm_msg" and content["data"].get("method") == "update":
                states[content["comm_id"]].update(content["data"]["state"])
            elif message["msg_type"] == "comm_close":
                del states[content["comm_id"]]
        return states

    def board(self) -> str:
        """What the live board shows."""
        return next((str(s["value"]) for s in self.widgets().values() if "gk-board" in str(s.get("value", ""))), "")

    def notes(self) -> str:
        """What stands beside the buttons."""
        return next((str(s["value"]) for s in self.widgets().values() if "gk-note" in s.get("_dom_classes", ())), "")

    def wait_for_board(self, *texts: str) -> None:
        self.kernel.wait_for(lambda: all(text in self.board() for text in texts))

    def _create_subshell(self) -> str:
        client = self._client
        client.control_channel.send(client.session.msg("create_subshell_request", {}))
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            reply = client.get_control_msg(timeout=deadline - time.monotonic())
            if reply["msg_type"] == "create_subshell_reply":
                return str(reply["content"]["subshell_id"])


@pytest.fixture(scope="module")
def whole_front_end(running_kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> FrontEnd:
    return FrontEnd(running_kernel, tmp_path_factory.mktemp("front_end"))


@pytest.fixture
def front_end(whole_front_end: FrontEnd) -> Iterator[FrontEnd]:
    """The front end with no output so far; whatever a test shows has ended after it."""
    whole_front_end.forget()
    yield whole_front_end
    whole_front_end.kernel.run("loader.close()\nprint(left())")
    whole_front_end.kernel.run("")  # hooks go at the end of a cell
    assert whole_front_end.kernel.run("print(left())").stdout == "[]\n"


def only_display(cell: Cell) -> dict[str, Any]:
    (data,) = cell.displays.values()
    return data


def numbers(cell: Cell) -> list[int]:
    return [int(word) for word in cell.stdout.split()]


@pytest.mark.slow
@pytest.mark.core
def test_buttons_act_while_a_cell_runs(front_end: FrontEnd) -> None:
    kernel = front_end.kernel
    shown = kernel.run("loader = make()\nloader.dashboard()")
    assert set(only_display(shown)) == {WIDGET, "text/html", "text/plain"} and (shown.stdout, shown.stderr) == ("", "")
    root = front_end.widgets()[only_display(shown)[WIDGET]["model_id"]]
    assert "gnnkit-dash" in root["_dom_classes"]
    loop = kernel.begin("run(loader)")
    front_end.wait_for_board("sampling", 'aria-label="epoch 0"', "your loop")
    # Bars move; the sentence takes a while.
    first = front_end.board()
    kernel.wait_for(lambda: front_end.board() != first)
    front_end.click("Pause")
    front_end.wait_for_board("paused")
    kernel.wait_for(lambda: "paused" in front_end.notes())
    held = numbers(loop)
    front_end.click("Continue")
    front_end.wait_for_board("sampling")
    kernel.wait_for(lambda: len(numbers(loop)) > len(held))
    front_end.click("Restart workers")
    kernel.wait_for(lambda: "workers restarted in" in front_end.notes())
    front_end.release()
    kernel.finish(loop)
    # Nothing is lost, and nothing but the loop's own words stands in its cell.
    assert numbers(loop) == list(range(100)) and loop.displays == {} and loop.stderr == ""
    # A still picture by the time that the cell has ended: this is what a notebook that is saved now keeps.
    final = only_display(shown)
    assert set(final) == {"text/html", "text/plain"} and "100 batches" in final["text/plain"]
    assert "epoch 0" in " ".join(Reader(final["text/html"]).texts) and len(final["text/html"]) < 20_000
    assert "bottleneck shows after" in first and "bottleneck shows after" not in final["text/html"]
    front_end.hold()
    again = kernel.begin("run(loader)")
    kernel.wait_for(lambda: WIDGET in only_display(shown))
    front_end.wait_for_board('aria-label="epoch 1"')
    front_end.click("Stop")
    kernel.finish(again, may_fail=True)
    assert again.error is not None and again.error["ename"] == "LoaderClosed"
    kernel.wait_for(lambda: "(closed)" in only_display(shown)["text/plain"] and not front_end.widgets())
    assert set(only_display(shown)) == {"text/html", "text/plain"} and "epoch 1" in only_display(shown)["text/plain"]
    # No message of a widget's belongs to a cell: that is what has clicks handled in a subshell.
    own = [m for kind in ("comm_open", "comm_msg", "comm_close") for m in kernel.of_type(kind)]
    assert own and not any(message["parent_header"] for message in own if message["content"].get("data", {}).get("method") != "echo_update")


def test_clicks_without_a_subshell_wait_and_are_said_to(front_end: FrontEnd) -> None:
    kernel = front_end.kernel
    shown = kernel.run("loader = make()\nloader.dashboard()")
    assert front_end.notes() == ""
    loop = kernel.begin("run(loader)")
    kernel.wait_for(lambda: len(numbers(loop)) > 1)
    front_end.click("Pause", over_subshell=False)
    front_end.release()
    kernel.finish(loop)
    assert len(numbers(loop)) == 100
    # It would hold the next epoch, which nobody has asked for.
    kernel.wait_for(lambda: "paused nothing. Clicks wait until the running cell has ended" in only_display(shown)["text/html"])
    assert kernel.run("print(loader.is_paused)\nloader.close()").stdout == "False\n"
    # A kernel that has no subshells is known beforehand.
    older = "mock.patch.object(type(get_ipython().kernel), '_supports_kernel_subshells', False)"
    kernel.run(f"loader = make()\nwith {older}: display(loader.dashboard())")
    assert "Clicks wait until the running cell has ended" in front_end.notes()


ABSENT = """
import importlib.util, sys
found = importlib.util.find_spec
with mock.patch.dict(sys.modules, ipywidgets=None), \\
        mock.patch("importlib.util.find_spec", lambda name: None if name == "ipywidgets" else found(name)):
    board = loader.dashboard(0.1)
    display(board)
"""


def test_without_ipywidgets_it_is_html_that_is_replaced(front_end: FrontEnd) -> None:
    kernel = front_end.kernel
    kernel.run("loader = make()")
    shown = kernel.run(ABSENT)
    loop = kernel.begin("run(loader)")
    kernel.wait_for(lambda: "your loop" in only_display(shown)["text/html"] and "epoch 0" in only_display(shown)["text/html"])
    assert "Without widgets there are no buttons" in only_display(shown)["text/html"]
    front_end.release()
    kernel.finish(loop)
    assert set(only_display(shown)) == {"text/html", "text/plain"} and not kernel.of_type("comm_open")
    assert "100 batches" in only_display(shown)["text/plain"] and "Without widgets" not in only_display(shown)["text/html"]
    assert loop.displays == {} and loop.stderr == ""
    # The one that is shown last is live; the one before stays as it is.
    second = kernel.run("other = loader.dashboard()\ndisplay(other)\nprint(board.is_live, other.is_live)")
    assert second.stdout == "False True\n" and WIDGET in only_display(second)
    updates = shown.updates
    kernel.run("run(loader, paced=False)")
    assert shown.updates == updates and "epoch 1" in only_display(second)["text/plain"]
    kernel.run("board.close()\nother.close()\nother.close()\nprint(other.is_live)")
    kernel.run("run(loader, paced=False)")
    assert "epoch 1" in only_display(second)["text/plain"] and not front_end.widgets()


def test_nobody_watches(front_end: FrontEnd) -> None:
    kernel = front_end.kernel
    shown = kernel.run("loader = make()\ndisplay(loader.dashboard())", watched=False)
    loop = kernel.run("run(loader, paced=False)", watched=False)
    # What runs notebooks in batches takes messages while a cell runs only.
    final = only_display(shown)
    assert set(final) == {"text/html", "text/plain"} and "100 batches" in final["text/plain"] and not kernel.of_type("comm_open")
    assert loop.displays == {} and numbers(loop) == list(range(100))
    parents = {m["parent_header"]["msg_id"] for m in kernel.of_type("update_display_data")}
    assert parents <= {shown.msg_id, loop.msg_id}
    # Shown once more, it goes on from what it knows, though the loader says nothing new.
    advice = next(line for line in final["text/plain"].splitlines() if line.startswith("  advice"))
    again = kernel.run("loader.close()\nloader.dashboard()", watched=False)
    assert advice in only_display(again)["text/plain"] and "(closed)" in only_display(again)["text/plain"]


def test_a_loader_that_is_collected_takes_its_dashboard_along(front_end: FrontEnd) -> None:
    kernel = front_end.kernel
    shown = kernel.run("loader = make()\ndisplay(loader.dashboard())")
    # The loop is left, and its batch is kept.
    kernel.run("for batch in loader: break")
    kernel.wait_for(lambda: WIDGET not in only_display(shown))
    assert "sampling" in only_display(shown)["text/plain"]
    kernel.run("loader = None\n_ = gc.collect()")
    kernel.wait_for(lambda: "(closed)" in only_display(shown)["text/plain"] and not front_end.widgets())
    kernel.run("loader = make()")
