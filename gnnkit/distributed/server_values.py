"""The values that travel to servers and back: requests, shares of a server, and answers as tensors and records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.bounds import is_whole, shown, whole_number
from gnnkit.cluster.serving.store_api import Fraction, fractions
from gnnkit.distributed.loader_options import PPRSamplerOptions
from gnnkit.distributed.sample_message import MessageFormat, SampleMessage
from gnnkit.distributed.store_views import AnyBook, DatasetSchema, range_book
from gnnkit.errors import PlanError
from gnnkit.runtime.remote import layout_from_json
from gnnkit.samplers import PPR
from gnnkit.sampling.collate import contents_of
from gnnkit.sampling.subgraph import SampledSubgraph
from gnnkit.schema import EdgeDir, EdgeType, GraphSchema, NodeType
from gnnkit.storage.arrays import as_tensor


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
        backend_key: Its name: trainers that ask for the same one share it.
        worker_options: ``RemoteDistSamplingWorkerOptions``; the server's workers are there already.
        sampler_options: ``KHopNeighborSamplerOptions``, ``PPRSamplerOptions``, or None.
        sampling_config: ``SamplingConfig``, the same for every trainer that uses the name.
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


@dataclass(frozen=True)
class ServerSlice:
    """A trainer's fraction of what a server has.

    Attributes:
        server_rank: The server.
        start_numerator: The fraction begins at ``start_numerator / denominator``,
        end_numerator: and ends before ``end_numerator / denominator``.
        denominator: Number of trainers.

    Raises:
        PlanError: The numbers are no fraction.
    """

    server_rank: int
    start_numerator: int
    end_numerator: int
    denominator: int

    def __post_init__(self) -> None:
        if self.denominator < 1 or not 0 <= self.start_numerator <= self.end_numerator <= self.denominator:
            raise PlanError(
                f"{self.start_numerator}/{self.denominator} to {self.end_numerator}/{self.denominator} is no fraction of a server",
                "numerators go from 0 to the denominator, which is at least 1",
            )

    def slice_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fraction of a tensor ``[n, ...]``: a view, or the tensor itself where it is all of it."""
        start, end = Fraction(self.server_rank, self.start_numerator, self.end_numerator, self.denominator).bounds(len(tensor))
        return tensor if (start, end) == (0, len(tensor)) else tensor[start:end]


def compute_server_assignments(num_servers: int, num_compute_nodes: int, compute_rank: int) -> dict[int, ServerSlice]:
    """Computes one trainer's share of each server; servers of which it gets nothing are left out.

    Over all trainers every element of every server is assigned exactly once, and each trainer asks at most
    ``ceil(num_servers / num_compute_nodes) + 1`` servers. Fractions are even, numbers are where servers have as many seeds as each other.

    Args:
        num_servers: Servers, at least 1.
        num_compute_nodes: Trainers, at least 1.
        compute_rank: The trainer.

    Raises:
        PlanError: A number is too small, or there is no such trainer.
    """
    num_servers = whole_number("num_servers", num_servers, 1)
    num_compute_nodes = whole_number("num_compute_nodes", num_compute_nodes, 1)
    if not is_whole(compute_rank, 0, num_compute_nodes - 1):
        raise PlanError(
            f"there is no compute_rank {shown(compute_rank)} of {num_compute_nodes}", f"ranks go from 0 to {num_compute_nodes - 1}"
        )
    return {share.piece: ServerSlice(*share) for share in fractions(num_servers, num_compute_nodes, compute_rank)}


_CONFIG_WORDS = ("batch_size", "shuffle", "drop_last", "with_edge", "with_weight", "edge_dir", "seed")


def schema_of(found: Mapping[str, Any]) -> DatasetSchema:
    """Types, features and direction, from a server's description of its graph."""
    return DatasetSchema.from_graph(GraphSchema.from_json(found["schema"]), found["edge_dir"])


def types_of(found: Mapping[str, Any]) -> tuple[list[NodeType] | None, list[EdgeType] | None]:
    """Node types and edge types, from the same; None for a homogeneous graph."""
    graph = GraphSchema.from_json(found["schema"])
    return (None, None) if graph.is_homogeneous else (list(graph.node_types), list(graph.edge_types))


def plain_ids(value: Any) -> NDArray[np.int64]:
    """Ids as an array.

    Raises:
        PlanError: They are no whole numbers.
    """
    ids = torch.as_tensor(value)
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        if ids.numel():
            raise PlanError(f"ids must be whole numbers, got {ids.dtype}")
        ids = ids.long()
    return ids.detach().cpu().long().numpy()


def config_words(config: Any, options: Any = None) -> dict[str, Any]:
    """A ``SamplingConfig`` and sampler options in plain words; without ``PPRSamplerOptions`` it is sampled hop by hop.

    Raises:
        PlanError: It asks for something else than neighbourhoods of nodes.
    """
    if getattr(config.sampling_type, "name", None) != "NODE" or config.with_neg:
        raise PlanError(f"sampling_type is {config.sampling_type}, and only neighbourhoods of nodes are sampled so far")
    fan_outs = config.num_neighbors
    plain = {tuple(t): list(fan) for t, fan in fan_outs.items()} if isinstance(fan_outs, Mapping) else list(fan_outs)
    words = {"num_neighbors": plain, **{word: getattr(config, word) for word in _CONFIG_WORDS}}
    return {**words, "ppr": _ppr_words(options)} if isinstance(options, PPRSamplerOptions) else words


def _ppr_words(options: PPRSamplerOptions) -> dict[str, Any]:
    words, ratios = {field.name: getattr(options, field.name) for field in fields(PPR)}, options.typed_channel_ratios
    pairs = [[list(key) if isinstance(key[0], tuple) else [key], share] for key, share in (ratios or {}).items()]
    return {**words, "typed_channel_ratios": pairs or None}


def cut_of(part: ServerSlice | None) -> list[int] | None:
    """A slice's numerators and denominator."""
    return None if part is None else [part.start_numerator, part.end_numerator, part.denominator]


def tensors_of(found: Any) -> Any:
    """A tuple of arrays as tensors; None stays."""
    return tuple(None if array is None else torch.from_numpy(array) for array in found)


def rows_of(found: Any, *, is_label: bool) -> torch.Tensor:
    """Features, or labels, of which those of a single task lose their second dimension."""
    rows, dtype = found
    tensor = as_tensor(rows, dtype)
    return tensor.reshape(-1) if is_label and tensor.dim() == 2 and tensor.shape[1] == 1 else tensor


def book_of(found: Mapping[str, NDArray[Any]]) -> AnyBook:
    """A partition book."""
    if "parts" in found:
        return torch.from_numpy(found["parts"]).long()
    return range_book(found["bounds"], 0)


def message_of(found: Any) -> tuple[SampleMessage | None, bool]:
    """A message, and whether there is none any more."""
    batch, is_over = found
    if batch is None:
        return None, bool(is_over)
    subgraph = SampledSubgraph(batch["epoch"], 0, False, layout_from_json(batch["layout"]), batch["block"])
    frame = batch["frame"]
    edge_types = None if frame["edge_types"] is None else tuple(map(tuple, frame["edge_types"]))
    node_types = None if frame["node_types"] is None else tuple(frame["node_types"])
    return _format(node_types, edge_types, frame["edge_dir"], frame["input_type"], frame["by_ppr"]).pack(contents_of(subgraph)), False


@lru_cache(maxsize=16)
def _format(
    node_types: tuple[NodeType, ...] | None, edge_types: tuple[EdgeType, ...] | None, edge_dir: EdgeDir, input_type: NodeType, by_ppr: bool
) -> MessageFormat:
    return MessageFormat.of(node_types, edge_types, edge_dir, input_type, by_ppr=by_ppr)
