"""Graphlearn-torch's records with what gnnkit adds: links and anchors that a loader is given, and options of sampling on servers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.distributed.graph_client import get_context
from gnnkit.distributed.graph_types import even_bounds, message_passing_to_negative_label, message_passing_to_positive_label
from gnnkit.distributed.loader_options import check_prefetch, stored
from gnnkit.distributed.seeds import (
    check_servers,
    given_by_server,
    resolve_seeds,
    shard_nodes_by_process,
    to_seeds,
    type_of,
)
from gnnkit.distributed.server_values import ABLPInputNodes
from gnnkit.errors import PlanError
from gnnkit.loader.inputs import LinkOptions, label_type, resolve_input_links, to_rows
from gnnkit.plan import AnchorLabels, InputAnchors, InputNodes, LabelLists, LabelOutput
from gnnkit.runtime.batches import edges_of_part
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, EdgeType, NodeType, opposite_label_types
from gnnkit.vendor import glt

if TYPE_CHECKING:
    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.remote_dataset import RemoteDistDataset
    from gnnkit.distributed.resolve import DistributedRuntimeInfo
    from gnnkit.plan import InputLinks, Sampling
    from gnnkit.runtime.graph_memory import GraphHandle


if TYPE_CHECKING:

    class _RemoteOptions:
        """The part of graphlearn-torch's class that is used here, for type checkers."""

        def __init__(self, *args: Any, **options: Any) -> None: ...

else:
    _RemoteOptions = glt.attribute("distributed.RemoteDistSamplingWorkerOptions", "RemoteDistSamplingWorkerOptions")


class RemoteDistSamplingWorkerOptions(_RemoteOptions):
    """Graphlearn-torch's options for sampling on servers; it is a class of its own, which knows the servers that gnnkit has joined.

    Args:
        server_rank: The server that samples, or several. None takes this client's share of them, as graphlearn-torch deals them: of 4
            servers and 2 clients the first has 0 and 1, of 2 servers and 5 clients the third has 0.
        num_workers: Servers have workers already; with ``worker_concurrency`` it says how many batches are sampled ahead.
        worker_devices: Taken and not used: servers sample on the CPU.
        worker_concurrency: See ``num_workers``.
        master_addr: Taken and not used: nothing listens there.
        master_port: Likewise.
        num_rpc_threads: Likewise.
        rpc_timeout: Seconds that one wait for a batch may take.
        buffer_size: The most memory for batches under way.
        prefetch_size: Batches that are asked for ahead.
        worker_key: Trainers that give the same one divide the batches of the same seeds among themselves: a batch goes to the trainer that
            asks first, so of few batches one trainer may get all.
        **options: Further options of graphlearn-torch's class.

    Raises:
        PlanError: ``server_rank`` is None, and this process has joined no servers.
        ValueError: As graphlearn-torch's class.
    """

    __signature__ = inspect.signature(_RemoteOptions)

    def __init__(self, server_rank: int | Sequence[int] | None = None, *args: Any, **options: Any) -> None:
        super().__init__(_own_servers() if server_rank is None else server_rank, *args, **options)


def _own_servers() -> list[int]:
    """This client's servers, dealt in order: the first clients have one more; too few are dealt again."""
    current = get_context()
    if current is None or not current.is_client():
        raise PlanError("server_rank is None, and this process has joined no servers", "call init_client() first, or name the servers")
    servers, clients, rank = current.num_servers(), current.world_size, current.rank
    if clients >= servers:
        return [rank % servers]
    bounds = even_bounds(servers, clients)
    return list(range(bounds[rank], bounds[rank + 1]))


def create_graph_store_worker_options(
    *,
    dataset: Any,
    compute_rank: int,
    worker_key: str,
    num_workers: int,
    worker_concurrency: int,
    channel_size: int | str,
    prefetch_size: int,
) -> Any:
    """Makes the ``RemoteDistSamplingWorkerOptions`` of a loader whose batches servers sample.

    Args:
        dataset: The remote dataset: its ``cluster_info`` has ``num_storage_nodes``, ``storage_cluster_master_ip`` and
            ``compute_cluster_world_size``, its ``fetch_free_ports_on_storage_cluster(num_ports)`` gives a port per trainer.
        compute_rank: This trainer among all.
        worker_key: Name of the servers' workers.
        num_workers: Sampling processes per server.
        worker_concurrency: Batches that each of them is given at a time.
        channel_size: Memory for batches under way on each server.
        prefetch_size: Batches requested ahead from each server, at most ``num_workers * worker_concurrency``.

    Raises:
        PlanError: A value is unusable, or graphlearn-torch is not installed.
    """
    check_prefetch(prefetch_size, num_workers * worker_concurrency)
    info = dataset.cluster_info
    if not 0 <= compute_rank < info.compute_cluster_world_size:
        raise PlanError(f"there is no compute_rank {compute_rank} of {info.compute_cluster_world_size}")
    ports = dataset.fetch_free_ports_on_storage_cluster(num_ports=info.compute_cluster_world_size)
    return remote_options(
        info,
        ports[compute_rank],
        num_workers=num_workers,
        worker_concurrency=worker_concurrency,
        buffer_size=channel_size,
        prefetch_size=prefetch_size,
        worker_key=worker_key,
    )


def remote_options(info: Any, master_port: int, *, num_workers: int, worker_concurrency: int, **more: Any) -> Any:
    """``RemoteDistSamplingWorkerOptions`` for all servers of a run.

    Args:
        info: The run's ``GraphStoreInfo``.
        master_port: Kept in the record; nothing listens there.
        num_workers: See ``create_graph_store_worker_options``.
        worker_concurrency: See ``create_graph_store_worker_options``.
        **more: Further arguments of graphlearn-torch's class.
    """
    return RemoteDistSamplingWorkerOptions(
        server_rank=list(range(info.num_storage_nodes)),
        num_workers=num_workers,
        worker_devices=[torch.device("cpu")] * num_workers,
        worker_concurrency=worker_concurrency,
        master_addr=info.storage_cluster_master_ip,
        master_port=master_port,
        **more,
    )


if TYPE_CHECKING:

    class EdgeSamplerInput:
        """The part of graphlearn-torch's class that is used here, for type checkers."""

        row: torch.Tensor
        col: torch.Tensor

        def __init__(self, row: torch.Tensor, col: torch.Tensor, label: Any, input_type: EdgeType | None, neg_sampling: Any) -> None: ...

    class NodeSamplerInput:
        """The part of graphlearn-torch's class that is used here, for type checkers."""

        def __init__(self, node: torch.Tensor, input_type: NodeType) -> None:
            self.node, self.input_type = node, input_type

else:
    EdgeSamplerInput = glt.attribute("sampler.EdgeSamplerInput", "DistLinkNeighborLoader")
    NodeSamplerInput = glt.attribute("sampler.NodeSamplerInput", "DistABLPLoader")

_LINKS_WAY = "servers that are left out have none"


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
    edge_type, links, plain = _type_of(edge_label_index, dataset, dataset.get_edge_types())
    _refuse_links_by_server(links)
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


def server_links(
    dataset: RemoteDistDataset, edge_label_index: Any, options: Mapping[str, Any], servers: Sequence[int]
) -> tuple[list[LinkSamplerInput], bool]:
    """This process's links, a record for each server.

    Args:
        dataset: The servers' graph.
        edge_label_index: Links by server, see ``given_by_server``, or ``(edge type, these)``; servers that are left out have none.
        options: Of ``LinkOptions``; labels by server, too.
        servers: The servers that sample for this loader.

    Raises:
        PlanError: See ``local_links``; or a server does not exist.
    """
    edge_type, by_server, plain = _type_of(edge_label_index, dataset, dataset.fetch_edge_types())
    count, records = dataset.cluster_info.num_storage_nodes, []
    by_server = given_by_server(by_server, servers, count, lambda links: _is_list_of(links, 2))
    labels = given_by_server(options.get("edge_label"), servers, count, lambda rows: _is_list_of(rows, 1))
    for what, given in (("edge_label_index", by_server), *([] if labels is None else [("edge_label", labels)])):
        check_servers(given, count, _LINKS_WAY, what)
    drawn = LinkOptions(**{**options, "edge_label": None}).negatives()
    if labels is not None and drawn is not None and drawn.mode == "binary":
        labels = _raised_alike(labels)
    for server in range(count):
        links = _to_pairs(by_server[server]) if server in by_server else torch.empty((2, 0), dtype=torch.int64)
        own = options if labels is None else {**options, "edge_label": labels.get(server, torch.empty(0)) if links.numel() else None}
        records.append(LinkSamplerInput(links, edge_type, LinkOptions(**own), edge_type or HOMOGENEOUS_EDGE_TYPE))
    return records, plain


def _is_list_of(given: Any, ndim: int) -> bool:
    """Whether it is a list of arrays, and not one that is written as a list."""
    return isinstance(given, (list, tuple)) and bool(given) and all(getattr(one, "ndim", 0) >= ndim for one in given)


def _raised_alike(labels: Mapping[int, Any]) -> dict[int, torch.Tensor]:
    """Labels by server, which makes its own one higher where they start from 0: there, those of the others have to be so, too."""
    rows = {server: torch.from_numpy(to_rows(own, "edge_label", len(own))) for server, own in labels.items()}
    if all(not len(own) or own.min() != 0 for own in rows.values()):
        return rows
    return {
        server: own if not len(own) or own.min() <= 0 else (own.long() if own.dtype == torch.bool else own) + 1
        for server, own in rows.items()
    }


def _type_of(given: Any, dataset: DistDataset | RemoteDistDataset, types: list[EdgeType] | None) -> tuple[EdgeType | None, Any, bool]:
    """The links' type, None for a homogeneous graph; the links; and whether batches are plain."""
    if isinstance(given, tuple) and len(given) == 3 and all(isinstance(word, str) for word in given):
        given = (given, None)
    return type_of(given, types, dataset.schema.default_edge_type, ("edge_label_index", "edge", "links"))


def _refuse_links_by_server(links: Any) -> None:
    if isinstance(links, Mapping):
        raise PlanError("edge_label_index is a dict", "links by server belong to the graph-store mode, with a RemoteDistDataset")


def _to_pairs(links: Any) -> torch.Tensor:
    try:
        found = torch.as_tensor(links)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(f"edge_label_index must be links, got a {type(links).__name__}", "give a tensor [2, n]") from error
    if found.ndim != 2 or len(found) != 2:
        raise PlanError(f"edge_label_index must be [2, n], sources and targets, got shape {list(found.shape)}")
    return found


_ANCHORS_WAY = "dataset.fetch_ablp_input(split, rank, world_size) gives anchors by server"


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
    for edge_type in [HOMOGENEOUS_EDGE_TYPE] if supervision is None else _types(supervision):
        if edge_type[0] != node_type:
            raise PlanError(
                f"the supervised type {edge_type} does not begin at the anchors, which are {node_type!r} nodes",
                "name it as it leads from anchors to labels, whatever the dataset's edge_dir",
            )
        negative = message_passing_to_negative_label(edge_type)
        has_negatives = any(stored in known for stored in (negative, *opposite_label_types(negative)))
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
    check_servers(input_nodes, dataset.cluster_info.num_storage_nodes, _ANCHORS_WAY)
    for server, given in input_nodes.items():
        if not isinstance(given, ABLPInputNodes):
            raise PlanError(f"the anchors of server {server} are a {type(given).__name__}", f"give ABLPInputNodes; {_ANCHORS_WAY}")
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
    """Labels ``[count, m]``, filled up with -1; no anchor has some where there are no rows."""
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
