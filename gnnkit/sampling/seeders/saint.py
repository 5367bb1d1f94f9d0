"""Seeds of batches of GraphSAINT: every node that a root has been at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import InputNodes, SaintSampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.owners import Expansion
from gnnkit.sampling.subgraph import NodeKey, SampleRequest, WalkSeeds
from gnnkit.storage.arrays import all_dataset_ids

# The only edge type of a homogeneous graph: one neighbour of each node.
_ONE = np.ones(1, np.int64)


class SaintSeeder:
    """Walks from a batch's roots; requests hold "root" ``[b]``, and as ``input_id`` that of every node, -1 where it is no input.

    Args:
        inputs: The loader's inputs.
        sampling: How far roots walk.
    """

    def __init__(self, inputs: InputNodes, sampling: SaintSampling) -> None:
        self._sampling, self._input_id = sampling, NodeKey(inputs.node_type, "input_id")
        self._dataset_ids: NDArray[np.int64] | None = None

    def seeds(self, request: SampleRequest, reach: GraphAccess) -> WalkSeeds:
        """The nodes of a batch: inputs first.

        Raises:
            GnnkitError: As ``GraphAccess``'s methods.
        """
        if self._dataset_ids is None:  # the same for every copy of the graph
            self._dataset_ids = all_dataset_ids(reach.tables.graph, self._input_id.type)
        nodes = np.unique(self._dataset_ids[self._met(request, reach)])
        input_id = request.input_id[nodes]
        is_input = input_id >= 0
        found = reach.store_ids(0, np.concatenate([nodes[is_input], nodes[~is_input]]))
        return WalkSeeds({0: found}, self._input_id.type, int(is_input.sum()), {self._input_id: input_id[is_input]})

    def _met(self, request: SampleRequest, reach: GraphAccess) -> NDArray[np.int64]:
        """Store ids of the nodes that roots have been at."""
        at = reach.store_ids(0, request.arrays["root"])
        roots, met = np.arange(len(at), dtype=np.int64), [at]
        for hop in range(self._sampling.length if len(at) else 0):
            picks = reach.expand(Expansion(request.key, hop, _ONE, {0: at}, roots={0: roots}))[0]
            moves, at = np.asarray(picks.counts) > 0, at.copy()
            if self._sampling.roots == "edges":
                met = [at[moves]]
            at[moves] = picks.neighbors
            met.append(at[moves])
        return np.concatenate(met)
