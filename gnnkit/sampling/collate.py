"""From a sampled batch to the PyG object that the user sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gnnkit.sampling.subgraph import Field, SampledSubgraph
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, GraphSchema

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data, HeteroData


def to_tensor(subgraph: SampledSubgraph, field: Field) -> torch.Tensor:
    """One array of a batch as a tensor on the batch's own memory."""
    import torch

    tensor = torch.from_numpy(subgraph.array(field))
    return tensor.view(torch.bfloat16) if field.dtype == "bfloat16" else tensor


def collate(
    subgraph: SampledSubgraph, schema: GraphSchema, extra: Mapping[str, Any], type_extra: Mapping[Any, Mapping[str, Any]]
) -> Data | HeteroData:
    """Builds what PyG's ``NeighborLoader`` would give.

    Args:
        subgraph: The sampled batch.
        schema: The graph's schema.
        extra: Attributes of the whole graph that every batch carries.
        type_extra: Attributes of a whole node type or edge type that every batch carries, by type.

    Returns:
        ``Data`` for a homogeneous graph, otherwise ``HeteroData``; ``docs/batches.md`` lists the attributes.
    """
    return _collate_homogeneous(subgraph, extra) if schema.is_homogeneous else _collate_typed(subgraph, schema, extra, type_extra)


def _collate_homogeneous(subgraph: SampledSubgraph, extra: Mapping[str, Any]) -> Data:
    from torch_geometric.data import Data

    layout = subgraph.layout
    data = Data()
    for name, value in extra.items():
        data[name] = value
    for field in layout.fields:
        data[field.key.name] = to_tensor(subgraph, field)
    if "x" not in data:
        data.num_nodes = layout.num_nodes
    data.batch_size = layout.num_seeds
    data.num_sampled_nodes = layout.num_sampled_nodes[HOMOGENEOUS_NODE_TYPE]
    data.num_sampled_edges = layout.num_sampled_edges[HOMOGENEOUS_EDGE_TYPE]
    return data


def _collate_typed(
    subgraph: SampledSubgraph, schema: GraphSchema, extra: Mapping[str, Any], type_extra: Mapping[Any, Mapping[str, Any]]
) -> HeteroData:
    from torch_geometric.data import HeteroData

    layout = subgraph.layout
    data = HeteroData()
    for name, value in extra.items():
        data[name] = value
    for owner, values in type_extra.items():
        for name, value in values.items():
            data[owner][name] = value
    for field in layout.fields:
        data[field.key.type][field.key.name] = to_tensor(subgraph, field)
    for node_type, counts in layout.num_sampled_nodes.items():
        data[node_type].num_sampled_nodes = counts
        if "x" not in schema.node_types[node_type].arrays:
            data[node_type].num_nodes = sum(counts)
    for edge_type, counts in layout.num_sampled_edges.items():
        data[edge_type].num_sampled_edges = counts
    data[layout.input_type].batch_size = layout.num_seeds
    return data
