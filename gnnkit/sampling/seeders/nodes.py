"""Seeds of batches of nodes, and of anchors with their labels."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import LABEL_COUNTS, LABEL_KINDS, LABEL_NODES, InputAnchors, InputNodes, NeighborSampling, Sampling, label_name
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.owners import Expansion
from gnnkit.sampling.subgraph import BatchKey, NodeKey, SampleRequest, WalkSeeds, time_limits
from gnnkit.schema import EdgeType


class NodeSeeder:
    """Starts from nodes; requests hold "node" ``[b]`` and, where the inputs have them, "time" and "window" ``[b]``.

    Args:
        inputs: The loader's inputs.
        sampling: What is sampled around them.
    """

    def __init__(self, inputs: InputNodes, sampling: Sampling) -> None:
        self._node_type = inputs.node_type
        self._has_roots = isinstance(sampling, NeighborSampling) and sampling.has_roots
        self._sampling = sampling
        self._input_id = NodeKey(inputs.node_type, "input_id")

    def seeds(self, request: SampleRequest, reach: GraphAccess) -> WalkSeeds:
        """The nodes of a batch."""
        t = reach.tables.node_types.index(self._node_type)
        nodes = {t: reach.store_ids(t, request.arrays["node"])}
        seeds = WalkSeeds(nodes, self._node_type, len(request.input_id), {self._input_id: request.input_id})
        if self._has_roots:
            seeds.roots = {t: np.arange(len(request.input_id), dtype=np.int64)}
        if isinstance(self._sampling, NeighborSampling) and self._sampling.time_attr is not None:
            time = request.arrays.get("time")
            if time is None:
                time = reach.rows(t, self._sampling.time_attr, nodes[t]).reshape(-1)
            time = time.astype(np.int64)
            seeds.arrays[NodeKey(self._node_type, "seed_time")] = time
            window = request.arrays.get("window", self._sampling.time_window)
            last, first = time_limits(time, window, self._sampling.temporal_comparison)
            seeds.times, seeds.since = {t: last}, None if first is None else {t: first}
        return seeds


# How many labels each anchor has, int64 [b], and their store ids, int64 [sum], anchor after anchor.
_Found: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]


class AnchorSeeder:
    """Makes a batch's seeds from its anchors; one object per thread.

    A request's arrays are ``node`` int64 ``[b]``, and for labels that are not looked up in the graph ``label_name(...)`` int64 ``[b, k]``,
    filled up with -1: all in the dataset's ids.

    Args:
        inputs: The anchors.
        sampling: What is sampled around them.
    """

    def __init__(self, inputs: InputAnchors, sampling: Sampling) -> None:
        self._inputs = inputs
        self._has_roots = isinstance(sampling, NeighborSampling) and sampling.has_roots

    def seeds(self, request: SampleRequest, reach: GraphAccess) -> WalkSeeds:
        """Returns the seeds of a batch's walk: anchors, then distinct labels in the order in which they are first met.

        Raises:
            GnnkitError: As ``GraphAccess``'s methods.
        """
        inputs, node_types, numbering = self._inputs, reach.tables.node_types, reach.numbering
        anchor_type = node_types.index(inputs.node_type)
        anchors = np.array(reach.store_ids(anchor_type, request.arrays["node"]))
        edges = self._edges(anchor_type, anchors, reach)
        arrays: dict[BatchKey, NDArray[Any]] = {NodeKey(inputs.node_type, "input_id"): request.input_id}
        seeds = WalkSeeds({anchor_type: anchors}, inputs.node_type, len(anchors), arrays)
        numbering.begin(seeds)
        seeded = {anchor_type}
        for number, labels in enumerate(inputs.labels):
            t = node_types.index(labels.edge_type[2])
            for kind in LABEL_KINDS:
                source, name = labels.source(kind), label_name(number, kind)
                if source is None:
                    continue
                counts, nodes = edges[source] if isinstance(source, tuple) else _given(request.arrays[name], t, reach)
                counts, nodes = _first(inputs.cap, counts, nodes)
                arrays[NodeKey(inputs.node_type, name + LABEL_COUNTS)] = counts
                arrays[NodeKey(inputs.node_type, name + LABEL_NODES)] = numbering.number(t, nodes)
                seeded.add(t)
        seeds.nodes = {t: np.array(numbering.nodes(t)) for t in sorted(seeded)}
        if self._has_roots:
            seeds.roots = _own_roots(seeds.nodes)
        return seeds

    def _edges(self, anchor_type: int, anchors: NDArray[np.int64], reach: GraphAccess) -> dict[EdgeType, _Found]:
        """The labels that are edges of the graph, all of them, by stored edge type."""
        edge_types, label_types = reach.tables.edge_types, self._inputs.label_types
        relations = {edge_type: edge_types.index(edge_type) for edge_type in label_types}
        fan_outs = np.zeros(len(edge_types), np.int64)
        fan_outs[list(relations.values())] = -1
        picks = reach.expand(Expansion(0, 0, fan_outs, {anchor_type: anchors})) if relations and len(anchors) else {}
        nothing = np.zeros(len(anchors), np.int64), np.empty(0, np.int64)
        # Results of a reach are valid until its next call.
        return {
            edge_type: (np.array(picks[r].counts, np.int64), np.array(picks[r].neighbors, np.int64)) if r in picks else nothing
            for edge_type, r in relations.items()
        }


def _given(rows: NDArray[np.int64], t: int, reach: GraphAccess) -> _Found:
    """Labels that came with the anchors."""
    valid = rows >= 0
    return valid.sum(axis=1).astype(np.int64), np.array(reach.store_ids(t, rows[valid]))


def _first(cap: int | None, counts: NDArray[np.int64], nodes: NDArray[np.int64]) -> _Found:
    """The first ``cap`` labels of each anchor; None leaves all."""
    if cap is None or counts.max(initial=0) <= cap:
        return counts, nodes
    within = np.arange(len(nodes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.minimum(counts, cap), nodes[within < cap]


def _own_roots(nodes: dict[int, NDArray[np.int64]]) -> dict[int, NDArray[np.int64]]:
    """A root for every seed, counted through all types."""
    roots, first = {}, 0
    for t, ids in nodes.items():
        roots[t] = np.arange(first, first + len(ids))
        first += len(ids)
    return roots
