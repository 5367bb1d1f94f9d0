"""Rows of every width arrive as they are: one line of the cache or many, within what stays in the caches and past them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnnkit
from gnnkit import GraphLoader
from gnnkit.kernels.row_copies import NEVER, RowCopies
from gnnkit.sampling.batch_writer import GATHER, fill
from gnnkit.sampling.tables import NUM_WHOLE
from gnnkit.storage.arrays import ReadAhead

# From a byte to more than there is a loop of its own for; lines of the cache have 64.
WIDTHS = [1, 7, 63, 64, 65, 100, 127, 128, 129, 191, 192, 200, 256, 320, 321, 384, 400, 448, 449, 511, 512, 513, 700, 2048, 2049, 3000]
# So many rows of most of these widths are more than 8 MB, which is written past the caches.
NUM_NODES = 40_000


def graph(width: int, num_nodes: int) -> Data:
    rng = np.random.default_rng(width)
    x = torch.from_numpy(rng.integers(0, 256, (num_nodes, width), dtype=np.uint8))
    ends = torch.from_numpy(rng.integers(0, num_nodes, (2, num_nodes)))
    return Data(x=x, edge_index=ends, y=torch.arange(num_nodes))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("num_nodes", [50, NUM_NODES])
def test_rows_are_those_of_the_graph(width: int, num_nodes: int) -> None:
    data = graph(width, num_nodes)
    with GraphLoader.from_pyg(data, num_neighbors=[1], batch_size=num_nodes, shuffle=True) as loader:
        for _ in range(2):  # the second batch is written over the first one
            batch = next(iter(loader))
            assert torch.equal(batch.x, data.x[batch.n_id]) and torch.equal(batch.y, batch.n_id)
            del batch


@pytest.mark.parametrize("width", [4, 260, 400, 600])
@pytest.mark.parametrize("backend", ["inprocess", "colocated"])
def test_rows_of_several_parts(width: int, backend: str, tmp_path: Path) -> None:
    data = graph(width, NUM_NODES)
    store = gnnkit.partition(data, 3, out=tmp_path / "store", partition="random")
    with GraphLoader.from_store(store.path, num_neighbors=[1], batch_size=NUM_NODES, backend=backend) as loader:
        batch = next(iter(loader))
        assert torch.equal(batch.x, data.x[batch.n_id])


@pytest.mark.parametrize("width", [4, 127, 128, 300, 512, 2048, 3000])
@pytest.mark.parametrize("streamed_from", [1, NEVER])
@pytest.mark.parametrize("rows_ahead", [1, 16, 64])
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("into_first", [True, False])
def test_every_way_copies_the_same_rows(into_first: bool, vectors: bool, rows_ahead: int, streamed_from: int, width: int) -> None:
    rows = np.random.default_rng(width).integers(0, 256, (500, width), dtype=np.uint8)
    table = RowCopies(vectors, rows_ahead, streamed_from, into_first, not into_first).entered(ReadAhead([]).table)
    for count in (0, 1, 5, 500):
        ids = np.random.default_rng(count).integers(0, 500, count)
        room = np.zeros(count * width + 128, np.uint8)
        start = -room.ctypes.data % 64
        step = [GATHER, ids.ctypes.data, count, width, room.ctypes.data + start, 0, 0]
        addresses, bounds = np.array([[rows.ctypes.data]]), np.array([[0, 500]])
        assert fill(table, np.array([step], np.int64), addresses, bounds, np.zeros((1, NUM_WHOLE + 1), np.int64))
        assert np.array_equal(room[start : start + count * width].reshape(count, width), rows[ids])
        assert not room[:start].any() and not room[start + count * width :].any()


# Looks at the machine while another process does, then alone; says what is kept, and what others take from it.
PROGRAM = """
from gnnkit.files import give_up_lock, take_lock
from gnnkit.kernels.row_copies import RowCopies, place_of_row_copies, processor, row_copies
from gnnkit.sampling.copying import measure_once
kept = place_of_row_copies()
lock = kept.with_name("row-copies.lock")
held = take_lock(lock)
measure_once()
assert not kept.exists() and row_copies() == RowCopies()
give_up_lock(lock, held)
measure_once()
found = row_copies()
assert len(found.bytes_per_s) >= 9 and min(found.bytes_per_s.values()) > 0 and processor() in kept.read_text()
assert "rows asked for ahead" in str(found) and "memcpy past the caches" in found.reason
assert "single lines into the" in str(found) and "lines into the second" in found.reason
before = kept.stat().st_mtime_ns
measure_once()
assert kept.stat().st_mtime_ns == before
choice = '{"vectors": true, "rows_ahead": 0, "streamed_from": 1, "into_first": true, "bytes_per_s": {}}'
for damaged in ("{", "[]", choice, '{"vectors": true}'):
    kept.write_text(damaged)
    assert row_copies() == RowCopies()
    measure_once()
    assert row_copies() != RowCopies() and row_copies().bytes_per_s
print("done")
"""


@pytest.mark.slow
def test_a_machine_is_measured_once_by_one_process(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=240)
    assert (done.stdout.strip(), done.stderr) == ("done", "")
