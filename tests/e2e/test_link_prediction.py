"""Link prediction on Cora, from the edges to the area under the curve."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gnnkit import GraphLoader
from gnnkit.datasets import cora

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_torch_thread")]

SEEDS, EPOCHS = range(5), 6


class Model(nn.Module):
    """Two layers of GCN (Kipf and Welling, ICLR 2017); a pair's score is the product of its ends."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.inner, self.outer = GCNConv(num_features, 64), GCNConv(64, 64)

    def forward(self, x: Tensor, edge_index: Tensor, pairs: Tensor) -> Tensor:
        x = nn.functional.dropout(self.inner(x, edge_index).relu(), 0.5, self.training)
        x = self.outer(x, edge_index)
        return (x[pairs[0]] * x[pairs[1]]).sum(-1)


def auc(scores: Tensor, labels: Tensor) -> float:
    """The chance that a positive scores higher than a negative, from the ranks (Mann and Whitney)."""
    order = scores.argsort()
    ranks = torch.empty_like(order).scatter_(0, order, torch.arange(1, len(scores) + 1))
    positives, negatives = int(labels.sum()), int((labels == 0).sum())
    return float((ranks[labels > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def train_and_test(seed: int) -> float:
    """AUC on 10 per cent of the edges and as many pairs that are none."""
    torch.manual_seed(seed)
    data, rng = cora(), np.random.default_rng(seed)
    data.x = nn.functional.normalize(data.x)
    pairs = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    pairs = pairs[:, rng.permutation(pairs.shape[1])]
    cut = pairs.shape[1] // 10
    test, train = pairs[:, :cut], pairs[:, cut:]
    known = set(map(tuple, data.edge_index.T.tolist()))
    drawn = (tuple(rng.integers(0, data.num_nodes, 2).tolist()) for _ in range(10 * cut))
    others = torch.tensor([pair for pair in drawn if pair not in known][:cut]).T
    data.edge_index = torch.cat([train, train.flip(0)], 1)
    model = Model(data.x.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = GraphLoader.from_pyg(
        data, edge_label_index=train, num_neighbors=[10, 5], batch_size=512, shuffle=True, seed=seed, progress=False,
        neg_sampling="binary", neg_strict=True, exclude_edges="reverse",
    )  # fmt: skip
    with loader:
        for _ in range(EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                scores = model(batch.x, batch.edge_index, batch.edge_label_index)
                nn.functional.binary_cross_entropy_with_logits(scores, batch.edge_label).backward()
                optimizer.step()
        model.eval()
        labels = torch.cat([torch.ones(cut), torch.zeros(cut)])
        testing = loader.for_links(torch.cat([test, others], 1), edge_label=labels, num_neighbors=[-1, -1])
        with torch.no_grad(), testing:
            scored = [(model(batch.x, batch.edge_index, batch.edge_label_index), batch.edge_label) for batch in testing]
    return auc(torch.cat([scores for scores, _ in scored]), torch.cat([labels for _, labels in scored]))


def test_cora() -> None:
    found = [train_and_test(seed) for seed in SEEDS]
    assert min(found) >= 0.90, found
