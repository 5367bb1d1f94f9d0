"""Plans that were written to a file: read back, and checked against the store as if a user had said what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.backends import backend_from_json
from gnnkit.errors import PlanError, StoreError
from gnnkit.loader.placing import Site
from gnnkit.loader.words import resolve_fan_outs, resolve_input_nodes
from gnnkit.plan import InputNodes, LoaderPlan, Placement, StoreRef
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.hosts import find_hosts

if TYPE_CHECKING:
    from gnnkit.storage.store import Store


def read_plan(path: str | Path) -> LoaderPlan:
    """The plan in a JSON file.

    Raises:
        PlanError: The file cannot be read or is no plan.
    """
    try:
        value = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"cannot read the plan {str(path)!r}: {error}", "write it with json.dump(loader.plan.to_json(), file)") from error
    if not isinstance(value, dict):
        raise PlanError(f"{str(path)!r} holds no plan", "write it with json.dump(loader.plan.to_json(), file)")
    return LoaderPlan.from_json(value)


def open_planned_store(plan: LoaderPlan, folder: Path) -> Store:
    """The store that a plan was made for; a relative path is relative to ``folder``.

    Raises:
        PlanError: The plan's graph was only in memory.
        StoreError: The store is missing, damaged, or another one.
    """
    from gnnkit.storage.store import Store

    if plan.store is None:
        raise PlanError("the plan's graph was only in memory", "build a store with gnnkit.partition() and a loader with from_store()")
    path = folder / plan.store.path
    store = Store.open(path) if plan.placement is None else _site(plan, plan.placement).open(path)
    if store.fingerprint != plan.store.fingerprint:
        raise StoreError(
            f"the store {str(store.path)!r} is {store.fingerprint[:16]}, and the plan was made for {plan.store.fingerprint[:16]}",
            "point the plan at the store that it was made for, or make the plan again",
        )
    return store


def _site(plan: LoaderPlan, placement: Placement) -> Site:
    addresses = backend_from_json(plan.backend).to_json().get("hosts")
    return Site(placement, find_hosts(addresses, plan.batching.world_size, plan.runtime.start_timeout_s))


def check_store_has(store: Store, weight: str | None, with_edge: bool | None) -> None:
    """Compares what is to be sampled with what a store was built with.

    Raises:
        PlanError: Edge ids or weights are wanted that it does not hold.
    """
    if with_edge and not store.options.with_edge:
        raise PlanError(f"the store {str(store.path)!r} holds no edge ids", "build it with with_edge=True, or leave with_edge out")
    if weight is not None and weight != store.options.weight:
        built = "without weights" if store.options.weight is None else f"for the weights {store.options.weight!r}"
        raise PlanError(f"weight={weight!r}, but the store {str(store.path)!r} was built {built}", f"build it with weight={weight!r}")


def checked_plan(plan: LoaderPlan, store: Store, graph: GraphHandle) -> LoaderPlan:
    """A plan that somebody may have edited, with every value checked, for the place where the store lies now.

    Raises:
        PlanError: A value is unusable, or does not fit the store.
    """
    sampling, batching = plan.sampling, plan.batching
    for name, value in (
        ("replace", sampling.replace),
        ("with_edge", sampling.with_edge),
        ("shuffle", batching.shuffle),
        ("drop_last", batching.drop_last),
    ):
        if not isinstance(value, bool):
            raise PlanError(f"the plan's {name} must be true or false, got {value!r}")
    if sampling.edge_dir != store.edge_dir:
        raise PlanError(f"the plan samples along edge_dir={sampling.edge_dir!r}, and its store is compressed for {store.edge_dir!r}")
    check_store_has(store, sampling.weight, sampling.with_edge)
    fan_outs = resolve_fan_outs(sampling.num_neighbors, store.schema)
    return replace(
        plan,
        store=StoreRef(str(store.path), store.fingerprint),
        inputs=_checked_inputs(plan.inputs, graph),
        sampling=replace(sampling, num_neighbors=fan_outs),
        backend=backend_from_json(plan.backend).to_json(),
        placement=None if plan.placement is None else _site(plan, plan.placement).placement(store.manifest, store.path),
    )


def _checked_inputs(inputs: InputNodes, graph: GraphHandle) -> InputNodes:
    if not isinstance(inputs.stream, str) or (inputs.split is not None and inputs.ids is not None):
        raise PlanError(f"the plan's inputs need a stream, and a split or ids but not both; got stream {inputs.stream!r}")
    resolved = resolve_input_nodes((inputs.node_type, inputs.ids if inputs.split is None else inputs.split), graph)
    # The stream decides the draws: it stays as it was written.
    return replace(resolved, stream=inputs.stream)
