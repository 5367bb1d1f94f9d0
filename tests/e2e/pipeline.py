"""A pipeline from trees to digests of batches; as a program, under whatever interpreter runs it: version of torch, digests."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gnnkit import GraphLoader, InProcess
from tests.helpers.batches import digest

DATASETS = ["ogbn-proteins", "ogbn-mag", "ogbn-papers100M"]


def pipeline(root: str, store_dir: str) -> list[str]:
    """Two epochs of a few datasets, from tree to batches."""
    digests = []
    for name in DATASETS:
        options: dict[str, Any] = {"num_parts": 2, "partition": "ldg", "undirected": name == "ogbn-mag", "with_edge": True}
        with GraphLoader.from_ogb(
            name,
            root=root,
            store_dir=store_dir,
            num_neighbors=[4, 3],
            batch_size=5,
            seed=7,
            progress=False,
            backend=InProcess(2),
            **options,
        ) as loader:
            digests += [digest(list(loader)), digest(list(loader)), digest([loader.sample([0, 5, 5])])]
    return digests


if __name__ == "__main__":
    sys.stdout.write(" ".join([torch.__version__, *pipeline(sys.argv[1], sys.argv[2])]))
