"""Every Python block of the documentation runs, page by page; tests/e2e/test_readme.py has those of README and overview."""

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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE, HeteroConv, SAGEConv

import gnnkit
from gnnkit import GraphLoader
from gnnkit.datasets import sample_root
from gnnkit.errors import WorkerDied
from tests.helpers.machine import ROOT
from tests.helpers.ogb_link_trees import write_link_tree
from tests.helpers.ports import free_port

DOCS = ROOT / "docs"
ELSEWHERE = {"overview.md", "glt.md"}  # glt.md: below, in the environment where it runs


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
SLOW = {"launching.md", "how-to/several-gpus.md", "exporting.md", "how-to/slurm-and-kubernetes.md", "advice.md"}
# What a page writes for readers, and what stands in its place on a small machine without a GPU.
INSTEAD = {
    "advice.md": {"seconds=60": "seconds=1"},
    "exporting.md": {"ctx.epochs(10)": "ctx.epochs(1)"},
    "gpu.md": {'"cuda"': '"cpu"', '"2GB"': '"1MB"'},
    "larger-than-memory.md": {'"ogbn-papers100M", root="/data"': '"ogbn-products"'},
    "launching.md": {"ctx.epochs(10)": "ctx.epochs(1)"},
    "recipes.md": {
        "Accelerator()": "Accelerator(cpu=True)",
        'accelerator="auto", ': 'accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, ',
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


def stored(**options: Any) -> GraphLoader:
    store = gnnkit.partition(gnnkit.datasets.products_like(0.0005), 2, out=Path("given").absolute(), overwrite=True)
    return GraphLoader.from_store(store.path, num_neighbors=[3, 2], batch_size=64, progress=False, **options)


def a_loader() -> dict[str, Any]:
    return {"loader": stored(), "train": lambda batch: batch.num_nodes, "step": lambda batch: batch.num_nodes}


def a_job() -> dict[str, Any]:
    return {"loader": stored(backend=gnnkit.Colocated(num_workers=1)), "Model": torch.nn.Identity, "LEARNING_RATE": 0.01, "train": None}


class TwoLayers(torch.nn.Module):
    def __init__(self, kinds: list[tuple[str, str, str]] | None = None, width: int = 4) -> None:
        super().__init__()
        if kinds is None:
            self.conv1, self.conv2 = SAGEConv(width, 8), SAGEConv(8, 4)
        else:
            self.conv1, self.conv2 = (HeteroConv({kind: SAGEConv((-1, -1), 4) for kind in kinds}) for _ in range(2))


def cited() -> HeteroData:
    data = HeteroData()
    data["paper"].x, data["paper"].train_mask = torch.rand(30, 4), torch.arange(30) < 20
    data["paper", "cites", "paper"].edge_index = torch.randint(0, 30, (2, 90))
    return data


def all_nodes() -> dict[str, Any]:
    loader = stored()
    return {"loader": loader, "model": TwoLayers(width=loader.num_features), "test_ids": torch.tensor([3, 1])}


def all_nodes_typed() -> dict[str, Any]:
    data = cited()
    loader = GraphLoader.from_pyg(data, input_nodes=("paper", None), num_neighbors=[2, 2], progress=False)
    return {"loader": loader, "model": TwoLayers(data.edge_types)}


def links() -> dict[str, Any]:
    data = Data(x=torch.rand(60, 4), edge_index=torch.randint(0, 60, (2, 400)))
    asked, labels = data.edge_index[:, :20], torch.ones(20)
    given = {"data": data, "train_edges": data.edge_index, "test_edges": asked, "labels": labels, "model": GraphSAGE(4, 8, 2)}
    return {**given, "edge_index": asked, "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits}


def with_a_mask() -> dict[str, Any]:
    mask = torch.arange(60) < 20
    return {"data": Data(x=torch.rand(60, 4), edge_index=torch.randint(0, 60, (2, 400)), train_mask=mask)}


def bought() -> dict[str, Any]:
    data = HeteroData()
    data["user"].x, data["item"].x = torch.rand(40, 4), torch.rand(30, 4)
    data["user"].y, data["user"].train_mask = torch.arange(40) % 2, torch.arange(40) < 20
    data["item", "bought_by", "user"].edge_index = torch.stack([torch.randint(0, 30, (90,)), torch.randint(0, 40, (90,))])
    pairs = [torch.stack([torch.arange(20), torch.arange(20) % 30]), torch.stack([torch.arange(20), (torch.arange(20) + 5) % 30])]
    model = lambda x, edges: (x["user"], x["item"])  # noqa: E731
    return {"data": data, "bought_index": pairs[0], "returned_index": pairs[1], "model": model}


def enough_users() -> dict[str, Any]:
    data = HeteroData()
    data["user"].x, data["user"].y = torch.rand(2000, 4), torch.arange(2000) % 4
    return {"data": data, "edge_index": torch.randint(0, 60, (2, 400))}


def first_rank() -> dict[str, Any]:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    shutil.copytree(stored().store.path, "products-2p")  # type: ignore[union-attr]
    return {}


# What the blocks of a page use and do not make themselves: for each block, or for all of them before the first.
GIVEN: dict[str, list[Callable[[], dict[str, Any]]]] = {
    "advice.md": [a_loader],
    "development/names.md": [with_a_mask],
    "dashboard.md": [a_loader],
    "exporting.md": [a_job],
    "gpu.md": [a_loader],
    "hosts.md": [first_rank],
    "inference.md": [all_nodes, all_nodes_typed],
    "kinds.md": [links],
    "links-and-anchors.md": [links, bought, dict, enough_users],
    "notebooks.md": [a_loader],
    "pictures.md": [a_loader],
    "verifying.md": [a_job],
    "workers.md": [a_loader],
}
COMMON = {"gnnkit": gnnkit, "GraphLoader": GraphLoader, "torch": torch, "WorkerDied": WorkerDied, "F": F}


def run_page(name: str, blocks: list[str], home: Path) -> dict[str, Any]:
    """Runs blocks one after the other in one namespace and closes what they have made."""
    names: dict[str, Any] = dict(COMMON)
    made: list[Any] = []
    instead = {"/data/products-2p": "products-2p", "/data/products": "given", **INSTEAD.get(name, {})}
    if '"/data/products"' in "".join(blocks):
        stored().close()
    environment = dict(os.environ)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for number, code in enumerate(blocks):
                if number < len(given := GIVEN.get(name, [])):
                    names.update(given[number]())
                    made += names.values()
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


@pytest.mark.parametrize("name", ordinary_pages())
def test_the_blocks_of_a_page_run(name: str, home: Path) -> None:
    run_page(name, blocks_of(PAGES[name]), home)


# Where a package is not installed there is nothing to run; the test environment has Lightning, accelerate and torch.
@pytest.mark.parametrize("title", [title for title, package in RECIPES.items() if find_spec(package)])
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
