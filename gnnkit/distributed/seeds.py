"""Seeds of nodes that a script gives a loader: of a dataset here or on servers, and whose they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.bounds import is_whole
from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.inputs import looks_like_mask
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE, NodeType

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.remote_dataset import RemoteDistDataset
    from gnnkit.distributed.resolve import DistributedRuntimeInfo


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
    what = ("input_nodes", "node", "ids by server")
    node_type, by_server, plain = type_of(input_nodes, dataset.fetch_node_types(), dataset.schema.default_node_type, what, f"; {_WAY}")
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
