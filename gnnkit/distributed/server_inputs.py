"""The seeds that a script gives a loader whose graph is on servers: ids by the server that samples them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gnnkit.distributed.label_edges import DEFAULT_HOMOGENEOUS_NODE_TYPE
from gnnkit.distributed.seed_nodes import to_seeds
from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import NodeType

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.remote_dataset import RemoteDistDataset

_WAY = "dataset.fetch_node_ids(rank, world_size, split) gives ids by server"


def resolve_server_seeds(input_nodes: Any, dataset: RemoteDistDataset) -> tuple[NodeType | None, list[torch.Tensor], bool]:
    """This process's seeds.

    Args:
        input_nodes: ``{server: ids [n]}``, or ``(node type, {server: ids})`` for a typed graph. Servers that are left out have none.
        dataset: The servers' graph.

    Returns:
        Their node type, None for a homogeneous graph; the ids of every server, in the order of ranks; and whether batches are to be
        plain although the graph is stored typed, because of its labels.

    Raises:
        PlanError: ``input_nodes`` is of a kind that does not fit the graph, is empty, or names a server that does not exist.
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
    return node_type, _ids_of(by_server, dataset.cluster_info.num_storage_nodes), plain


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


def _ids_of(by_server: Any, num_servers: int) -> list[torch.Tensor]:
    import torch

    check_servers(by_server, num_servers, _WAY)
    nothing = torch.empty(0, dtype=torch.int64)
    return [to_seeds(by_server[server]) if server in by_server else nothing for server in range(num_servers)]
