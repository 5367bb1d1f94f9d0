"""Seeds of nodes that a script gives a loader: of a dataset here or on servers, and whose they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.distributed.label_edges import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
)
from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import NodeType

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
    share, more = divmod(num_seeds // batch_size, num_workers)
    bounds = [(worker * share + min(worker, more)) * batch_size for worker in range(num_workers)] + [num_seeds]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


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
    types, labelled = dataset.get_node_types(), dataset.schema.is_homogeneous_with_labeled_edge_type
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2:
        return _typed(input_nodes, types)
    _refuse_servers(input_nodes)
    if types is not None and not labelled:
        kind = "None" if input_nodes is None else f"a {type(input_nodes).__name__}"
        raise PlanError(f"input_nodes is {kind}, and the graph is typed", f"give (node type, ids), with a type of {types}")
    node_type = DEFAULT_HOMOGENEOUS_NODE_TYPE if labelled else None
    if input_nodes is not None:
        return node_type, to_seeds(input_nodes), labelled
    found = dataset.node_ids
    own: Any = found[DEFAULT_HOMOGENEOUS_NODE_TYPE] if isinstance(found, Mapping) else found
    return node_type, shard_nodes_by_process(own, runtime.local_rank, runtime.local_world_size), labelled


def _typed(pair: tuple[Any, Any], types: list[NodeType] | None) -> tuple[NodeType, torch.Tensor, bool]:
    node_type, ids = pair
    if types is None:
        raise PlanError(f"input_nodes names the node type {node_type!r}, and the graph is homogeneous", "give the ids alone")
    if node_type not in types:
        raise PlanError(f"input_nodes names the unknown node type {node_type!r}{near_matches(str(node_type), types)}", f"known: {types}")
    _refuse_servers(ids)
    return node_type, to_seeds(ids), False


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
    if ids.dtype == torch.bool:
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
    types, labelled = dataset.fetch_node_types(), dataset.schema.is_homogeneous_with_labeled_edge_type
    node_type, by_server, plain = None, input_nodes, False
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2:
        node_type, by_server = input_nodes
        _check_type(node_type, types)
    elif labelled:
        node_type, plain = DEFAULT_HOMOGENEOUS_NODE_TYPE, True
    elif types is not None:
        kind = "None" if input_nodes is None else f"a {type(input_nodes).__name__}"
        raise PlanError(
            f"input_nodes is {kind}, and the graph is typed", f"give (node type, ids by server), with a type of {types}; {_WAY}"
        )
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


def _check_type(node_type: Any, types: list[NodeType] | None) -> None:
    if types is None:
        raise PlanError(f"input_nodes names the node type {node_type!r}, and the graph is homogeneous", "give the ids by server alone")
    if node_type not in types:
        raise PlanError(f"input_nodes names the unknown node type {node_type!r}{near_matches(str(node_type), types)}", f"known: {types}")


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
        if isinstance(server, bool) or not isinstance(server, int) or not 0 <= server < num_servers:
            raise PlanError(f"{what} names the server {server!r}, and there are {num_servers}", "servers count from 0")
