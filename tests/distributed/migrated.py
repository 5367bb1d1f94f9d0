"""Two training scripts with their imports changed, run as one rank: ``python migrated.py <folder> <rank> <world size>``.

The first follows graphlearn-torch's tutorial of distributed training, the second GiGL's homogeneous training. Prints, as JSON, the
seeds that the rank trained on by epoch, and the loss, for each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

EPOCHS, BATCH = 3, 5


def model() -> Any:
    torch.manual_seed(0)
    return DistributedDataParallel(GraphSAGE(in_channels=4, hidden_channels=16, num_layers=2, out_channels=4))


def train(network: Any, loader: Any) -> dict[str, Any]:
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    seeds: list[list[int]] = []
    losses: list[float] = []
    for _ in range(EPOCHS):
        network.train()
        seeds.append([])
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            out = network(batch.x, batch.edge_index)[: batch.batch_size].log_softmax(dim=-1)
            loss = F.nll_loss(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
            seeds[-1] += batch.batch.tolist()
        losses.append(total)
        torch.distributed.barrier()
    return {"seeds": seeds, "losses": losses}


def tutorial(folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    import gnnkit as glt  # import graphlearn_torch as glt

    dataset = glt.distributed.DistDataset()
    dataset.load(
        root_dir=folder / "partitions",
        partition_idx=0,
        graph_mode="CPU",
        whole_node_label_file=folder / "partitions" / "node_label.pt",
        store_dir=folder / f"stores{rank}",
    )
    train_idx = torch.load(folder / "train_idx.pt", weights_only=True)
    train_idx.share_memory_()
    glt.distributed.init_worker_group(world_size=world_size, rank=rank, group_name="distributed-sage-supervised-trainer")
    current_ctx = glt.distributed.get_context()
    current_device = torch.device("cpu")
    torch.distributed.init_process_group(
        backend="gloo", rank=current_ctx.rank, world_size=current_ctx.world_size, init_method=f"file://{folder}/meeting"
    )
    train_idx = train_idx.split(train_idx.size(0) // world_size)[rank]
    train_loader = glt.distributed.DistNeighborLoader(
        data=dataset,
        num_neighbors=[5, 5],
        input_nodes=train_idx,
        batch_size=BATCH,
        shuffle=True,
        collect_features=True,
        to_device=current_device,
        worker_options=glt.distributed.MpDistSamplingWorkerOptions(
            num_workers=1,
            worker_devices=[torch.device("cuda", 0)],
            worker_concurrency=4,
            master_addr="localhost",
            master_port=11223,
            channel_size="1GB",
            pin_memory=True,
        ),
    )
    return train(model(), train_loader)


def gigl(folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    from gnnkit.distributed import DistDataset, DistNeighborLoader  # from gigl.distributed import ...

    loader = DistNeighborLoader(
        dataset=DistDataset.from_store(folder / "store"),
        num_neighbors=[5, 5],
        local_process_rank=rank,
        local_process_world_size=world_size,
        input_nodes=None,
        num_workers=1,
        batch_size=BATCH,
        pin_memory_device=torch.device("cpu"),
        worker_concurrency=4,
        channel_size="64MB",
        process_start_gap_seconds=0,
        shuffle=True,
        drop_last=True,
    )
    found = train(model(), loader)
    loader.shutdown()
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    results = [script(*place) for script in (tutorial, gigl)]
    torch.distributed.destroy_process_group()
    sys.stdout.write(json.dumps(results) + "\n")
