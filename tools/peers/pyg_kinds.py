"""PyG's loaders of other kinds of batches: links with pyg-lib or torch-sparse; HGT's, induced subgraphs and ShaDow's with torch-sparse."""

from __future__ import annotations

import time
from typing import Any

from _common import arguments, best_of_workers, finish, pyg_engine, run_epochs, some_seeds, tensors


def links(data: Any, options: Any, **more: Any) -> Any:
    """A loader of links that are spread over all of the graph."""
    import torch
    from torch_geometric.loader import LinkNeighborLoader

    edges = data.edge_index.size(1)
    count = min(options.batches * options.batch_size, edges)
    chosen = torch.arange(count) * (edges // count)
    return LinkNeighborLoader(data, options.fanout, edge_label_index=data.edge_index[:, chosen], **more)


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
    from torch_geometric.loader import NeighborLoader, ShaDowKHopSampler

    if options.kind.startswith("link-"):
        return links(data, options, neg_sampling=options.kind.removeprefix("link-"), filter_per_worker=more["num_workers"] > 0, **more)
    if options.kind == "hgt":
        return hgt(data, seeds, options, filter_per_worker=more["num_workers"] > 0, **more)
    if options.kind == "shadow":
        # It knows one fan-out for all hops: the one that gives about as many nodes.
        fan_out = round(float(options.fanout[0] * options.fanout[1]) ** 0.5)
        return ShaDowKHopSampler(data, depth=len(options.fanout), num_neighbors=fan_out, node_idx=seeds, **more)
    return NeighborLoader(
        data, options.fanout, input_nodes=seeds, subgraph_type=options.kind, filter_per_worker=more["num_workers"] > 0, **more
    )  # fmt: skip


def main() -> None:
    """Builds the loader and iterates."""
    import torch
    from torch_geometric.data import Data

    options = arguments()
    row, col, feat, train = tensors(options.folder)

    def measured(workers: int) -> dict[str, Any]:
        start = time.perf_counter()
        loader = make_loader(
            Data(x=feat, edge_index=torch.stack([row, col])),
            some_seeds(train, options),
            options,
            batch_size=options.batch_size,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        return run_epochs(loader, lambda batch: int(batch.num_edges), options, start)

    finish(best_of_workers(measured, pyg_engine(by_sparse_alone=not options.kind.startswith("link-")), options))


if __name__ == "__main__":
    main()
