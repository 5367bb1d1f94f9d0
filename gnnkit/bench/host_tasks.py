"""Measurements of several hosts that go through the same epochs at the same time; run by ``gnnkit.bench.tasks`` on each of them."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from gnnkit.bench.kinds import make_loader, time_epochs
from gnnkit.bench.process import ProcessorWatch
from gnnkit.cluster.namespaces import INTERFACE


def host_epoch(options: argparse.Namespace) -> dict[str, Any]:
    """Runs ``epoch`` with ``options.placement``, and measures how busy that keeps the processors and the cable."""
    import torch.distributed as dist
    import torch_geometric.data  # noqa: F401

    import gnnkit.sampling.kinds

    gnnkit.sampling.kinds.warm()
    dist.init_process_group("gloo")
    with make_loader(options, placement=options.placement) as loader:
        for _ in loader:  # its copy of the graph in huge pages is in use after that
            pass
        dist.barrier()
        watch, crossed, begin = ProcessorWatch(), interface_bytes(), time.perf_counter()
        batches, _ = time_epochs(loader, options)
        dist.barrier()
        elapsed, shares, crossed = time.perf_counter() - begin, watch.shares(), interface_bytes() - crossed
        check_batches(loader, options)
    dist.destroy_process_group()
    return {"seeds_per_s": batches * options.batch_size / elapsed, **shares, "cable_bytes_per_s": crossed / elapsed}


def interface_bytes() -> int:
    """Bytes that have come and gone through this host's cable, headers included: see proc_net(5)."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            fields = numbers.split()
            return int(fields[0]) + int(fields[8])
    raise RuntimeError(f"no interface {INTERFACE} on this host")


def check_batches(loader: Any, options: argparse.Namespace) -> None:
    """Compares a batch with what this process samples from all parts, which here it can read: a wrong batch has no speed.

    Raises:
        RuntimeError: They differ.
    """
    from gnnkit.loader.digest import batches_digest

    whole = argparse.Namespace(**{**vars(options), "workers": 0, "servers": 0})
    with make_loader(whole, placement="replicate", memory_budget=0) as reference:
        reference.set_epoch(loader.epoch + 1)
        if batches_digest([loader.peek()]) != batches_digest([reference.peek()]):
            raise RuntimeError("a batch of this host is not the one that a single process samples")
