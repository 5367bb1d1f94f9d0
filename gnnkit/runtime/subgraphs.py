"""Inputs of batches that are whole subgraphs: clusters of nodes, or roots that are drawn among all of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.errors import PlanError
from gnnkit.plan import ClustersSampling, InputNodes, Inputs, LoaderPlan, SaintSampling
from gnnkit.runtime.batches import DrawnRows, NodeInputRows
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE
from gnnkit.storage.arrays import all_dataset_ids


class _SubgraphRows:
    """Base of ``InputRows`` that know which nodes of a batch are among the inputs.

    Args:
        plan: The plan.
        graph: The graph.
    """

    def __init__(self, plan: LoaderPlan, graph: GraphHandle) -> None:
        assert isinstance(plan.inputs, InputNodes), "plans make sure of it"
        self._plan, self._arrays = plan, graph.arrays
        self._nodes, self._is_mask = NodeInputRows(plan.inputs, graph), plan.inputs.is_mask
        self._num_nodes = graph.arrays.schema.node_types[plan.inputs.node_type].num_nodes

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        """int64 ``[n]``, the input nodes."""
        return self._nodes.arrays(np.arange(self._nodes.num_inputs, dtype=np.int64))["node"]

    def written_out(self) -> Inputs:
        """The input nodes without reference to a split of the graph."""
        return self._nodes.written_out()


class ClusterRows(_SubgraphRows):
    """``InputRows`` whose positions are clusters: a batch has the input nodes of its clusters, and behind these its other nodes.

    Args:
        plan: The plan.
        graph: The graph.

    Raises:
        PlanError: The clusters are those of another graph.
    """

    def __init__(self, plan: LoaderPlan, graph: GraphHandle) -> None:
        super().__init__(plan, graph)
        assert isinstance(plan.sampling, ClustersSampling)
        self.num_inputs, clusters = plan.sampling.num_clusters, plan.sampling.clusters
        if clusters is None or len(clusters) != self._num_nodes:
            raise PlanError("the plan's clusters are not those of this graph", "make the loader again")
        self._clusters: NDArray[np.int32] = clusters

    @cached_property
    def _inputs_by_cluster(self) -> list[NDArray[np.int64]]:
        """Positions of inputs."""
        return self._by_cluster(np.arange(len(self._ids)), self._ids)

    @cached_property
    def _others_by_cluster(self) -> list[NDArray[np.int64]]:
        """Nodes that are no inputs."""
        others = np.delete(np.arange(self._num_nodes), self._ids)
        return self._by_cluster(others, others)

    def _by_cluster(self, values: NDArray[np.int64], nodes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        clusters = self._clusters[nodes]
        ends = np.cumsum(np.bincount(clusters, minlength=self.num_inputs))
        return np.split(values[np.argsort(clusters, kind="stable")], ends[:-1])

    def arrays(self, positions: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """The nodes of some clusters, and the ``input_id`` of those that are inputs."""
        none, which = np.empty(0, np.int64), positions.tolist()
        inputs, others = (np.concatenate([none, *(own[i] for i in which)]) for own in (self._inputs_by_cluster, self._others_by_cluster))
        nodes = self._ids[inputs]
        return {"node": np.concatenate([nodes, others]), "input_id": nodes if self._is_mask else inputs}

    def given(self, values: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """The same for nodes of a user's choice, with all of their clusters."""
        clusters, first = np.unique(self._clusters[values], return_index=True)
        members = [np.flatnonzero(self._clusters == cluster) for cluster in clusters[np.argsort(first)]]
        others = np.concatenate([np.empty(0, np.int64), *members])
        return {"node": np.concatenate([values, others[~np.isin(others, values)]]), "input_id": np.arange(len(values), dtype=np.int64)}


class SaintRows(_SubgraphRows, DrawnRows):
    """``InputRows`` whose positions are all nodes, which an epoch draws as roots: "root" ``[b]`` of a batch, and "input_id" of each node.

    Args:
        plan: The plan.
        graph: The graph.
    """

    @cached_property
    @override
    def num_inputs(self) -> int:
        """Roots of an epoch."""
        sampling, batch_size = self._plan.sampling, self._plan.batching.batch_size
        assert isinstance(sampling, SaintSampling)
        steps = sampling.num_steps or max(1, self._num_nodes // (batch_size * (sampling.length + 1)))
        return steps * batch_size

    @cached_property
    @override
    def draws(self) -> NDArray[np.int64]:
        """Running sums of the nodes' numbers of edges, or of 1 for each."""
        sampling, (node_type,) = self._plan.sampling, self._arrays.schema.node_types
        assert isinstance(sampling, SaintSampling)
        if sampling.roots != "nodes":
            return np.arange(1, self._num_nodes + 1)
        parts = self._arrays.checked(HOMOGENEOUS_EDGE_TYPE).edges[HOMOGENEOUS_EDGE_TYPE]
        degrees = np.empty(self._num_nodes, np.int64)
        degrees[all_dataset_ids(self._arrays, node_type)] = np.concatenate([np.diff(part.indptr) for part in parts])
        return np.cumsum(degrees)

    @cached_property
    def _input_id(self) -> NDArray[np.int64]:
        """int64 ``[num_nodes]``: what batches call each node that is an input; -1 for others."""
        found = np.full(self._num_nodes, -1)
        found[self._ids[::-1]] = self._ids[::-1] if self._is_mask else np.arange(len(self._ids))[::-1]
        return found

    def arrays(self, positions: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """The roots at these positions, which are nodes."""
        return {"root": positions, "input_id": self._input_id}

    def given(self, values: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Nodes of a user's choice as roots, and as the inputs that they stand for."""
        found = np.full(self._num_nodes, -1)
        found[values[::-1]] = np.arange(len(values))[::-1]
        return {"root": values, "input_id": found}
