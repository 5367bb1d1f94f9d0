"""The links that a script gives a ``DistLinkNeighborLoader``, in graphlearn-torch's record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.distributed.label_edges import DEFAULT_HOMOGENEOUS_EDGE_TYPE
from gnnkit.distributed.loader_plan import stored
from gnnkit.distributed.seed_nodes import shard_nodes_by_process
from gnnkit.distributed.server_inputs import check_servers
from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.link_arrays import to_rows
from gnnkit.loader.link_words import LinkOptions, resolve_input_links
from gnnkit.runtime.link_inputs import edges_of_part
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, EdgeType
from gnnkit.vendor import glt

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.remote_dataset import RemoteDistDataset
    from gnnkit.distributed.runtime_info import DistributedRuntimeInfo
    from gnnkit.plan import InputLinks, Sampling
    from gnnkit.runtime.graph_handle import GraphHandle

    class EdgeSamplerInput:
        """What is used of it."""

        row: torch.Tensor
        col: torch.Tensor

        def __init__(self, row: torch.Tensor, col: torch.Tensor, label: Any, input_type: EdgeType | None, neg_sampling: Any) -> None: ...

else:
    EdgeSamplerInput = glt.attribute("sampler.EdgeSamplerInput", "DistLinkNeighborLoader")

_WAY = "servers that are left out have none"


class LinkSamplerInput(EdgeSamplerInput):
    """Graphlearn-torch's record of links, with what else is said about them.

    Args:
        links: Integers ``[2, n]``, sources and targets.
        input_type: Their type; None for a homogeneous graph.
        options: What else is said about them.
        link_type: Their type in the store.

    Attributes:
        link_type: See above.
    """

    def __init__(self, links: torch.Tensor, input_type: EdgeType | None, options: LinkOptions, link_type: EdgeType) -> None:
        super().__init__(links[0], links[1], options.edge_label, input_type, options.neg_sampling)
        self.options, self.link_type = options, link_type

    def links(self, sampling: Sampling, graph: GraphHandle) -> InputLinks:
        """The plan's inputs.

        Raises:
            PlanError: As ``resolve_input_links``.
        """
        import torch

        return resolve_input_links((self.link_type, torch.stack([self.row, self.col])), self.options, sampling, graph)


def local_links(
    dataset: DistDataset, edge_label_index: Any, options: LinkOptions, runtime: DistributedRuntimeInfo
) -> tuple[LinkSamplerInput, bool]:
    """This process's links.

    Args:
        dataset: A dataset of a store.
        edge_label_index: ``[2, n]`` of this process's own, or ``(edge type, these)``; an edge type or, where there is only one, None for
            the edges of the dataset's part, dealt to the processes of this host.
        options: What else is said about them.
        runtime: Where this process stands.

    Returns:
        The record, and whether batches are plain although the graph is stored typed, because of its labels.

    Raises:
        PlanError: ``edge_label_index`` is of a kind that does not fit the graph, or labels are given for edges that are not.
    """
    import torch

    edge_type, links, plain = _type_of(edge_label_index, dataset.get_edge_types(), dataset.schema.is_homogeneous_with_labeled_edge_type)
    _refuse_servers(links)
    link_type = edge_type or HOMOGENEOUS_EDGE_TYPE
    if links is not None:
        return LinkSamplerInput(_to_pairs(links), edge_type, options, link_type), plain
    if options.edge_label is not None:
        raise PlanError(
            "edge_label is given, and the edges that it is about are not", "give edge_label_index [2, n], a label for each column"
        )
    arrays, part = stored(dataset).arrays(), dataset.partition_idx
    found, ids = edges_of_part(arrays, link_type, part), arrays.edges[link_type][part].edge_id
    own = torch.from_numpy(np.ascontiguousarray(found if ids is None else found[:, np.argsort(ids)], np.int64))
    return LinkSamplerInput(
        shard_nodes_by_process(own.T, runtime.local_rank, runtime.local_world_size).T, edge_type, options, link_type
    ), plain


def server_links(dataset: RemoteDistDataset, edge_label_index: Any, options: Mapping[str, Any]) -> tuple[list[LinkSamplerInput], bool]:
    """This process's links, a record for each server.

    Args:
        dataset: The servers' graph.
        edge_label_index: ``{server: [2, n]}``, or ``(edge type, these)``; servers that are left out have none.
        options: Of ``LinkOptions``; labels by server, too.

    Raises:
        PlanError: See ``local_links``; or a server does not exist.
    """
    import torch

    labelled, types = dataset.schema.is_homogeneous_with_labeled_edge_type, dataset.fetch_edge_types()
    edge_type, by_server, plain = _type_of(edge_label_index, types, labelled)
    count, labels, records = dataset.cluster_info.num_storage_nodes, options.get("edge_label"), []
    for what, given in (("edge_label_index", by_server), *([] if labels is None else [("edge_label", labels)])):
        check_servers(given, count, _WAY, what)
    drawn = LinkOptions(**{**options, "edge_label": None}).negatives()
    if labels is not None and drawn is not None and drawn.mode == "binary":
        labels = _raised_alike(labels)
    for server in range(count):
        links = _to_pairs(by_server[server]) if server in by_server else torch.empty((2, 0), dtype=torch.int64)
        own = options if labels is None else {**options, "edge_label": labels.get(server, torch.empty(0)) if links.numel() else None}
        records.append(LinkSamplerInput(links, edge_type, LinkOptions(**own), edge_type or HOMOGENEOUS_EDGE_TYPE))
    return records, plain


def _raised_alike(labels: Mapping[int, Any]) -> dict[int, torch.Tensor]:
    """Labels by server, which makes its own one higher where they start from 0: there, those of the others have to be so, too."""
    import torch

    rows = {server: torch.from_numpy(to_rows(own, "edge_label", len(own))) for server, own in labels.items()}
    if all(not len(own) or own.min() != 0 for own in rows.values()):
        return rows
    return {
        server: own if not len(own) or own.min() <= 0 else (own.long() if own.dtype == torch.bool else own) + 1
        for server, own in rows.items()
    }


def _type_of(given: Any, types: Any, labelled: bool) -> tuple[EdgeType | None, Any, bool]:
    """The links' type, None for a homogeneous graph; the links; and whether batches are plain."""
    if isinstance(given, tuple) and len(given) == 3 and all(isinstance(word, str) for word in given):
        given = (given, None)
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], tuple):
        edge_type, links = given
        if types is None:
            raise PlanError(f"edge_label_index names the edge type {edge_type!r}, and the graph is homogeneous", "give the links alone")
        if edge_type not in types:
            known = [str(found) for found in types]
            raise PlanError(
                f"edge_label_index names the unknown edge type {edge_type!r}{near_matches(str(edge_type), known)}", f"known: {known}"
            )
        return edge_type, links, False
    if labelled:
        return DEFAULT_HOMOGENEOUS_EDGE_TYPE, given, True
    if types is not None:
        kind = "None" if given is None else f"a {type(given).__name__}"
        raise PlanError(f"edge_label_index is {kind}, and the graph is typed", f"give (edge type, links), with a type of {list(types)}")
    return None, given, False


def _refuse_servers(links: Any) -> None:
    if isinstance(links, Mapping):
        raise PlanError("edge_label_index is a dict", "links by server belong to the graph-store mode, with a RemoteDistDataset")


def _to_pairs(links: Any) -> torch.Tensor:
    import torch

    try:
        found = torch.as_tensor(links)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(f"edge_label_index must be links, got a {type(links).__name__}", "give a tensor [2, n]") from error
    if found.ndim != 2 or len(found) != 2:
        raise PlanError(f"edge_label_index must be [2, n], sources and targets, got shape {list(found.shape)}")
    return found
