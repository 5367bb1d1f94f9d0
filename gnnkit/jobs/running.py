"""Calling a train function as one rank of a job: process group and loader before it, and both gone after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.errors import PlanError
from gnnkit.jobs.checkpoint import Checkpoints
from gnnkit.jobs.context import Report, TrainContext
from gnnkit.jobs.devices import choose_device
from gnnkit.jobs.environment import Place
from gnnkit.jobs.process_group import process_group
from gnnkit.plan import LoaderPlan

if TYPE_CHECKING:
    from gnnkit.distributed.roles import Role
    from gnnkit.graph_loader import GraphLoader

Train = Callable[["GraphLoader", TrainContext], Any]


def run_training(
    plan: Path,
    train: Train,
    place: Place,
    *,
    directory: Path,
    report: Report,
    device: str = "auto",
    store: Any = None,
    transform: Callable[[Any], Any] | None = None,
) -> Any:
    """Calls ``train(loader, ctx)`` as one rank of a job, in a process of its own.

    Before it the process group is there, and the loader of this rank's share of the plan; after it both are gone. The process's
    environment says from here on what torchrun would have said of the place.

    Args:
        plan: A plan file.
        train: The user's function.
        place: Where this process stands.
        directory: The job's folder; made where it is not there.
        report: Called with what ``ctx.log`` is given.
        device: "auto", "cpu", "cuda" or "cuda:<index>"; "auto" is the GPU of this local rank, or the CPU where there is none.
        store: The key-value store that the ranks meet at, where the caller has one for them; None is the one at the place's address.
        transform: The loader's; plans hold none.

    Returns:
        What ``train`` has returned.

    Raises:
        PlanError: Something that the user gave cannot be used.
        StoreError: The plan's store is missing, or is of another graph.
        StartTimeout: Not all ranks came in time.
        WorkerDied: Another rank is gone.
    """
    from gnnkit.graph_loader import GraphLoader

    planned = LoaderPlan.load(plan)
    role = find_plan_role(planned)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"the job's folder {str(directory)!r} cannot be made: {error.strerror or error}", "give another one") from error
    if place.world_size > 1:
        os.environ.update(place.variables())
    chosen = choose_device(device, place)
    interface = planned.backend.get("interface")
    with (
        process_group(place, chosen, interface, store),
        _joined_servers(plan, role),
        GraphLoader.from_plan(
            plan,
            rank=place.rank,
            world_size=place.world_size,
            progress="auto" if place.rank == 0 else False,
            transform=transform,
            device=chosen if chosen.type == "cuda" else None,
        ) as loader,
    ):
        checkpoints = Checkpoints(directory, place.rank, place.world_size)
        return train(loader, TrainContext(place, chosen, directory, loader, checkpoints, report))


def find_plan_role(plan: LoaderPlan) -> Role:
    """Whether this process is a server of the plan's store, a client of servers, or neither.

    Raises:
        PlanError: The plan or a variable is of no use; see ``gnnkit.distributed.roles``.
    """
    from gnnkit.backends import backend_from_json
    from gnnkit.distributed.roles import find_role
    from gnnkit.loader.served import joins_servers

    backend: Any = backend_from_json(plan.backend)
    return find_role(str(backend.address) if joins_servers(backend) else None)


@contextmanager
def _joined_servers(plan: Path, role: Role) -> Iterator[None]:
    """The servers of a client, for a ``with`` block."""
    if role.kind != "client":
        yield
        return
    from gnnkit.distributed.life_cycle import exit_client, initialize

    initialize(plan)
    try:
        yield
    finally:
        exit_client()
