"""What processes do when memory runs out, and how much they take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnnkit import Colocated, GraphLoader
from tests.backends.setups import loader_of, workers
from tests.backends.test_faults import _HOOK
from tools.bench.memory_groups import memory_group

pytestmark = pytest.mark.slow

_SCRIPT = """
import sys
import torch
from torch_geometric.data import Data
from gnnkit import Colocated, GraphLoader
from gnnkit.errors import WorkerDied

data = Data(x=torch.ones(1000, 4), edge_index=torch.randint(0, 1000, (2, 5000)))
sys.path.insert(0, sys.argv[1])
with GraphLoader.from_pyg(data, num_neighbors=[3], batch_size=10, backend=Colocated(1), progress=False) as loader:
    sys.path.pop(0)
    try:
        list(loader)
    except WorkerDied as error:
        print(str(error).replace("\\n", " "))
    print(sum(batch.batch_size for batch in loader))
"""


@pytest.mark.cgroup
def test_a_worker_that_the_kernel_kills_for_its_memory(tmp_path: Path) -> None:
    greedy = "gibibytes = [bytes(range(256)) * (1 << 20) for _ in range(12)]"
    (tmp_path / "sitecustomize.py").write_text(_HOOK.format(condition="len(calls) == 3", effect=greedy))
    with memory_group(1500 << 20) as group:
        done = group.run(["-W", "ignore", "-c", _SCRIPT, str(tmp_path)], timeout_s=240)
        assert group.was_killed
    assert done.returncode == 0, done.stderr[-3000:]
    error, count = done.stdout.splitlines()
    assert "SIGKILL" in error and "process(es) of this memory group meanwhile because memory ran out" in error
    assert " MB when it was last seen" in error and "lower num_workers" in error
    assert count == "1000"  # the dead were started again, without the greedy part


def test_a_worker_takes_little_beside_what_is_shared(tmp_path: Path) -> None:
    from gnnkit.datasets import products_like

    store = products_like(0.02, out=tmp_path / "store")
    options = {"num_neighbors": [15, 10, 5], "batch_size": 256, "progress": False}
    with GraphLoader.from_store(store.path, backend=Colocated(2), **options) as loader:
        while not loader.status().graph_bytes:
            list(loader)
        list(loader)
        for pid in workers(loader).values():
            assert own_memory(pid) < 150e6
        status = loader.status()
        assert store.nbytes <= status.graph_bytes < 1.1 * store.nbytes + (4 << 20)
        # Beside the slots, a few blocks are kept for batches of a user who holds more than there are slots for.
        assert status.buffer_bytes <= (status.details["slots"] + 3) * status.details["slot_bytes"] * 1.1 + (4 << 20)


def own_memory(pid: int) -> int:
    """Proportional bytes of a process without shared blocks and the store's pages."""
    total, counts = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            counts = not rest or ("memfd:gnnkit-" not in line and "/store/" not in line)
        elif first == "Pss:" and counts:
            total += int(rest[0]) << 10
    return total


def test_batches_outside_an_epoch_that_are_held_take_no_descriptors() -> None:
    with loader_of("Colocated-1") as loader:
        held = [loader.sample([0])]
        before = len(os.listdir("/proc/self/fd"))
        held += [loader.sample([0]) for _ in range(20)]
        assert len(os.listdir("/proc/self/fd")) - before < 5
        assert all(batch.n_id.equal(held[0].n_id) for batch in held)
