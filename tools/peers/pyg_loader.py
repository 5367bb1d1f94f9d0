"""PyG's NeighborLoader; needs pyg-lib or torch-sparse, and says which of them it was."""

from __future__ import annotations

import time
from typing import Any

from _common import arguments, best_of_workers, finish, pyg_engine, run_epochs, some_seeds, tensors


def main() -> None:
    """Builds the loader and iterates."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    options = arguments()
    row, col, feat, train = tensors(options.folder)

    def measured(workers: int) -> dict[str, Any]:
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
        return run_epochs(loader, lambda batch: int(batch.num_edges), options, start)

    finish(best_of_workers(measured, pyg_engine(), options))


if __name__ == "__main__":
    main()
