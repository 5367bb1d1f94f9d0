"""Run as a program: builds a graph that is made up while it is read, and prints by how much memory grew, in bytes."""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit import BuildOptions
from gnnkit.datasets import ArraySpec, GraphSchema
from tests.storage.checks import build_store

ROWS, NODE_ROWS = 1 << 16, 1 << 10


class Generated:
    """A source that holds nothing."""

    name, notice, splits, link_splits, metadata = "generated", None, {}, {}, {}

    def __init__(self, num_nodes: int, num_edges: int, width: int, *, edges_are_cheap: bool) -> None:
        arrays = {"edge_attr": ArraySpec("float32", (4,))}
        self.schema = GraphSchema.homogeneous(num_nodes, num_edges, {"x": ArraySpec("float32", (width,))}, arrays)
        self.num_nodes, self.num_edges, self.width, self.edges_are_cheap = num_nodes, num_edges, width, edges_are_cheap

    def fingerprint(self) -> str:
        return f"{self.num_nodes} {self.num_edges} {self.width}"

    def edge_chunks(self, edge_type: tuple[str, str, str]) -> Iterator[NDArray[np.int64]]:
        for first in range(0, self.num_edges, ROWS):
            rng = np.random.default_rng(first)
            yield rng.integers(0, self.num_nodes, (2, min(ROWS, self.num_edges - first)))

    def edge_array_chunks(self, edge_type: tuple[str, str, str], name: str) -> Iterator[NDArray[Any]]:
        for first in range(0, self.num_edges, ROWS):
            yield np.full((min(ROWS, self.num_edges - first), 4), first, np.float32)

    def node_array_chunks(self, node_type: str, name: str) -> Iterator[NDArray[Any]]:
        for first in range(0, self.num_nodes, NODE_ROWS):
            yield np.full((min(NODE_ROWS, self.num_nodes - first), self.width), first, np.float32)


def peak() -> int:
    """The most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Builds and repartitions, with a budget of 16 MB."""
    with tempfile.TemporaryDirectory(prefix="storage-test-", dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        root, memory = Path(folder), 16 << 20
        # Kernels and imports first: what they take is no part of the build.
        warm = build_store(
            Generated(100, 100_000, 4, edges_are_cheap=False), root / "warm", BuildOptions(2, "random"), memory_bytes=1 << 16
        )
        build_store(warm, root / "warm2", BuildOptions(3, "random"), memory_bytes=1 << 16)
        before = peak()
        store = build_store(
            Generated(100_000, 6_000_000, 1000, edges_are_cheap=False), root / "large", BuildOptions(2, "random"), memory_bytes=memory
        )
        sys.stdout.write(f"{store.nbytes} {peak() - before}\n")


if __name__ == "__main__":
    main()
