"""Every Python block of the documentation runs as it stands: page by page, in one namespace that nothing is put into beforehand."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import GraphSAGE

import gnnkit
from gnnkit import GraphLoader
from gnnkit.datasets import sample_root
from tests.helpers.machine import ROOT
from tests.helpers.ogb_link_trees import write_link_tree
from tests.helpers.ports import free_port

DOCS = ROOT / "docs"
COLUMN = 88  # as docs/ruff.toml has it
# In the environment where it runs, below; and as a module on the import path, in tests/sampling/test_own_sampler.py.
ELSEWHERE = {"glt.md", "development/architecture.md"}


def blocks_of(page: Path) -> list[str]:
    """The Python blocks of a page, each with as many empty lines before it as make a traceback show the page's own lines."""
    text = page.read_text()
    return ["\n" * text.count("\n", 0, found.start(1)) + found[1] for found in re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M)]


PAGES = {page.relative_to(DOCS).as_posix(): page for page in sorted(DOCS.rglob("*.md")) if blocks_of(page)}
RECIPES = {
    "Lightning": "lightning",
    "accelerate": "accelerate",
    "torchdata": "torchdata",
    "TensorBoard": "tensorboard",
    "torch.compile": "torch",
}
# They start ranks or several sets of processes, which import torch.
SLOW = {"launching.md", "overview.md", "how-to/several-gpus.md", "exporting.md", "how-to/slurm-and-kubernetes.md", "advice.md"}
# What a page writes for readers, and what stands in its place on a small machine without a GPU.
INSTEAD = {
    "advice.md": {"seconds=60": "seconds=1"},
    "exporting.md": {"ctx.epochs(10)": "ctx.epochs(1)"},
    "gpu.md": {'"cuda"': '"cpu"', '"2GB"': '"1MB"'},
    "larger-than-memory.md": {'"ogbn-papers100M", root="/data"': '"ogbn-products"', "papers_like(1)": "papers_like(0.0002)"},
    "launching.md": {"ctx.epochs(10)": "ctx.epochs(1)"},
    "recipes.md": {
        "Accelerator()": "Accelerator(cpu=True)",
        'accelerator="auto",': 'accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,',
        "dynamic=False": 'dynamic=False, backend="eager"',  # traced as ever; what the compiler makes of it is torch's affair
    },
    "servers.md": {'"10.0.0.1:7000"': "servers.address"},
    "verifying.md": {", verify=True": ""},  # tests/export/test_verify.py
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory and home: with small datasets under the names of large ones, and without a network."""
    (folder := tmp_path / "home").mkdir()
    shutil.copytree(sample_root() / "ogbn_products", folder / "ogbn_products")
    for name in ("ogbl-collab", "ogbl-citation2"):
        write_link_tree(name, folder)
    monkeypatch.setenv("GNNKIT_HOME", str(folder))
    monkeypatch.setenv("GNNKIT_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    level = logging.getLogger("gnnkit").level
    yield folder
    logging.getLogger("gnnkit").setLevel(level)


def rank_of_two_hosts() -> None:
    """The page on several hosts shows a script that torchrun starts: here one rank, beside a store at the place that is named."""
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    gnnkit.partition(gnnkit.datasets.products_like(0.0005), 2, out="products-2p")


def store_to_serve() -> None:
    gnnkit.partition(gnnkit.datasets.products_like(0.0005), 2, out="given")


# Files and variables that a page tells its readers to have; no names.
BEFORE: dict[str, Callable[[], None]] = {"hosts.md": rank_of_two_hosts, "servers.md": store_to_serve}


def run_page(name: str, blocks: list[str], home: Path) -> dict[str, Any]:
    """Runs blocks one after the other in one namespace and closes what they have made."""
    names: dict[str, Any] = {}
    made: list[Any] = []
    instead = {"/data/products-2p": "products-2p", "/data/products": "given", **INSTEAD.get(name, {})}
    environment = dict(os.environ)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            BEFORE.get(name, lambda: None)()
            for number, code in enumerate(blocks):
                for shown, used in instead.items():
                    code = code.replace(shown, used)
                script = Path(f"block{number}.py").absolute()  # exporting reads a function's source
                script.write_text(code)
                exec(compile(code, script, "exec"), names)
                made += names.values()
    finally:
        os.environ.clear()
        os.environ.update(environment)
        tidy_up(made)
    return names


def tidy_up(made: list[Any]) -> None:
    runs = [one for one in made if hasattr(one, "stop") and not isinstance(one, type)]
    loaders = [one for one in made if isinstance(one, GraphLoader)]
    for loader in {id(one): one for one in loaders}.values():
        loader.close()
    for run in {id(one): one for one in runs}.values():
        run.stop()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def ordinary_pages() -> list[Any]:
    names = [name for name in PAGES if name not in ELSEWHERE | {"recipes.md"}]
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]


def lines_of_code(page: Path) -> list[str]:
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$|^((?: {4}\S[^\n]*\n)+)", page.read_text(), re.S | re.M)
    return [line for word, fenced, indented in found if not word.startswith("{") for line in (fenced or indented).splitlines()]


FOR_READERS = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if "development" not in page.parts)]


@pytest.mark.parametrize("page", FOR_READERS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_of_code_fit_the_column(page: Path) -> None:
    assert not [line for line in lines_of_code(page) if len(line) > COLUMN]


@pytest.mark.parametrize("name", ordinary_pages())
def test_the_blocks_of_a_page_run(name: str, home: Path) -> None:
    run_page(name, blocks_of(PAGES[name]), home)


@pytest.mark.parametrize("title", [pytest.param(title, marks=pytest.mark.packages(package)) for title, package in RECIPES.items()])
def test_a_recipe_runs(title: str, home: Path) -> None:
    beginning, *sections = re.split(r"^## ", PAGES["recipes.md"].read_text(), flags=re.M)
    section = next(text for text in sections if text.startswith(f"{title}\n"))
    blocks = re.findall(r"^```python\n(.*?)^```$", beginning + section, re.S | re.M)
    assert len(blocks) == 2 and len(sections) == len(RECIPES)
    torch.manual_seed(0)
    before = GraphSAGE(1433, 32, num_layers=2, out_channels=7)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        if RECIPES[title] != "torch":
            warnings.simplefilter("ignore")  # these packages' own
        names = run_page("recipes.md", blocks, home)
    changed = [not torch.equal(left, right) for left, right in zip(before.parameters(), names["model"].parameters(), strict=True)]
    assert any(changed), "the model has been trained"


@pytest.mark.slow
@pytest.mark.glt
def test_the_page_of_graphlearn_torch_runs_in_its_environment(home: Path, glt_interpreter: Path) -> None:
    code = "\n".join(blocks_of(PAGES["glt.md"])) + "\nassert next(iter(loader)).batch_size\nloader.close()\n"
    done = subprocess.run([glt_interpreter, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
