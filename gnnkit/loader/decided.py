"""Plan files where ``gnnkit.distributed.initialize`` has decided what this process is: they run where it says, as this rank."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from gnnkit.backends.joined import joined
from gnnkit.errors import PlanError
from gnnkit.loader.words import resolve_rank
from gnnkit.plan import LoaderPlan


def plan_file(path: str | Path | None) -> Path:
    """The file of a plan.

    Args:
        path: The file; None is the one that ``initialize`` was given.

    Raises:
        PlanError: It was given none.
    """
    if path is not None:
        return Path(path)
    decided = joined()
    if decided is None or decided.plan is None:
        raise PlanError(
            "from_plan() was given no file, and neither was gnnkit.distributed.initialize",
            "from_plan('plan.json'), or export GNNKIT_PLAN=plan.json and call initialize() first",
        )
    return decided.plan


def as_decided(plan: LoaderPlan) -> LoaderPlan:
    """A plan as ``initialize`` has it run: with its backend, and as the rank of the process group or of torchrun where there is one.

    Without ``initialize`` it is as it was written. No batch of the epoch's list changes, only who gets which.
    """
    decided = joined()
    if decided is None:
        return plan
    batching = plan.batching
    distributed = sys.modules.get("torch.distributed")
    in_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if in_group or {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        rank, world_size = resolve_rank(None, None)
        batching = replace(batching, rank=rank, world_size=world_size)
    return replace(plan, backend=decided.backend.to_json(), batching=batching)


def as_rank(plan: LoaderPlan, rank: int | None, world_size: int | None) -> LoaderPlan:
    """A plan for another rank, or as it is where none is given.

    Raises:
        PlanError: Only one of the two is given, or they make no sense.
    """
    if rank is None and world_size is None:
        return plan
    rank, world_size = resolve_rank(rank, world_size)
    return replace(plan, batching=replace(plan.batching, rank=rank, world_size=world_size))
