"""``RemoteDistDataset``: a graph that servers hold, as their trainers see it."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import torch

from gnnkit.bounds import is_whole
from gnnkit.distributed import dist_server, graph_client, process_group
from gnnkit.distributed.resolve import GraphStoreInfo
from gnnkit.distributed.server_values import (
    ABLPInputNodes,
    FetchABLPInputRequest,
    FetchNodesRequest,
    ServerSlice,
    compute_server_assignments,
)
from gnnkit.distributed.store_views import AnyBook, DatasetSchema, FeatureInfo, Quantizations
from gnnkit.errors import PlanError
from gnnkit.schema import EdgeDir, EdgeType, NodeType


class RemoteDistDataset:
    """Has no data: every ``fetch_...`` asks the servers that this process has joined, server 0 where all know the same.

    A homogeneous graph with labels is stored typed; its only node type and its only message-passing type need not be named.

    Args:
        cluster_info: How many servers and trainers there are.
        local_rank: This trainer among those of its host.

    Attributes:
        cluster_info: See above.
        local_rank: See above.

    Raises:
        PlanError: There is no such local rank.
    """

    def __init__(self, cluster_info: GraphStoreInfo, local_rank: int) -> None:
        most = cluster_info.num_processes_per_compute
        if not is_whole(local_rank, 0, most - 1):
            raise PlanError(f"there is no local_rank {local_rank!r}: each host has {most} trainers", f"local ranks go from 0 to {most - 1}")
        self.cluster_info, self.local_rank = cluster_info, local_rank

    @classmethod
    def joined(cls) -> RemoteDistDataset:
        """The graph of the servers that this process has joined.

        Raises:
            PlanError: It has joined none.
        """
        current = graph_client.get_context()
        if current is None or not current.is_client():
            raise PlanError(
                "data is None, which means the servers that this process has joined, and it has joined none",
                "call init_client() or gnnkit.distributed.initialize() first, or give a DistDataset or a RemoteDistDataset",
            )
        return cls(GraphStoreInfo(current.num_servers(), current.num_clients()), 0)

    # What all servers know ----------------------------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> DatasetSchema:
        """Types, features and direction; asked for once."""
        found: DatasetSchema = dist_server.request_server(0, "get_dataset_schema")
        return found

    def fetch_node_feature_info(self) -> FeatureInfo | dict[NodeType, FeatureInfo] | None:
        """Features of the nodes; see ``DatasetSchema``."""
        return self.schema.node_feature_info

    def fetch_edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Features of the edges; see ``DatasetSchema``."""
        return self.schema.edge_feature_info

    def fetch_node_quantization(self) -> Quantizations[NodeType] | None:
        """Returns the scales and offsets of the nodes' quantised arrays; see ``DatasetSchema``."""
        return self.schema.node_quantization

    def fetch_edge_quantization(self) -> Quantizations[EdgeType] | None:
        """Returns the scales and offsets of the edges' quantised arrays; see ``DatasetSchema``."""
        return self.schema.edge_quantization

    def fetch_edge_dir(self) -> EdgeDir:
        """The direction in which the graph is compressed and sampled."""
        return self.schema.edge_dir

    def fetch_node_types(self) -> list[NodeType] | None:
        """Node types; None for a homogeneous graph."""
        found: list[NodeType] | None = dist_server.request_server(0, "get_node_types")
        return found

    def fetch_edge_types(self) -> list[EdgeType] | None:
        """Edge types; None for a homogeneous graph."""
        return self.schema.edge_types

    def fetch_edge_weights_registered(self) -> bool:
        """Whether neighbours can be drawn in proportion to weights."""
        return bool(dist_server.request_server(0, "get_edge_weights_registered"))

    def fetch_node_partition_book(self, node_type: NodeType | None = None) -> AnyBook:
        """Which part owns which node: a range book, or a tensor with each id's part.

        Raises:
            PlanError: The type is unknown, given for a homogeneous graph, or missing for a typed one.
        """
        book: AnyBook = dist_server.request_server(0, "get_node_partition_book", self._node_type(node_type))
        return book

    def fetch_edge_partition_book(self, edge_type: EdgeType | None = None) -> AnyBook:
        """Which part owns which edge; errors as ``fetch_node_partition_book``."""
        book: AnyBook = dist_server.request_server(0, "get_edge_partition_book", edge_type or self.schema.default_edge_type)
        return book

    # What each server has -----------------------------------------------------------------------------------------------------

    def fetch_node_ids(
        self, rank: int | None = None, world_size: int | None = None, split: str | None = None, node_type: NodeType | None = None
    ) -> dict[int, torch.Tensor]:
        """Ids of nodes by the server that has them.

        Args:
            rank: This trainer, for its contiguous share; see ``compute_server_assignments``. None fetches all of them.
            world_size: Number of trainers; goes with ``rank``.
            split: "train", "val", "test", or None for all nodes.
            node_type: Their type.

        Returns:
            int64 ``[k]`` for every server, empty for those of which the trainer gets nothing.

        Raises:
            PlanError: Only one of ``rank`` and ``world_size`` is given, or the split or the type is unknown.
        """
        owner = self._node_type(node_type)
        slices = self._slices(rank, world_size)
        found = _ask_all("get_node_ids", {s: FetchNodesRequest(split, owner, part) for s, part in slices.items()})
        nothing = torch.empty(0, dtype=torch.int64)
        return {server: found.get(server, nothing) for server in range(self.cluster_info.num_storage_nodes)}

    def fetch_split(self, server: int, split: str, node_type: NodeType | None = None) -> torch.Tensor:
        """int64 ``[k]``: one server's nodes of a split; see ``fetch_node_ids``."""
        ids: torch.Tensor = dist_server.request_server(server, "get_node_ids", FetchNodesRequest(split, self._node_type(node_type)))
        return ids

    def fetch_ids_in_file(self, server: int, path: str | os.PathLike[str]) -> torch.Tensor:
        """int64 ``[k]``: the ids in a file of one server's host; see ``DistServer.get_ids_in_file``."""
        ids: torch.Tensor = dist_server.request_server(server, "get_ids_in_file", os.fspath(path))
        return ids

    def fetch_ablp_input(
        self,
        split: str,
        rank: int | None = None,
        world_size: int | None = None,
        anchor_node_type: NodeType | None = None,
        supervision_edge_type: EdgeType | None = None,
        *,
        max_labels_per_anchor_node: int | None = None,
    ) -> dict[int, ABLPInputNodes]:
        """Anchors and their labels by the server that has them; see ``DistServer.get_ablp_input``.

        Args:
            split: "train", "val" or "test".
            rank: See ``fetch_node_ids``.
            world_size: See ``fetch_node_ids``.
            anchor_node_type: The anchors' type; goes with ``supervision_edge_type``.
            supervision_edge_type: The supervised type, as it leads away from the anchors.
            max_labels_per_anchor_node: Labels per anchor, at most.

        Raises:
            PlanError: Only one of two arguments that go together is given, or a split or type is unknown.
        """
        if (anchor_node_type is None) != (supervision_edge_type is None):
            raise PlanError(
                f"anchor_node_type={anchor_node_type!r} and supervision_edge_type={supervision_edge_type!r} go together", "give both"
            )
        anchor, supervised = self._node_type(anchor_node_type), supervision_edge_type or self.schema.default_edge_type
        if anchor is None or supervised is None:
            raise PlanError("anchor_node_type and supervision_edge_type are missing", f"edge types: {self.schema.edge_types}")
        slices = self._slices(rank, world_size)
        wanted = {s: FetchABLPInputRequest(split, anchor, supervised, part, max_labels_per_anchor_node) for s, part in slices.items()}
        found = _ask_all("get_ablp_input", wanted)
        has_negatives = any(negative is not None for _, _, negative in found.values())
        rows = torch.empty((0, 0), dtype=torch.int64)
        nothing = (rows.new_empty(0), rows, rows if has_negatives else None)
        answers = {server: found.get(server, nothing) for server in range(self.cluster_info.num_storage_nodes)}
        return {
            server: ABLPInputNodes(anchors, anchor, {supervised: (positive, negative)})
            for server, (anchors, positive, negative) in answers.items()
        }

    def fetch_free_ports_on_storage_cluster(self, num_ports: int) -> list[int]:
        """Free ports of server 0's host, the same on every rank. Nothing of gnnkit needs them.

        Raises:
            PlanError: There is no process group.
        """
        if not process_group.is_initialized():
            raise PlanError("there is no process group of the trainers", "call torch.distributed.init_process_group first")
        import torch.distributed as dist

        ports = dist_server.request_server(0, "get_free_ports", num_ports) if dist.get_rank() == 0 else [0] * num_ports
        dist.broadcast_object_list(ports, src=0)
        return list(ports)

    def __repr__(self) -> str:
        info = self.cluster_info
        return f"RemoteDistDataset({info.num_storage_nodes} servers, {info.compute_cluster_world_size} trainers)"

    def _slices(self, rank: int | None, world_size: int | None) -> dict[int, ServerSlice | None]:
        if (rank is None) != (world_size is None):
            raise PlanError(f"rank={rank!r} and world_size={world_size!r} go together", "give both, or none of them for everything")
        if rank is None or world_size is None:
            return dict.fromkeys(range(self.cluster_info.num_storage_nodes))
        return dict(compute_server_assignments(self.cluster_info.num_storage_nodes, world_size, rank))

    def _node_type(self, node_type: NodeType | None) -> NodeType | None:
        return self.schema.default_node_type if node_type is None else node_type


def _ask_all(method: str, requests: dict[int, Any]) -> dict[int, Any]:
    """Answers by server; all are asked before the first is waited for."""
    futures = {server: dist_server.async_request_server(server, method, request) for server, request in requests.items()}
    return {server: future.wait() for server, future in futures.items()}
