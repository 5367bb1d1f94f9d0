"""From the words of a sampling configuration to a plan on the server's store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.plan import Batching, InputNodes, LoaderPlan, NeighborSampling, Sampling
from gnnkit.samplers import PPR
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType, is_label_edge_type
from gnnkit.storage.store import Store


def plan_of(store: Store, config: Mapping[str, Any], node_type: NodeType | None, ids: NDArray[Any]) -> LoaderPlan:
    """What a configuration and seeds mean for a store.

    Args:
        store: The store.
        config: ``num_neighbors`` (a list, or a list by edge type), ``batch_size``, ``shuffle``, ``drop_last``, ``with_edge``,
            ``with_weight``, ``edge_dir`` and ``seed``, as in graphlearn-torch's ``SamplingConfig``; possibly ``ppr``, the fields of a
            ``PPR`` that samples in the place of ``num_neighbors``, its channels as pairs of a list of edge types and a share.
        node_type: The seeds' type; None for a homogeneous graph.
        ids: Integers ``[n]``: the seeds.

    Raises:
        PlanError: Something is missing, unusable or does not fit the store.
    """
    try:
        batching = Batching(config["batch_size"], bool(config["shuffle"]), bool(config["drop_last"]), seed=config["seed"] or 0)
        sampling = _sampling(store, config)
    except (AttributeError, KeyError, TypeError) as error:
        raise PlanError(f"the sampling configuration cannot be read: {type(error).__name__}: {error}") from error
    owner = HOMOGENEOUS_NODE_TYPE if node_type is None else node_type
    seeds = np.asarray(ids, np.int64)
    store.to_store_ids(owner, seeds)  # an unknown type or an id out of range is found here, and not by a worker
    inputs = InputNodes(owner, f"node/{owner}/ids", ids=seeds)
    return LoaderPlan(store.reference, inputs, sampling, batching)


def _sampling(store: Store, config: Mapping[str, Any]) -> Sampling:
    if config["edge_dir"] != store.edge_dir:
        raise PlanError(
            f"edge_dir={config['edge_dir']!r}, and the servers' store is compressed for {store.edge_dir!r}",
            f"sample along edge_dir={store.edge_dir!r}, or serve a store that was built with edge_dir={config['edge_dir']!r}",
        )
    weight = store.options.weight
    if config["with_weight"] and weight is None:
        raise PlanError(
            f"with_weight=True, and the servers' store {str(store.path)!r} was built without weights",
            "build it with weight=<name of an edge array>, or leave with_weight out",
        )
    with_edge = bool(config["with_edge"])
    if with_edge and not store.options.with_edge:
        raise PlanError(
            f"with_edge=True, and the servers' store {str(store.path)!r} holds no edge ids", "build it with with_edge=True, or leave it out"
        )
    weight = weight if config["with_weight"] else None
    if config.get("ppr") is not None:
        return _ppr(config["ppr"]).sampling(store.schema, edge_dir=store.edge_dir, weight=weight, time_attr=None, with_edge=with_edge)
    return NeighborSampling(_fan_outs(store, config["num_neighbors"]), False, store.edge_dir, weight, with_edge)


def _ppr(words: Mapping[str, Any]) -> PPR:
    given = words["typed_channel_ratios"]
    ratios = None if given is None else {tuple(tuple(edge_type) for edge_type in group): share for group, share in given}
    return PPR(**{**words, "typed_channel_ratios": ratios})


def _fan_outs(store: Store, given: Any) -> dict[EdgeType, tuple[int, ...]]:
    """For every type of the store; labels are not walked along, and neither is what a dict leaves out."""
    known = store.schema.edge_types
    by_type = given if isinstance(given, Mapping) else {edge_type: given for edge_type in known if not is_label_edge_type(edge_type)}
    unknown = [edge_type for edge_type in by_type if edge_type not in known]
    if unknown:
        raise PlanError(f"num_neighbors names the unknown edge type {unknown[0]}", f"known: {list(known)}")
    found = {edge_type: tuple(int(number) for number in by_type[edge_type]) for edge_type in by_type}
    lengths = {len(fan_out) for fan_out in found.values()}
    if len(lengths) != 1 or 0 in lengths or any(number < -1 for fan_out in found.values() for number in fan_out):
        raise PlanError(f"num_neighbors must have one number of at least -1 per hop for each type, got {given!r}")
    nothing = (0,) * lengths.pop()
    return {edge_type: found.get(edge_type, nothing) for edge_type in known}
