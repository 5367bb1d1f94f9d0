"""Ranks of one process group must iterate the same epoch; different ones would be mixed up silently."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace

from gnnkit.errors import PlanError
from gnnkit.plan import LoaderPlan

# How many iterations each plan has begun in this process: ranks compare their n-th iterations with each other.
_iterations: dict[str, int] = {}


def check_same_epoch(plan: LoaderPlan, epoch: int) -> None:
    """Compares this rank's epoch with those that the other ranks have announced so far; it waits for nobody.

    Every rank writes the epoch of its n-th iteration to the process group's key-value store and reads what is there already,
    so whoever comes later sees the difference.

    Raises:
        PlanError: Another rank's n-th iteration of the same plan runs another epoch.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    batching = plan.batching
    if batching.world_size != distributed.get_world_size():
        return  # the ranks of this plan are not those of the process group
    # What differs between hosts, and changes no batch, does not tell plans apart.
    store = None if plan.store is None else replace(plan.store, path="")
    shared = json.dumps(replace(plan, store=store, backend={}, batching=replace(batching, rank=0)).to_json(), sort_keys=True)
    name = hashlib.sha256(shared.encode()).hexdigest()[:16]
    iteration = _iterations[name] = _iterations.get(name, -1) + 1
    announced = distributed.distributed_c10d._get_default_store()
    prefix = f"gnnkit/{name}/{iteration}"
    announced.set(f"{prefix}/{batching.rank}", str(epoch))
    for rank in range(batching.world_size):
        key = f"{prefix}/{rank}"
        if rank != batching.rank and announced.check([key]) and int(announced.get(key)) != epoch:
            raise PlanError(
                f"rank {batching.rank} begins epoch {epoch}, rank {rank} epoch {int(announced.get(key))}",
                "call set_epoch() with the same number on every rank, and iterate equally often",
            )
