"""What a run takes: datasets larger than memory, batches that are held, and the peak of an epoch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gnnkit.datasets import products_like
from tests.e2e.large_tree import write_large_papers
from tests.helpers.machine import ROOT
from tools.bench.memory_groups import memory_group

pytestmark = pytest.mark.slow

# The interpreter with torch, PyG, Numba and pyarrow takes 310 MiB of it.
LIMIT_BYTES = 480 << 20


@pytest.mark.slow(seconds=30)
@pytest.mark.cgroup
def test_a_dataset_of_four_times_the_memory(tmp_path: Path) -> None:
    """Read, stored and sampled: page cache included, nothing beyond the limit is ever needed, and no row is read with its surroundings."""
    tree = write_large_papers(tmp_path, 4 * LIMIT_BYTES)
    assert sum(path.stat().st_size for path in tree.rglob("*")) >= 4 * LIMIT_BYTES
    with memory_group(LIMIT_BYTES) as group:
        done = group.run(["-m", "tests.e2e.one_epoch", str(tmp_path)], timeout_s=240)
        assert done.returncode == 0, done.stderr[-3000:]
        assert not group.was_killed
        assert group.peak_bytes is None or group.peak_bytes <= LIMIT_BYTES
    facts = json.loads(done.stdout)
    assert facts["seeds"] == facts["train"] > 20_000
    assert facts["store"] > 3 * LIMIT_BYTES
    # What the epoch touches is a few times smaller than what was read where each row brought its surroundings along.
    assert facts["epoch_read"] < facts["store"]


_FROM_DISK = """
import json, sys
from gnnkit import Colocated, GraphLoader, InProcess
from gnnkit.errors import MemoryLimitError

backend = {"InProcess": InProcess(), "Colocated": Colocated(2)}[sys.argv[2]]
try:
    loader = GraphLoader.from_store(sys.argv[1], num_neighbors=[5, 3], batch_size=64, shuffle=True, progress=False, backend=backend)
except MemoryLimitError as error:
    print(json.dumps(str(error)))
else:
    with loader:
        batches = [batch for batch, _ in zip(loader, range(30))]
        from tests.helpers.batches import digest  # brings torch
        print(json.dumps([digest(batches), loader.status().workers]))
"""


@pytest.mark.slow
@pytest.mark.cgroup
def test_processes_on_a_store_that_is_larger_than_the_memory(tmp_path: Path) -> None:
    """They read what they want and little else, and give the same batches; where they cannot work, the error comes before they start."""
    store = products_like(0.5, out=tmp_path / "store")
    limit = int(0.8 * store.nbytes)

    def run(backend: str, limit: int) -> Any:
        for path in store.path.rglob("*.npy"):
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with memory_group(limit) as group:
            done = group.run(["-W", "ignore", "-c", _FROM_DISK, str(store.path), backend], timeout_s=240)
            assert done.returncode == 0 and not group.was_killed, done.stderr[-3000:]
            return json.loads(done.stdout)

    wanted, few = run("InProcess", 4 * limit)
    found, more = run("InProcess", limit)
    assert found == wanted and more == max(few, 4)
    assert run("Colocated", limit) == [wanted, 2]
    refused = run("Colocated", 300 << 20)
    assert re.search(r"2 sampling .* need about \d+ MB, torch and PyG .* about \d+ MB, and the graph .*; \d+ MB are free", refused), refused


_HOLD = """
import sys
import torch
from torch_geometric.data import Data
from gnnkit import GraphLoader, InProcess
from gnnkit.errors import MemoryLimitError

data = Data(x=torch.ones(20_000, 256), edge_index=torch.randint(0, 20_000, (2, 200_000)))
held = []
options = dict(num_neighbors=[10, 10], batch_size=1024, progress=False, backend=InProcess(num_threads=2))
with GraphLoader.from_pyg(data, **options) as loader:
    try:
        for _ in range(100):
            held += list(loader)
    except MemoryLimitError as error:
        print(str(error).replace("\\n", " "))
    else:
        sys.exit("nothing was refused")
    del held[:]
    print(sum(batch.batch_size for batch in loader))
"""


@pytest.mark.cgroup
def test_a_list_of_everything_is_an_error_before_the_kernel_steps_in() -> None:
    with memory_group(900 << 20) as group:
        done = group.run(["-W", "ignore", "-c", _HOLD], timeout_s=240)
        assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
        assert not group.was_killed
    refused, last = done.stdout.splitlines()
    sizes = re.search(r"needs (\d+) MB, (\d+) MB are free, and the batches that are still held take (\d+) MB", refused)
    assert sizes is not None and int(sizes[3]) > 150, refused
    assert "drop batches" in refused and last == "20000"


def run_child(code: str, *arguments: str, timeout_s: float = 240) -> list[str]:
    """Runs a program; its lines."""
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


_SMALL = """
import torch
from torch_geometric.data import Data
from gnnkit import GraphLoader

def anonymous():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10

data = Data(x=torch.ones(20_000, 64), edge_index=torch.randint(0, 20_000, (2, 200_000)))
with GraphLoader.from_pyg(data, num_neighbors=[3], batch_size=16, progress=False) as loader:
    list(loader)
    before = anonymous()
    held = list(loader)
    grown = anonymous() - before
print(len(held), sum(value.nbytes for batch in held for _, value in batch if isinstance(value, torch.Tensor)), grown)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_many_small_batches_take_about_their_size() -> None:
    count, nbytes, grown = map(int, run_child(_SMALL)[-1].split())
    assert count == 1250 and nbytes > 15_000_000
    # Whole pages, room for growth, and 4 kB of Python objects each.
    assert grown < 1.3 * nbytes + count * 12_000, (count, nbytes, grown)


_PEAK = """
import sys, threading
from gnnkit import GraphLoader, InProcess
from gnnkit.datasets import products_like

class Peak(threading.Thread):
    most = 0
    done = threading.Event()
    def run(self):
        while not self.done.wait(0.01):
            line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
            self.most = max(self.most, int(line.split()[1]) << 10)

options = dict(num_neighbors=[15, 10, 5], batch_size=1024, progress=False, backend=InProcess(num_threads=2))
path = sys.argv[1]
peak = Peak()
peak.start()
with GraphLoader.from_store(path, **options) as loader:
    nodes = sum(batch.num_nodes for batch in loader)
    status = loader.status()  # what the card shows
    print(len(loader), loader.stats().nbytes, status.buffer_bytes, status.graph_bytes, loader.store.nbytes)
peak.done.set()
peak.join()
print(peak.most)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_epoch_takes_its_blocks_one_copy_and_little_else(tmp_path: Path) -> None:
    store = products_like(0.05, out=tmp_path / "store")
    first, peak = run_child(_PEAK, str(store.path))
    batches, sampled, blocks, copy, nbytes = map(int, first.split())
    assert nbytes == store.nbytes and batches > 5
    mean = sampled / batches
    assert copy < 1.1 * nbytes + (4 << 20)
    # As many blocks as threads and batches that wait, and one that the loop holds.
    assert blocks < (2 + 2 + 1) * 1.6 * mean + (10 << 20)
    # Pages of the store and of its copy are not anonymous; the interpreter with torch and PyG takes 0.3 GB.
    assert int(peak) < 0.42e9 + blocks, (int(peak), blocks)


_FEW_EDGES = """
import json, sys
import torch
from torch_geometric.data import Data
import gnnkit
from gnnkit.errors import MemoryLimitError

out, kind, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
ends = [[0, 5], [60_000_000, 1]]
graph = gnnkit.tables({"src": ends[0], "dst": ends[1]}) if kind == "tables" else Data(
    edge_index=torch.tensor(ends), edge_weight=torch.ones(2), num_nodes=60_000_001)
try:
    print(gnnkit.partition(graph, 1, out=out, **options).schema.num_nodes)
except MemoryLimitError as error:
    print(str(error).replace("\\n", " "))
"""


@pytest.mark.cgroup
@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("tables", {}, "^4$"),
        ("Data", {}, "^60000001$"),
        ("Data", {"weight": "edge_weight"}, r"needs about 1\.\d+ GB of memory, \d+ MB are available(?s:.*) GraphLoader\.from_tables"),
        ("Data", {"order": "hotness"}, r"needs about [\d.]+ GB of memory, \d+ MB are available"),
    ],
)
def test_few_edges_between_large_ids(tmp_path: Path, kind: str, options: dict[str, str], says: str) -> None:
    """They are stored, or refused with figures, in 1,000 MB: 60 million nodes take 8 bytes each, and as much again for weights."""
    with memory_group(10**9) as group:
        done = group.run(["-W", "ignore", "-c", _FEW_EDGES, str(tmp_path / "store"), kind, json.dumps(options)], timeout_s=240)
        assert done.returncode == 0 and not group.was_killed, done.stderr[-3000:]
    assert re.search(says, done.stdout.strip()), done.stdout
