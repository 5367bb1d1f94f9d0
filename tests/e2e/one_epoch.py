"""Run as a program: from a tree in ogbn-papers100M's layout to one epoch of batches; writes what was seen as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from gnnkit import GraphLoader
from tests.e2e.large_tree import PERIOD


def bytes_read() -> int:
    """Bytes that this process has had read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def main(root: str) -> None:
    """Builds, samples and checks."""
    started = time.perf_counter()
    with GraphLoader.from_ogb("ogbn-papers100M", root=root, num_neighbors=[10, 5], batch_size=512, progress=False) as loader:
        built, read = time.perf_counter(), bytes_read()
        seeds = 0
        for batch in loader:
            assert torch.equal(batch.x[:, 0], (batch.n_id % PERIOD).float())
            assert (batch.y[: batch.batch_size] >= 0).all()
            seeds += batch.batch_size
        ended, read = time.perf_counter(), bytes_read() - read
        nbytes, num_train = loader.store.nbytes, len(loader.store.splits["node"]["train"])
    facts = {"seeds": seeds, "train": num_train, "store": nbytes, "epoch_read": read}
    json.dump({**facts, "build_s": built - started, "epoch_s": ended - built}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
