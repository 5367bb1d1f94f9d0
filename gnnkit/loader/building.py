"""The PyG object of a sampled batch, with what only the loader knows, and the labels of anchors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gnnkit.loader.padding import padded, real_counts
from gnnkit.plan import LABEL_COUNTS, LABEL_KINDS, LABEL_NODES, AnchorLabels, InputAnchors, LabelOutput, LoaderPlan, label_name
from gnnkit.runtime.buffers import BlockPool
from gnnkit.sampling.collate import BatchContents, Dequantizer, collate, contents_of, quantizations_of, with_edge_index
from gnnkit.sampling.subgraph import NodeKey, SampledSubgraph
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.layout import FEATURE_NAME

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LabelReader:
    """Gives the batches of a loader ``y_positive`` and, where there are negatives, ``y_negative``.

    Attributes:
        node_type: The anchors' type.
        labels: The labels, by supervised edge type.
        output: "dict": ``{number of an anchor: int64 [k], numbers of its labels}``, for every anchor; "edge_index": int64 ``[2, e]``,
            numbers of anchors and of their labels, anchor after anchor. With several supervised types, a dict of these by edge type.
    """

    node_type: NodeType
    labels: tuple[AnchorLabels, ...]
    output: LabelOutput

    @classmethod
    def of(cls, inputs: Any) -> LabelReader | None:
        """The reader for a plan's inputs; None where they are no anchors."""
        return cls(inputs.node_type, inputs.labels, inputs.output) if isinstance(inputs, InputAnchors) else None

    def take(self, contents: BatchContents) -> tuple[BatchContents, dict[str, Any]]:
        """A batch's contents without the arrays of labels, and the attributes that are made of these."""
        arrays, found = dict(contents.arrays), {}
        for kind in LABEL_KINDS:
            by_type = {}
            for number, labels in enumerate(self.labels):
                if labels.source(kind) is not None:
                    name = label_name(number, kind)
                    counts, nodes = (arrays.pop(NodeKey(self.node_type, name + part)) for part in (LABEL_COUNTS, LABEL_NODES))
                    by_type[labels.edge_type] = self._shown(counts, nodes)
            if by_type:
                found[f"y_{kind}"] = by_type if len(self.labels) > 1 else next(iter(by_type.values()))
        return replace(contents, arrays=arrays), found

    def _shown(self, counts: torch.Tensor, nodes: torch.Tensor) -> dict[int, torch.Tensor] | torch.Tensor:
        import torch

        if self.output == "dict":
            return dict(enumerate(torch.split(nodes, counts.tolist())))
        return torch.stack([torch.repeat_interleave(counts), nodes])


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

    @cached_property
    def pool(self) -> BlockPool:
        """Memory for padded batches."""
        return BlockPool(_BLOCKS_KEPT, pinned_for=self.plan.runtime.pin_device)

    def contents(self, subgraph: SampledSubgraph) -> BatchContents:
        """The batch's contents; with a seed mask where batches may be repeats that only pad an epoch."""
        batching = self.plan.batching
        if batching.world_size == 1 or batching.remainder != "pad":
            return contents_of(subgraph)
        import torch

        return contents_of(subgraph, torch.full((subgraph.layout.num_seeds,), not subgraph.is_padding))

    def __call__(self, subgraph: SampledSubgraph) -> Any:
        """``Data`` or ``HeteroData``."""
        contents, extra, type_extra = self.contents(subgraph), self.extra, self.type_extra
        reader = LabelReader.of(self.plan.inputs)
        if reader is not None:
            contents, labels = reader.take(contents)
            extra = {**extra, **labels}
        if self.dequantizer is not None:
            contents = self.dequantizer(contents)
        if shapes := self.plan.form.shapes:
            contents, extent, subgraph.padding, subgraph.is_oversized = padded(contents, shapes, self.pool)
            real = real_counts(extent)
            if self.schema.is_homogeneous:
                extra = {**extra, **{name: value for values in real.values() for name, value in values.items()}}
            else:
                type_extra = {**type_extra, **{owner: {**type_extra.get(owner, {}), **values} for owner, values in real.items()}}
        if self.plan.form.is_edge_index:
            contents = with_edge_index(contents)
        return collate(contents, extra, type_extra, homogeneous=self.schema.is_homogeneous)
