"""Kernels that are restarted or killed in the middle of things, two of them on one store, and cells that are run in any order."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import psutil
import pytest

from gnnkit.runtime.runs import sweep
from tests.helpers.waiting import wait_until
from tests.jupyter.conftest import SETUP, TOKEN
from tests.jupyter.workplace import GONE_S, Workplace
from tests.ui.kernels import Kernel

pytestmark = pytest.mark.slow

# Everything that a kernel can have under way; nothing here takes a batch, which would import torch.
BUSY = """
import gnnkit
from gnnkit import Colocated, GraphLoader, GraphStore
from gnnkit.datasets import products_like
options = {{"num_neighbors": [10, 5], "batch_size": 100, "progress": False}}
near = GraphLoader.from_store({store!r}, backend=Colocated(2), **options)
servers = gnnkit.serve({store!r}, 1, address="127.0.0.1:0", progress=False)
servers.wait()
far = GraphLoader.from_store({store!r}, backend=GraphStore(address=servers.address), **options)
running = [iter(near), iter(far)]
"""
PARTITION = "store = gnnkit.partition(products_like(0.01), 4, 'metis', out={out!r})\nprint('result', store.manifest.num_parts)"


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def result(kernel: Kernel, source: str) -> str:
    return kernel.run(source).stdout.rpartition("result ")[2].strip()


@pytest.mark.slow(seconds=50)
def test_a_kernel_that_ends_leaves_nothing_whatever_it_was_doing(jupyter_home: Path, store: Path, tmp_path: Path) -> None:
    """It is asked to restart, and killed, both in the middle of the same cell, which then completes in a new kernel."""
    home, out = tmp_path / "home", tmp_path / "parts" / "store"
    kernel = Kernel({"GNNKIT_HOME": str(home), "GNNKIT_TOKEN": TOKEN})
    partition = PARTITION.format(out=str(out))
    try:
        place = Workplace(kernel, home)
        for ending in ("asked", "killed"):
            kernel.run(BUSY.format(store=str(store)))
            before = len(place.started())
            kernel.begin(partition)
            assert wait_until(lambda n=before: len(place.started()) > n, 60)  # type: ignore[misc]
            family = place.children()
            assert len(family) >= 6
            if ending == "killed":
                kernel.kill()
            else:
                kernel.restart(now=False)
            assert wait_until(lambda f=family: gone(f), GONE_S), [p for p in family if p.is_running()]  # type: ignore[misc]
            if ending == "killed":
                kernel.restart(now=True)
        kernel.run("pass")
        place = Workplace(kernel, home)  # the new kernel has ports of its own
        # What a killed build has left is in nobody's way, and what killed runs have left goes with the next run.
        kernel.run(BUSY.format(store=str(store)))
        assert result(kernel, partition) == "4"
        assert [path.name for path in out.parent.iterdir() if path.suffix != ".lock"] == ["store"]
        kernel.run("for loader in (near, far):\n    loader.close()\nservers.stop()")
        assert wait_until(lambda: not place.left(), GONE_S), place.left()
    finally:
        kernel.stop()


def test_two_notebooks_at_once_on_one_store(place: Workplace, jupyter_home: Path, tmp_path: Path) -> None:
    cell = f"""
options = {{"store_dir": {str(tmp_path)!r}, "num_neighbors": [3, 2], "batch_size": 512, "backend": Colocated(1)}}
loader = GraphLoader.from_source(products_like(0.01), **options)
print("result", batches_digest(loader))
"""
    other = Kernel({"GNNKIT_HOME": str(place.home), "GNNKIT_TOKEN": TOKEN})
    try:
        other.run(SETUP)
        # Both find no store, and one builds it.
        first, second = place.kernel.begin(cell), other.begin(cell)
        results = [k.finish(c).stdout.rpartition("result ")[2] for k, c in ((place.kernel, first), (other, second))]
        assert results[0] == results[1] != ""
        assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
        # One that goes, however it goes, is nothing to the other.
        children = psutil.Process(other.pid).children(recursive=True)
        other.kill()
        assert wait_until(lambda: gone(children), GONE_S)
        assert result(place.kernel, "print('result', sum(batch.batch_size for batch in loader) > 0)") == "True"
    finally:
        other.stop()
    place.kernel.run("loader.close()")
    sweep(place.home / "runs")  # as the next run does


CELLS = {
    "make": "loader = GraphLoader.from_store(store, num_neighbors=[4, 2], batch_size=100, shuffle=True, backend=backend)\nloader",
    "epoch": "seen = torch.cat([batch.input_id for batch in loader])",
    "break": "for batch in loader:\n    break",
    "resume": "rest = list(loader.resume())",
    "peek": "loader.peek()",
    "sample": "answer = loader.sample([1, 2])",
    "valid": "valid = loader.for_split('valid')\ncount = sum(batch.batch_size for batch in valid)",
    "own error": "for batch in loader:\n    raise ValueError('mine')",
    "shown": "print(loader, loader.status().state)\nloader.stats()",
    "close": "loader.close()",
}


@pytest.mark.parametrize("backend", ["InProcess(1)", "Colocated(1)", "GraphStore(1)"])
@pytest.mark.core
def test_cells_run_in_any_order(place: Workplace, store: Path, backend: str) -> None:
    """Each works, or says in a line of gnnkit's, or Python's about an unknown name, why it cannot; and in order they always work.

    The stop button is pressed at some moment of every third one. ``GNNKIT_RERUNS=1000`` makes it a thousand runs.
    """
    draw, kernel = random.Random(backend), place.kernel
    kernel.run(f"store, backend = {str(store)!r}, {backend}")
    for _ in range(int(os.environ.get("GNNKIT_RERUNS", "60"))):
        name = draw.choice([*CELLS])
        running, stopped = kernel.begin(CELLS[name]), draw.random() < 1 / 3
        if stopped:
            button = threading.Timer(draw.random() ** 3, os.killpg, (os.getpgid(kernel.pid), signal.SIGINT))  # as the stop button does
            button.start()
        cell = kernel.finish(running, may_fail=True)
        if stopped:
            button.join()
            kernel.run("pass", may_fail=True)  # one that came too late stops this
        error = None if cell.error is None else cell.error["ename"]
        allowed = {"own error": "ValueError"}.get(name), "KeyboardInterrupt" if stopped else None
        assert error in (None, "NameError", "LoaderClosed", *allowed), (name, cell.traceback)
    kernel.run(CELLS["make"])
    for _ in range(2):
        assert result(kernel, CELLS["epoch"] + "\nprint('result', seen.sort().values.equal(torch.arange(1000)))") == "True"
    kernel.run(CELLS["valid"] + "\nassert count == 500\nvalid.close()\nloader.close()")
