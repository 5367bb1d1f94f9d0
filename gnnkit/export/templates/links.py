"""GraphSAGE that tells whether there is a link between two nodes, with DDP, checkpoints and resume.

`gnnkit run plan.json --train train.py` calls train(loader, ctx) in every rank; ctx is a gnnkit.jobs.context.TrainContext.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from gnnkit import GraphLoader
from gnnkit.jobs.context import TrainContext

NUM_LAYERS = 2
EPOCHS = 10
HIDDEN = 256
LEARNING_RATE = 0.003
SAVE_EVERY = 200  # steps; also after each epoch


def train(loader: GraphLoader, ctx: TrainContext) -> float | None:
    """Trains, and returns the last accuracy."""
    torch.manual_seed(0)  # every rank starts with the same weights
    model = ctx.ddp(GraphSAGE(loader.num_features, HIDDEN, NUM_LAYERS, out_channels=HIDDEN))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    if ctx.restore(model=model, optimizer=optimizer) and ctx.is_main:
        print(f"continues from a checkpoint in {ctx.directory}", flush=True)
    accuracy = None
    for epoch in ctx.epochs(EPOCHS):
        model.train()
        counts = torch.zeros(2, dtype=torch.float64, device=ctx.device)
        for step, batch in enumerate(loader, start=1):
            out, label = scores(model, batch.to(ctx.device))
            loss = F.binary_cross_entropy_with_logits(out, label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ctx.log(loss=loss.item())
            counts += torch.tensor([((out > 0) == (label > 0.5)).sum(), label.numel()], device=ctx.device)
            if step % SAVE_EVERY == 0:
                ctx.save(model=model, optimizer=optimizer)
        ctx.save(model=model, optimizer=optimizer)
        if ctx.world_size > 1:
            dist.all_reduce(counts)
        accuracy = (counts[0] / counts[1].clamp(min=1)).item()
        if ctx.is_main:
            print(f"epoch {epoch}: accuracy {accuracy:.4f} on the links that it was trained with", flush=True)
    return accuracy


def scores(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the model's scores of the batch's links, of existing and missing ones, and 1 or 0 for each."""
    h = model(batch.x.float(), batch.edge_index)
    if "edge_label_index" in batch:  # neg_sampling="binary", or links with labels of their own
        source, target = batch.edge_label_index
        return (h[source] * h[target]).sum(-1), (batch.edge_label > 0).float()
    source, there = h[batch.src_index], h[batch.dst_pos_index]  # neg_sampling="triplet"
    missing = h[batch.dst_neg_index].reshape(len(source), -1, h.size(-1))
    positive, negative = (source * there).sum(-1), (source.unsqueeze(1) * missing).sum(-1).reshape(-1)
    return torch.cat([positive, negative]), torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])
