"""GraphSAGE on a typed graph that tells classes of the nodes of one type, with DDP, checkpoints and resume.

`gnnkit run plan.json --train train.py` calls train(loader, ctx) in every rank; ctx is a gnnkit.jobs.context.TrainContext.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import SAGEConv

from gnnkit import GraphLoader
from gnnkit.jobs.context import TrainContext
from gnnkit.schema import GraphSchema

TARGET = "paper"
NUM_CLASSES = 2
NUM_LAYERS = 2
MULTI_LABEL = False
VALID = "valid"  # the split that the model is tried on after each epoch; None tries it on none
EPOCHS = 10
HIDDEN = 128
LEARNING_RATE = 0.003
SAVE_EVERY = 200  # steps; also after each epoch


class TypedSAGE(nn.Module):
    """A SAGEConv for each edge type and layer; types without features start from a vector that is learned."""

    def __init__(self, schema: GraphSchema) -> None:
        super().__init__()
        widths = {name: nodes.arrays["x"].row_shape[0] if "x" in nodes.arrays else 0 for name, nodes in schema.node_types.items()}
        self.layers = nn.ModuleList()
        self.edge_types: list[list[tuple[str, str, str]]] = []
        needed = {TARGET}
        for _ in range(NUM_LAYERS):  # from the last layer back: only what reaches the target type, because DDP wants every parameter used
            reaching = [edge_type for edge_type in schema.edge_types if edge_type[2] in needed]
            self.edge_types.insert(0, reaching)
            self.layers.insert(0, nn.ModuleList([SAGEConv((HIDDEN, HIDDEN), HIDDEN) for _ in reaching]))
            needed |= {edge_type[0] for edge_type in reaching}
        self.types = sorted(needed)
        self.inputs = nn.ModuleList([nn.Linear(widths[name] or 1, HIDDEN) for name in self.types])
        self.head = nn.Linear(HIDDEN, NUM_CLASSES)

    def forward(self, batch: Any) -> torch.Tensor:
        """An output ``[nodes, NUM_CLASSES]`` for each node of the target type."""
        h = {}
        for name, linear in zip(self.types, self.inputs, strict=True):
            nodes = batch[name]
            x = nodes.x.float() if "x" in nodes else torch.ones(nodes.num_nodes, 1, device=self.head.weight.device)
            h[name] = linear(x).relu()
        for edge_types, layer in zip(self.edge_types, self.layers, strict=True):
            new = dict(h)
            for edge_type, conv in zip(edge_types, layer.children(), strict=True):
                source, _, target = edge_type
                new[target] = new[target] + conv((h[source], h[target]), batch[edge_type].edge_index)
            h = {name: value.relu() for name, value in new.items()}
        return self.head(h[TARGET])


def train(loader: GraphLoader, ctx: TrainContext) -> float | None:
    """Trains, and returns the last accuracy."""
    torch.manual_seed(0)  # every rank starts with the same weights
    model = ctx.ddp(TypedSAGE(loader.schema))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    if ctx.restore(model=model, optimizer=optimizer) and ctx.is_main:
        print(f"continues from a checkpoint in {ctx.directory}", flush=True)
    valid = loader.for_split((TARGET, VALID), remainder="uneven") if VALID else None
    accuracy = None
    for epoch in ctx.epochs(EPOCHS):
        model.train()
        for step, batch in enumerate(loader, start=1):
            loss = loss_of(*outputs(model, batch.to(ctx.device)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ctx.log(loss=loss.item())
            if step % SAVE_EVERY == 0:
                ctx.save(model=model, optimizer=optimizer)
        ctx.save(model=model, optimizer=optimizer)
        if valid is not None:
            accuracy = evaluate(model, valid, ctx)
            if ctx.is_main:
                print(f"epoch {epoch}: accuracy {accuracy:.4f} of the split {VALID!r}", flush=True)
    return accuracy


def outputs(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the model's outputs for the batch's seeds, and their labels."""
    size = batch[TARGET].batch_size
    return model(batch)[:size], batch[TARGET].y[:size]


def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns the loss to minimise; a y of -1 is no class."""
    if MULTI_LABEL:
        return F.binary_cross_entropy_with_logits(out, y.float())
    return F.cross_entropy(out, y.reshape(-1).long(), ignore_index=-1)


@torch.no_grad()
def evaluate(model: Any, loader: GraphLoader, ctx: TrainContext) -> float:
    """The share of right answers, over all ranks; they may have different numbers of batches."""
    model.eval()
    plain = getattr(model, "module", model)  # without DDP, which waits for the other ranks at each batch
    counts = torch.zeros(2, dtype=torch.float64, device=ctx.device)
    for batch in loader:
        out, y = outputs(plain, batch.to(ctx.device))
        right = (out > 0) == (y > 0.5) if MULTI_LABEL else out.argmax(-1) == y.reshape(-1)
        counts += torch.tensor([right.sum(), right.numel()], device=ctx.device)
    if ctx.world_size > 1:
        dist.all_reduce(counts)
    return (counts[0] / counts[1].clamp(min=1)).item()
