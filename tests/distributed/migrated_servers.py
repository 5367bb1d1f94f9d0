"""Graphlearn-torch's tutorial of server-client training with its imports changed: ``migrated_servers.py (server | client) <folder>``.

As there, a main process spawns the servers or the clients of its node and waits for them without looking at how they ended. This one looks,
and says so in its own exit status. What stands for a CUDA device and NCCL is commented with the tutorial's own line.
"""

from __future__ import annotations

import argparse
import os.path as osp
import sys
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import gnnkit as glt  # import graphlearn_torch as glt

EPOCHS = 3


def run_server_proc(args: Any, server_rank: int, dataset: glt.distributed.DistDataset) -> None:
    glt.distributed.init_server(
        num_servers=args.num_servers,
        num_clients=args.num_clients,
        server_rank=server_rank,
        dataset=dataset,
        master_addr=args.master_addr,
        master_port=args.port,
        num_rpc_threads=16,
        server_group_name="dist-train-supervised-sage-server",
    )
    glt.distributed.wait_and_shutdown_server()


def loader_of(args: Any, seeds: Any, servers: list[int], device: torch.device, key: str, *, shuffle: bool) -> Any:
    server_device_count = glt.distributed.request_server(server_rank=servers[0], func=torch.cuda.device_count)
    return glt.distributed.DistNeighborLoader(
        data=None,
        num_neighbors=[5, 3],
        input_nodes=seeds,
        batch_size=4,
        shuffle=shuffle,
        collect_features=True,
        to_device=device,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(
            server_rank=servers,
            num_workers=server_device_count,
            worker_devices=[torch.device(f"cuda:{i}") for i in range(server_device_count)],
            worker_concurrency=4,
            master_addr=args.master_addr,
            master_port=args.port + 1,
            buffer_size="64MB",
            prefetch_size=2,
            worker_key=key,
        ),
    )


def run_client_proc(args: Any, client_rank: int, servers: list[int], train_path_list: list[str], test_path_list: list[str]) -> None:
    glt.distributed.init_client(
        num_servers=args.num_servers,
        num_clients=args.num_clients,
        client_rank=client_rank,
        master_addr=args.master_addr,
        master_port=args.port,
        num_rpc_threads=4,
        client_group_name="dist-train-supervised-sage-client",
    )
    current_ctx = glt.distributed.get_context()
    current_device = torch.device("cpu")  # torch.device(current_ctx.rank % torch.cuda.device_count())
    torch.distributed.init_process_group(
        backend="gloo",  # nccl
        rank=current_ctx.rank,
        world_size=current_ctx.world_size,
        init_method=f"file://{args.folder}/meeting",  # tcp://{pg_master}:{training_pg_master_port}
    )
    train_loader = loader_of(args, train_path_list, servers, current_device, "train", shuffle=True)
    test_loader = loader_of(args, test_path_list, servers, current_device, "test", shuffle=False)
    torch.manual_seed(0)
    model = DistributedDataParallel(GraphSAGE(in_channels=4, hidden_channels=16, num_layers=2, out_channels=4).to(current_device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    found: dict[str, Any] = {"train": [], "test": [], "losses": []}
    for epoch in range(EPOCHS):
        model.train()
        seeds, losses = [], []
        with Join([model]):
            for batch in train_loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size].log_softmax(dim=-1)
                loss = F.nll_loss(out, batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
                seeds += batch.batch.tolist()
                losses.append(float(loss.detach()))
        found["train"].append(seeds)
        found["losses"].append(losses)
        torch.distributed.barrier()
        if epoch == 0 or epoch > EPOCHS // 2:
            model.eval()
            with torch.no_grad():
                for batch in test_loader:
                    model.module(batch.x, batch.edge_index)
                    found["test"].append([epoch, *batch.batch.tolist()])
            torch.distributed.barrier()
    torch.save(found, f"{args.folder}/client{client_rank}.pt")
    glt.distributed.shutdown_client()


def main(args: Any) -> list[Any]:
    mp_context = torch.multiprocessing.get_context("spawn")
    procs = []
    if args.role == "server":
        for server_rank in range(args.num_servers):
            dataset = glt.distributed.DistDataset()
            # graph_dir in the tutorial's text, root_dir in its script.
            dataset.load(
                **{args.word: osp.join(args.folder, "partitions")},
                partition_idx=server_rank,
                graph_mode="ZERO_COPY",
                whole_node_label_file=osp.join(args.folder, "partitions", "node_label.pt"),
            )
            procs.append(mp_context.Process(target=run_server_proc, args=(args, server_rank, dataset)))
    else:
        paths = [[osp.join(args.folder, f"{split}{part}.pt") for part in range(args.num_servers)] for split in ("train", "test")]
        for client_rank in range(args.num_clients):
            procs.append(mp_context.Process(target=run_client_proc, args=(args, client_rank, list(range(args.num_servers)), *paths)))
    for proc in procs:
        proc.start()
    for proc in procs:
        proc.join()
    return procs


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    parser.add_argument("folder")
    parser.add_argument("--num_servers", type=int, default=1)
    parser.add_argument("--num_clients", type=int, default=2)
    parser.add_argument("--master_addr", default="localhost")
    parser.add_argument("--port", type=int, default=11110)
    parser.add_argument("--word", default="root_dir")
    exit_codes = [proc.exitcode for proc in main(parser.parse_args())]
    sys.exit(0 if exit_codes == [0] * len(exit_codes) else f"the processes ended with {exit_codes}")
