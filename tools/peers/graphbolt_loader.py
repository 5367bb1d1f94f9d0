"""DGL GraphBolt's item sampler, neighbour sampler and feature fetcher; its workers are slower than none on one machine."""

from __future__ import annotations

import os
import time

os.environ.setdefault("DGLBACKEND", "pytorch")  # otherwise it writes a file into the user's home

from _common import arguments, finish, run_epochs, some_seeds, tensors


def main() -> None:
    """Builds the pipeline and iterates."""
    import dgl
    import dgl.graphbolt as gb
    import torch

    options = arguments()
    row, col, feat, train = tensors(options.folder)
    seeds = some_seeds(train, options)
    start = time.perf_counter()
    indptr = torch.zeros(feat.size(0) + 1, dtype=torch.long)
    torch.cumsum(torch.bincount(row, minlength=feat.size(0)), 0, out=indptr[1:])
    graph = gb.fused_csc_sampling_graph(indptr, col[torch.argsort(row, stable=True)])
    store = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(feat)})
    items = gb.ItemSet((seeds, torch.zeros_like(seeds)), names=("seed_nodes", "labels"))
    pipe = gb.ItemSampler(items, batch_size=options.batch_size, drop_last=True)
    pipe = pipe.sample_neighbor(graph, options.fanout).fetch_feature(store, node_feature_keys=["feat"])
    loader = gb.DataLoader(pipe, num_workers=0)
    values = run_epochs(
        loader, lambda batch: sum(int(part.sampled_csc.indices.numel()) for part in batch.sampled_subgraphs), options, start
    )
    finish({**values, "version": dgl.__version__, "torch": torch.__version__})


if __name__ == "__main__":
    main()
