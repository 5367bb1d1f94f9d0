"""Seeds of nodes that a script gives a loader: of a dataset here or on servers, and whose they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gnnkit.bounds import is_whole
from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.inputs import looks_like_mask
from gnnkit.plan.sampling import check_fan_outs
from gnnkit.schema import (
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    NEGATIVE_LABELS,
    POSITIVE_LABELS,
    EdgeType,
    NodeType,
    is_label_edge_type,
    reverse_edge_type,
)

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.remote_dataset import RemoteDistDataset
    from gnnkit.distributed.resolve import DistributedRuntimeInfo


def worker_seed_ranges(num_seeds: int, batch_size: int, num_workers: int) -> list[tuple[int, int]]:
    """The half-open range of seeds of each worker.

    Whole batches are dealt evenly, one more to the first workers where they do not come out even; the last worker also has the
    seeds that fill no batch. Ranges are contiguous and may be empty.

    Args:
        num_seeds: Seeds in all.
        batch_size: Seeds per batch, at least 1.
        num_workers: Workers, at least 1.

    Raises:
        PlanError: A number is too small.
    """
    if num_seeds < 0 or batch_size < 1 or num_workers < 1:
        raise PlanError(f"cannot deal {num_seeds} seeds in batches of {batch_size} to {num_workers} workers")
    bounds = [batch * batch_size for batch in even_bounds(num_seeds // batch_size, num_workers)[:-1]] + [num_seeds]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def even_bounds(count: int, shares: int) -> list[int]:
    """The bounds of contiguous shares whose sizes differ by at most 1, larger ones first: ``shares + 1`` numbers from 0 to ``count``."""
    least, more = divmod(count, shares)
    return [share * least + min(share, more) for share in range(shares + 1)]


_SERVERS = "inputs by server belong to the graph-store mode, with a RemoteDistDataset"


def shard_nodes_by_process(input_nodes: torch.Tensor, local_process_rank: int, local_process_world_size: int) -> torch.Tensor:
    """The share of one of several processes of a host.

    Shares are contiguous and as long as each other; the last one also has what is left.

    Args:
        input_nodes: ``[n]`` ids, the same for every process.
        local_process_rank: The process.
        local_process_world_size: Number of processes.

    Raises:
        PlanError: There is no such process.
    """
    if not 0 <= local_process_rank < local_process_world_size:
        raise PlanError(f"there is no process {local_process_rank} of {local_process_world_size}")
    size = len(input_nodes) // local_process_world_size
    last = local_process_rank == local_process_world_size - 1
    return input_nodes[local_process_rank * size : None if last else (local_process_rank + 1) * size]


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
    default = DEFAULT_HOMOGENEOUS_NODE_TYPE if dataset.schema.is_homogeneous_with_labeled_edge_type else None
    node_type, ids, plain = type_of(input_nodes, dataset.get_node_types(), default, ("input_nodes", "node", "ids"))
    _refuse_servers(ids)
    if ids is not None or isinstance(input_nodes, tuple):
        return node_type, to_seeds(ids), plain
    found = dataset.node_ids
    own: Any = found[DEFAULT_HOMOGENEOUS_NODE_TYPE] if isinstance(found, Mapping) else found
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
    import torch

    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(f"input_nodes must be ids, got a {type(value).__name__}", "for example torch.arange(100)") from error
    if ids.dtype == torch.bool or (ids.dim() == 1 and ids.dtype in (torch.uint8, torch.int8) and looks_like_mask(ids.cpu().numpy())):
        raise PlanError("input_nodes is a mask", "mask.nonzero().view(-1) gives the ids")
    return ids


_WAY = "dataset.fetch_node_ids(rank, world_size, split) gives ids by server"


def resolve_server_seeds(
    input_nodes: Any, dataset: RemoteDistDataset, servers: Sequence[int]
) -> tuple[NodeType | None, list[torch.Tensor], bool]:
    """This process's seeds.

    Args:
        input_nodes: Seeds by server, see ``given_by_server``, or ``(node type, these)`` for a typed graph. The seeds of a server are ids
            ``[n]``, the path of a file of its host that holds them, or a ``Split``, whose nodes there they are.
        dataset: The servers' graph.
        servers: The servers that sample for this loader.

    Returns:
        Their node type, None for a homogeneous graph; the ids of every server, in the order of ranks; and whether batches are to be
        plain although the graph is stored typed, because of its labels.

    Raises:
        PlanError: ``input_nodes`` is of a kind that does not fit the graph, is empty, or names a server or a split that does not exist.
        DatasetError: A file is missing or holds no ids.
    """
    default = DEFAULT_HOMOGENEOUS_NODE_TYPE if dataset.schema.is_homogeneous_with_labeled_edge_type else None
    what = ("input_nodes", "node", "ids by server")
    node_type, by_server, plain = type_of(input_nodes, dataset.fetch_node_types(), default, what, f"; {_WAY}")
    count = dataset.cluster_info.num_storage_nodes
    found = given_by_server(by_server, servers, count, _is_list_of_seeds)
    check_servers(found, count, _WAY)
    nothing = to_seeds([])
    return node_type, [_ids_on(server, found[server], node_type, dataset) if server in found else nothing for server in range(count)], plain


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


# A ``Split`` of graphlearn-torch, by its value, and what servers call it.
_SPLITS = {"train": "train", "valid": "val", "test": "test"}


def _ids_on(server: int, seeds: Any, node_type: NodeType | None, dataset: RemoteDistDataset) -> torch.Tensor:
    """The seeds of a server, which knows its files and its splits."""
    if isinstance(seeds, Enum):
        if seeds.value not in _SPLITS:
            raise PlanError(f"input_nodes is {seeds}, which is no split", "Split.train, Split.valid or Split.test")
        return dataset.fetch_split(server, _SPLITS[seeds.value], node_type)
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


__all__ = [
    "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
    "DEFAULT_HOMOGENEOUS_NODE_TYPE",
    "is_label_edge_type",
    "is_labeled_homogeneous",
    "label_edge_type_to_message_passing_edge_type",
    "message_passing_to_negative_label",
    "message_passing_to_positive_label",
    "reverse_edge_type",
    "select_label_edge_types",
]

DEFAULT_HOMOGENEOUS_NODE_TYPE = HOMOGENEOUS_NODE_TYPE
DEFAULT_HOMOGENEOUS_EDGE_TYPE = HOMOGENEOUS_EDGE_TYPE


def message_passing_to_positive_label(message_passing_edge_type: EdgeType) -> EdgeType:
    """The type of the positive labels that belong to a message-passing type.

    Raises:
        PlanError: The type is a label type itself.
    """
    return _labelled(message_passing_edge_type, POSITIVE_LABELS)


def message_passing_to_negative_label(message_passing_edge_type: EdgeType) -> EdgeType:
    """The type of the negative labels that belong to a message-passing type.

    Raises:
        PlanError: The type is a label type itself.
    """
    return _labelled(message_passing_edge_type, NEGATIVE_LABELS)


def label_edge_type_to_message_passing_edge_type(label_edge_type: EdgeType) -> EdgeType:
    """The message-passing type that a label type belongs to.

    Raises:
        PlanError: The type is no label type.
    """
    source, relation, target = label_edge_type
    for suffix in (POSITIVE_LABELS, NEGATIVE_LABELS):
        if relation.endswith(suffix):
            return (source, relation.removesuffix(suffix), target)
    raise PlanError(f"{label_edge_type} is no label edge type", f"its relation would end in {POSITIVE_LABELS!r} or {NEGATIVE_LABELS!r}")


def select_label_edge_types(message_passing_edge_type: EdgeType, edge_entities: Iterable[EdgeType]) -> tuple[EdgeType, EdgeType | None]:
    """The label types of a message-passing type among those of a graph.

    Args:
        message_passing_edge_type: The type that is supervised.
        edge_entities: The graph's edge types.

    Returns:
        The positive and the negative label type; None for the latter where the graph has none.

    Raises:
        PlanError: The graph has no positive labels for the type.
    """
    known = list(edge_entities)
    positive, negative = _labelled(message_passing_edge_type, POSITIVE_LABELS), _labelled(message_passing_edge_type, NEGATIVE_LABELS)
    if positive not in known:
        labels = [edge_type for edge_type in known if is_label_edge_type(edge_type)]
        raise PlanError(
            f"the graph has no positive labels for {message_passing_edge_type}: {positive} is missing", f"label types: {labels}"
        )
    return positive, negative if negative in known else None


def is_labeled_homogeneous(edge_types: Iterable[EdgeType]) -> bool:
    """Whether a typed graph is a homogeneous one with labels: the default edge type, and label types beside it, no others."""
    types = list(edge_types)
    passing = [edge_type for edge_type in types if not is_label_edge_type(edge_type)]
    return passing == [DEFAULT_HOMOGENEOUS_EDGE_TYPE] and len(types) > 1


def _labelled(edge_type: EdgeType, suffix: str) -> EdgeType:
    if is_label_edge_type(edge_type):
        raise PlanError(f"{edge_type} is a label edge type already", "give the message-passing type")
    return (edge_type[0], edge_type[1] + suffix, edge_type[2])


NumNeighbors: TypeAlias = list[int] | dict[EdgeType, list[int]]


def patch_fanout_for_sampling(
    edge_types: Sequence[EdgeType] | None, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]
) -> NumNeighbors:
    """Fan-outs for everything that sampling walks along, and nothing else: label edge types have none.

    Args:
        edge_types: The dataset's edge types; None for a homogeneous graph.
        num_neighbors: A list with a number per hop, or a list for each message-passing type. -1 takes all neighbours, 0 none.

    Returns:
        A list for a homogeneous graph, else a dict of the message-passing types; never the caller's own object.

    Raises:
        PlanError: A type is unknown, missing or a label type, hop counts differ, a number is below -1 or no whole number, a
            homogeneous graph is given a dict, or there is no message-passing type.
    """
    check_fan_outs(num_neighbors)
    if edge_types is None:
        if isinstance(num_neighbors, Mapping):
            raise PlanError("num_neighbors is a dict, but the graph is homogeneous", "give a list, for example [15, 10, 5]")
        return [int(number) for number in num_neighbors]
    passing = [edge_type for edge_type in edge_types if not is_label_edge_type(edge_type)]
    if not passing:
        raise PlanError(f"the edge types {list(edge_types)} are all labels: there is nothing to sample along")
    if not isinstance(num_neighbors, Mapping):
        return {edge_type: [int(number) for number in num_neighbors] for edge_type in passing}
    labels = [edge_type for edge_type in num_neighbors if is_label_edge_type(edge_type)]
    if labels:
        raise PlanError(f"num_neighbors names the label edge types {labels}", "labels are never walked along: leave them out")
    names = [str(edge_type) for edge_type in passing]
    for edge_type in num_neighbors:
        if edge_type not in passing:
            raise PlanError(
                f"num_neighbors names the unknown edge type {edge_type}{near_matches(str(edge_type), names)}", f"known: {names}"
            )
    missing = [edge_type for edge_type in passing if edge_type not in num_neighbors]
    if missing:
        raise PlanError(f"num_neighbors says nothing about the edge types {missing}", "give [0, ...] to leave a type out")
    return {edge_type: [int(number) for number in num_neighbors[edge_type]] for edge_type in passing}
