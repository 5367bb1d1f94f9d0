"""Pages that batches read from the disk, on paper and in a process that may not keep them all."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import BuildOptions, GraphLoader, InProcess, Store, datasets
from gnnkit.capacity import Cluster, Estimate, PageReads, Rates, asked, estimate, sized_graph
from tests.helpers.system import pretend_free_memory
from tools.bench.memory_groups import memory_group

FAN_OUT, BATCH_SIZE = [6, 4], 8


def built(folder: Path, scale: float, order: Any = "dataset") -> Store:
    return datasets.products_like(scale, out=folder / "store", options=BuildOptions(num_neighbors=(6, 4), order=order))


def drop_pages(path: Path) -> None:
    """Takes a store's pages out of memory: they are on the disk, and nobody may have them mapped."""
    gc.collect()
    for file in path.rglob("*.npy"):
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def resident_pages(path: Path) -> int:
    count, mincore = 0, ctypes.CDLL(None, use_errno=True).mincore
    for name in path.rglob("*.npy"):
        with name.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            view = np.frombuffer(mapping, np.uint8)
            found = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
            assert not mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view)), ctypes.c_void_p(found.ctypes.data))
            count += int((found & 1).sum())
            del view
    return count


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no way to drop pages")
@pytest.mark.parametrize("order", ["dataset", "hotness"])
def test_pages_that_batches_touch_are_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any) -> None:
    path, num_batches = built(tmp_path, 0.02, order).path, 12
    pretend_free_memory(monkeypatch, 1 << 20)  # so that no page comes unasked
    reads = PageReads.of(Store.open(path), "node", FAN_OUT, BATCH_SIZE)
    drop_pages(path)
    before = resident_pages(path)
    options = {"num_neighbors": FAN_OUT, "batch_size": BATCH_SIZE, "shuffle": True, "memory_budget": 0, "progress": False}
    with GraphLoader.from_store(path, backend=InProcess(1), prefetch=1, **options) as loader:
        for _ in islice(loader, num_batches):
            pass
    seen = resident_pages(path) - before
    # A batch or two more may have been sampled meanwhile.
    expected = [float(-np.expm1(-reads.rate * count).sum()) for count in (num_batches, num_batches + 2)]
    assert 0.8 * expected[0] <= seen <= 1.2 * expected[1]
    assert reads.missed(1 << 40) == 0 and 0.9 * reads.touched < reads.missed(mmap.PAGESIZE) <= reads.touched


_RUN = """
import sys
from pathlib import Path
from gnnkit import GraphLoader, InProcess
store, group, version, room = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
limit, usage, names = (
    ("memory.max", "memory.current", ("active_file", "inactive_file")) if version == 2
    else ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
)
def leave_room(room):
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    own = int((group / usage).read_text()) - sum(int(stat[name]) for name in names)
    (group / limit).write_text(str(own + room))
def read_bytes():
    return next(int(line.split()[1]) for line in open("/proc/self/io") if line.startswith("read_bytes"))
import torch_geometric
from gnnkit.sampling.kinds import warm
warm()
leave_room(3 * room)
options = dict(num_neighbors=[6, 4], batch_size=8, shuffle=True, memory_budget=0, progress=False, prefetch=1)
with GraphLoader.from_store(store, backend=InProcess(1), **options) as loader:
    assert loader.pipeline.graph.arrays.read_ahead.is_on
    batches = (batch for epoch in range(9) for batch in loader)
    for _ in range(20):
        next(batches)
    for count in (250, 250):
        leave_room(room)
        before = read_bytes()
        for _ in range(count):
            next(batches)
    print((read_bytes() - before) / 4096 / count)
"""


@pytest.mark.cgroup
@pytest.mark.slow
def test_pages_that_are_missed_are_predicted(tmp_path: Path) -> None:
    path = built(tmp_path, 0.1).path
    room = Store.open(path).nbytes // 4
    drop_pages(path)
    with memory_group(2 << 30) as group:
        done = group.run(["-W", "ignore", "-c", _RUN, str(path), str(group.folder), str(group.version), str(room)], timeout_s=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) == pytest.approx(PageReads.of(Store.open(path), "node", FAN_OUT, BATCH_SIZE).missed(room), rel=0.2)


def test_a_store_that_does_not_fit_is_limited_by_its_disk(tmp_path: Path) -> None:
    store = built(tmp_path, 0.01)
    graph = sized_graph(str(store.path), BuildOptions())
    wanted, rates = asked(graph, FAN_OUT, BATCH_SIZE), Rates(1e12, 1e15, "made up for a test")

    def found(memory: int) -> Estimate:
        return estimate(graph, Cluster(1, 1, 0, memory, None, 1), wanted, rates)

    roomy = found(1 << 40)
    assert not roomy.reads and "disk" not in roomy.limits
    needed = sum(roomy.memory.values())
    tight = found(needed - store.nbytes // 2)
    if not tight.reads:
        pytest.skip("the disk cannot be probed here")
    assert tight.bottleneck == "disk" and 0 < tight.reads["missed"] < tight.reads["touched"]
    assert tight.limits["disk"] == pytest.approx(BATCH_SIZE * tight.reads["pages_per_s"] / tight.reads["missed"])
    assert found(needed - store.nbytes).bottleneck == "memory", "nothing is left for pages"
