"""The API reference has every public name, and the site's links are judged rightly."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import gnnkit
from tests.helpers.machine import ROOT
from tools.build_docs import broken_links, moved, mute_pictures, sources, stage, with_alternative_texts

REFERENCE = "\n".join(path.read_text() for path in (ROOT / "docs/api").glob("*.md"))


def test_every_public_name_is_in_the_reference() -> None:
    listed = set(re.findall(r"^\.\. auto(?:class|function|module):: gnnkit\.(\w+)$", REFERENCE, re.MULTILINE))
    assert listed >= set(gnnkit.__all__)
    for name in listed:
        assert isinstance(getattr(gnnkit, name), types.ModuleType) or name in gnnkit.__all__


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("docs/workers.md", "hosts.md#x", "hosts.md#x"),
        ("docs/notebooks.md", "../notebooks/1-quick-start.ipynb", "notebooks/1-quick-start.ipynb"),
        ("docs/how-to/go-on.md", "../../notebooks/1-quick-start.ipynb", "../notebooks/1-quick-start.ipynb"),
        ("docs/how-to/go-on.md", "../workers.md", "../workers.md"),
        ("notebooks/1-quick-start.ipynb", "../docs/stores.md", "../stores.md"),
        ("notebooks/1-quick-start.ipynb", "2-what-a-batch-is.ipynb", "2-what-a-batch-is.ipynb"),
        ("CONTRIBUTING.md", "docs/glossary.md", "glossary.md"),
        ("docs/datasets.md", "../data/README.md", "data.md"),
        ("docs/index.md", "https://example.org/a.md", "https://example.org/a.md"),
    ],
)
def test_links_move_with_their_pages(page: str, link: str, there: str) -> None:
    assert moved(f"see [this]({link}).", PurePosixPath(page)) == f"see [this]({there})."


def test_pages_that_stay_the_same_are_not_touched(tmp_path: Path) -> None:
    run = json.dumps({"cells": []}, indent=1)
    for name, text in {"docs/index.md": "# A", "docs/b.md": "# B", "notebooks/1.ipynb": "", "build/notebooks/1.ipynb": run}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    out = tmp_path / "out"
    stage(tmp_path, out)
    assert {path.as_posix() for path in sources(tmp_path).values()} == {"index.md", "b.md", "notebooks/1.ipynb"}
    assert (out / "notebooks/1.ipynb").read_text() == run
    before = (out / "b.md").stat().st_mtime_ns
    (tmp_path / "docs/index.md").write_text("# Another")
    (tmp_path / "notebooks/1.ipynb").unlink()
    stage(tmp_path, out)
    assert (out / "b.md").stat().st_mtime_ns == before
    assert (out / "index.md").read_text() == "# Another" and not (out / "notebooks/1.ipynb").exists()


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there">x</a><a href="#own" id="own">x</a><a href="https://example.org/x">x</a>')
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1><a href="a.html#gone">x</a><img src="none.png"><a href="https:example">x</a>')
    assert broken_links(tmp_path) == ["b.html: a.html#gone", "b.html: https:example", "b.html: none.png"]


def test_pictures_have_alternative_texts(tmp_path: Path) -> None:
    shown = {"data": {"image/png": "", "text/plain": ["<Picture of a graph>"]}, "output_type": "display_data"}
    notebook = json.loads(with_alternative_texts(json.dumps({"cells": [{"metadata": {}, "outputs": [shown]}]})))
    assert notebook["cells"][0]["metadata"]["mystnb"]["image"]["alt"] == "Picture of a graph"
    (tmp_path / "a.html").write_text('<img src="a.png" alt="a graph"><img src="b.png"><img alt="c.png" src="c.png">')
    assert mute_pictures(tmp_path) == ["a.html: b.png", "a.html: c.png"]


def test_every_page_has_the_version_and_a_way_to_copy() -> None:
    made = ROOT / "docs/conf.py"
    names: dict[str, Any] = {}
    exec(made.read_text(), names)
    assert names["html_title"] == f"gnnkit {gnnkit.__version__}"
    assert all((ROOT / "docs/_static" / file).is_file() for file in (*names["html_js_files"], *names["html_css_files"]))


def test_every_test_that_the_page_on_security_names_is_there() -> None:
    named = set(re.findall(r"[a-z0-9_]+(?:/[a-z_]+)*/test_\w+\.py", (ROOT / "docs/development/security-tests.md").read_text()))
    assert named and not [name for name in named if not (ROOT / "tests" / name).is_file()]


def test_figures_have_alternative_texts() -> None:
    """Those of pages, and those of notebooks, which say it of themselves."""
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    assert not [page.name for page in pages if re.search(r"!\[\s*\]\(|<img (?![^>]*alt=\"[^\"]+\")", page.read_text())]
    output = {"output_type": "display_data", "data": {"image/png": ""}, "metadata": {"image/png": {"alt": "a timeline of 3 workers"}}}
    notebook = {"cells": [{"cell_type": "code", "metadata": {}, "outputs": [output]}, {"cell_type": "markdown", "metadata": {}}]}
    told = json.loads(with_alternative_texts(json.dumps(notebook)))
    assert told["cells"][0]["metadata"] == {"mystnb": {"image": {"alt": "a timeline of 3 workers"}}}
    assert told["cells"][1] == notebook["cells"][1]
