"""Makes the PyG object of a sampled batch, with what only the loader knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnnkit.plan import LoaderPlan
from gnnkit.sampling.collate import BatchContents, collate, contents_of
from gnnkit.sampling.subgraph import SampledSubgraph
from gnnkit.schema import GraphSchema


@dataclass(frozen=True)
class BatchBuilder:
    """Collates batches of one loader.

    Attributes:
        schema: The graph's schema.
        plan: The loader's plan.
        extra: Attributes of the whole graph that every batch carries.
        type_extra: Attributes of a whole node type or edge type that every batch carries, by type.
    """

    schema: GraphSchema
    plan: LoaderPlan
    extra: Mapping[str, Any]
    type_extra: Mapping[Any, Mapping[str, Any]]

    def contents(self, subgraph: SampledSubgraph) -> BatchContents:
        """The batch's contents; with a seed mask where batches may be repeats that only pad an epoch."""
        batching = self.plan.batching
        if batching.world_size == 1 or batching.remainder != "pad":
            return contents_of(subgraph)
        import torch

        return contents_of(subgraph, torch.full((subgraph.layout.num_seeds,), not subgraph.is_padding))

    def __call__(self, subgraph: SampledSubgraph) -> Any:
        """``Data`` or ``HeteroData``."""
        return collate(self.contents(subgraph), self.extra, self.type_extra, homogeneous=self.schema.is_homogeneous)
