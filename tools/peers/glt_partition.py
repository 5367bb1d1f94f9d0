"""graphlearn-torch's RandomPartitioner, two parts, from arrays in memory."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from _common import arguments, finish, tensors


def folder_bytes(folder: Path) -> int:
    """Bytes of every file under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Partitions and measures, then removes the result."""
    import torch
    from graphlearn_torch.partition import RandomPartitioner

    options = arguments()
    row, col, feat, _ = tensors(options.folder)
    edge_index = torch.empty(2, row.numel(), dtype=torch.long)
    edge_index[0], edge_index[1] = row, col
    del row, col
    input_bytes = edge_index.nbytes + feat.nbytes
    shutil.rmtree(options.out, ignore_errors=True)
    start = time.perf_counter()
    RandomPartitioner(str(options.out), 2, feat.size(0), edge_index, feat).partition()
    elapsed = time.perf_counter() - start
    nbytes = folder_bytes(options.out)
    shutil.rmtree(options.out, ignore_errors=True)
    finish({"build_s": elapsed, "input_bytes": input_bytes, "nbytes": nbytes})


if __name__ == "__main__":
    main()
