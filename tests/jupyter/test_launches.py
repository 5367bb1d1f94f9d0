"""Launches from a notebook: functions of a cell, what the cell shows, the stop button, and kernels that are killed."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from gnnkit.runtime.runs import sweep
from tests.helpers.waiting import wait_until
from tests.jupyter.workplace import GONE_S, Workplace, check_is_short, stop
from tests.ui.kernels import Cell, Kernel

# A rank waits for its file after every epoch, so that what is looked at stands still.
CELL = """
import gnnkit
loader = GraphLoader.from_store({store!r}, num_neighbors=[3], batch_size=100, backend={backend}, progress=False)
steps = 0
class Model(torch.nn.Linear):
    pass
def train(loader, ctx):
    import time, pathlib
    model = ctx.ddp(Model(64, 2))
    for epoch in ctx.epochs(2):
        for batch in loader:
            model(batch.x).square().mean().backward()
            ctx.log(loss=steps + epoch)
        while not pathlib.Path({folder!r}, f"go{{epoch}}").exists():
            time.sleep(0.02)
    return Model(1, 1)
run = gnnkit.launch(train, loader, num_procs=2, device="cpu")
print("launched", run.state)
"""


def shown_by(cell: Cell) -> str:
    return cell.stdout + "".join(str(data) for data in cell.displays.values())


def bars_of(kernel: Kernel) -> dict[str, str]:
    """The bars of ranks whose widgets are there now: ``{"rank 0": figures}``."""
    states = kernel.widgets()
    boxes = [
        [states[child.removeprefix("IPY_MODEL_")]["value"] for child in box["children"]] for box in states.values() if "children" in box
    ]
    bars = {str(left).replace("\u2007", " ").strip(" :"): str(right).replace("\u2007", " ") for left, _, right in boxes}
    return {name.partition(":")[0].removeprefix("train "): figures for name, figures in bars.items()}


@pytest.mark.slow(seconds=30)
def test_a_launch_is_shown_where_it_was_made_and_outlives_the_stop_button(place: Workplace, store: Path, tmp_path: Path) -> None:
    kernel = place.kernel
    launched = kernel.run(CELL.format(store=str(store), folder=str(tmp_path), backend="InProcess(1)"))
    assert "launched starting" in launched.stdout
    kernel.wait_for(lambda: all(f"rank {rank}" in shown_by(launched) for rank in (0, 1)))
    # The widgets move while the ranks run, and nothing else is displayed.
    kernel.wait_for(lambda: all("epoch 0, loss 0" in bars_of(kernel).get(f"rank {rank}", "") for rank in (0, 1)))
    waiting = kernel.begin("print('waiting')\nrun.result()")
    kernel.wait_for(lambda: "waiting" in waiting.stdout)
    (tmp_path / "go0").touch()
    assert shown_by(waiting) == "waiting\n"
    shown = stop(kernel, waiting)
    check_is_short(shown, "the wait for the run")
    assert "the run goes on" in shown
    card = kernel.run("print(run.state)\nrun")
    assert card.stdout.startswith("running") and len(place.started()) >= 2
    kernel.wait_for(lambda: all("epoch 1, loss 1" in bars_of(kernel).get(f"rank {rank}", "") for rank in (0, 1)))
    (tmp_path / "go1").touch()
    done = kernel.run("result = run.result()\nprint(type(result) is Model, run)")
    assert done.stdout.startswith("True RunHandle train (done)")
    # What stays in the cell: the last line, as text.
    kernel.wait_for(lambda: "epoch 1, loss 1" in shown_by(launched) and "widget-view" not in shown_by(launched))
    assert wait_until(lambda: not place.started(), GONE_S)
    kernel.run("loader.close()")


# Nothing here takes a batch, which would import PyG.
IDLE_CELL = """
import gnnkit
from gnnkit import Colocated, GraphLoader
loader = GraphLoader.from_store({store!r}, num_neighbors=[3], batch_size=100, backend=Colocated(1), progress=False)
def train(loader, ctx):
    import threading
    threading.Event().wait()
run = gnnkit.launch(train, loader, num_procs=2, device="cpu", progress=False)
loader.close()
"""


@pytest.mark.slow
def test_a_kernel_that_is_killed_takes_its_ranks_and_what_they_have_started_along(jupyter_home: Path, store: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    kernel = Kernel({"GNNKIT_HOME": str(home)})
    try:
        place = Workplace(kernel, home)
        kernel.run(IDLE_CELL.format(store=str(store)))
        # Two ranks, and a sampling process of each.
        assert wait_until(lambda: sum("gnnkit.cluster.worker" in " ".join(p.cmdline()) for p in place.started()) >= 2)
        family = place.children()
        kernel.kill()
        assert wait_until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family), GONE_S), family
        # What it has left goes with the next run.
        sweep(home / "runs")
        assert not list((home / "runs").iterdir())
    finally:
        kernel.stop()
