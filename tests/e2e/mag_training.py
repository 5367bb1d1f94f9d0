"""One model on a typed graph, trained on batches of gnnkit's and of PyG's loader: ``python -m tests.e2e.mag_training ROOT SEEDS``.

Run in an interpreter with torch-sparse, which PyG samples with. PyG's graph is read from the files without any of gnnkit.
Prints ``{"gnnkit": [accuracy with each seed], "pyg": [...]}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.transforms import ToUndirected

from gnnkit import GraphLoader
from tests.e2e.mag_trees import EDGES, NODES, NUM_CLASSES, NUM_FEATURES

EPOCHS, HIDDEN = 5, 32
FAN_OUT, BATCH_SIZE, TEST_BATCH_SIZE = (8, 4), 256, 1024


def read(path: Path) -> Any:
    """A ``.csv.gz`` as an array."""
    return np.loadtxt(path, delimiter=",", ndmin=2)


def read_splits(folder: Path) -> dict[str, Tensor]:
    """The papers to train and to test with."""
    return {name: torch.tensor(read(folder / f"split/time/paper/{name}.csv.gz")[:, 0], dtype=torch.int64) for name in ("train", "test")}


def read_labels(folder: Path) -> Tensor:
    """The papers' classes."""
    return torch.tensor(read(folder / "raw/node-label/paper/node-label.csv.gz")[:, 0], dtype=torch.int64)


def read_graph(folder: Path) -> HeteroData:
    """The graph as PyG's own transform makes it undirected."""
    data = HeteroData()
    for node_type, count in NODES.items():
        data[node_type].num_nodes = count
    data["paper"].x = torch.tensor(read(folder / "raw/node-feat/paper/node-feat.csv.gz"), dtype=torch.float32)
    data["paper"].y = read_labels(folder)
    for edge_type in EDGES:
        edges = read(folder / "raw/relations" / "___".join(edge_type) / "edge.csv.gz")
        data[edge_type].edge_index = torch.tensor(edges.T, dtype=torch.int64)
    return ToUndirected()(data)


class Model(nn.Module):
    """Two layers of GraphSAGE for each edge type; types without features have an embedding for each node."""

    def __init__(self, edge_types: Iterable[tuple[str, str, str]]) -> None:
        super().__init__()
        self.embed = nn.ModuleDict({t: nn.Embedding(count, HIDDEN) for t, count in NODES.items() if t != "paper"})
        self.lift = nn.Linear(NUM_FEATURES, HIDDEN)
        self.layers = nn.ModuleList(HeteroConv({t: SAGEConv(HIDDEN, HIDDEN) for t in sorted(edge_types)}) for _ in range(2))
        self.head = nn.Linear(HIDDEN, NUM_CLASSES)

    def forward(self, batch: HeteroData) -> Tensor:
        x = {t: embed(batch[t].n_id) for t, embed in self.embed.items()}
        x["paper"] = self.lift(batch["paper"].x)
        for layer in self.layers:
            x = {t: value.relu() for t, value in layer(x, batch.edge_index_dict).items()}
        out: Tensor = self.head(x["paper"])[: batch["paper"].batch_size]
        return out


def train_and_test(train: Any, test: Any, edge_types: Any, seed: int) -> float:
    """The share of the test papers that the model is right about after some epochs."""
    torch.manual_seed(seed)
    model = Model(edge_types)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (EPOCHS * len(train)))
    model.train()
    for _ in range(EPOCHS):
        for batch in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), batch["paper"].y[: batch["paper"].batch_size]).backward()
            optimizer.step()
            decay.step()
    model.eval()
    right = total = 0
    with torch.no_grad():
        for batch in test:
            found = model(batch).argmax(-1) == batch["paper"].y[: batch["paper"].batch_size]
            right, total = right + int(found.sum()), total + len(found)
    return right / total


def with_gnnkit(root: Path, seed: int, fan_out: Any = FAN_OUT, test_fan_out: Any = (-1, -1)) -> float:
    """Through the store that is built from the files; the papers tested are those of the official split."""
    options: dict[str, Any] = {"num_neighbors": list(fan_out), "batch_size": BATCH_SIZE, "seed": seed}
    with (
        GraphLoader.from_ogb("ogbn-mag", root=root, download=False, undirected=True, progress=False, **options) as train,
        train.for_split("test", num_neighbors=list(test_fan_out), batch_size=TEST_BATCH_SIZE) as test,
    ):
        return train_and_test(train, test, train.schema.edge_types, seed)


def with_pyg(data: HeteroData, splits: dict[str, Tensor], seed: int) -> float:
    """Through PyG's own loader; it takes its order and its draws from torch's generator."""
    train = NeighborLoader(data, list(FAN_OUT), ("paper", splits["train"]), batch_size=BATCH_SIZE, shuffle=True)
    test = NeighborLoader(data, [-1, -1], ("paper", splits["test"]), batch_size=TEST_BATCH_SIZE)
    return train_and_test(train, test, data.edge_types, seed)


def main(root: str, seeds: str) -> None:
    """Trains everything and prints the accuracies."""
    torch.set_num_threads(1)
    folder = Path(root) / "ogbn_mag"
    data, splits = read_graph(folder), read_splits(folder)
    found = {
        "gnnkit": [with_gnnkit(Path(root), seed) for seed in range(int(seeds))],
        "pyg": [with_pyg(data, splits, seed) for seed in range(int(seeds))],
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
