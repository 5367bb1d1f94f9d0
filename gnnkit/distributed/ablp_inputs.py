"""The anchors and labels that a script gives a ``DistABLPLoader``: found in the dataset, or with the anchors by server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.distributed.label_edges import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gnnkit.distributed.loader_plan import stored
from gnnkit.distributed.requests import ABLPInputNodes
from gnnkit.distributed.seed_nodes import resolve_seeds, to_seeds
from gnnkit.distributed.server_inputs import check_servers
from gnnkit.errors import PlanError
from gnnkit.loader.anchor_words import label_type
from gnnkit.plan import AnchorLabels, InputAnchors, InputNodes, LabelLists, LabelOutput
from gnnkit.schema import EdgeType, NodeType, opposite_edge_type
from gnnkit.vendor import glt

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.remote_dataset import RemoteDistDataset
    from gnnkit.distributed.runtime_info import DistributedRuntimeInfo

    class NodeSamplerInput:
        """What is used of it."""

        def __init__(self, node: torch.Tensor, input_type: NodeType) -> None:
            self.node, self.input_type = node, input_type

else:
    NodeSamplerInput = glt.attribute("sampler.NodeSamplerInput", "DistABLPLoader")

_WAY = "dataset.fetch_ablp_input(split, rank, world_size) gives anchors by server"


class AnchorSamplerInput(NodeSamplerInput):
    """Graphlearn-torch's record of seeds, with their labels.

    Args:
        node: int64 ``[n]``, the anchors.
        input_type: Their type.
        labels: Their labels, by supervised type.
        cap: See ``InputAnchors``.
        output: See ``InputAnchors``.
    """

    def __init__(
        self, node: torch.Tensor, input_type: NodeType, labels: tuple[AnchorLabels, ...], cap: int | None, output: LabelOutput
    ) -> None:
        super().__init__(node, input_type)
        self.labels, self.cap, self.output = labels, cap, output

    def anchors(self, nodes: InputNodes) -> InputAnchors:
        """The plan's inputs.

        Args:
            nodes: What ``node`` is in a plan.
        """
        stream = "anchor" + nodes.stream.removeprefix("node")
        return InputAnchors(nodes.node_type, stream, self.labels, nodes.split, nodes.ids, self.cap, self.output)


def local_anchors(
    dataset: DistDataset,
    input_nodes: Any,
    supervision: Any,
    runtime: DistributedRuntimeInfo,
    cap: int | None,
    output: LabelOutput,
) -> tuple[AnchorSamplerInput, bool]:
    """The anchors of a dataset, whose labels are edges of the graph.

    Args:
        dataset: A dataset of a store.
        input_nodes: See ``resolve_seeds``.
        supervision: The supervised edge types, one or several, as they lead from anchors to labels; None for a homogeneous graph with
            labels.
        runtime: Where this process stands.
        cap: See ``InputAnchors``.
        output: See ``InputAnchors``.

    Returns:
        The record, and whether batches are plain although the graph is stored typed.

    Raises:
        PlanError: Something does not fit the graph, or the graph has no labels that fit.
    """
    if dataset.get_edge_types() is None:
        raise PlanError(
            "the dataset is homogeneous and has no label edges", "gnnkit.add_label_edges(data, {...}) makes a graph with labels"
        )
    typed = isinstance(input_nodes, tuple) and len(input_nodes) == 2
    if typed and supervision is None:
        raise PlanError("input_nodes names a node type, and supervision_edge_type is missing", "name the supervised type, or several")
    if not typed and supervision is not None:
        raise PlanError("supervision_edge_type is given, and input_nodes does not name a node type", "give (anchor type, ids)")
    node_type, ids, plain = resolve_seeds(input_nodes, dataset, runtime)
    assert node_type is not None, "the graph is typed"
    store = stored(dataset)
    known, labels = store.schema.edge_types, []
    for edge_type in [DEFAULT_HOMOGENEOUS_EDGE_TYPE] if supervision is None else _types(supervision):
        if edge_type[0] != node_type:
            raise PlanError(
                f"the supervised type {edge_type} does not begin at the anchors, which are {node_type!r} nodes",
                "name it as it leads from anchors to labels, whatever the dataset's edge_dir",
            )
        negative = message_passing_to_negative_label(edge_type)
        has_negatives = negative in known or opposite_edge_type(negative) in known
        positive = label_type(message_passing_to_positive_label(edge_type), store.schema, store.edge_dir)
        labels.append(AnchorLabels(edge_type, positive, label_type(negative, store.schema, store.edge_dir) if has_negatives else None))
    return AnchorSamplerInput(ids, node_type, tuple(labels), cap, output), plain


def server_anchors(
    dataset: RemoteDistDataset, input_nodes: Any, supervision: Any, cap: int | None, output: LabelOutput
) -> tuple[list[AnchorSamplerInput], bool]:
    """The anchors of servers, whose labels come with them.

    Args:
        dataset: The servers' graph.
        input_nodes: ``{server: ABLPInputNodes}``; servers that are left out have none.
        supervision: None: the supervised types are those of the labels.
        cap: See ``InputAnchors``.
        output: See ``InputAnchors``.

    Returns:
        A record for each server, and whether batches are plain although the graph is stored typed.

    Raises:
        PlanError: The anchors are of another kind, disagree about types, or name a server that does not exist.
    """
    if supervision is not None:
        raise PlanError("supervision_edge_type is given, and the dataset is on servers", "leave it out: the anchors' labels say it")
    if dataset.fetch_edge_types() is None:
        raise PlanError("the servers' graph is homogeneous and has no label edges")
    check_servers(input_nodes, dataset.cluster_info.num_storage_nodes, _WAY)
    for server, given in input_nodes.items():
        if not isinstance(given, ABLPInputNodes):
            raise PlanError(f"the anchors of server {server} are a {type(given).__name__}", f"give ABLPInputNodes; {_WAY}")
    node_type = _agreed("anchors are", [given.anchor_node_type for given in input_nodes.values()])
    supervised = _agreed("labels are of", [tuple(given.labels) for given in input_nodes.values()])
    if not supervised:
        raise PlanError("the anchors have no labels of any type", "ABLPInputNodes.labels must name a supervised edge type")
    for edge_type in supervised:
        if edge_type[0] != node_type:
            raise PlanError(f"the supervised type {edge_type} does not begin at the anchors, which are {node_type!r} nodes")
    # Whether there are negatives is said by the negatives alone, and of all servers together: batches are alike.
    negatives = {t for given in input_nodes.values() for t, (_, negative) in given.labels.items() if negative is not None}
    records = []
    for server in range(dataset.cluster_info.num_storage_nodes):
        given = input_nodes.get(server)
        ids = to_seeds([] if given is None else given.anchor_nodes)
        labels = tuple(_given_labels(edge_type, given, len(ids), edge_type in negatives) for edge_type in supervised)
        records.append(AnchorSamplerInput(ids.long(), node_type, labels, cap, output))
    return records, dataset.schema.is_homogeneous_with_labeled_edge_type


def _given_labels(edge_type: EdgeType, given: ABLPInputNodes | None, count: int, has_negatives: bool) -> AnchorLabels:
    positive, negative = (None, None) if given is None else given.labels[edge_type]
    return AnchorLabels(edge_type, _lists(positive, count, edge_type), _lists(negative, count, edge_type) if has_negatives else None)


def _lists(rows: Any, count: int, edge_type: EdgeType) -> LabelLists:
    """Labels ``[count, m]``, filled up with -1; none for anybody where there are no rows."""
    found: NDArray[Any] = np.empty((count, 0), np.int64) if rows is None else np.asarray(rows.cpu())
    if found.ndim != 2 or len(found) != count or found.dtype.kind not in "iu":
        raise PlanError(f"the labels {edge_type} must be whole numbers [{count}, m], got {found.dtype} of shape {found.shape}")
    return LabelLists.from_rows(found)


def _agreed(what: str, values: Sequence[Any]) -> Any:
    if any(value != values[0] for value in values):
        raise PlanError(f"servers disagree: {what} {sorted(set(map(str, values)))}", "all must be of the same types")
    return values[0]


def _types(supervision: Any) -> list[EdgeType]:
    """One edge type, or a list of some."""
    one = isinstance(supervision, tuple) and len(supervision) == 3 and all(isinstance(part, str) for part in supervision)
    types = [supervision] if one else supervision
    if isinstance(types, (str, Mapping)) or not isinstance(types, (list, tuple)) or not types:
        raise PlanError(f"supervision_edge_type must be an edge type or a list of some, got {supervision!r}")
    if not all(isinstance(t, tuple) and len(t) == 3 for t in types):
        raise PlanError(f"supervision_edge_type holds something that is no edge type: {supervision!r}")
    return list(types)
