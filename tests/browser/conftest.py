"""One JupyterLab, one kernel and one browser for all tests of a module: each of them takes seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from tests.browser.front_end import Lab, Notebook, browser, write_notebook
from tests.browser.server import JupyterServer
from tests.helpers.machine import ROOT
from tests.helpers.waiting import wait_until

SCREENSHOTS = ROOT / "build/screenshots"
FIRST_CELL = "%reset -f\nfrom tests.browser.paced import *\nafresh()"
# It imports torch_geometric, and compiles what samples where nobody has before.
FIRST_CELL_TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    with JupyterServer(tmp_path_factory.mktemp("jupyter")) as running:
        yield running


@pytest.fixture(scope="module")
def running_lab(server: JupyterServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    before = set(psutil.Process().children(recursive=True))
    with browser(tmp_path_factory.mktemp("chromium")) as running:
        yield Lab(running, server)
        started = set(psutil.Process().children(recursive=True)) - before
    assert wait_until(lambda: not any(process.is_running() and "chromium" in process.name() for process in started)), started


@pytest.fixture(scope="module")
def kernel(server: JupyterServer, running_lab: Lab) -> str:
    """The kernel of all notebooks of a module, which has imported and compiled what they need."""
    started = server.start_kernel()
    path = write_notebook(server, "first", [FIRST_CELL + "\nlen(list(loader_of()))"])
    running_lab.open(path, started).run(0, FIRST_CELL_TIMEOUT_S)
    running_lab.close_all()
    return started


@pytest.fixture
def lab(running_lab: Lab, screenshot: Callable[..., None]) -> Iterator[Lab]:
    """JupyterLab with a light theme and no notebook open."""
    yield running_lab
    screenshot(running_lab.context.pages[-1], "end")
    running_lab.theme("light")
    running_lab.close_all()


OpenNotebook = Callable[..., Notebook]


@pytest.fixture
def notebook(lab: Lab, server: JupyterServer, kernel: str, request: pytest.FixtureRequest) -> OpenNotebook:
    """Opens a notebook of these cells, named after the test, with the shared kernel in which only ``paced`` is imported."""

    def open_notebook(*cells: str, alone: bool = False) -> Notebook:
        path = write_notebook(server, request.node.name.removeprefix("test_"), [FIRST_CELL, *cells])
        opened = lab.open_alone(path, kernel) if alone else lab.open(path, kernel)
        opened.run(0, FIRST_CELL_TIMEOUT_S)
        return opened

    return open_notebook


class Pace:
    """How far the loop in the notebook is, and how far it may go; see ``paced``."""

    def __init__(self, server: JupyterServer) -> None:
        self._folder = server.notebooks
        (self._folder / "steps").write_text("0")
        self.allow(0)

    def allow(self, steps: int) -> None:
        """Lets the loop take as many batches in all."""
        (self._folder / "allowed").write_text(str(steps))

    @property
    def steps(self) -> int:
        """Batches that the loop has taken."""
        return int((self._folder / "steps").read_text() or 0)


@pytest.fixture
def pace(server: JupyterServer) -> Pace:
    return Pace(server)


@pytest.fixture
def screenshot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Takes a picture of a page for people to look at, named after the test."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)

    def take(page: Any, suffix: str = "") -> None:
        name = request.node.name.removeprefix("test_") + (f"-{suffix}" if suffix else "")
        # Playwright would write the file in a thread of its own, which stays.
        (SCREENSHOTS / f"{name}.png").write_bytes(page.screenshot())

    return take
