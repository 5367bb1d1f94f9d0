"""Graphlearn-torch's records with what gnnkit adds: links and anchors that a loader is given, and options of sampling on servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.bounds import is_whole
from gnnkit.distributed.dist_server import ABLPInputNodes
from gnnkit.distributed.glt_classes import EdgeSamplerInput, NodeSamplerInput, RemoteDistSamplingWorkerOptions
from gnnkit.distributed.graph_types import (
    message_passing_to_negative_label,
    message_passing_to_positive_label,
    shard_nodes_by_process,
)
from gnnkit.distributed.loader_options import stored
from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.inputs import LinkOptions, label_type, resolve_input_links
from gnnkit.plan import AnchorLabels, InputAnchors, InputNodes, LabelLists, LabelOutput
from gnnkit.runtime.batches import edges_of_part
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType, opposite_label_types
from gnnkit.splits import SPLITS
from gnnkit.user_arrays import looks_like_mask, to_rows

if TYPE_CHECKING:
    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.dist_server import RemoteDistDataset
    from gnnkit.distributed.resolve import DistributedRuntimeInfo
    from gnnkit.plan import InputLinks, Sampling
    from gnnkit.runtime.graph_memory import GraphHandle


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
        PlanError: A value is unusable.
    """
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


_SERVERS = "inputs by server belong to the graph-store mode, with a RemoteDistDataset"


def resolve_seeds(input_nodes: Any, dataset: DistDataset, runtime: DistributedRuntimeInfo) -> tuple[NodeType | None, torch.Tensor, bool]:
    """This process's seeds.

    Args:
        input_nodes: None for the nodes of the dataset's part, dealt to the processes of this host; ids ``[n]`` of this process's
            own; or ``(node type, ids)``.
        dataset: A dataset of a store.
        runtime: Where this process stands.

    Returns:
        Their node type, None for a homogeneous graph; the ids; and whether batches are to be plain although the graph is stored
        typed, because of its labels.

    Raises:
        PlanError: ``input_nodes`` is of a kind that does not fit the graph.
    """
    _refuse_servers(input_nodes)
    node_type, ids, plain = type_of(input_nodes, dataset.get_node_types(), dataset.schema.default_node_type, ("input_nodes", "node", "ids"))
    _refuse_servers(ids)
    if ids is not None or isinstance(input_nodes, tuple):
        return node_type, to_seeds(ids), plain
    found = dataset.node_ids
    own: Any = found[HOMOGENEOUS_NODE_TYPE] if isinstance(found, Mapping) else found
    return node_type, shard_nodes_by_process(own, runtime.local_rank, runtime.local_world_size), plain


def type_of(given: Any, types: Sequence[Any] | None, default: Any, what: tuple[str, str, str], way: str = "") -> tuple[Any, Any, bool]:
    """The type of inputs, None for a homogeneous graph; the inputs; and whether batches are plain.

    Args:
        given: Inputs, or ``(type, inputs)``.
        types: The graph's types; None for a homogeneous one.
        default: The only type of a graph that is homogeneous but for its labels; None for others.
        what: The argument's name, "node" or "edge", and what inputs are, for messages.
        way: How they are come by, for messages.

    Raises:
        PlanError: The type is missing, unknown, or of a homogeneous graph.
    """
    name, kind, inputs = what
    if isinstance(given, tuple) and len(given) == 2 and (kind == "node" or isinstance(given[0], tuple)):
        own, values = given
        if types is None:
            raise PlanError(f"{name} names the {kind} type {own!r}, and the graph is homogeneous", f"give the {inputs} alone")
        if own not in types:
            known = [str(found) for found in types]
            raise PlanError(f"{name} names the unknown {kind} type {own!r}{near_matches(str(own), known)}", f"known: {known}")
        return own, values, False
    if types is not None and default is None:
        found = "None" if given is None else f"a {type(given).__name__}"
        hint = f"give ({kind} type, {inputs}), with a type of {list(types)}{way}"
        raise PlanError(f"{name} is {found}, and the graph is typed", hint)
    return default, given, default is not None


def _refuse_servers(value: Any) -> None:
    if isinstance(value, Mapping):
        raise PlanError("input_nodes is a dict", f"give ids, or (node type, ids); {_SERVERS}")
    if isinstance(value, str):
        raise PlanError(f"input_nodes is the word {value!r}", f"give ids, for example dataset.train_node_ids; {_SERVERS}")


def to_seeds(value: Any) -> torch.Tensor:
    """Ids as a tensor.

    Raises:
        PlanError: They are none.
    """
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(f"input_nodes must be ids, got a {type(value).__name__}", "for example torch.arange(100)") from error
    if ids.dtype == torch.bool or (ids.dim() == 1 and ids.dtype in (torch.uint8, torch.int8) and looks_like_mask(ids.cpu().numpy())):
        raise PlanError("input_nodes is a mask", "mask.nonzero().view(-1) gives the ids")
    return ids


_WAY = "dataset.fetch_node_ids(rank, world_size, split) gives ids by server"


def server_nodes(dataset: RemoteDistDataset, input_nodes: Any, servers: Sequence[int]) -> tuple[list[Any], bool]:
    """This process's seeds, a ``NodeSamplerInput`` for each server.

    Args:
        dataset: The servers' graph.
        input_nodes: Seeds by server, see ``given_by_server``, or ``(node type, these)`` for a typed graph. The seeds of a server are ids
            ``[n]``, the path of a file of its host that holds them, or a ``Split``, whose nodes there they are.
        servers: The servers that sample for this loader.

    Returns:
        The records, in the order of ranks, and whether batches are to be plain although the graph is stored typed, because of its labels.

    Raises:
        PlanError: ``input_nodes`` is of a kind that does not fit the graph, is empty, or names a server or a split that does not exist.
        DatasetError: A file is missing or holds no ids.
    """
    what = ("input_nodes", "node", "ids by server")
    node_type, by_server, plain = type_of(input_nodes, dataset.fetch_node_types(), dataset.schema.default_node_type, what, f"; {_WAY}")
    count = dataset.cluster_info.num_storage_nodes
    found = given_by_server(by_server, servers, count, _is_list_of_seeds)
    check_servers(found, count, _WAY)
    by_rank = [_ids_on(server, found[server], node_type, dataset) if server in found else to_seeds([]) for server in range(count)]
    return [NodeSamplerInput(ids, node_type) for ids in by_rank], plain


def given_by_server(given: Any, servers: Sequence[int], num_servers: int, is_list: Callable[[Any], bool]) -> Any:
    """Inputs by server, however a script gives them.

    Args:
        given: ``{server: inputs}``; a list with an element for each of ``servers``, or for each server there is; a split, which each of
            ``servers`` has nodes of; or, where ``servers`` is a single one, its inputs.
        servers: The servers that sample for a loader, in the order of its options.
        num_servers: How many there are in all.
        is_list: Whether something is a list with an element for each server.

    Returns:
        ``{server: inputs}``, or ``given`` where it is nothing of this.

    Raises:
        PlanError: A list is of another length.
    """
    if isinstance(given, Enum):
        return dict.fromkeys(servers, given)
    if is_list(given):
        for ranks in (list(servers), list(range(num_servers))):
            if len(given) == len(ranks):
                return {server: own for server, own in zip(ranks, given, strict=True) if server in servers}
        raise PlanError(
            f"inputs are a list of {len(given)}, and the servers are {list(servers)}", "give one element for each of them, in this order"
        )
    return {servers[0]: given} if len(servers) == 1 and given is not None and not isinstance(given, Mapping) else given


def _is_list_of_seeds(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and bool(given) and not all(isinstance(one, (int, np.integer)) for one in given)


def _ids_on(server: int, seeds: Any, node_type: NodeType | None, dataset: RemoteDistDataset) -> torch.Tensor:
    """The seeds of a server, which knows its files and its splits."""
    if isinstance(seeds, Enum):
        if seeds.value not in SPLITS:
            raise PlanError(f"input_nodes is {seeds}, which is no split", "Split.train, Split.valid or Split.test")
        return dataset.fetch_split(server, seeds.value, node_type)
    return dataset.fetch_ids_in_file(server, seeds) if isinstance(seeds, (str, os.PathLike)) else to_seeds(seeds)


def check_servers(by_server: Any, num_servers: int, way: str, what: str = "input_nodes") -> None:
    """Makes sure that inputs are given by server.

    Args:
        by_server: ``{server: inputs}``.
        num_servers: Number of servers.
        way: How such inputs are come by, for messages.
        what: The argument's name, for messages.

    Raises:
        PlanError: They are not, name no server, or one that does not exist.
    """
    if not isinstance(by_server, Mapping):
        kind = "None" if by_server is None else f"a {type(by_server).__name__}"
        raise PlanError(f"{what} is {kind}, and the dataset is on servers, which have to be named", f"give them by server; {way}")
    if not by_server:
        raise PlanError(f"{what} names no server", f"give inputs by server, empty ones where there are none; {way}")
    for server in by_server:
        if not is_whole(server, 0, num_servers - 1):
            raise PlanError(f"{what} names the server {server!r}, and there are {num_servers}", "servers count from 0")


def local_nodes(dataset: DistDataset, input_nodes: Any, runtime: DistributedRuntimeInfo) -> tuple[Any, bool]:
    """This process's seeds as a ``NodeSamplerInput``, and whether batches are plain; see ``resolve_seeds``."""
    node_type, ids, plain = resolve_seeds(input_nodes, dataset, runtime)
    return NodeSamplerInput(ids, node_type), plain


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
    if isinstance(links, Mapping):
        raise PlanError("edge_label_index is a dict", "links by server belong to the graph-store mode, with a RemoteDistDataset")
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

    input_type: NodeType

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
