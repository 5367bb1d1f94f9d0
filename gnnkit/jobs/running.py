"""Running a train function as one rank of a job: preparing the node, loading ``train.py``, calling it, and cleaning up."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from gnnkit.arguments import check_takes
from gnnkit.backends import backend_from_json
from gnnkit.cluster.urls.stores import open_url, url_manifest
from gnnkit.distributed.life_cycle import Role, exit_client, find_role, initialize
from gnnkit.errors import PlanError, near_matches
from gnnkit.events import EventSink
from gnnkit.graph_loader import GraphLoader
from gnnkit.jobs.context import Checkpoints, Report, TrainContext
from gnnkit.jobs.environment import JobPlace, choose_device
from gnnkit.jobs.ownership import made_directory, owned
from gnnkit.jobs.process_group import process_group
from gnnkit.loader.planned import check_planned
from gnnkit.loader.served import joins_servers
from gnnkit.plan import Held, LoaderPlan
from gnnkit.sampling import kinds
from gnnkit.storage.manifest import read_manifest
from gnnkit.storage.store import Store
from gnnkit.urls import is_url

MODULE = "gnnkit_train"
_HINT = "def train(loader, ctx): ..."


def load_train(path: Path) -> Train:
    """The function ``train`` of a file. Modules beside the file can be imported from it.

    Raises:
        PlanError: There is no such file, it is no Python, or has no function ``train`` of two arguments.
    """
    if not path.is_file():
        raise PlanError(f"there is no file {str(path)!r}", "give the file with the train function: --train train.py")
    module = _module(path)
    found: Train | None = getattr(module, "train", None)
    if not callable(found):
        names = [name for name, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == MODULE]
        here = f"; it has {', '.join(names)}" if names else ""
        raise PlanError(f"{str(path)!r} has no function 'train'{here}{near_matches('train', names)}", _HINT)
    check_takes(found, 2, "as train(loader, ctx)", _HINT, f"in {str(path)!r}, train")
    return found


def _module(path: Path) -> ModuleType:
    if path.suffix != ".py":
        raise PlanError(f"{str(path)!r} is no Python file", "its name has to end in .py")
    module = ModuleType(MODULE)
    module.__file__ = str(path)
    # What the file defines can be pickled and looked up by its module's name, as in any module.
    sys.modules[MODULE] = module
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        # As it is now: Python's cache takes a file of the same size, changed within a second, for the same.
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}"
        raise PlanError(
            f"{where}: {error.msg}: {(error.text or '').strip()}", "correct the file; python -m py_compile shows the place"
        ) from error
    return module


def prepare(plan: Path, node: int, num_nodes: int, events: EventSink) -> str:
    """Compiles the sampling kernels, and checks the parts of the plan's store that this node needs.

    Args:
        plan: A plan file.
        node: This node.
        num_nodes: Nodes of the job.
        events: Where progress goes.

    Returns:
        What was found, as a sentence.

    Raises:
        PlanError: The plan's graph was only in memory, or its placement is for another number of hosts.
        StoreError: The store is missing, of another graph, or lacks a part that this node needs.
    """
    planned = LoaderPlan.load(plan)
    role = find_plan_role(planned)
    if planned.store is None:
        raise PlanError("the plan's graph was only in memory", "build a store with gnnkit.partition() and a loader with from_store()")
    placed, placement = planned.store.path, planned.placement
    elsewhere = role.kind != "standalone" or (placement is not None and num_nodes > 1)
    kinds.prepare(planned.inputs, planned.sampling, caches=bool(planned.cached), has_other_hosts=elsewhere)
    kinds.warm(events)
    if role.kind == "client":
        return "kernels are compiled; the servers hold the store"
    manifest = url_manifest(placed, events) if is_url(placed) else read_manifest(Path(placed))
    check_planned(planned.store, manifest, placed)
    if role.kind == "server":  # which parts are its own, servers agree on when they meet
        return f"kernels are compiled, and {placed} is the plan's store"
    held: Held = {"parts": range(manifest.num_parts), "whole_structure": False}
    if placement is not None and num_nodes > 1:
        if placement.num_hosts != num_nodes:
            raise PlanError(
                f"the plan places parts on {placement.num_hosts} hosts, and the job has {num_nodes} nodes",
                f"start {placement.num_hosts} nodes, or make the plan again",
            )
        held = placement.held(node)
    store = open_url(placed, lambda _: held, events, planned.store) if is_url(placed) else Store.open(placed, **held)
    parts = "all parts" if len(held["parts"]) == manifest.num_parts else f"parts {', '.join(map(str, held['parts']))}"
    return f"kernels are compiled, and {parts} of {os.fspath(store.path)} are here"


Train = Callable[["GraphLoader", TrainContext], Any]


def run_training(  # noqa: PLR0913 - launchers differ in all of them
    plan: Path,
    train: Train,
    place: JobPlace,
    *,
    directory: Path,
    report: Report,
    device: str = "auto",
    store: Any = None,
    transform: Callable[[Any], Any] | None = None,
    checkpoints: Checkpoints | None = None,
    config: Mapping[str, Any] | None = None,
    takes_over: bool = False,
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
        checkpoints: Where the job's are kept; None is ``directory``, which is then this job's own.
        config: ``ctx.config``.
        takes_over: Whether ``ctx.restore`` takes a checkpoint that was made with other hyper-parameters.

    Returns:
        What ``train`` has returned.

    Raises:
        PlanError: Something that the user gave cannot be used.
        StoreError: The plan's store is missing, or is of another graph.
        StartTimeout: Not all ranks came in time.
        WorkerDied: Another rank is gone.
    """
    planned = LoaderPlan.load(plan)
    role = find_plan_role(planned)
    directory = Path(made_directory(directory))
    if place.world_size > 1:
        os.environ.update(place.variables())
    chosen = choose_device(device, place)
    with (
        owned(directory) if place.rank == 0 and checkpoints is None else nullcontext(),
        process_group(place, chosen, planned.backend.get("interface"), store),
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
        kept = Checkpoints(directory, place.rank, place.world_size) if checkpoints is None else checkpoints
        with closing(TrainContext(place, chosen, directory, loader, kept, report, config or {}, takes_over=takes_over)) as ctx:
            return train(loader, ctx)


def find_plan_role(plan: LoaderPlan) -> Role:
    """Whether this process is a server of the plan's store, a client of servers, or neither.

    Raises:
        PlanError: The plan or a variable is of no use; see ``gnnkit.distributed.life_cycle``.
    """
    backend: Any = backend_from_json(plan.backend)
    return find_role(str(backend.address) if joins_servers(backend) else None)


@contextmanager
def _joined_servers(plan: Path, role: Role) -> Iterator[None]:
    """The servers of a client, for a ``with`` block."""
    if role.kind != "client":
        yield
        return
    initialize(plan)
    try:
        yield
    finally:
        exit_client()
