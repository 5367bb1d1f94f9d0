"""PyG's NeighborLoader; needs pyg-lib, with which it samples in the main process, or torch-sparse, with workers."""

from __future__ import annotations

import time

from _common import arguments, finish, run_epochs, some_seeds, tensors


def main() -> None:
    """Builds the loader and iterates."""
    import torch
    import torch_geometric
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    options = arguments()
    row, col, feat, train = tensors(options.folder)
    with_pyg_lib = bool(torch_geometric.typing.WITH_PYG_LIB)
    workers = 0 if with_pyg_lib else options.workers
    start = time.perf_counter()
    loader = NeighborLoader(
        Data(x=feat, edge_index=torch.stack([row, col])),
        options.fanout,
        input_nodes=some_seeds(train, options),
        batch_size=options.batch_size,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        filter_per_worker=workers > 0,
    )
    values = run_epochs(loader, lambda batch: int(batch.num_edges), options, start)
    engine = f"pyg-lib, {workers} workers" if with_pyg_lib else f"torch-sparse, {workers} workers"
    finish({**values, "version": torch_geometric.__version__, "torch": torch.__version__, "engine": engine})


if __name__ == "__main__":
    main()
