"""The dashboard in a narrow place, such as half of a small screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnkit.ui.dashboard.places import page
from tests.browser.front_end import browser
from tests.ui.test_dashboard_parts import FULL

pytestmark = pytest.mark.browser
# Elements whose text is wider than they are, and which cannot be scrolled.
_CUT = """() => [...document.querySelectorAll('.gnnkit-dash *')].filter(
  e => e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'auto'
).map(e => e.textContent)"""


@pytest.mark.parametrize("width", [480, 880])
def test_nothing_is_cut_off(width: int, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<!doctype html><body style='margin:0'>{page(FULL)}")
    with browser(tmp_path / "chromium") as running:
        shown = running.new_page(viewport={"width": width, "height": 900})
        shown.goto((tmp_path / "page.html").as_uri())
        assert shown.evaluate(_CUT) == []
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
