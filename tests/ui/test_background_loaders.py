"""Loaders in background processes, made in the cells of a real kernel, which keeps every one that a cell has shown."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.helpers.graphs import split_store
from tests.helpers.waiting import wait_until
from tests.ui.kernels import Kernel


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_store(tmp_path_factory.mktemp("stores") / "store")


_CELL = """
import gnnkit
from gnnkit import Colocated, GraphLoader
loader = GraphLoader.from_store({store!r}, num_neighbors=[10, 5], batch_size=100, backend=Colocated(2), progress=False)
valid = loader.for_split("valid")
for batch in loader:
    pass
for batch in valid:
    pass
loader
"""
_MEASURE = """
import gc, json, os, psutil
gc.collect()
me = psutil.Process()
maps = [line for line in open("/proc/self/maps") if "memfd:gnnkit-" in line]
own = [c.pid for c in me.children(recursive=True) if "gnnkit.runtime.fork_server" not in c.cmdline()]
print(json.dumps({"pid": me.pid, "processes": sorted(own), "descriptors": me.num_fds(),
                  "threads": me.num_threads(), "blocks": len(maps), "memory": me.memory_info().rss}))
"""


def measure(kernel: Kernel) -> dict[str, int]:
    return json.loads(kernel.run(_MEASURE).stdout)


@pytest.mark.slow
def test_a_cell_that_ends_in_a_loader_is_run_twenty_times(kernel: Kernel, store: Path) -> None:
    cell, seen = _CELL.format(store=str(store)), []
    for number in range(20):
        shown = kernel.run(cell)
        if number in (0, 4, 19):
            seen.append(measure(kernel))
        assert not shown.stderr
    assert len(seen[0]["processes"]) == 2 and seen[2]["processes"] == seen[0]["processes"]  # the same ones all the time
    for name in ("descriptors", "threads", "blocks"):  # a kernel has a few of its own; fifteen runs that kept one each would show
        assert seen[2][name] < seen[1][name] + 8, (name, seen)
    assert seen[2]["memory"] < seen[1]["memory"] + (15 << 20)
    # One that the front end still shows works on, and gives its place up again.
    used = "import IPython; old = next(v for v in Out.values() if isinstance(v, GraphLoader) and v is not loader)\n"
    assert kernel.run(used + "print(sum(b.batch_size for b in old), sum(b.batch_size for b in loader))").stdout == "1000 1000\n"
    kernel.run("%reset -f")
    left = measure(kernel)
    assert left["processes"] == [] and left["blocks"] == 0


_TRANSFORM = """
from dataclasses import dataclass
import torch
from torch_geometric.data import Data
from gnnkit import Colocated, GraphLoader

def doubled(batch):
    batch.twice = 2 * batch.x
    return batch

@dataclass
class Scaled:
    factor: float
    def __call__(self, batch):
        batch.twice = self.factor * batch.x
        return batch

data = Data(x=torch.rand(100, 3), edge_index=torch.randint(0, 100, (2, 500)))
for transform in (doubled, Scaled(2.0), lambda batch: doubled(batch)):
    with GraphLoader.from_pyg(data, num_neighbors=[3], batch_size=20, transform=transform, backend=Colocated(2), progress=False) as loader:
        assert all(batch.twice.equal(2 * batch.x) for batch in loader)
        seen = sum(batch.batch_size for batch in loader)
        print(seen)
"""


@pytest.mark.slow
def test_functions_and_classes_of_a_cell_are_transforms(kernel: Kernel) -> None:
    assert kernel.run(_TRANSFORM).stdout == "100\n" * 3


@pytest.mark.slow
def test_a_kernel_that_is_killed_takes_its_processes_along(jupyter_home: Path, store: Path) -> None:
    kernel = Kernel()
    try:
        kernel.run(_CELL.format(store=str(store)))
        seen = measure(kernel)
        family = [psutil.Process(pid) for pid in seen["processes"]]
        assert len(family) == 2
        psutil.Process(seen["pid"]).kill()
        assert wait_until(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family))
    finally:
        kernel.stop()
