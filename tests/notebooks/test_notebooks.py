"""Every notebook runs from top to bottom, offline, and leaves nothing behind; none is kept with outputs, and pages lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

from gnnkit.datasets import ogb_names
from tests.helpers.leaks import descendants
from tests.helpers.machine import ROOT, SEARCH_PATH
from tests.ui.kernels import on_sockets_of_its_own

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"), key=lambda path: int(path.name.partition("-")[0]))
TITLES = (
    "1-quick-start",
    "2-what-a-batch-is",
    "3-workers-and-profiling",
    "4-graph-store",
    "5-heterogeneous",
    "6-links-and-anchors",
    "7-from-notebook-to-cluster",
    "8-when-things-go-wrong",
    "9-your-own-graph",
    "10-tables",
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookClient]:
    """One kernel for all notebooks, with a home of its own: importing torch and PyG takes longer than most of them."""
    resources = {"metadata": {"path": str(tmp_path_factory.mktemp("cwd"))}}
    words = {"kernel_name": "python3", "timeout": 240, "resources": resources, "config": on_sockets_of_its_own()}
    client = NotebookClient(nbformat.v4.new_notebook(), **words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNNKIT_HOME", str(tmp_path_factory.mktemp("notebooks") / "home"))
        patch.setenv("GNNKIT_OFFLINE", "1")
        with client.setup_kernel():
            yield client


def run(notebook: nbformat.NotebookNode, runner: NotebookClient) -> None:
    """Runs a notebook in an empty namespace of the runner's kernel."""
    reset = nbformat.v4.new_code_cell("%reset -f")
    runner.nb = nbformat.v4.new_notebook(cells=[reset])
    runner.reset_execution_trackers()
    runner.execute_cell(reset, 0, store_history=False)
    runner.nb = notebook
    for index, cell in enumerate(notebook.cells):
        runner.execute_cell(cell, index)


def test_the_notebooks_are_there() -> None:
    assert tuple(path.stem for path in NOTEBOOKS) == TITLES


@pytest.mark.slow
@pytest.mark.parametrize("path", [pytest.param(NOTEBOOKS[0], marks=pytest.mark.core), *NOTEBOOKS[1:]], ids=lambda path: path.stem)
def test_notebook_runs(path: Path, runner: NotebookClient) -> None:
    notebook = nbformat.read(path, as_version=4)
    run(notebook, runner)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    expected = [cell for cell in notebook.cells if "raises-exception" in cell.metadata.get("tags", [])]
    assert len([output for output in outputs if output.output_type == "error"]) == len(expected)
    source = "".join(cell.source for cell in notebook.cells)
    if "sample_root" in source or "products_like" in source:
        assert any("not OGB's data" in str(output) for output in outputs), "made-up data must be marked wherever it is shown"
    assert notebook.cells[-1].source.count("assert ") >= 3, "it checks itself at its end"
    assert runner.km is not None
    left = [child.cmdline() for child in descendants(runner.km.provisioner.process.pid)]
    assert left == [], "it leaves no process behind"
    keep_for_the_documentation(notebook, path.name)


def keep_for_the_documentation(notebook: nbformat.NotebookNode, name: str) -> None:
    """Keeps what a notebook has shown, with a usual home in place of this one: `make docs` makes a page of it, and runs no notebook again."""
    executed = ROOT / "build/notebooks" / name
    executed.parent.mkdir(parents=True, exist_ok=True)
    unfinished = executed.with_suffix(".incomplete")
    unfinished.write_text(nbformat.writes(notebook).replace(os.environ["GNNKIT_HOME"], "~/.cache/gnnkit"))
    unfinished.replace(executed)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_as_it_should_be_kept(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
    lines = [line for cell in notebook.cells if cell.cell_type == "code" for line in cell.source.splitlines()]
    (name,) = [found for line in lines for found in re.findall(r'^[A-Z]+ = .*  # the real one: "(.*)"$', line)]
    assert name in ogb_names(), "one line turns it to the real data"
    assert all(len(line) <= 120 for line in lines)


def test_stripping_takes_out_what_a_run_leaves(tmp_path: Path) -> None:
    path = tmp_path / "used.ipynb"
    path.write_text(NOTEBOOKS[0].read_text())
    strip = [sys.executable, str(ROOT / "tools/strip_notebooks.py")]
    assert subprocess.run([*strip, "--check", path]).returncode == 0
    notebook = nbformat.read(path, as_version=4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.execution_count, cell.metadata = 3, {"tags": ["kept"], "execution": {"iopub.execute_input": "now"}, "scrolled": True}
    cell.outputs = [nbformat.v4.new_output("stream", text="printed")]
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    nbformat.write(notebook, path)
    checked = subprocess.run([*strip, "--check", path], capture_output=True, text=True)
    assert checked.returncode == 1 and "used.ipynb" in checked.stdout and "printed" in path.read_text()
    assert subprocess.run([*strip, path], capture_output=True).returncode == 0
    after = nbformat.read(path, as_version=4)
    assert [cell.source for cell in after.cells] == [cell.source for cell in notebook.cells]
    kept = next(cell for cell in after.cells if cell.cell_type == "code")
    assert (kept.metadata, kept.outputs, kept.execution_count) == ({"tags": ["kept"]}, [], None)
    assert "widgets" not in after.metadata


def pages() -> list[Path]:
    """Everything that people read."""
    return [ROOT / "README.md", ROOT / "data/README.md", *sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOKS]


def test_links_lead_somewhere() -> None:
    broken = []
    for page in pages():
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) + re.findall(r' (?:src|srcset)="([^"]+)"', text):
            if not re.match(r"https?:|mailto:", target) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_page_is_in_an_index() -> None:
    indices = {path: path.read_text().splitlines() for path in (ROOT / "docs").rglob("index.md")}
    listed = {(path.parent / line).relative_to(ROOT / "docs") for path, lines in indices.items() for line in lines if line}
    wanted = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")} - {Path("index")}
    assert wanted | {Path("notebooks", title) for title in TITLES} <= listed
