"""Seeds that are the loader's input nodes."""

from __future__ import annotations

import numpy as np

from gnnkit.plan import InputNodes, NeighborSampling, Sampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.subgraph import NodeKey
from gnnkit.sampling.walked import SampleRequest, WalkSeeds, time_limits


class NodeSeeder:
    """See ``gnnkit.sampling.kinds.Seeder``; requests hold "node" ``[b]`` and, where the inputs have them, "time" and "window" ``[b]``.

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
        """See ``Seeder.seeds``."""
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
