"""The labels of a batch's anchors, from the arrays that carry them to what the user sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gnnkit.plan import LABEL_COUNTS, LABEL_KINDS, LABEL_NODES, AnchorLabels, InputAnchors, LabelOutput, label_name
from gnnkit.sampling.collate import BatchContents
from gnnkit.sampling.subgraph import NodeKey
from gnnkit.schema import NodeType

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
