"""``DistABLPLoader``: anchors with their labels, for link prediction, with the arguments of GiGL's loader."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from gnnkit.callers import warn
from gnnkit.distributed.loader_modes import Mode, RemoteMode
from gnnkit.distributed.neighbor_loader import DistNeighborLoader
from gnnkit.distributed.resolve import DistributedRuntimeInfo
from gnnkit.distributed.sampler_inputs import AnchorSamplerInput, local_anchors, server_anchors
from gnnkit.loader.building import LabelReader
from gnnkit.plan import LabelOutput
from gnnkit.schema import EdgeType, NodeType

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.remote_dataset import RemoteDistDataset
    from gnnkit.distributed.server_values import ABLPInputNodes

Anchors: TypeAlias = Union["torch.Tensor", tuple[NodeType, "torch.Tensor"], Mapping[int, "ABLPInputNodes"]]


class DistABLPLoader(DistNeighborLoader):
    """Samples the neighbourhoods of anchors and of their labels: supervised link prediction as GiGL does it.

    Labels are edges of the graph whose relation ends in ``_gigl_positive`` or ``_gigl_negative``; nobody samples along them, and batches
    do not show them. An anchor's labels are looked up batch by batch: one with many of them makes only its own batch larger. A batch has
    ``y_positive``, and ``y_negative`` where there are negatives: labels by the anchors' numbers in the batch. ``batch`` and ``batch_size``
    are those of the anchors alone, although neighbourhoods are sampled around labels too.

    Args:
        dataset: A dataset of a store, or a ``RemoteDistDataset``, of a graph with labels.
        num_neighbors: See ``DistNeighborLoader``; label edges have no fan-out.
        input_nodes: The anchors: ids ``[n]`` of a homogeneous graph with labels, or ``(anchor type, ids)``; None: the nodes of the
            dataset's part. In the graph-store mode ``{server: ABLPInputNodes}``, see ``RemoteDistDataset.fetch_ablp_input``: the labels
            that come with anchors are the ones that count.
        supervision_edge_type: The type that is supervised, ``(anchor type, relation, label type)``, or a list of some; always as it leads
            from anchors to labels. Only with ``(anchor type, ids)``.
        use_label_edge_index_output: Whether labels come as int64 ``[2, e]`` of anchors and labels, anchor after anchor, instead of
            ``{anchor: labels}``. Several supervised types give a dict of either by edge type.
        max_labels_per_anchor_node: Labels of each kind and anchor, at most: the first ones in the stored order; None is all.
        **options: The other arguments of ``DistNeighborLoader``, by name.

    Raises:
        PlanError: An argument is unusable or does not fit another; nothing was started.
        GnnkitError: As ``Backend.open``.

    Warns:
        FutureWarning: ``use_label_edge_index_output`` is False, as GiGL's loader does; the dict stays available here.
    """

    def __init__(
        self,
        dataset: DistDataset | RemoteDistDataset | None = None,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]] | None = None,
        input_nodes: Anchors | None = None,
        *,
        supervision_edge_type: EdgeType | Sequence[EdgeType] | None = None,
        use_label_edge_index_output: bool = False,
        max_labels_per_anchor_node: int | None = None,
        **options: Any,
    ) -> None:
        if not use_label_edge_index_output:
            warn("labels as a dict are slower than use_label_edge_index_output=True", FutureWarning)
        self._supervision, self._cap = supervision_edge_type, max_labels_per_anchor_node
        self._output: LabelOutput = "edge_index" if use_label_edge_index_output else "dict"
        self._reader: LabelReader | None = None
        super().__init__(dataset, num_neighbors, input_nodes, **options)  # type: ignore[arg-type]  # anchors in place of seeds
        self._make = replace(self._make, labels=self._reader)

    def _seeds(self, mode: Mode, input_nodes: Any, runtime: DistributedRuntimeInfo) -> tuple[Any, bool]:
        if isinstance(mode, RemoteMode):
            by_server, plain = server_anchors(mode.dataset, input_nodes, self._supervision, self._cap, self._output)
            self._reader = _reader(by_server[0])
            return by_server, plain
        anchors, plain = local_anchors(mode.dataset, input_nodes, self._supervision, runtime, self._cap, self._output)
        self._reader = _reader(anchors)
        return anchors, plain


# Readers and tools see the other arguments, too.
_own = inspect.signature(DistABLPLoader.__init__).parameters
_others = [
    p
    for name, p in inspect.signature(DistNeighborLoader.__init__).parameters.items()
    if name not in _own and p.kind is not p.VAR_POSITIONAL
]
DistABLPLoader.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [p for p in [*_own.values()][1:] if p.kind is not p.VAR_KEYWORD] + _others
)


def _reader(anchors: AnchorSamplerInput) -> LabelReader:
    return LabelReader(anchors.input_type, anchors.labels, anchors.output)
