"""Exporting from a notebook: cells as source, however they were edited, and the stop button."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.graphs import make_store
from tests.ui.conftest import jupyter_home as jupyter_home
from tests.ui.conftest import running_kernel as running_kernel
from tests.ui.kernels import Kernel

EXPORTED = """
from gnnkit.export.source import function_source
namespace = {}
exec(function_source(%s, "About."), namespace)
print("result", repr(namespace["train"](3, None)))
"""


@pytest.fixture(scope="module")
def kernel(running_kernel: Kernel) -> Kernel:
    running_kernel.run("from dataclasses import dataclass\nimport math\nfrom gnnkit.errors import PlanError")
    return running_kernel


def answer(kernel: Kernel, function: str = "train") -> str:
    lines = kernel.run(EXPORTED % function).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("result ")]
    return line.removeprefix("result ")


def test_cells_that_were_edited_and_run_again(kernel: Kernel) -> None:
    kernel.run("class Config:\n    rate = 1\n    names = ['a']")  # without any method: nothing but the history knows its cell
    kernel.run("%pwd\n@dataclass\nclass Other:\n    n: int = 1\nRATE = 10")
    kernel.run("def helper(value):\n    return value * RATE + Config.rate + Other().n + math.floor(1.5)")
    kernel.run("def train(loader, ctx):\n    return helper(loader)")
    assert answer(kernel) == "33"
    kernel.run("class Config:\n    rate = 100\n    names = ['a']")
    kernel.run("RATE = 20")
    assert answer(kernel) == "162"
    kernel.run("class Config:\n    rate = 1\n    names = ['a']")  # as it was once before
    kernel.run("def helper(value):\n    return value - RATE - Config.rate")
    assert answer(kernel) == "-18"
    kernel.run("train = lambda loader, ctx: (helper(loader), Config.names)")
    assert answer(kernel) == "(-18, ['a'])"


def test_what_only_a_notebook_has_is_named(kernel: Kernel) -> None:
    kernel.run("def shows(loader, ctx):\n    display(loader)\n    return 1\ndef asks(loader, ctx):\n    return get_ipython()")
    shown = kernel.run("from gnnkit.export.source import function_source\nprint(function_source(shows, 'About.'))").stdout
    assert "import display" in shown
    cell = kernel.run("try:\n    function_source(asks, 'About.')\nexcept PlanError as error:\n    print('refused', error.message)")
    assert "refused asks() cannot be exported: `get_ipython`" in cell.stdout


@pytest.mark.slow
def test_a_loader_of_the_notebook_is_named(kernel: Kernel) -> None:
    kernel.run("import torch\nfrom torch_geometric.data import Data\nfrom gnnkit import GraphLoader")
    kernel.run("from gnnkit.errors import PlanError\nfrom gnnkit.export.source import function_source")
    kernel.run("data = Data(x=torch.ones(4, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))")
    kernel.run("own = GraphLoader.from_pyg(data, num_neighbors=[1], batch_size=1, progress=False)")
    kernel.run("def train(loader, ctx):\n    return len(own)")
    told = kernel.run("try:\n    function_source(train, 'About.')\nexcept PlanError as error:\n    print(error)\nown.close()").stdout
    assert "`own`, which train uses, is a gnnkit.GraphLoader" in told
    assert "use the loader that train(loader, ctx) is given" in told


def test_scripts_know_their_own_source(tmp_path: Path, kernel: Kernel) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import math\nRATE = 4\ndef helper(value):\n    return math.floor(value) + RATE\n"
        "def scripted(loader, ctx):\n    return helper(loader)\n"
    )
    kernel.run(f"%run -i '{script}'")
    assert answer(kernel, "scripted") == "7"


STOPPABLE = """
import os
def standing(*args, **words):
    print("standing", flush=True)
    import time
    for _ in range(6000):
        time.sleep(0.01)
real, {owner}.{name} = {owner}.{name}, standing
try:
    loader.export({directory!r}, train=train, gpus_per_node=0)
finally:
    {owner}.{name} = real
"""


def test_the_stop_button_leaves_nothing_half_written(kernel: Kernel, tmp_path: Path) -> None:
    store, job = make_store(tmp_path / "stores" / "tiny"), tmp_path / "job"
    kernel.run("import gnnkit.export.exporter, gnnkit.export.writer, gnnkit.export.launchers\nfrom gnnkit import GraphLoader")
    kernel.run(f"loader = GraphLoader.from_store({str(store)!r}, num_neighbors=[2], batch_size=8, progress=False)")
    kernel.run("def train(loader, ctx):\n    return 1")
    for owner, name in (("gnnkit.export.exporter", "requirements_text"), ("gnnkit.export.writer", "_write")):
        cell = kernel.begin(STOPPABLE.format(owner=owner, name=name, directory=str(job)))
        kernel.wait_for(lambda cell=cell: "standing" in cell.stdout)  # type: ignore[misc]
        kernel.interrupt()
        kernel.finish(cell, may_fail=True)
        assert cell.error is not None
        assert cell.error["ename"] == "KeyboardInterrupt"
        assert "export()" in cell.traceback
        assert {path.name for path in tmp_path.iterdir()} == {"stores"}
    shown = kernel.run(f"loader.export({str(job)!r}, train=train, gpus_per_node=0)")
    assert "def train(loader, ctx):" in (job / "train.py").read_text()
    (result,) = [
        message["content"]["data"] for message in kernel.of_type("execute_result") if shown.msg_id in str(message["parent_header"])
    ]
    assert "README.md" in result["text/plain"]
    assert "text/html" in result
    kernel.run("loader.close()")
