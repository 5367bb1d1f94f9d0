"""Makes the PyG object of a sampled batch, with what only the loader knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnnkit.plan import LoaderPlan
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

    def __call__(self, subgraph: SampledSubgraph) -> Any:
        """``Data`` or ``HeteroData``; with ``seed_mask`` bool ``[batch_size]`` where batches may be repeats that only pad an epoch."""
        from gnnkit.sampling.collate import collate

        data: Any = collate(subgraph, self.schema, self.extra, self.type_extra)
        batching = self.plan.batching
        if batching.world_size > 1 and batching.remainder == "pad":
            import torch

            store = data if self.schema.is_homogeneous else data[self.plan.inputs.node_type]
            store.seed_mask = torch.full((subgraph.layout.num_seeds,), not subgraph.is_padding)
        return data
