"""What users write, turned into what a plan holds: fan-outs, input nodes and ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.link_arrays import to_array
from gnnkit.plan import InputNodes
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, GraphSchema, NodeType, is_label_edge_type

FanOuts: TypeAlias = Sequence[int] | Mapping[EdgeType, Sequence[int]]
# Room is made for as many edges as may be drawn: from here on there would be none.
_TOO_MANY = 1 << 31


def _fan_out(value: Any, where: str) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
        raise PlanError(f"num_neighbors{where} must be a list with one number per hop, got {value!r}", "for example [15, 10, 5]")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or not -1 <= number < _TOO_MANY:
            raise PlanError(
                f"num_neighbors{where} holds {number!r}", "a fan-out is a whole number below 2**31; -1 takes all neighbours, 0 none"
            )
    return tuple(int(number) for number in value)


def check_fan_outs(num_neighbors: FanOuts) -> None:
    """Checks what can be checked without a schema.

    Raises:
        PlanError: A fan-out is empty or no list, hop counts differ, or a number is below -1 or no whole number.
    """
    if not isinstance(num_neighbors, Mapping):
        if not _fan_out(num_neighbors, ""):
            raise PlanError("num_neighbors is empty", "give one number per hop, for example [15, 10, 5]")
        return
    fan_outs = {edge_type: _fan_out(value, f"[{edge_type}]") for edge_type, value in num_neighbors.items()}
    if len({len(fan_out) for fan_out in fan_outs.values()}) != 1 or not all(fan_outs.values()):
        raise PlanError(f"num_neighbors has different numbers of hops: { {str(t): len(f) for t, f in fan_outs.items()} }", "pad with 0")


def resolve_fan_outs(num_neighbors: FanOuts, schema: GraphSchema) -> dict[EdgeType, tuple[int, ...]]:
    """``{edge type: fan-out per hop}`` for every edge type.

    Args:
        num_neighbors: One list for all edge types, or a list for each.
        schema: The graph's schema.

    Raises:
        PlanError: A type is unknown or missing, hop counts differ, or a number is below -1 or no whole number.
    """
    check_fan_outs(num_neighbors)
    if not isinstance(num_neighbors, Mapping):
        fan_out = _fan_out(num_neighbors, "")
        # Labels are for supervision: messages pass along them only where somebody says so of their type.
        return {t: (0,) * len(fan_out) if is_label_edge_type(t) else fan_out for t in schema.edge_types}
    if schema.is_homogeneous and set(num_neighbors) != {HOMOGENEOUS_EDGE_TYPE}:
        raise PlanError("num_neighbors is a dict, but the graph is homogeneous", "give a list, for example [15, 10, 5]")
    names = [str(edge_type) for edge_type in schema.edge_types]
    for edge_type in num_neighbors:
        if edge_type not in schema.edge_types:
            raise PlanError(
                f"num_neighbors names the unknown edge type {edge_type!r}{near_matches(str(edge_type), names)}", f"known: {names}"
            )
    missing = [edge_type for edge_type in schema.edge_types if edge_type not in num_neighbors]
    if missing:
        raise PlanError(f"num_neighbors says nothing about the edge types {missing}", "give [0, ...] to leave a type out")
    return {edge_type: _fan_out(value, f"[{edge_type}]") for edge_type, value in num_neighbors.items()}


def to_ids(value: Any, num_nodes: int, what: str) -> NDArray[np.int64]:
    """Node ids from a tensor, array or list of whole numbers, or from a mask.

    Args:
        value: Ids ``[k]`` or a mask ``[num_nodes]``.
        num_nodes: Ids are below it.
        what: The argument's name, for messages.

    Returns:
        int64 ``[k]``.

    Raises:
        PlanError: Wrong dtype or shape, or an id out of range.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    ids = np.asarray(value)
    if ids.ndim != 1:
        raise PlanError(f"{what} must be one-dimensional, got shape {tuple(ids.shape)}")
    if ids.dtype == np.bool_:
        if len(ids) != num_nodes:
            raise PlanError(f"{what} is a mask of {len(ids)} elements, but there are {num_nodes} nodes")
        return np.flatnonzero(ids).astype(np.int64)
    if ids.size == 0:
        return np.empty(0, np.int64)
    if ids.dtype.kind not in "iu":
        raise PlanError(f"{what} must hold whole numbers or be a mask, got dtype {ids.dtype}", "for example ids.long()")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= num_nodes:
        raise PlanError(f"{what} holds node {low if low < 0 else high}, but ids go from 0 to {num_nodes - 1}")
    return ids.astype(np.int64)


def resolve_input_nodes(value: Any, graph: GraphHandle, input_time: Any = None, time_attr: str | None = None) -> InputNodes:
    """The input nodes that a user means by a tensor, a mask, a split's name, ``("type", any of these)`` or None (all).

    Args:
        value: What the user says.
        graph: The graph.
        input_time: A time for each of them, or None.
        time_attr: Name of the array that times are compared with; None where time plays no part.

    Raises:
        PlanError: The type or split is unknown or not clear, or ids or times are unusable, or times are missing.
    """
    inputs = _input_nodes(value, graph)
    if time_attr is None:
        if input_time is not None:
            raise PlanError("input_time is given, and no times are compared with it", "name the array that holds them: time_attr='time'")
        return inputs
    schema = graph.arrays.schema.node_types[inputs.node_type]
    if input_time is None:
        if time_attr not in schema.arrays:
            raise PlanError(
                f"{inputs.node_type!r} nodes have no {time_attr!r} of their own, and input_time is not given",
                "give input_time, one whole number for each input node",
            )
        return inputs
    count = schema.num_nodes if inputs.ids is None else len(inputs.ids)
    if inputs.split is not None:
        count = len(graph.splits[inputs.node_type][inputs.split])
    return replace(inputs, time=_to_times(input_time, count))


def _to_times(value: Any, count: int) -> NDArray[np.int64]:
    times = to_array(value, "input_time")
    if times.shape != (count,) or times.dtype.kind not in "iu":
        raise PlanError(
            f"input_time must be whole numbers [{count}], one for each input node; got {times.dtype} {list(times.shape)}",
            "for example input_time.long()",
        )
    return times.astype(np.int64)


def _input_nodes(value: Any, graph: GraphHandle) -> InputNodes:
    schema = graph.arrays.schema
    node_type: NodeType | None = None
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        node_type, value = value
        if node_type not in schema.node_types:
            types = list(schema.node_types)
            raise PlanError(f"input_nodes names the unknown node type {node_type!r}{near_matches(node_type, types)}", f"known: {types}")
    elif isinstance(value, str) and value in schema.node_types and not schema.is_homogeneous:
        node_type, value = value, None
    if isinstance(value, str):
        return _split_input(value, node_type, graph)
    if node_type is None:
        if not schema.is_homogeneous:
            raise PlanError(
                "the graph has several node types, and input_nodes does not say which one it means",
                f"give (type, ids), with a type of {list(schema.node_types)}",
            )
        node_type = HOMOGENEOUS_NODE_TYPE
    if value is None:
        return InputNodes(node_type, f"node/{node_type}/all")
    return InputNodes(node_type, f"node/{node_type}/ids", ids=to_ids(value, schema.node_types[node_type].num_nodes, "input_nodes"))


def _split_input(split: str, node_type: NodeType | None, graph: GraphHandle) -> InputNodes:
    types = [t for t, splits in graph.splits.items() if split in splits and node_type in (None, t)]
    if len(types) == 1:
        return InputNodes(types[0], f"node/{types[0]}/{split}", split=split)
    if types:
        raise PlanError(f"several node types have a split {split!r}: {types}", f"give ({types[0]!r}, {split!r})")
    known = sorted({name for t, splits in graph.splits.items() for name in splits if node_type in (None, t)})
    hint = f"known splits: {known}" if known else "the graph has no splits: give input_nodes as ids or a mask, or None for all nodes"
    raise PlanError(f"there is no split {split!r}{near_matches(split, known)}", hint)


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This trainer's rank and the number of trainers: as given, from the process group, from torchrun's environment, or 0 of 1.

    Raises:
        PlanError: Only one of the two is given, or the environment makes no sense.
    """
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank and world_size go together, got rank={rank!r} and world_size={world_size!r}")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    values = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if values[0] is None or values[1] is None:
        return 0, 1
    try:
        return int(values[0]), int(values[1])
    except ValueError:
        raise PlanError(
            f"RANK={values[0]!r} and WORLD_SIZE={values[1]!r} in the environment are no numbers", "unset them, or give rank=0, world_size=1"
        ) from None
