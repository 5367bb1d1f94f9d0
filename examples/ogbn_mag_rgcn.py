"""R-GCN on a typed graph like OGBN-MAG: python examples/ogbn_mag_rgcn.py. Here, with --scale 0.005: a test accuracy of 0.72."""

import argparse

import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from gnnkit import GraphLoader

parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float, default=0.005, help="1 is as large as OGBN-MAG")
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()


def mag_like(scale, classes=40):
    """Papers whose authors and fields say more about their class than their features do."""
    papers, data = int(736_389 * scale), HeteroData()
    data["paper"].y = y = torch.arange(papers) * classes // papers
    data["paper"].x = torch.randn(classes, 128)[y] / 8 + torch.randn(papers, 128)
    data["paper"].train_mask, data["paper"].test_mask = (kind := torch.rand(papers)) < 0.9, kind >= 0.9
    for other, number, degree in (("author", int(1_134_649 * scale), 6), ("field", int(59_965 * scale), 120)):
        data[other].num_nodes, ends = number, torch.arange(number).repeat_interleave(degree)
        alike = (torch.randint(classes, (number,))[ends] + torch.rand(len(ends))) * papers // classes
        paper = torch.where(torch.rand(len(ends)) < 0.4, alike.long(), torch.randint(papers, (len(ends),)))
        data[other, "of", "paper"].edge_index = torch.stack([ends, paper])
        data["paper", "has", other].edge_index = torch.stack([paper, ends])
    return data


torch.manual_seed(0)
options = {"num_neighbors": [10, 10], "batch_size": 512}
loader = GraphLoader.from_pyg(mag_like(args.scale), input_nodes=("paper", "train"), shuffle=True, **options)
# The real data: loader = GraphLoader.from_ogb("ogbn-mag", undirected=True, **options)
embed = torch.nn.ModuleDict({t: torch.nn.Embedding(n.num_nodes, 128) for t, n in loader.schema.node_types.items() if t != "paper"})
types, sizes = loader.schema.edge_types, (128, loader.num_classes)
layers = torch.nn.ModuleList(HeteroConv({e: SAGEConv((-1, -1), size) for e in types}) for size in sizes)
optimizer = torch.optim.Adam([*embed.parameters(), *layers.parameters()], lr=0.01)


def run(batch):
    """Scores of the batch's seeds, and their classes."""
    x = {t: embed[t](batch[t].n_id) if t in embed else batch[t].x for t in batch.node_types}
    x = {t: value.relu() for t, value in layers[0](x, batch.edge_index_dict).items()}
    seeds = slice(batch["paper"].batch_size)
    return layers[1](x, batch.edge_index_dict)["paper"][seeds], batch["paper"].y[seeds].view(-1)


for epoch in range(args.epochs):
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(*run(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch:03d}: loss {loss:.4f}", flush=True)
with torch.no_grad(), loader.for_split(("paper", "test"), shuffle=False) as test:
    hits = torch.cat([out.argmax(-1) == y for out, y in map(run, test)])
print(f"test accuracy: {hits.float().mean():.4f}")
