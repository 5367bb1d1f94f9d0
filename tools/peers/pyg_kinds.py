"""PyG's loaders of other kinds of batches: with pyg-lib, but HGT's, induced subgraphs and ShaDow's with torch-sparse.

Tuned, as in pyg_loader.py: edges are sorted by target beforehand (and by time, where there are times), they and features lie in huge
pages, glibc keeps its memory, rows are gathered in the main process, and as many workers sample as is fastest.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import arguments, best_of_workers, finish, in_huge_pages, keep_memory, plain_graph, pyg_engine, run_epochs, some_seeds

BY_SPARSE = ("induced", "shadow", "hgt")


def typed_graph(folder: Path, options: Any) -> Any:
    """The typed graph as ``HeteroData``, and its training nodes."""
    import torch
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for path in sorted(folder.glob("feat-*.npy")):
        feat = torch.from_numpy(np.load(path))
        data[path.stem.removeprefix("feat-")].x = in_huge_pages(feat) if options.tuned else feat
    for path in sorted(folder.glob("edges-*.npy")):
        edges = torch.from_numpy(np.load(path))
        data[tuple(path.stem.split("-")[1:])].edge_index = (
            in_huge_pages(edges[:, torch.argsort(edges[1], stable=True)].contiguous()) if options.tuned else edges
        )
    return data, torch.from_numpy(np.load(folder / "train.npy"))


def links(data: Any, options: Any, **more: Any) -> Any:
    """A loader of links that are spread over all of the graph."""
    import torch
    from torch_geometric.loader import LinkNeighborLoader

    edges = data.edge_index.size(1)
    count = min(options.batches * options.batch_size, edges)
    chosen = torch.arange(count) * (edges // count)
    neg_sampling = options.kind.removeprefix("link-")
    return LinkNeighborLoader(data, options.fanout, edge_label_index=data.edge_index[:, chosen], neg_sampling=neg_sampling, **more)


def hgt(data: Any, seeds: Any, options: Any, **more: Any) -> Any:
    """A loader with budgets; it wants a typed graph, here one of a single type."""
    from torch_geometric.data import HeteroData
    from torch_geometric.loader import HGTLoader

    typed = HeteroData()
    typed["node"].x = data.x
    typed["node", "to", "node"].edge_index = data.edge_index
    return HGTLoader(typed, {"node": options.fanout}, input_nodes=("node", seeds), **more)


def make_loader(data: Any, seeds: Any, options: Any, **more: Any) -> Any:
    """The loader of ``options.kind``."""
    import torch
    from torch_geometric.loader import NeighborLoader, ShaDowKHopSampler

    if options.kind == "shadow":
        # It knows one fan-out for all hops: the one that gives about as many nodes.
        fan_out = round(float(options.fanout[0] * options.fanout[1]) ** 0.5)
        return ShaDowKHopSampler(data, depth=len(options.fanout), num_neighbors=fan_out, node_idx=seeds, **more)
    more["filter_per_worker"] = more["num_workers"] > 0 and not options.tuned
    if options.kind == "hgt":
        return hgt(data, seeds, options, **more)
    more["is_sorted"] = options.tuned
    if options.kind.startswith("link-"):
        return links(data, options, **more)
    all_words: dict[str, dict[str, Any]] = {
        "typed": {"input_nodes": ("paper", seeds)},
        "weighted": {"weight_attr": "weight"},
        "disjoint": {"disjoint": True},
        # Half of all times, as a moment in the middle has it.
        "temporal": {"time_attr": "time", "input_time": torch.full((len(seeds),), 1 << 19)},
        "induced": {"subgraph_type": "induced"},
    }
    return NeighborLoader(data, options.fanout, **{"input_nodes": seeds, **all_words[options.kind]}, **more)


def main() -> None:
    """Builds the loader and iterates."""
    options = arguments()
    if options.tuned:
        keep_memory()
    data, train = (typed_graph if options.kind == "typed" else plain_graph)(options.folder, options)
    seeds = some_seeds(train, options)

    def measured(workers: int) -> dict[str, Any]:
        start = time.perf_counter()
        shared = {"batch_size": options.batch_size, "drop_last": True, "num_workers": workers, "persistent_workers": workers > 0}
        loader = make_loader(data, seeds, options, **shared)
        return run_epochs(loader, edges_of, options, start)

    def edges_of(batch: Any) -> int:
        return sum(int(store.edge_index.size(1)) for store in batch.edge_stores)

    finish(best_of_workers(measured, pyg_engine(by_sparse_alone=options.kind in BY_SPARSE), options))


if __name__ == "__main__":
    main()
