"""Plain training and testing loops over a loader, as any PyG example has them, and the lines that the demonstration writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from gnnkit.demo import MARGIN_OVER_MAJORITY, MARGIN_OVER_MLP
from gnnkit.events import EventSink, Stage
from gnnkit.graph_loader import GraphLoader


@dataclass(frozen=True)
class Scores:
    """Test accuracies on one graph, as shares of one.

    Attributes:
        majority: Of always answering the most frequent class of the test nodes: the best constant answer.
        mlp: Of a network that sees a node's features and not its neighbours.
        sage: Of GraphSAGE.
        measured_on: Which test nodes they were measured on.
    """

    majority: float
    mlp: float
    sage: float
    measured_on: str

    @property
    def passed(self) -> bool:
        """Whether GraphSAGE is better by the margins."""
        return 100 * (self.sage - self.majority) >= MARGIN_OVER_MAJORITY and 100 * (self.sage - self.mlp) >= MARGIN_OVER_MLP


class TrainingReport:
    """Writes lines to a stream, each at once."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def line(self, text: str = "") -> None:
        """Writes one line."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def conclude(self, passed: Sequence[bool], seconds: float) -> int:
        """Writes whether all has passed and how long it took; the exit code, 0 or 1."""
        self.line(f"{'passed' if all(passed) else 'FAILED'} in {seconds:.0f} s")
        return 0 if all(passed) else 1

    def verdict(self, scores: Scores) -> bool:
        """Writes the accuracies and whether they are good enough, which it returns."""
        self.line(f"  test accuracy on {scores.measured_on}")
        for name, value in (("majority class", scores.majority), ("features-only MLP", scores.mlp), ("GraphSAGE", scores.sage)):
            self.line(f"    {name:<18} {100 * value:5.1f} %")
        over_majority, over_mlp = 100 * (scores.sage - scores.majority), 100 * (scores.sage - scores.mlp)
        needs_majority, needs_mlp = f"(needed: {MARGIN_OVER_MAJORITY:g})", f"(needed: {MARGIN_OVER_MLP:g})"
        outcome = "ok" if scores.passed else "NOT ENOUGH"
        self.line(
            f"  {outcome}: {over_majority:+.1f} points over the majority class {needs_majority}, {over_mlp:+.1f} over the MLP {needs_mlp}"
        )
        self.line()
        return scores.passed


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
