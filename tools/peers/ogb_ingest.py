"""OGB's own reader: NodePropPredDataset from csv.gz to arrays, its cache removed before."""

from __future__ import annotations

import os
import shutil
import time

os.environ.setdefault("OUTDATED_IGNORE", "1")  # otherwise importing it asks the network for newer versions

from _common import arguments, finish


def main() -> None:
    """Reads the tree once."""
    from ogb.nodeproppred import NodePropPredDataset

    options = arguments()
    cache = options.folder / "ogbn_products/processed"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()  # it writes its cache without making the folder
    start = time.perf_counter()
    dataset = NodePropPredDataset("ogbn-products", root=str(options.folder))
    elapsed = time.perf_counter() - start
    edges = int(dataset[0][0]["edge_index"].shape[1])
    shutil.rmtree(cache, ignore_errors=True)
    finish({"ingest_s": elapsed, "edges": edges})


if __name__ == "__main__":
    main()
