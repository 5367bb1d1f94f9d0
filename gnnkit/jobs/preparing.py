"""What a node does once before its ranks start: kernels are compiled, and the store is looked at."""

from __future__ import annotations

import os
from pathlib import Path

from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.jobs.running import find_plan_role
from gnnkit.loader.planned import check_planned
from gnnkit.plan import LoaderPlan
from gnnkit.sampling.kinds import warm
from gnnkit.storage.manifest_io import read_manifest
from gnnkit.storage.store import Store


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
    warm(events)
    if role.kind == "client":
        return "kernels are compiled; the servers hold the store"
    path, placement = Path(planned.store.path), planned.placement
    manifest = read_manifest(path)
    check_planned(planned.store, manifest, path)
    if role.kind == "server":  # which parts are its own, servers agree on when they meet
        return f"kernels are compiled, and {path} is the plan's store"
    parts = None
    if placement is not None and num_nodes > 1:
        if placement.num_hosts != num_nodes:
            raise PlanError(
                f"the plan places parts on {placement.num_hosts} hosts, and the job has {num_nodes} nodes",
                f"start {placement.num_hosts} nodes, or make the plan again",
            )
        parts = placement.hosts[node]
    store = Store.open(path, parts)
    held = "all parts" if parts is None else f"parts {', '.join(map(str, parts))}"
    return f"kernels are compiled, and {held} of {os.fspath(store.path)} are here"
