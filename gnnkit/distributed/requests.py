"""Records of what a trainer asks servers for, with the fields of GiGL's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnnkit.distributed.sharding import ServerSlice
from gnnkit.schema import EdgeType, NodeType

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FetchNodesRequest:
    """Asks a server for ids of its nodes.

    Attributes:
        split: "train", "val", "test", or None for all nodes.
        node_type: Their type; None for a homogeneous graph.
        server_slice: The fraction that is wanted; None is all.
    """

    split: str | None = None
    node_type: NodeType | None = None
    server_slice: ServerSlice | None = None


@dataclass(frozen=True)
class FetchABLPInputRequest:
    """Asks a server for anchors and their labels.

    Attributes:
        split: "train", "val" or "test".
        node_type: The anchors' type.
        supervision_edge_type: The type that is supervised, as it leads away from the anchors.
        server_slice: The fraction of the anchors that is wanted; None is all.
        max_labels_per_anchor_node: Labels per anchor, at most; None is all.
    """

    split: str
    node_type: NodeType
    supervision_edge_type: EdgeType
    server_slice: ServerSlice | None = None
    max_labels_per_anchor_node: int | None = None


@dataclass(frozen=True)
class InitSamplingBackendRequest:
    """Asks a server for a sampling backend.

    Attributes:
        backend_key: Its name: whoever asks for the same gets the same.
        worker_options: ``RemoteDistSamplingWorkerOptions``; the server's workers are there already.
        sampler_options: ``KHopNeighborSamplerOptions``, ``PPRSamplerOptions``, or None.
        sampling_config: ``SamplingConfig``, the same for everybody who uses the name.
    """

    backend_key: str
    worker_options: Any
    sampler_options: Any
    sampling_config: Any


@dataclass(frozen=True)
class RegisterBackendRequest:
    """Registers an input with a sampling backend.

    Attributes:
        backend_id: What ``init_sampling_backend`` gave.
        worker_key: The input's name: trainers that register the same one divide its batches among themselves.
        sampler_input: ``NodeSamplerInput``.
        sampling_config: The backend's.
        buffer_capacity: Batches that are sampled ahead, at most.
        buffer_size: Taken and not used: batches take the memory that they take.
    """

    backend_id: int
    worker_key: str
    sampler_input: Any
    sampling_config: Any
    buffer_capacity: int
    buffer_size: int | str | None = None


@dataclass(frozen=True)
class ABLPInputNodes:
    """Anchors and their labels.

    Attributes:
        anchor_nodes: int64 ``[n]``.
        anchor_node_type: Their type.
        labels: By supervised edge type: positive labels int64 ``[n, m]`` and negative ones ``[n, k]`` or None, filled up with -1.
    """

    anchor_nodes: torch.Tensor
    anchor_node_type: NodeType
    labels: Mapping[EdgeType, tuple[torch.Tensor, torch.Tensor | None]]
