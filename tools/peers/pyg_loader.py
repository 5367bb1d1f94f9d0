"""PyG's NeighborLoader; needs pyg-lib or torch-sparse, and says which of them it was.

Tuned, edges are sorted by target beforehand, they and features lie in huge pages, glibc keeps its memory, rows are gathered in
the main process, and as many workers sample as is fastest.
"""

from __future__ import annotations

import time
from typing import Any

from _common import arguments, best_of_workers, finish, keep_memory, plain_graph, pyg_engine, run_epochs, some_seeds


def main() -> None:
    """Builds the loader and iterates."""
    from torch_geometric.loader import NeighborLoader

    options = arguments()
    if options.tuned:
        keep_memory()
    data, train = plain_graph(options.folder, options)

    def measured(workers: int) -> dict[str, Any]:
        start = time.perf_counter()
        loader = NeighborLoader(
            data,
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
