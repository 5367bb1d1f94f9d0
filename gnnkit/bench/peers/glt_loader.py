"""graphlearn-torch's DistNeighborLoader with sampling workers, seeded: unseeded it reads the system's entropy for every row."""

from __future__ import annotations

import socket
import time

import torch
from _common import arguments, finish, run_epochs, some_seeds, tensors


def free_port() -> int:
    """A port that was free a moment ago; graphlearn-torch takes numbers only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Builds the data set in memory, starts the workers and iterates."""
    import graphlearn_torch as glt
    from graphlearn_torch.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions, init_worker_group

    options = arguments()
    row, col, feat, train = tensors(options.folder)
    start = time.perf_counter()
    book = glt.partition.GLTPartitionBook(torch.zeros(feat.size(0), dtype=torch.long))
    dataset = DistDataset(1, 0, node_pb=book, edge_dir="out")
    dataset.init_graph((row, col), layout="COO", graph_mode="CPU")
    dataset.init_node_features(feat, with_gpu=False)
    dataset._node_feat_pb = book  # no public way to say that the one partition holds every feature
    init_worker_group(1, 0, "bench")
    workers = MpDistSamplingWorkerOptions(
        num_workers=options.workers,
        worker_devices=[torch.device("cpu")] * options.workers,
        worker_concurrency=4,
        master_addr="127.0.0.1",
        master_port=free_port(),
        channel_size="1GB",
        num_rpc_threads=1,
    )
    loader = DistNeighborLoader(
        dataset,
        options.fanout,
        some_seeds(train, options),
        batch_size=options.batch_size,
        drop_last=True,
        collect_features=True,
        to_device=torch.device("cpu"),
        worker_options=workers,
        random_seed=0,
    )
    values = run_epochs(loader, lambda batch: int(batch.num_edges), options, start)
    loader.shutdown()
    finish({**values, "version": glt.__version__ if hasattr(glt, "__version__") else "", "torch": torch.__version__})


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")  # it mixes fork and spawn contexts otherwise and does not start
    main()
