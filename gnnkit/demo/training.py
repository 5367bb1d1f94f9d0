"""Plain training and testing loops over a loader, as any PyG example has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from gnnkit.events import EventSink, Stage
from gnnkit.graph_loader import GraphLoader

Forward = Callable[[nn.Module, Any], Tensor]


class Sage(nn.Module):
    """GraphSAGE with mean aggregation.

    Each layer computes the nodes that the layers after it still need and no others: PyG's ``trim_to_layer`` one step further, as
    its outermost nodes are read and never computed. On a batch with fan-out 10, 5, 5 that halves the work.

    Args:
        num_features: Width of the input.
        hidden: Width between layers.
        num_layers: As many as the batches have hops.
        num_classes: Width of the output.
        dropout: Between layers.
    """

    def __init__(self, num_features: int, hidden: int, num_layers: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        widths = [num_features] + [hidden] * (num_layers - 1) + [num_classes]
        self.convs = nn.ModuleList(SAGEConv(width, next_width) for width, next_width in zip(widths[:-1], widths[1:], strict=True))
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor, num_sampled_nodes: list[int], num_sampled_edges: list[int]) -> Tensor:
        """Logits of the seeds, ``[num_sampled_nodes[0], num_classes]``.

        Args:
            x: ``[num_nodes, num_features]``, nodes in the order in which they were sampled.
            edge_index: ``[2, num_edges]``, likewise.
            num_sampled_nodes: Nodes found per hop, the seeds first.
            num_sampled_edges: Edges followed per hop.
        """
        for layer, conv in enumerate(self.convs):
            hops = len(self.convs) - layer
            targets, edges = sum(num_sampled_nodes[:hops]), sum(num_sampled_edges[:hops])
            x = conv((x, x[:targets]), edge_index[:, :edges])
            if hops > 1:
                x = nn.functional.dropout(x.relu(), self.dropout, self.training)
        return x


def sage_forward(model: nn.Module, batch: Any) -> Tensor:
    """Logits of a batch's seeds by ``Sage``."""
    out: Tensor = model(batch.x, batch.edge_index, batch.num_sampled_nodes, batch.num_sampled_edges)
    return out


def mlp_forward(model: nn.Module, batch: Any) -> Tensor:
    """Logits of the seeds from their features alone."""
    out: Tensor = model(batch.x[: batch.batch_size])
    return out


def make_mlp(num_features: int, hidden: int, num_layers: int, num_classes: int, dropout: float) -> nn.Module:
    """A network of the same depth and width that sees no edges."""
    widths = [num_features] + [hidden] * (num_layers - 1)
    layers: list[nn.Module] = []
    for width, next_width in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(width, next_width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def train(
    model: nn.Module,
    loader: GraphLoader,
    forward: Forward,
    *,
    epochs: int,
    lr: float,
    events: EventSink,
    label: str,
    weight_decay: float = 0.0,
) -> None:
    """Trains with Adam and cross entropy on the loader's seeds.

    Args:
        model: Changed in place.
        loader: Gives the batches; each epoch iterates over it once.
        forward: Logits of a batch's seeds.
        epochs: Number of passes.
        lr: Learning rate.
        events: Receives the stage "train", all epochs in one.
        label: What to call it there.
        weight_decay: Adam's.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()
    with Stage(events, "train", label=label, total=epochs * len(loader), unit="batches") as stage:
        for _ in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(forward(model, batch), batch.y[: batch.batch_size])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                stage.advance()


@torch.no_grad()
def accuracy(model: nn.Module, loader: GraphLoader, forward: Forward, *, events: EventSink, label: str) -> float:
    """Share of the loader's seeds whose class the model gives.

    Args:
        model: Put into evaluation mode.
        loader: Gives the seeds.
        forward: Logits of a batch's seeds.
        events: Receives the stage "test".
        label: What to call it there.
    """
    model.eval()
    hits = seeds = 0
    with Stage(events, "test", label=label, total=len(loader), unit="batches") as stage:
        for batch in loader:
            hits += int((forward(model, batch).argmax(1) == batch.y[: batch.batch_size]).sum())
            seeds += batch.batch_size
            stage.advance()
    return hits / seeds
