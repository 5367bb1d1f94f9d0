"""Measures the time from a launch to the first training step, and the time to verify an exported job."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.bench.kinds import make_loader

if TYPE_CHECKING:
    from gnnkit.export.proof.report import VerifyReport

RANKS = 2
# Batches of the verified job's epoch.
BATCHES = 100


def launched(options: argparse.Namespace) -> dict[str, Any]:
    """Launches ranks that train GraphSAGE, and takes the time to the end of the first step of the last of them."""
    from gnnkit.jobs.launching import launch

    hops = len(options.fanout)

    def train(loader: Any, ctx: Any) -> float:
        import time

        import torch
        from torch_geometric.nn import GraphSAGE

        model = ctx.ddp(GraphSAGE(loader.num_features, 64, num_layers=hops, out_channels=64))
        optimizer = torch.optim.Adam(model.parameters())
        batch = next(iter(loader))
        loss = model(batch.x, batch.edge_index)[: batch.batch_size].square().mean()
        loss.backward()
        optimizer.step()
        return time.monotonic()  # the same clock in all processes of a host

    with make_loader(options) as loader:
        begin = time.monotonic()
        with launch(train, loader, RANKS, device="cpu", progress=False) as run:
            returned = time.monotonic()
            steps = run.results()
    return {"returned_s": returned - begin, "first_step_s": max(steps) - begin}


def verified(options: argparse.Namespace) -> dict[str, Any]:
    """Exports a job for torchrun, each of whose nodes holds a part, and verifies an epoch of ``BATCHES`` batches of it."""
    from gnnkit.export.verify import verify_export
    from gnnkit.storage.store import Store

    (found,) = Store.open(options.path).splits.values()
    seeds = found["train"]
    size = max(1, min(options.batch_size, len(seeds) // BATCHES))  # a small graph has 100 batches, too
    with tempfile.TemporaryDirectory(prefix="gnnkit-bench-") as folder:
        with make_loader(options, input_nodes=seeds[: BATCHES * size], batch_size=size) as loader:
            job = loader.export(Path(folder) / "job", nodes=options.nodes, procs_per_node=options.procs_per_node)
        begin = time.perf_counter()
        report = verify_export(job.directory, progress=False)
        elapsed = time.perf_counter() - begin
    check_equal(report)
    return {"verify_s": elapsed, "batches": report.batches, "batch_size": size, "ranks": report.ranks, "notes": list(report.notes)}


def check_equal(report: VerifyReport) -> None:
    """Raises ``RuntimeError`` where a job has not given ``BATCHES`` equal batches: a wrong batch has no speed."""
    if not report.equal or report.batches != BATCHES:
        raise RuntimeError(f"the job was to give {BATCHES} equal batches:\n{report}")
