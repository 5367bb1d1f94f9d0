"""From a sampled batch to the PyG object that the user sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnnkit.sampling.subgraph import BatchKey, Field, NodeKey, SampledSubgraph
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data, HeteroData


@dataclass(frozen=True)
class BatchContents:
    """What a batch consists of, wherever it was sampled and however it came.

    Attributes:
        arrays: Tensors by what they are; edge types as the batch shows them.
        num_sampled_nodes: ``{node type: [seeds, new nodes of hop 1, ...]}``, for every node type that the batch shows.
        num_sampled_edges: ``{edge type: [edges of hop 1, ...]}``, likewise.
        input_type: The seeds' node type.
        num_seeds: Seeds in the batch.
        seed_mask: bool ``[num_seeds]``, False where the batch only repeats another; None where no batch of the loader can.
    """

    arrays: Mapping[BatchKey, torch.Tensor]
    num_sampled_nodes: Mapping[NodeType, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]]
    input_type: NodeType
    num_seeds: int
    seed_mask: torch.Tensor | None = None


def to_tensor(subgraph: SampledSubgraph, field: Field) -> torch.Tensor:
    """One array of a batch as a tensor on the batch's own memory."""
    import torch

    tensor = torch.from_numpy(subgraph.array(field))
    return tensor.view(torch.bfloat16) if field.dtype == "bfloat16" else tensor


def contents_of(subgraph: SampledSubgraph, seed_mask: torch.Tensor | None = None) -> BatchContents:
    """A sampled batch's contents, on the batch's own memory.

    Args:
        subgraph: The sampled batch.
        seed_mask: See ``BatchContents``.
    """
    layout = subgraph.layout
    arrays = {field.key: to_tensor(subgraph, field) for field in layout.fields}
    return BatchContents(arrays, layout.num_sampled_nodes, layout.num_sampled_edges, layout.input_type, layout.num_seeds, seed_mask)


def collate(
    contents: BatchContents, extra: Mapping[str, Any], type_extra: Mapping[Any, Mapping[str, Any]], *, homogeneous: bool
) -> Data | HeteroData:
    """Builds what PyG's ``NeighborLoader`` would give.

    Args:
        contents: What the batch consists of.
        extra: Attributes of the whole graph that every batch carries.
        type_extra: Attributes of a whole node type or edge type that every batch carries, by type.
        homogeneous: Whether the batch shows one node type and one edge type.

    Returns:
        ``Data`` for a homogeneous graph, otherwise ``HeteroData``; ``docs/batches.md`` lists the attributes.
    """
    return _collate_homogeneous(contents, extra) if homogeneous else _collate_typed(contents, extra, type_extra)


def _collate_homogeneous(contents: BatchContents, extra: Mapping[str, Any]) -> Data:
    from torch_geometric.data import Data

    data = Data()
    for name, value in extra.items():
        data[name] = value
    for key, tensor in contents.arrays.items():
        data[key.name] = tensor
    counts = contents.num_sampled_nodes[HOMOGENEOUS_NODE_TYPE]
    if "x" not in data:
        data.num_nodes = sum(counts)
    data.batch_size = contents.num_seeds
    data.num_sampled_nodes = counts
    data.num_sampled_edges = contents.num_sampled_edges[HOMOGENEOUS_EDGE_TYPE]
    if contents.seed_mask is not None:
        data.seed_mask = contents.seed_mask
    return data


def _collate_typed(contents: BatchContents, extra: Mapping[str, Any], type_extra: Mapping[Any, Mapping[str, Any]]) -> HeteroData:
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for name, value in extra.items():
        data[name] = value
    for owner, values in type_extra.items():
        for name, value in values.items():
            data[owner][name] = value
    for key, tensor in contents.arrays.items():
        data[key.type][key.name] = tensor
    for node_type, counts in contents.num_sampled_nodes.items():
        data[node_type].num_sampled_nodes = counts
        if NodeKey(node_type, "x") not in contents.arrays:
            data[node_type].num_nodes = sum(counts)
    for edge_type, counts in contents.num_sampled_edges.items():
        data[edge_type].num_sampled_edges = counts
    data[contents.input_type].batch_size = contents.num_seeds
    if contents.seed_mask is not None:
        data[contents.input_type].seed_mask = contents.seed_mask
    return data
