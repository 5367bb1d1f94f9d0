"""What is done without gnnkit: tables read and joined with pandas, and a PyG object made of the row numbers."""

from __future__ import annotations

import time

import pandas as pd
import torch
from _common import arguments, finish
from torch_geometric.data import Data


def main() -> None:
    """Reads, joins and compresses by target once, as a sampler needs it."""
    options = arguments()
    start = time.perf_counter()
    nodes = pd.read_parquet(options.folder / f"nodes-{options.kind}.parquet")
    edges = pd.read_parquet(options.folder / f"edges-{options.kind}.parquet")
    nodes["row"] = range(len(nodes))
    ends = []
    for end in ("src", "dst"):
        joined = edges[[end]].merge(nodes, left_on=end, right_on="key", how="left")
        ends.append(torch.from_numpy(joined["row"].to_numpy(copy=True)))
    data = Data(edge_index=torch.stack(ends), num_nodes=len(nodes)).sort(sort_by_row=False)
    elapsed = time.perf_counter() - start
    finish({"tables_s": elapsed, "edges": data.num_edges, "edges_per_s": data.num_edges / elapsed})


if __name__ == "__main__":
    main()
