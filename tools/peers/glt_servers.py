"""graphlearn-torch's server-client mode on loopback: servers with sampling workers, seeded, and this process as their one client.

Each server holds the whole graph, so that none asks another; with ``--parts`` it holds a part, as its documentation has it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _common import arguments, finish, free_port, glt_batching, glt_part, run_epochs, some_seeds, tensors

_NUM_SERVERS = 2
_NUM_CLIENTS = 1
_PREFETCH = 4
_HERE = "127.0.0.1"


def serve(rank: int, options: argparse.Namespace, port: int) -> None:
    """A server, until it is killed: its workers, and their shared memory, have ended with the loader then."""
    from graphlearn_torch.distributed import init_server, wait_and_shutdown_server

    row, col, feat, _ = tensors(options.folder)
    parts = _NUM_SERVERS if options.parts else 1
    owner = torch.arange(feat.size(0)) * parts // feat.size(0)
    dataset = glt_part(row, col, feat, owner, rank if options.parts else 0, parts)
    del row, col, feat
    init_server(_NUM_SERVERS, rank, dataset, _HERE, port, num_clients=_NUM_CLIENTS)
    wait_and_shutdown_server()


def seed_files(options: argparse.Namespace, folder: Path) -> list[str]:
    """A file of seeds for each server, which is how its loader takes them."""
    *_, feat, train = tensors(options.folder)
    seeds = some_seeds(train, options)
    if options.parts:
        shares = [seeds[seeds * _NUM_SERVERS // feat.size(0) == rank] for rank in range(_NUM_SERVERS)]
    else:
        shares = [share.clone() for share in torch.chunk(seeds, _NUM_SERVERS)]
    for rank, share in enumerate(shares):
        torch.save(share, folder / f"seeds{rank}.pt")
    return [str(folder / f"seeds{rank}.pt") for rank in range(_NUM_SERVERS)]


def iterate(options: argparse.Namespace, files: list[str], port: int, opened: float) -> dict[str, Any]:
    """Joins the servers and iterates."""
    from graphlearn_torch.distributed import DistNeighborLoader, RemoteDistSamplingWorkerOptions, init_client

    init_client(_NUM_SERVERS, _NUM_CLIENTS, 0, _HERE, port)
    workers = RemoteDistSamplingWorkerOptions(
        server_rank=list(range(_NUM_SERVERS)),
        num_workers=options.workers,
        worker_devices=[torch.device("cpu")] * options.workers,
        worker_concurrency=4,
        master_addr=_HERE,
        master_port=free_port(),
        buffer_size="1GB",
        prefetch_size=_PREFETCH,
        worker_key="bench",
    )
    loader = DistNeighborLoader(
        None,
        options.fanout,
        files,
        worker_options=workers,
        **glt_batching(options),
    )
    values: dict[str, Any] = run_epochs(loader, lambda batch: int(batch.num_edges), options, opened)
    loader.shutdown()
    return values


def main() -> None:
    """Starts the servers, measures from there on, and ends them."""
    import graphlearn_torch as glt

    options = arguments()
    # Otherwise torch's RPC takes the interface that the host's own name stands for.
    os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        files = seed_files(options, Path(folder))
        opened = time.perf_counter()
        servers = [torch.multiprocessing.Process(target=serve, args=(rank, options, port)) for rank in range(_NUM_SERVERS)]
        for server in servers:
            server.start()
        try:
            values = iterate(options, files, port, opened)
        finally:
            for server in servers:
                server.kill()
                server.join()
    finish({**values, "version": glt.__version__ if hasattr(glt, "__version__") else "", "torch": torch.__version__})
    # Its own way to end takes servers and client half a minute, and without it torch's RPC does not let the process end.
    os._exit(0)


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    main()
