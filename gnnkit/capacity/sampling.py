"""The batches that are asked about: bounded where only sizes are known, sampled and counted where there is a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from gnnkit.capacity.batch import BatchSize, most
from gnnkit.capacity.graph import SizedGraph
from gnnkit.errors import PlanError
from gnnkit.loader.words import resolve_fan_outs
from gnnkit.plan import InputLinks, NeighborSampling
from gnnkit.schema import NodeType

_LOOKED_AT = 8
_USUAL_BATCH = 1024


@dataclass(frozen=True)
class Asked:
    """What is sampled.

    Attributes:
        num_neighbors: Fan-outs, the same for all edge types.
        batch_size: Seeds of a batch.
        seeds_each: Nodes that one seed stands for: 2 for a link.
        with_edge: Whether batches carry edge ids.
    """

    num_neighbors: tuple[int, ...]
    batch_size: int
    seeds_each: int = 1
    with_edge: bool = False


def asked(graph: SizedGraph, num_neighbors: Sequence[int] | None, batch_size: int | None) -> Asked:
    """What a user asks about, with what a plan says where he does not.

    Raises:
        PlanError: Nobody says what is sampled, or the plan samples in a way that is not counted here.
    """
    links, with_edge = graph.name.startswith("ogbl-"), False
    if graph.plan is not None:
        sampling = graph.plan.sampling
        links, with_edge = isinstance(graph.plan.inputs, InputLinks), sampling.with_edge
        batch_size = graph.plan.batching.batch_size if batch_size is None else batch_size
        if num_neighbors is None and isinstance(sampling, NeighborSampling):
            fans = set(sampling.num_neighbors.values()) - {(0,) * sampling.num_hops}
            num_neighbors = fans.pop() if len(fans) == 1 else None
    if num_neighbors is None:
        raise PlanError("num_neighbors is missing", "give one number per hop: --num-neighbors 15,10,5")
    return Asked(tuple(num_neighbors), _USUAL_BATCH if batch_size is None else batch_size, 1 + links, with_edge)


def batch_of(graph: SizedGraph, wanted: Asked) -> BatchSize:
    """The size of a batch: the mean of some that are sampled, or a bound where there is no store."""
    if graph.store is not None and wanted.seeds_each == 1:
        return _sampled(graph.store, wanted, _seed_type(graph))
    fan_outs = resolve_fan_outs(list(wanted.num_neighbors), graph.schema)
    return most(graph.schema, fan_outs, _seed_type(graph), wanted.seeds_each * wanted.batch_size, "in")


def _seed_type(graph: SizedGraph) -> NodeType:
    """The node type with a training split, else the first one."""
    return next((t for t, splits in graph.splits.items() if "train" in splits), next(iter(graph.schema.node_types)))


def _sampled(store: Path, wanted: Asked, seed_type: NodeType) -> BatchSize:
    from gnnkit.backends.inprocess import InProcess
    from gnnkit.graph_loader import GraphLoader  # numba
    from gnnkit.storage.store import Store

    splits = Store.open(store).splits.get(seed_type, {})
    options: dict[str, Any] = {"num_neighbors": list(wanted.num_neighbors), "batch_size": wanted.batch_size, "backend": InProcess()}
    inputs = (seed_type, "train" if "train" in splits else None)
    with GraphLoader.from_store(store, input_nodes=inputs, memory_budget=0, progress=False, **options) as loader:
        schema = loader.schema
        nodes, edges, count = dict.fromkeys(schema.node_types, 0), dict.fromkeys(schema.edge_types, 0), 0
        for batch in islice(loader, _LOOKED_AT):
            count += 1
            for t in nodes:
                nodes[t] += int(batch.num_nodes if schema.is_homogeneous else batch[t].num_nodes)
            for e in edges:
                edges[e] += int(batch.num_edges if schema.is_homogeneous else batch[e].num_edges)
    if not count:
        raise PlanError(f"the store {store} has no full batch of {wanted.batch_size} seeds", "lower the batch size")
    mean = BatchSize({t: n / count for t, n in nodes.items()}, {e: n / count for e, n in edges.items()}, "")
    return replace(mean, source=f"the mean of {count} batches, sampled from the store")
