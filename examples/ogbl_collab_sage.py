"""GraphSAGE that predicts links on a graph like ogbl-collab: python examples/ogbl_collab_sage.py.

Here, with --scale 0.01: Hits@50 of 0.18 (0.004 by chance) after 10 epochs.
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gnnkit import GraphLoader, split_links

parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float, default=0.01, help="1 is as large as ogbl-collab")
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()


def collab_like(scale, size=40):
    """Authors in groups of 40 that write together: data along whose edges one samples, and pairs to train, validate and test with."""
    authors, links = int(235_868 * scale), int(1_179_052 * scale)
    first, group = torch.randint(authors, (links,)), torch.randint(size, (links,))
    second = torch.where(torch.rand(links) < 0.8, (first // size * size + group).clamp(max=authors - 1), torch.randint(authors, (links,)))
    pairs = torch.stack([first, second])
    parts = split_links(pairs, valid=0.05, test=0.1)
    data = Data(x=torch.randn(authors // size + 1, 128)[torch.arange(authors) // size] + 2 * torch.randn(authors, 128))
    data.edge_index = torch.cat([pairs[:, parts.train], pairs[:, parts.train].flip(0)], dim=1)
    return data, {name: pairs[:, getattr(parts, name)] for name in ("train", "valid", "test")}


torch.manual_seed(0)
options = {"num_neighbors": [10, 10], "batch_size": 512, "neg_sampling": "binary"}
data, pairs = collab_like(args.scale)
loader = GraphLoader.from_pyg(data, edge_label_index=pairs["train"], exclude_edges="reverse", shuffle=True, **options)
test = loader.for_links(pairs["test"], neg_sampling="binary", neg_amount=10, exclude_edges=None, shuffle=False)
# The real data, with its own negatives: loader = GraphLoader.from_ogb("ogbl-collab", exclude_edges="reverse", **options)
# and test = loader.for_links("test", neg_sampling="official", exclude_edges=None, shuffle=False)
model = GraphSAGE(loader.num_features, 128, num_layers=2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)


def score(batch):
    """How likely a batch's pairs are links."""
    source, target = model(batch.x, batch.edge_index)[batch.edge_label_index]
    return (source * target).sum(-1)


for epoch in range(args.epochs):
    for batch in loader:
        loss = F.binary_cross_entropy_with_logits(score(batch), batch.edge_label.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch:03d}: loss {loss:.4f}", flush=True)
with torch.no_grad():
    scores, labels = map(torch.cat, zip(*((score(batch), batch.edge_label) for batch in test), strict=True))
print(f"test Hits@50: {(scores[labels > 0] > scores[labels == 0].topk(50).values[-1]).float().mean():.4f}")
