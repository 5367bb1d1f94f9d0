"""PyG's NeighborLoader; needs pyg-lib or torch-sparse, and says which of them it was.

Tuned, edges are sorted by target beforehand, they and features lie in huge pages, glibc keeps its memory, rows are gathered in
the main process, and as many workers sample as is fastest.
"""

from __future__ import annotations

import time
from typing import Any

from _common import arguments, best_of_workers, finish, in_huge_pages, keep_memory, pyg_engine, run_epochs, some_seeds, tensors


def main() -> None:
    """Builds the loader and iterates."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    options = arguments()
    row, col, feat, train = tensors(options.folder)
    if options.tuned:
        keep_memory()
        order = torch.argsort(col, stable=True)
        row, col, feat = row[order], col[order], in_huge_pages(feat)
        del order
    edges = torch.stack([row, col])
    del row, col
    if options.tuned:
        edges = in_huge_pages(edges)

    def measured(workers: int) -> dict[str, Any]:
        start = time.perf_counter()
        loader = NeighborLoader(
            Data(x=feat, edge_index=edges),
            options.fanout,
            input_nodes=some_seeds(train, options),
            batch_size=options.batch_size,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            filter_per_worker=workers > 0 and not options.tuned,
            is_sorted=options.tuned,
        )
        return run_epochs(loader, lambda batch: int(batch.num_edges), options, start)

    finish(best_of_workers(measured, pyg_engine(), options))


if __name__ == "__main__":
    main()
