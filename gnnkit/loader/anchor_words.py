"""What users say about anchors and their labels, turned into what a plan holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.words import resolve_input_nodes
from gnnkit.plan import AnchorLabels, InputAnchors, LabelLists, LabelOutput, NeighborSampling, PPRSampling, Sampling
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.inputs import input_rows
from gnnkit.schema import EdgeDir, EdgeType, GraphSchema, is_label_edge_type, opposite_edge_type


def resolve_anchors(
    graph: GraphHandle,
    input_nodes: Any,
    positive: EdgeType | Sequence[EdgeType],
    negative: EdgeType | Sequence[EdgeType | None] | None = None,
    cap: int | None = None,
    output: LabelOutput = "dict",
) -> InputAnchors:
    """The anchors that a user means.

    Args:
        graph: The graph.
        input_nodes: The anchors: as ``resolve_input_nodes`` takes them; they need not name their type.
        positive: The type of the positive label edges, as it leads from anchors to labels; or several.
        negative: The same for negative ones; for several positive types a list of as many, with None where there are none.
        cap: See ``InputAnchors``.
        output: See ``InputAnchors``.

    Raises:
        PlanError: A type is none, is unknown, does not begin at the anchors, or is stored the wrong way round for the graph's direction;
            or ``input_nodes`` or ``cap`` is unusable.
    """
    schema, edge_dir = graph.arrays.schema, graph.arrays.edge_dir
    outward = [_edge_type("positive", given) for given in _several("positive", positive)]
    bad: Sequence[EdgeType | None] = [None] * len(outward)
    if negative is not None:
        bad = [None if given is None else _edge_type("negative", given) for given in _several("negative", negative)]
    if len(bad) != len(outward):
        raise PlanError(f"there are {len(bad)} negative types and {len(outward)} positive ones", "give None for a type without negatives")
    anchor_types = sorted({edge_type[0] for edge_type in (*outward, *bad) if edge_type is not None})
    if len(anchor_types) != 1:
        raise PlanError(f"label types lead away from nodes of several types: {anchor_types}", "make a loader for the anchors of each type")
    if len(set(outward)) != len(outward):
        raise PlanError(f"positive names a type twice: {outward}")
    for good, other in zip(outward, bad, strict=True):
        if other == good:
            raise PlanError(f"{good} cannot be positive and negative labels", "negative=None has no negative labels")
        if other is not None and other[2] != good[2]:
            raise PlanError(
                f"positive labels {good} and negative ones {other} lead to nodes of two types", "both must lead to the same type"
            )
    labels = tuple(
        AnchorLabels(good, label_type(good, schema, edge_dir), None if other is None else label_type(other, schema, edge_dir))
        for good, other in zip(outward, bad, strict=True)
    )
    nodes = resolve_input_nodes(_of_type(input_nodes, anchor_types[0]), graph)
    stream = "anchor" + nodes.stream.removeprefix("node")
    return InputAnchors(nodes.node_type, stream, labels, nodes.split, nodes.ids, cap, output)


def checked_anchors(inputs: InputAnchors, graph: GraphHandle) -> InputAnchors:
    """Anchors of a plan that somebody may have edited, checked as if a user had said them.

    Raises:
        PlanError: See ``resolve_anchors``; or labels do not lead from the anchors to the nodes that they say they do.
    """
    which = inputs.node_type, inputs.ids if inputs.split is None else inputs.split
    nodes = resolve_input_nodes(which, graph)
    num_anchors = input_rows(nodes, graph).num_inputs
    for labels in inputs.labels:
        for source in (labels.positive, labels.negative):
            if isinstance(source, LabelLists):
                _check_lists(source, num_anchors, labels.edge_type, graph.arrays.schema)
            elif source is not None:
                _check_stored(source, inputs.node_type, labels.edge_type, graph)
    return replace(inputs, split=nodes.split, ids=nodes.ids)


def _check_lists(lists: LabelLists, num_anchors: int, edge_type: EdgeType, schema: GraphSchema) -> None:
    num_nodes = schema.node_types[edge_type[2]].num_nodes if edge_type[2] in schema.node_types else 0
    if len(lists.counts) != num_anchors:
        raise PlanError(f"there are {num_anchors} anchors, and {len(lists.counts)} of them have labels of {edge_type}")
    if len(lists.nodes) and not 0 <= lists.nodes.min() <= lists.nodes.max() < num_nodes:
        raise PlanError(f"the labels of {edge_type} are none of the {num_nodes} {edge_type[2]!r} nodes")


def _check_stored(stored: EdgeType, anchor_type: str, edge_type: EdgeType, graph: GraphHandle) -> None:
    arrays = graph.arrays
    if stored not in arrays.schema.edge_types:
        names = [str(known) for known in arrays.schema.edge_types]
        raise PlanError(f"there are no label edges {stored}{near_matches(str(stored), names)}", f"known: {names}")
    ends = arrays.frontier_type(stored), arrays.neighbor_type(stored)
    if ends != (anchor_type, edge_type[2]):
        raise PlanError(
            f"edges of {stored} are owned by {ends[0]!r} nodes and lead to {ends[1]!r} nodes: they are no labels {edge_type} of "
            f"{anchor_type!r} nodes",
            "make the plan again with loader.for_anchors(...)",
        )


def label_type(outward: EdgeType, schema: GraphSchema, edge_dir: EdgeDir) -> EdgeType:
    """The stored edge type in which anchors own the edges to their labels.

    That is the type itself where edges are compressed by source; where they are compressed by target it is the opposite one, with ``rev_``
    added to the relation or removed.

    Args:
        outward: The type as it leads from anchors to labels.
        schema: The stored types.
        edge_dir: The direction in which they are compressed.

    Raises:
        PlanError: It is not stored.
    """
    wanted, other = outward, opposite_edge_type(outward)
    if edge_dir == "in":
        wanted, other = other, wanted
    if wanted in schema.edge_types:
        return wanted
    if other in schema.edge_types:
        away = "out" if edge_dir == "in" else "in"
        raise PlanError(
            f"the labels {outward} are stored as {other}; with edge_dir={edge_dir!r} anchors do not own these edges, and cannot find them",
            f"gnnkit.add_label_edges(data, {{{outward}: edge_index}}, edge_dir={edge_dir!r}) stores them as {wanted}; "
            f"as they are they serve a graph with edge_dir={away!r}",
        )
    names = [str(known) for known in schema.edge_types]
    raise PlanError(f"there are no label edges {outward}{near_matches(str(outward), names)}", f"known: {names}")


def without_labels(sampling: Sampling, label_types: Iterable[EdgeType]) -> Sampling:
    """The same sampling, which follows no label edges: those of an anchor's labels, and any whose relation says that it is one.

    Raises:
        PlanError: There is nothing left to follow, or the way of sampling cannot leave a label type out.
    """
    labels = set(label_types)
    plain = sorted(edge_type for edge_type in labels if not is_label_edge_type(edge_type))
    if isinstance(sampling, PPRSampling):
        plain = [edge_type for edge_type in plain if edge_type in sampling.edge_types]
    how = type(sampling).__name__
    if isinstance(sampling, NeighborSampling):
        how = "subgraph_type='bidirectional'" if sampling.subgraph_type == "bidirectional" else ""
    if plain and how:
        raise PlanError(
            f"{how} shows edges of every type that is no label type by its name, and {plain} are none",
            "let their relations end in '_gigl_positive' and '_gigl_negative'",
        )
    if not isinstance(sampling, NeighborSampling):
        return sampling
    if sampling.time_attr is not None:
        raise PlanError("anchors have no times, and time_attr is given", "leave time_attr out")
    none = (0,) * sampling.num_hops
    fan_outs = {
        edge_type: none if edge_type in labels or is_label_edge_type(edge_type) else fan_out
        for edge_type, fan_out in sampling.num_neighbors.items()
    }
    if all(edge_type in labels or is_label_edge_type(edge_type) for edge_type in fan_outs):
        raise PlanError(f"all edges are labels: {sorted(fan_outs)}, and there is nothing to sample along")
    return replace(sampling, num_neighbors=fan_outs)


def _is_one(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(part, str) for part in value)


def _edge_type(name: str, value: Any) -> EdgeType:
    if not (isinstance(value, (tuple, list)) and _is_one(tuple(value))):
        raise PlanError(f"{name} must be an edge type, or a list of some, got {value!r}", "for example ('user', 'buys', 'item')")
    source, relation, target = value
    return source, relation, target


def _several(name: str, value: Any) -> Sequence[Any]:
    if _is_one(value):
        return [value]
    if not isinstance(value, (list, tuple)) or not value:
        raise PlanError(f"{name} must be an edge type, or a list of some, got {value!r}", "for example ('user', 'buys', 'item')")
    return value


def _of_type(input_nodes: Any, anchor_type: str) -> Any:
    """``input_nodes`` with the anchors' type."""
    if isinstance(input_nodes, tuple) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        if input_nodes[0] != anchor_type:
            raise PlanError(
                f"input_nodes are {input_nodes[0]!r} nodes, and the labels lead away from {anchor_type!r} nodes",
                "name label types as they lead from anchors to labels",
            )
        return input_nodes
    return anchor_type, None if isinstance(input_nodes, str) and input_nodes == anchor_type else input_nodes
