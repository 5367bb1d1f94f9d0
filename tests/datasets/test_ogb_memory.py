"""Layouts several times larger than the memory allowed are read all the same."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.ogb_trees import write_csv, write_tree

ALLOWED_MIB = 96
_READ = """
import resource, sys
import numpy as np
from gnnkit.datasets.ogb import open_ogb
from tests.datasets.reading import read_everything
name, root, warm, allowed = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) << 20
# What the process has now is what its libraries and their threads take; it may have so much more.
read_everything(open_ogb(name, root=warm, download=False))
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + allowed, used + allowed))
try:
    np.ones(2 * allowed, np.uint8)
except MemoryError:
    pass
else:
    sys.exit("the limit does not hold")
source = open_ogb(name, root=root, download=False)
total = rows = 0
for edges in source.edge_chunks(("node", "to", "node")):
    rows += edges.shape[1]
for array in source.schema.node_types["node"].arrays:
    for chunk in source.node_array_chunks("node", array):
        total += chunk.nbytes
print(rows, total)
"""


def _run(name: str, root: Path) -> tuple[int, int]:
    write_tree(name, root / "warm")
    arguments = [sys.executable, "-c", _READ, name, str(root), str(root / "warm"), str(ALLOWED_MIB)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows, total = map(int, done.stdout.split())
    return rows, total


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's data")
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_papers100m_layout_of_four_times_the_memory(method: int, tmp_path: Path) -> None:
    num_nodes, num_edges, width = 400_000, 13_000_000, 128
    tree = write_tree("ogbn-papers100M", tmp_path, num_nodes=100)
    np.savez(tree / "raw/node-label.npz", node_label=np.full((num_nodes, 1), np.nan, np.float32))
    with zipfile.ZipFile(tree / "raw/data.npz", "w", method, compresslevel=1) as archive:
        _write_member(archive, "edge_index", (2, num_edges), np.arange(100_000, dtype=np.int64), 2 * num_edges)
        _write_member(archive, "node_feat", (num_nodes, width), np.ones(100 * width, np.float32), num_nodes * width)
        for name, count in (("num_nodes_list", num_nodes), ("num_edges_list", num_edges)):
            _write_member(archive, name, (1,), np.array([count]), 1)
    rows, total = _run("ogbn-papers100M", tmp_path)
    # pytest keeps the folders of its last runs.
    (tree / "raw/data.npz").unlink()
    assert rows == num_edges
    assert 16 * num_edges + total >= 4 * (ALLOWED_MIB << 20)


def _write_member(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], block: np.ndarray, count: int) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {"descr": np.lib.format.dtype_to_descr(block.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, count, len(block)):
            file.write(block[: count - start].tobytes())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's data")
def test_csv_layout_of_four_times_the_memory(tmp_path: Path) -> None:
    num_edges, block = 13_000_000, 130_000
    tree = write_tree("ogbn-products", tmp_path, num_nodes=100)
    write_csv(tree / "raw/num-edge-list.csv.gz", [[num_edges]])
    # A gzip file may have many members; each is the same text.
    text = "".join(f"{i % 100},{i * 7 % 100}\n" for i in range(block)).encode()
    (tree / "raw/edge.csv.gz").write_bytes(gzip.compress(text, 1) * (num_edges // block))
    rows, _ = _run("ogbn-products", tmp_path)
    assert rows == 2 * num_edges
    assert 16 * rows >= 4 * (ALLOWED_MIB << 20)
