"""The seeds that a script gives a loader: which kinds there are, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gnnkit.distributed.label_edges import DEFAULT_HOMOGENEOUS_NODE_TYPE
from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import NodeType

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.runtime_info import DistributedRuntimeInfo

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
