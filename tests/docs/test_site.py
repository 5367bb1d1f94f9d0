"""What the pages of the site do in a browser: a button copies a block of code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.machine import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SESSION = ">>> loader = make()\n>>> len(\n...     loader\n... )\n5\n"


def test_a_button_copies_a_block_without_prompts_and_outputs(tmp_path: Path) -> None:
    from tests.browser.front_end import browser  # Playwright, which few machines have

    blocks = "".join(f"<div class='highlight'><pre>{code.replace('>', '&gt;')}</pre></div>" for code in (SESSION, "a = 1\nb = 2\n"))
    script = (ROOT / "docs/_static/copy.js").read_text()
    page_file = tmp_path / "page.html"
    page_file.write_text(f"<html><head><script>{script}</script></head><body>{blocks}<textarea></textarea></body></html>")
    with browser(tmp_path / "chromium") as context:
        page = context.new_page()
        page.goto(page_file.as_uri())
        for number, copied in enumerate(("loader = make()\nlen(\n    loader\n)", "a = 1\nb = 2")):
            page.locator("button.copy").nth(number).click(force=True)
            page.locator("button.copy", has_text="Copied").first.wait_for()
            page.locator("textarea").fill("")
            page.locator("textarea").focus()
            page.keyboard.press("Control+v")
            assert page.locator("textarea").input_value() == copied
