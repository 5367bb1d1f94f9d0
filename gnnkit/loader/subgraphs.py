"""Values that samplers of whole subgraphs take from the graph: clusters of its nodes, and the norms of GraphSAINT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.base import BatchStream
from gnnkit.errors import PlanError, near_matches
from gnnkit.events import EventSink, Stage
from gnnkit.plan import ClustersSampling, InputNodes, Inputs, LoaderPlan, SaintSampling, Sampling, named
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.sampling.collate import BatchContents, contents_of
from gnnkit.sampling.subgraph import EdgeKey, NodeKey
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, GraphSchema, NodeType
from gnnkit.storage.arrays import node_values
from gnnkit.storage.layout import BuildOptions


def found_on(sampling: Sampling, inputs: Inputs, graph: GraphHandle, events: EventSink) -> Sampling:
    """A way of sampling with what follows from the graph's edges, where it says that something does; see ``Sampling.finder``.

    Raises:
        PlanError: It does not go with the inputs or the graph.
    """
    if sampling.rows and (not isinstance(inputs, InputNodes) or inputs.weights is not None):
        what = "seed_weights are given" if inputs.weights is not None else "batches are to start from links or anchors"
        raise PlanError(f"{what}, and {sampling.kind!r} sampling decides itself what a batch starts from", "sample with num_neighbors")
    if not sampling.finder:
        return sampling
    found: Sampling = named(sampling.finder)(sampling, graph, events)
    return found


class _Columns:
    """The arrays of a graph's nodes, for a partitioner that reads one of them."""

    def __init__(self, graph: GraphHandle) -> None:
        self._arrays, self.metadata, self.schema = graph.arrays, graph.metadata, graph.arrays.schema

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields an array.

        Raises:
            PlanError: There is none of that name.
        """
        known = list(self.schema.node_types[node_type].arrays)
        if name not in known:
            raise PlanError(f"nodes have no array {name!r}{near_matches(name, known)}", f"their arrays: {known}")
        yield node_values(self._arrays, node_type, name)


def with_clusters(sampling: ClustersSampling, graph: GraphHandle, events: EventSink) -> ClustersSampling:
    """Cuts the graph into clusters, where they are not given.

    Raises:
        PlanError: There are more clusters than nodes, the partitioner is unknown or cannot be used, or other hosts have parts of the graph.
    """
    schema = graph.arrays.schema
    if sampling.num_clusters > schema.num_nodes:
        raise PlanError(f"num_clusters={sampling.num_clusters}, and the graph has {schema.num_nodes} nodes", "cut it into fewer")
    if sampling.clusters is not None:
        return sampling
    if not graph.arrays.has_structure:
        raise PlanError(
            f"partition={sampling.partition!r} needs the whole graph, and parts of it are on other hosts",
            "give the cluster of each node: Clusters(num_clusters, clusters_per_batch, partition=array)",
        )
    from gnnkit.storage.partition import assign_parts  # kernels of partitioners

    options = BuildOptions(sampling.num_clusters, cast(Any, sampling.partition), sampling.edge_dir)
    (clusters,) = assign_parts(schema, graph.arrays, options, events, graph.splits, _Columns(graph)).values()
    return replace(sampling, partition=None, clusters=clusters)


# Epochs of batches that are only counted: those of training stay below.
_COUNTED_EPOCHS = 1 << 32
# What stands for a count of 0, and the largest norm of an edge, as in the authors' program.
_LEAST_NORM, _MOST_NORM = 0.1, 1e4
_NODE_NORM: Final = NodeKey(HOMOGENEOUS_NODE_TYPE, "node_norm")
_EDGE_NORM: Final = EdgeKey(HOMOGENEOUS_EDGE_TYPE, "edge_norm")
_N_ID: Final = NodeKey(HOMOGENEOUS_NODE_TYPE, "n_id")
_E_ID: Final = EdgeKey(HOMOGENEOUS_EDGE_TYPE, "e_id")
_EDGE_INDEX: Final = EdgeKey(HOMOGENEOUS_EDGE_TYPE, "edge_index")


def checked_saint(sampling: SaintSampling, graph: GraphHandle, events: EventSink) -> SaintSampling:
    """Looks whether the graph has what roots are drawn by and what norms are counted by.

    Raises:
        PlanError: It has not.
    """
    schema, edges = graph.arrays.schema, graph.arrays.edges[HOMOGENEOUS_EDGE_TYPE]
    if sampling.roots == "nodes" and not graph.arrays.has_structure:
        raise PlanError("Saint('nodes') draws by the degrees of all nodes, and some are on other hosts", "Saint('walks') draws evenly")
    if not sampling.sample_coverage:
        return sampling
    if not sampling.with_edge or any(part.edge_id is None for part in edges):
        raise PlanError(f"sample_coverage={sampling.sample_coverage} counts edges by their ids, and batches have none", "with_edge=True")
    names = [*schema.node_types[HOMOGENEOUS_NODE_TYPE].arrays, *schema.edge_types[HOMOGENEOUS_EDGE_TYPE].arrays]
    if taken := [key.name for key in (_NODE_NORM, _EDGE_NORM) if key.name in names]:
        raise PlanError(f"the graph has an array {taken[0]!r}, which batches of Saint have of their own", "rename it")
    return sampling


@dataclass(frozen=True)
class SaintNorms:
    """Counts of the batches, sampled before the first epoch, that hold each node and each edge; gives a batch its norms.

    Attributes:
        nodes: float64 ``[num_nodes]``.
        edges: float64 ``[num_edges]``.
        batches: How many there were.
    """

    nodes: NDArray[np.float64]
    edges: NDArray[np.float64]
    batches: int

    @classmethod
    def counted(cls, plan: LoaderPlan, stream: BatchStream, schema: GraphSchema, events: EventSink) -> SaintNorms | None:
        """Samples batches until nodes are covered as the plan says; None where it asks for no norms.

        Args:
            plan: The plan.
            stream: Where its batches come from; its epoch does not advance.
            schema: The graph's schema.
            events: Receives the stage "norms".

        Raises:
            PlanError: Batches have no nodes.
        """
        sampling, num_nodes = plan.sampling, schema.num_nodes
        if not isinstance(sampling, SaintSampling) or not sampling.sample_coverage:
            return None
        nodes, edges, total, number = np.zeros(num_nodes), np.zeros(schema.num_edges), num_nodes * sampling.sample_coverage, 0
        per_epoch = stream.batches.schedule().num_batches
        with Stage(events, "norms", total=float(total), unit="nodes") as stage:
            while stage.done < total:
                contents = contents_of(stream.sample_now(_COUNTED_EPOCHS + number // per_epoch, number % per_epoch))
                n_id, e_id = (contents.arrays[key].numpy() for key in (_N_ID, _E_ID))
                nodes[n_id], edges[e_id], number = nodes[n_id] + 1, edges[e_id] + 1, number + 1
                stage.advance(len(n_id))
                if not stage.done and number == per_epoch:
                    raise PlanError("sample_coverage asks for norms, and an epoch of batches has no node", "see roots of Saint(...)")
        return cls(nodes, edges, number)

    def added(self, contents: BatchContents) -> BatchContents:
        """A batch with its norms."""
        import torch

        n_id, e_id, edge_index = (contents.arrays[key].cpu().numpy() for key in (_N_ID, _E_ID, _EDGE_INDEX))
        of_node, of_edge = self.nodes[n_id], self.edges[e_id]
        of_target = of_node[edge_index[1]]
        node_norm = self.batches / np.where(of_node > 0, of_node, _LEAST_NORM) / len(self.nodes)
        edge_norm = np.minimum(of_target / np.where(of_edge > 0, of_edge, _LEAST_NORM / _MOST_NORM), _MOST_NORM)
        edge_norm[(of_target == 0) & (of_edge == 0)] = _LEAST_NORM
        arrays = dict(contents.arrays)
        arrays[_NODE_NORM], arrays[_EDGE_NORM] = (torch.from_numpy(norm.astype(np.float32)) for norm in (node_norm, edge_norm))
        return contents._replace(arrays=arrays)
