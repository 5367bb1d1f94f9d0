"""What people see in a notebook: progress, the dashboard and its buttons, errors, in JupyterLab and in Notebook 7."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import OpenNotebook, Pace
from tests.browser.front_end import Lab, Notebook, until
from tests.browser.looks import assert_readable
from tests.browser.server import JupyterServer

# The first one starts everything, on a machine that runs other tests beside it.
pytestmark = [pytest.mark.browser, pytest.mark.slow]

WITH_WORKERS = "loader = loader_of(backend=Colocated(2))\nloader.dashboard()"
LOOP = "for batch in paced(loader):\n    pass"


class Shown:
    """The dashboard that a cell shows."""

    def __init__(self, notebook: Notebook, cell: int) -> None:
        self.page, self.root = notebook.page, notebook.cell(cell).locator(".gnnkit-dash")
        self.bar = self.root.get_by_role("progressbar", name="epoch")

    def wait_for(self, *, state: str = "", percent: float | None = None, note: str = "") -> None:
        """Waits until it shows this state, this share of the epoch, these words beside the buttons."""
        if state:
            self.root.locator(".gk-state", has_text=state).wait_for()
        if percent is not None:
            self.bar.and_(self.page.locator(f'[aria-valuenow="{percent:.1f}"]')).wait_for()
        if note:
            self.root.locator(".gk-note", has_text=note).wait_for()

    def press(self, button: str) -> None:
        """Clicks a button."""
        self.root.get_by_role("button", name=button, exact=True).click()

    @property
    def pids(self) -> list[str]:
        """Of the processes that it lists, this one aside."""
        rows = [row.split("\t") for row in self.root.locator("tbody tr").all_inner_texts()]
        return [cells[2] for cells in rows if len(cells) > 2 and cells[0] != "trainer"]  # the table may be drawn anew just now

    @property
    def lines(self) -> list[Any]:
        """What its charts show."""
        return [line.get_attribute("points") for line in self.root.locator("polyline").all()]


def test_bars_move_and_leave_a_line(notebook: OpenNotebook, pace: Pace, screenshot: Callable[..., None], lab: Lab) -> None:
    opened = notebook("for batch in paced(loader_of(progress=True)):\n    pass")
    opened.start(1)
    block = opened.cell(1).locator(".widget-hbox")
    bar = block.locator(".progress-bar")
    for allowed, percent, theme in ((10, 25, "light"), (20, 50, "dark"), (30, 75, "light")):
        pace.allow(allowed)
        block.get_by_text(f"epoch 0: {percent}%").wait_for()
        block.locator(f'.progress-bar[style*="width: {percent}%"]').wait_for()  # words and bar come in messages of their own
        lab.theme(theme)
        assert_readable(block, dark=theme == "dark")
        screenshot(opened.page, theme)
    pace.allow(100)
    opened.finish(1)
    assert bar.count() == 0
    assert "epoch 0: 100%|██████████| 40/40 [" in opened.text(1)


@pytest.mark.slow(seconds=100)
def test_a_dashboard_follows_a_loop_and_acts_on_it(
    notebook: OpenNotebook, pace: Pace, screenshot: Callable[..., None], lab: Lab, kernel: str
) -> None:
    opened = notebook(WITH_WORKERS, LOOP)
    opened.run(1)
    shown = Shown(opened, 1)
    opened.start(2)
    pace.allow(10)
    shown.wait_for(state="sampling", percent=25)
    before, pids = shown.lines, shown.pids
    assert len(pids) == 2

    def has_new_processes() -> bool:
        now = set(shown.pids)
        return len(now) == 2 and not now & set(pids)

    shown.press("Pause")
    shown.wait_for(state="paused", note="paused: the loop waits for its next batch")
    pace.allow(20)
    opened.page.wait_for_timeout(300)
    assert pace.steps == 10
    screenshot(opened.page, "paused")
    shown.press("Continue")
    shown.wait_for(state="sampling", percent=50)
    until(opened.page, lambda: shown.lines != before, "charts that move")

    shown.press("Restart workers")
    shown.wait_for(note="workers restarted in")
    pace.allow(30)
    shown.wait_for(percent=75)
    until(opened.page, has_new_processes, "two other processes")
    for theme in ("dark", "light"):
        lab.theme(theme)
        assert_readable(shown.root, dark=theme == "dark")
        screenshot(opened.page, theme)

    assert opened.prompt(2) == "[*]:"
    assert opened.text(2) == ""
    shown.press("Stop")
    shown.wait_for(state="closed")  # while the loop is in the midst of its thirtieth batch
    pace.allow(100)
    opened.finish(2)
    assert opened.cell(1).locator(".gnnkit-dash").count() == 1
    # Once, in a few lines that end with the way to the traceback.
    (said,) = opened.outputs(2).all_inner_texts()
    assert said.count("LoaderClosed") == 1 and "full traceback: gnnkit.set_options" in said and "Traceback (most" not in said

    # Whoever opens the saved notebook sees the final state, with or without a kernel, and whether they trust it or not.
    final, bundle = opened.text(1), opened.save(1)
    assert set(bundle) == {"text/html", "text/plain"}
    assert len(bundle["text/html"]) < 20_000
    assert "(closed)" in bundle["text/plain"]
    lab.close_all()
    assert lab.open(opened.path.name, kernel).text(1) == final
    screenshot(opened.page, "reopened")
    lab.close_all()
    opened.path.with_name("of-others.ipynb").write_text(opened.path.read_text().replace("loader.dashboard()", "loader.dashboard( )"))
    others = lab.open("of-others.ipynb", kernel)
    screenshot(others.page, "of-others")
    for words in ("closed", "batches/s", "your loop", "30 batches"):
        assert words in others.text(1)


def test_notebook_7_shows_a_dashboard_that_acts(notebook: OpenNotebook, pace: Pace, screenshot: Callable[..., None]) -> None:
    opened = notebook("loader = loader_of()\nloader.dashboard()", LOOP, "loader.close()", alone=True)
    opened.run(1)
    shown = Shown(opened, 1)
    opened.start(2)
    pace.allow(20)
    shown.wait_for(state="sampling", percent=50)
    shown.press("Pause")
    shown.wait_for(state="paused")
    screenshot(opened.page, "paused")
    pace.allow(100)
    # Interrupted in the wait for a batch that is held back.
    opened.press("interrupt")
    opened.finish(2)
    assert "KeyboardInterrupt" in opened.text(2)
    opened.start(2)
    shown.press("Continue")
    opened.finish(2)
    assert opened.text(2) == ""
    opened.run(3)
    shown.wait_for(state="closed")
    assert_readable(shown.root, dark=False)


def test_without_widgets_a_dashboard_is_html_that_changes(notebook: OpenNotebook, pace: Pace, screenshot: Callable[..., None]) -> None:
    opened = notebook("hide_widgets()\nloader = loader_of()\nloader.dashboard()", LOOP, "print('after')")
    opened.run(1)
    shown = Shown(opened, 1)
    opened.start(2)
    for allowed, percent in ((10, 25), (30, 75)):
        pace.allow(allowed)
        shown.wait_for(state="sampling", percent=percent)
    screenshot(opened.page)
    assert shown.root.get_by_role("button").count() == 0
    pace.allow(100)
    opened.finish(2)
    opened.run(3)
    shown.wait_for(percent=100)
    assert opened.text(2) == ""
    assert opened.text(3).strip() == "after"


def test_the_card_of_tables_says_how_they_were_read_and_runs_nothing_of_theirs(
    notebook: OpenNotebook, screenshot: Callable[..., None], lab: Lab, server: JupyterServer
) -> None:
    image, script = "<img src=x onerror='window.ran = 1'>", "<script>window.ran = 2</script>"
    rows = "".join(f"{k};{k + 1};2020-01-0{k + 1};{image};0.5;{script}\n" for k in range(3))
    (server.notebooks / f"{image}.csv").write_text(f"# made today\nfrom;to;at;kind;{image};{script}\n{rows}")
    (server.notebooks / "people.csv").write_text("id\tage\n0\t30\n1\t40\n2\t50\n")
    opened = notebook(
        "import gnnkit\nsource = gnnkit.tables('*onerror*.csv', 'people.csv', keys='id', features='age', categories='kind',"
        ' time="at", dangling="drop")\nsource'
    )
    opened.run(1)
    card = opened.outputs(1).locator(".gnnkit-card")
    for name, value in (
        ("node", "people.csv (tabs, row 1 is a header), 3 rows"),
        ("node keys", "id (int64)"),
        ("node features", "age (int64)"),
        ("node__to__node", f"{image}.csv (';', row 1 is a header, 1 lines of comments left out), 3 rows"),
        ("node__to__node src", "from (int64)"),
        ("node__to__node dst", "to (int64)"),
        ("node__to__node categories", "kind (string)"),
        ("node__to__node time", "at (date32[day]), in us"),
        ("node__to__node dropped", "1 edges that name no node"),
        ("node__to__node unused", f"{image}, {script}"),
    ):
        row = card.get_by_role("row").filter(has=opened.page.get_by_text(name, exact=True))
        assert value in row.inner_text(), (name, card.inner_text())
    assert card.locator("img, script").count() == 0
    assert opened.page.evaluate("window.ran") is None
    for theme in ("dark", "light"):
        lab.theme(theme)
        assert_readable(card, dark=theme == "dark")
        screenshot(opened.page, theme)


def test_a_killed_kernel_leaves_what_was_shown(
    notebook: OpenNotebook, pace: Pace, screenshot: Callable[..., None], server: JupyterServer, kernel: str
) -> None:
    # The last test of this module: there is no kernel after it.
    opened = notebook("loader = loader_of()\nloader.dashboard()", LOOP)
    opened.run(1)
    shown = Shown(opened, 1)
    opened.start(2)
    pace.allow(10)
    shown.wait_for(percent=25)
    server.kill_kernel(kernel)
    screenshot(opened.page)
    shown.wait_for(percent=25)
    # Whoever reads the file finds no picture of the last second, but one of the same run.
    bundle = opened.save(1)
    assert "gnnkit-dash" in bundle["text/html"] and "Dashboard of" in bundle["text/plain"]
