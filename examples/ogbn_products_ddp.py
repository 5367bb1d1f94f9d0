"""GraphSAGE on OGBN-Products, a trainer per GPU or process: torchrun --nproc-per-node 2 examples/ogbn_products_ddp.py --root DATASETS."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from gnnkit import Colocated, GraphLoader

parser = argparse.ArgumentParser()
parser.add_argument("--root", help="folder of OGB's datasets; downloaded where it is missing")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=1024)
args = parser.parse_args()

gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
dist.init_process_group("nccl" if gpu else "gloo")
backend = Colocated(num_workers=2)
with GraphLoader.from_ogb(
    "ogbn-products", root=args.root, num_neighbors=[15, 10, 5], batch_size=args.batch_size, backend=backend, device=device
) as loader:
    model = DistributedDataParallel(GraphSAGE(loader.num_features, 256, num_layers=3, out_channels=loader.num_classes).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        start, total = time.time(), 0.0
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"[Trainer {dist.get_rank()}] epoch {epoch:03d}: loss {total / len(loader):.4f}, {time.time() - start:.1f} s", flush=True)
dist.destroy_process_group()
