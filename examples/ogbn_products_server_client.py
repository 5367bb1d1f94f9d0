"""GraphSAGE on OGBN-Products in trainers that hold no graph: storage servers have it, on this machine or on others.

gnnkit serve --store STORE --num-servers 2 --address 127.0.0.1:7000 --token-file TOKEN
export GNNKIT_ROLE=client GNNKIT_ADDRESSES=127.0.0.1:7000 GNNKIT_TOKEN_FILE=TOKEN
torchrun --nproc-per-node 2 examples/ogbn_products_server_client.py
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from gnnkit import GraphLoader, distributed

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=1024)
args = parser.parse_args()

distributed.initialize()  # joins the servers: every loader below samples on them
dist.init_process_group("gloo")
train = GraphLoader.from_store(num_neighbors=[15, 10, 5], batch_size=args.batch_size)
valid = train.for_split("valid", remainder="uneven")
model = DistributedDataParallel(GraphSAGE(train.num_features, 256, num_layers=3, out_channels=train.num_classes))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(args.epochs):
    for batch in train:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]).backward()
        optimizer.step()
    counts = torch.zeros(2)
    with torch.no_grad():
        for batch in valid:  # the ranks may have different numbers of these, so it is not the model of all of them
            hits = model.module(batch.x, batch.edge_index)[: batch.batch_size].argmax(-1) == batch.y[: batch.batch_size]
            counts += torch.tensor([hits.sum(), len(hits)])
    dist.all_reduce(counts)
    print(f"[Trainer {dist.get_rank()}] epoch {epoch:03d}: accuracy {counts[0] / counts[1]:.4f} of {counts[1]:.0f}", flush=True)
dist.destroy_process_group()
