"""A person at a notebook, in a real browser: opens, runs, clicks, looks."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.browser.server import JupyterServer
from tests.helpers.machine import chromium

# A page of JupyterLab takes seconds on an idle machine, and tests share theirs.
TIMEOUT_S = 180.0
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync "
    "--force-color-profile=srgb"
)
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
DONE = re.compile(r"\[\d+\]:")


@contextmanager
def browser(home: Path) -> Iterator[Any]:
    """A headless Chromium that keeps what it writes in ``home``; ended with the block.

    Yields:
        Playwright's ``Browser``.
    """
    from playwright.sync_api import sync_playwright

    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS.split(), env=environment)


def write_notebook(server: JupyterServer, name: str, cells: Sequence[str]) -> str:
    """Writes a notebook of code cells where the server finds it; returns its path there."""
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": [_cell(i, c) for i, c in enumerate(cells)]}
    path = f"{name}.ipynb"
    (server.notebooks / path).write_text(json.dumps(notebook))
    return path


def _cell(index: int, source: str) -> dict[str, Any]:
    return {"id": f"cell-{index}", "cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}


class Notebook:
    """An open notebook, in JupyterLab or in Notebook 7.

    Args:
        page: Playwright's ``Page``.
        path: The notebook's file on this machine.

    Attributes:
        panel: Locator of everything that belongs to the notebook, its toolbar included.
    """

    def __init__(self, page: Any, path: Path) -> None:
        self.page, self.path = page, path
        self.panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        self.panel.locator(".jp-Cell").first.wait_for()
        # A cell that is run before the kernel is connected makes the front end start another one, or ask for one.
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        """Waits until the kernel is connected and idle."""
        self.page.wait_for_function(
            "path => { const shown = window.jupyterapp?.shell.currentWidget, kernel = shown?.sessionContext?.session?.kernel;"
            " return shown?.context?.path === path && kernel?.connectionStatus === 'connected' && kernel.status === 'idle'; }",
            arg=self.path.name,
        )

    def cell(self, index: int) -> Any:
        """Locator of one cell."""
        return self.panel.locator(".jp-Cell").nth(index)

    def outputs(self, index: int) -> Any:
        """Locator of what a cell shows, output by output."""
        return self.cell(index).locator(".jp-OutputArea-output")

    def text(self, index: int) -> str:
        """What a cell shows, as text; empty where it shows nothing."""
        return "\n".join(str(text) for text in self.outputs(index).all_inner_texts())

    def prompt(self, index: int) -> str:
        """``[ ]:``, ``[*]:`` while the cell runs, ``[3]:`` when it has."""
        return str(self.cell(index).locator(".jp-InputPrompt").inner_text()).strip()

    def start(self, index: int) -> None:
        """Runs a cell, as Ctrl-Enter does, and returns once it is under way or done."""
        before = self.prompt(index)
        self.cell(index).locator(".jp-InputPrompt").click()
        self.page.keyboard.press("Control+Enter")
        self._wait(lambda prompt: prompt != before, index)

    def finish(self, index: int, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until a cell has run."""
        self._wait(lambda prompt: DONE.fullmatch(prompt) is not None, index, timeout_s)

    def run(self, index: int, timeout_s: float = TIMEOUT_S) -> None:
        """Runs a cell from start to end."""
        self.start(index)
        self.finish(index, timeout_s)

    def press(self, item: str) -> None:
        """Clicks a button of the notebook's toolbar, such as "interrupt", "restart" or "save"."""
        self.panel.locator(f'.jp-NotebookPanel-toolbar [data-jp-item-name="{item}"]').click()

    def save(self, index: int) -> dict[str, str]:
        """Saves a notebook of JupyterLab that has changed, and returns what the file has of a cell's last display, by MIME type."""
        self.press("save")
        # The file is there earlier; but who saves again before the front end knows is asked which version to keep.
        self.page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
        displays = [output["data"] for output in json.loads(self.path.read_text())["cells"][index]["outputs"] if "data" in output]
        return {kind: "".join(data) for kind, data in displays[-1].items()}

    def _wait(self, condition: Callable[[str], bool], index: int, timeout_s: float = TIMEOUT_S) -> None:
        until(self.page, lambda: condition(self.prompt(index)), f"cell {index}", timeout_s)


def until(page: Any, condition: Any, what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Waits, while the page goes on, until the condition returns something true, and returns that.

    Raises:
        AssertionError: It still does not after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        page.wait_for_timeout(50)
    return value


class Lab:
    """JupyterLab in one page of a browser, which stays open from notebook to notebook.

    Args:
        browser: Playwright's ``Browser``.
        server: Where the notebooks are.
        size: Width and height of the page, in CSS pixels.
        scale: Pixels of a screenshot per CSS pixel.
    """

    def __init__(self, browser: Any, server: JupyterServer, *, size: tuple[int, int] = (1280, 900), scale: float = 1.0) -> None:
        self._server = server
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, device_scale_factor=scale)
        self.context.set_default_timeout(TIMEOUT_S * 1000)
        self.page = self.context.new_page()
        self.page.goto(f"{server.url}lab?token={server.token}")
        self.page.wait_for_function("window.jupyterapp !== undefined")
        self.page.evaluate("async () => { await window.jupyterapp.started; await window.jupyterapp.restored; }")
        self.command("application:toggle-left-area")

    def command(self, name: str, **arguments: Any) -> None:
        """Runs one of JupyterLab's commands, as its menus do."""
        self.page.evaluate("async ([name, args]) => { await window.jupyterapp.commands.execute(name, args); }", [name, arguments])

    def open(self, path: str, kernel: str) -> Notebook:
        """Opens a notebook with a kernel that runs, beside those that are open, and shows it."""
        self.command("docmanager:open", path=path, kernel={"id": kernel})
        return Notebook(self.page, self._server.notebooks / path)

    def open_alone(self, path: str, kernel: str) -> Notebook:
        """Opens a notebook in Notebook 7, in a page of its own, with a kernel that runs."""
        self._server.attach(path, kernel)
        page = self.context.new_page()
        page.goto(f"{self._server.url}notebooks/{path}")
        return Notebook(page, self._server.notebooks / path)

    def close_all(self) -> None:
        """Saves and closes every notebook; JupyterLab would ask about one that is not saved. Their kernels go on."""
        for page in self.context.pages[1:]:
            page.close()
        self.page.evaluate(
            "async () => { for (const widget of [...window.jupyterapp.shell.widgets('main')]) {"
            " if (widget.context?.model.dirty) { await widget.context.save(); } widget.close(); } }"
        )
        self.page.locator(".jp-NotebookPanel").first.wait_for(state="detached")

    def theme(self, name: str) -> None:
        """Changes to "light" or "dark"."""
        self.command("apputils:change-theme", theme=THEMES[name])
        self.page.locator(f'body[data-jp-theme-light="{str(name == "light").lower()}"]').wait_for(state="attached")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")
