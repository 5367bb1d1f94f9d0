"""Makes the PyG object of a sampled batch, with what only the loader knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gnnkit.loader.anchor_labels import LabelReader
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.buffers import BlockPool
from gnnkit.sampling.collate import BatchContents, Dequantizer, collate, contents_of, quantizations_of
from gnnkit.sampling.subgraph import NodeKey, SampledSubgraph
from gnnkit.schema import GraphSchema
from gnnkit.storage.layout import FEATURE_NAME

# Memory for the batch that the user has and for the next one.
_BLOCKS_KEPT = 2


@dataclass(frozen=True)
class BatchBuilder:
    """Collates batches of one loader.

    Attributes:
        schema: The graph's schema.
        plan: The plan of its stream.
        extra: Attributes of the whole graph that every batch carries.
        type_extra: Attributes of a whole node type or edge type that every batch carries, by type.
    """

    schema: GraphSchema
    plan: LoaderPlan
    extra: Mapping[str, Any]
    type_extra: Mapping[Any, Mapping[str, Any]]

    def __post_init__(self) -> None:
        _ = self.dequantizer  # what it needs is loaded before the first batch

    @cached_property
    def dequantizer(self) -> Dequantizer | None:
        """Shows what batches carry in 8 bits; None where there is nothing."""
        on_device = {NodeKey(node_type, FEATURE_NAME) for node_type in self.plan.cached}  # completed there, see FeatureCache
        every = quantizations_of(self.schema, self.plan.sampling.edge_dir)
        found = {key: quantization for key, quantization in every.items() if key not in on_device}
        pool = BlockPool(_BLOCKS_KEPT * len(found), pinned_for=self.plan.runtime.pin_device)
        return Dequantizer(found, pool.lease) if found else None

    def contents(self, subgraph: SampledSubgraph) -> BatchContents:
        """The batch's contents; with a seed mask where batches may be repeats that only pad an epoch."""
        batching = self.plan.batching
        if batching.world_size == 1 or batching.remainder != "pad":
            return contents_of(subgraph)
        import torch

        return contents_of(subgraph, torch.full((subgraph.layout.num_seeds,), not subgraph.is_padding))

    def __call__(self, subgraph: SampledSubgraph) -> Any:
        """``Data`` or ``HeteroData``."""
        contents, extra = self.contents(subgraph), self.extra
        reader = LabelReader.of(self.plan.inputs)
        if reader is not None:
            contents, labels = reader.take(contents)
            extra = {**extra, **labels}
        return collate(contents, extra, self.type_extra, homogeneous=self.schema.is_homogeneous, dequantize=self.dequantizer)
