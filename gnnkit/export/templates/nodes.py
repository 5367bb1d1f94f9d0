"""GraphSAGE that tells classes of nodes, with DDP, checkpoints and resume.

`gnnkit run plan.json --train train.py` calls train(loader, ctx) in every rank; ctx is a gnnkit.jobs.context.TrainContext.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from gnnkit import GraphLoader
from gnnkit.jobs.context import TrainContext

NUM_CLASSES = 2
NUM_LAYERS = 2
MULTI_LABEL = False
VALID = "valid"  # the split that the model is tried on after each epoch; None tries it on none
EPOCHS = 10
HIDDEN = 256
LEARNING_RATE = 0.003
SAVE_EVERY = 200  # steps; also after each epoch


def train(loader: GraphLoader, ctx: TrainContext) -> float | None:
    """Trains, and returns the last accuracy."""
    torch.manual_seed(0)  # every rank starts with the same weights
    model = ctx.ddp(GraphSAGE(loader.num_features, HIDDEN, NUM_LAYERS, out_channels=NUM_CLASSES, dropout=0.3))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    if ctx.restore(model=model, optimizer=optimizer) and ctx.is_main:
        print(f"continues from a checkpoint in {ctx.directory}", flush=True)
    valid = loader.for_split(VALID, remainder="uneven") if VALID else None
    accuracy = None
    for epoch in ctx.epochs(EPOCHS):
        model.train()
        for step, batch in enumerate(loader, start=1):
            batch = batch.to(ctx.device)
            loss = loss_of(*outputs(model, batch))
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
    return model(batch.x.float(), batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]


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
