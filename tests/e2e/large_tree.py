"""A tree in ogbn-papers100M's layout, as large as wanted and quickly written: stored, not deflated."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from tests.helpers.ogb_trees import write_csv, write_tree

WIDTH = 128
# Rows that differ from each other; then they repeat.
PERIOD = 50_000


def write_large_papers(root: Path, nbytes: int) -> Path:
    """Writes ``<root>/ogbn_papers100M`` with about ``nbytes`` of features (three quarters) and edges; returns its folder.

    Feature 0 of node ``i`` is ``i % PERIOD``; every hundredth node is labelled, and for training.
    """
    num_nodes, num_edges = int(nbytes * 0.75) // (4 * WIDTH), nbytes // 4 // 16
    tree = write_tree("ogbn-papers100M", root, num_nodes=100)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((PERIOD, WIDTH), np.float32)
    features[:, 0] = np.arange(PERIOD)
    labels = np.full((num_nodes, 1), np.nan, np.float32)
    labels[::100, 0] = np.arange(len(labels[::100])) % 172
    np.savez(tree / "raw/node-label.npz", node_label=labels)
    with zipfile.ZipFile(tree / "raw/data.npz", "w", zipfile.ZIP_STORED) as archive:
        _write(archive, "edge_index", rng.integers(0, num_nodes, 1_000_003), (2, num_edges))
        _write(archive, "node_feat", features.reshape(-1), (num_nodes, WIDTH))
        _write(archive, "node_year", np.arange(1900, 2020), (num_nodes, 1))
        for name, count in (("num_nodes_list", num_nodes), ("num_edges_list", num_edges)):
            _write(archive, name, np.array([count]), (1,))
    for split, ids in (("train", range(0, num_nodes, 100)), ("valid", range(1, num_nodes, 1000)), ("test", range(2, num_nodes, 1000))):
        write_csv(tree / f"split/time/{split}.csv.gz", ([i] for i in ids))
    return tree


def _write(archive: zipfile.ZipFile, name: str, block: np.ndarray, shape: tuple[int, ...]) -> None:
    """Writes a member whose values are those of ``block``, over and over."""
    count = int(np.prod(shape))
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {"descr": np.lib.format.dtype_to_descr(block.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, count, len(block)):
            file.write(memoryview(block[: count - start]).cast("B"))
