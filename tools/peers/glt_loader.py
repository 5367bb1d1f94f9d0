"""graphlearn-torch's DistNeighborLoader with sampling workers, seeded: unseeded it reads the system's entropy for every row.

With ``WORLD_SIZE`` in the environment, each of so many hosts holds one part, and their workers ask each other.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from _common import arguments, finish, free_port, glt_batching, glt_part, run_epochs, some_seeds, tensors


def main() -> None:
    """Builds the data set in memory, starts the workers and iterates."""
    import graphlearn_torch as glt
    from graphlearn_torch.distributed import DistNeighborLoader, MpDistSamplingWorkerOptions, init_worker_group

    options = arguments()
    rank, hosts = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if hosts > 1:
        dist.init_process_group("gloo")
    row, col, feat, train = tensors(options.folder)
    start = time.perf_counter()
    owner = torch.arange(feat.size(0)) * hosts // feat.size(0)
    dataset = glt_part(row, col, feat, owner, rank, hosts)
    del row, col, feat
    init_worker_group(hosts, rank, "bench")
    workers_from = time.perf_counter()
    workers = MpDistSamplingWorkerOptions(
        num_workers=options.workers,
        worker_devices=[torch.device("cpu")] * options.workers,
        worker_concurrency=4,
        master_addr=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        master_port=int(os.environ["MASTER_PORT"]) + 1 if hosts > 1 else free_port(),
        channel_size="1GB",
        num_rpc_threads=1,
    )
    loader = DistNeighborLoader(
        dataset,
        options.fanout,
        some_seeds(train[owner[train] == rank], options),
        worker_options=workers,
        **glt_batching(options),
    )
    values = run_epochs(loader, lambda batch: int(batch.num_edges), options, start, dist.barrier if hosts > 1 else None)
    values["start_s"] = values["first_batch_s"] - (workers_from - start)
    loader.shutdown()
    finish({**values, "version": glt.__version__ if hasattr(glt, "__version__") else "", "torch": torch.__version__})


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")  # it mixes fork and spawn contexts otherwise and does not start
    main()
