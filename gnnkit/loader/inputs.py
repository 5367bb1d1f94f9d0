"""A user's options of inputs and sampling as a plan holds them: fan-outs, nodes, links, anchors, ranks."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import Array, Dates, EdgesOption, NodesOption, check_fields, to_array
from gnnkit.bounds import check_choice
from gnnkit.callers import warn
from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.times import check_unit, in_unit
from gnnkit.plan import (
    AnchorLabels,
    ExcludeEdges,
    InputAnchors,
    InputLinks,
    InputNodes,
    Inputs,
    LabelLists,
    LabelOutput,
    NegativeSampling,
    NeighborSampling,
    PPRSampling,
    Sampling,
    SubgraphType,
    TemporalComparison,
    TemporalStrategy,
)
from gnnkit.plan.sampling import check_fan_outs, resolve_fan_outs
from gnnkit.runtime.batches import OWN_NEGATIVES, InputRows, input_rows, missing_edge_ids
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.samplers import Sampler
from gnnkit.sampling.seeders.links import integer_weights
from gnnkit.schema import (
    EdgeDir,
    EdgeType,
    GraphSchema,
    NodeType,
    edge_type_name,
    find_reverse,
    is_label_edge_type,
    near_edge_types,
    opposite_label_types,
)
from gnnkit.splits import OF_KEYS, SPLIT_MASKS, check_no_split, find_split, has_label, is_split_column, split_index_of, to_ids
from gnnkit.storage.arrays import node_values
from gnnkit.storage.layout import LABEL_NAME

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.sampler import NegativeSampling as PyGNegativeSampling

    from gnnkit.loader.options import LoaderOptions


def resolve_input_nodes(
    value: Any, graph: GraphHandle, input_time: Any = None, time_attr: str | None = None, split_index: int | None = None
) -> InputNodes:
    """The input nodes that a user means by a tensor, a mask, a split's name, ``("type", any of these)`` or None (all).

    Args:
        value: What the user says.
        graph: The graph.
        input_time: A time for each of them, or None.
        time_attr: Name of the array that times are compared with; None where time plays no part.
        split_index: Which of several splits of a name is meant.

    Raises:
        PlanError: The type or split is unknown or not clear, or ids or times are unusable, or times are missing.
    """
    inputs = _input_nodes(value, graph, split_index)
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
    return replace(inputs, time=to_times(input_time, "input_time", count, "input nodes", graph.arrays.schema.time_unit(time_attr)))


def check_no_mapping(value: Any, what: str) -> None:
    """Refuses a dict, such as that of the splits of a dataset of OGB's: inputs are one of its values.

    Raises:
        PlanError: It is one.
    """
    if isinstance(value, Mapping):
        names = list(value)
        hint = None
        if "train" in names:
            hint = f"name the split: split = dataset.get_{'idx' if what == 'input_nodes' else 'edge'}_split(), {what}=split['train']"
        elif names:
            hint = f"give {what}=({names[0]!r}, ids)" if what == "input_nodes" else f"give the links [2, n] under {names[0]!r}"
        raise PlanError(f"{what} is a dict of {names!r:.200}, and inputs are one of its values", hint)


def _input_nodes(value: Any, graph: GraphHandle, split_index: int | None) -> InputNodes:
    check_no_mapping(value, "input_nodes")
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
        return _split_input(value, node_type, graph, split_index)
    if node_type is None:
        if len(schema.node_types) != 1:
            raise PlanError(
                "the graph has several node types, and input_nodes does not say which one it means",
                f"give (type, ids), with a type of {list(schema.node_types)}",
            )
        (node_type,) = schema.node_types
    if value is None:
        return InputNodes(node_type, f"node/{node_type}/all")
    ids = to_ids(value, schema.node_types[node_type].num_nodes, "input_nodes", [each.num_nodes for each in schema.node_types.values()])
    return InputNodes(node_type, f"node/{node_type}/ids", ids=ids, is_mask=to_array(value, "input_nodes").dtype == np.bool_)


def with_seed_weights(inputs: Inputs, value: Any, graph: GraphHandle) -> Inputs:
    """Inputs that an epoch draws in proportion to weights.

    Args:
        inputs: The inputs.
        value: Numbers for each of them or for each place of their mask, "balanced", or None, which changes nothing.
        graph: The graph.

    Raises:
        PlanError: The numbers do not fit the inputs, or the graph has no classes that could be balanced.
    """
    rows = input_rows(inputs, graph)
    if value is None or not rows.num_inputs:
        return inputs
    if isinstance(inputs, InputLinks) and inputs.neg_sampling is not None and inputs.neg_sampling.mode == "official":
        raise PlanError("seed_weights is given, and the split's own negatives belong to each of its links", "use neg_sampling='binary'")
    if isinstance(value, str):
        weights = _balanced(inputs, rows, value, graph)
    else:
        weights = _of_inputs(inputs, to_array(value, "seed_weights"), graph).astype(np.float64)
    integer_weights(weights, rows.num_inputs, "seed_weights", "inputs")
    return replace(inputs, weights=weights)


def warn_where_empty(inputs: Inputs, graph: GraphHandle) -> None:
    """Says that a mask or a split has no node, and epochs no batch; ids that are none at all are given on purpose."""
    if isinstance(inputs, InputNodes) and (inputs.is_mask or inputs.split is not None) and not input_rows(inputs, graph).num_inputs:
        what = "the mask of input_nodes" if inputs.split is None else f"the split {inputs.split!r}"
        warn(f"{what} has no node of type {inputs.node_type!r}: an epoch has no batches. Look at what makes it, or give other input_nodes")


def with_time_window(inputs: Inputs, value: Any, sampling: Sampling, graph: GraphHandle) -> Inputs:
    """Inputs that each have a time window of their own.

    Args:
        inputs: The inputs.
        value: A whole number or a ``timedelta64`` for each of them or for each place of their mask; None, or a single one, changes nothing.
        sampling: What is sampled around them.
        graph: The graph.

    Raises:
        PlanError: The numbers do not fit the inputs, or time plays no part.
    """
    value = in_unit(value, "time_window", graph.arrays.schema.time_unit(sampling.time_attr))
    if one_window(value) is not None or value is None:
        return inputs
    if sampling.time_attr is None or isinstance(inputs, InputAnchors):
        raise PlanError("time_window is given, and no times are compared with it", "name the array that holds them: time_attr='time'")
    window, count = _of_inputs(inputs, to_array(value, "time_window"), graph), input_rows(inputs, graph).num_inputs
    if window.shape != (count,) or window.dtype.kind not in "iu" or (count and not 0 <= window.min() <= window.max() < 1 << 63):
        raise PlanError(
            f"time_window must be a whole number of at least 0, or such numbers [{count}], one for each input;"
            f" got {window.dtype} {list(window.shape)}",
            "in the unit of the times",
        )
    return replace(inputs, window=window.astype(np.int64))


def _of_inputs(inputs: Inputs, values: NDArray[Any], graph: GraphHandle) -> NDArray[Any]:
    """Values of inputs, also where there is one for each place of their mask."""
    if not isinstance(inputs, InputNodes) or not inputs.is_mask:
        return values
    num_nodes = graph.arrays.schema.node_types[inputs.node_type].num_nodes
    return values[inputs.ids] if values.shape[:1] == (num_nodes,) else values


def one_window(value: Any) -> int | None:
    """Returns the time window that all inputs share; None where there is none, or one for each.

    Raises:
        PlanError: It is a single value, and no whole number.
    """
    if value is None or (not np.isscalar(value) and getattr(value, "ndim", 1) != 0):
        return None
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not float(value).is_integer():
        raise PlanError(f"time_window must be a whole number of at least 0, in the unit of the times, got {value!r}")
    return int(value)


def _balanced(inputs: Inputs, rows: InputRows, value: str, graph: GraphHandle) -> NDArray[np.float64]:
    """One by the number of inputs of the same class."""
    if value != "balanced":
        raise PlanError(f"seed_weights must be numbers or 'balanced', got {value!r}")
    if isinstance(inputs, InputLinks):
        raise PlanError("seed_weights='balanced' is about classes of nodes, and batches start from links", "give a number for each link")
    hint = "give a number for each input"
    if LABEL_NAME not in graph.arrays.schema.node_types[inputs.node_type].arrays:
        raise PlanError(f"seed_weights='balanced' needs labels y, and {inputs.node_type!r} nodes have none", hint)
    if not graph.arrays.has_structure:
        raise PlanError("seed_weights='balanced' needs the labels of all nodes, and some are on other hosts", hint)
    labels = node_values(graph.arrays, inputs.node_type, LABEL_NAME)
    classes = labels[rows.arrays(np.arange(rows.num_inputs, dtype=np.int64))["node"]].reshape(rows.num_inputs, -1)
    if classes.shape[1] != 1 or not has_label(classes).all():
        what = f"y is {labels.dtype} {list(labels.shape)}, and {int((~has_label(classes)).sum())} inputs have none"
        raise PlanError(f"seed_weights='balanced' needs one class for each input; {what}", hint)
    _, which, counts = np.unique(classes[:, 0], return_inverse=True, return_counts=True)
    return 1.0 / counts[which]


def _split_input(split: str, node_type: NodeType | None, graph: GraphHandle, index: int | None) -> InputNodes:
    having = {t: find_split(split, splits, index) for t, splits in graph.splits.items() if node_type in (None, t)}
    found = [(t, name) for t, name in having.items() if name is not None]
    if len(found) == 1:
        ((owner, name),) = found
        return InputNodes(owner, f"node/{owner}/{name}", split=name)
    if found:
        raise PlanError(f"several node types have a split {split!r}: {[t for t, _ in found]}", f"give ({found[0][0]!r}, {split!r})")
    _check_several(split, node_type, graph, index)
    known = sorted({name for t, splits in graph.splits.items() for name in splits if node_type in (None, t)})
    hint = f"known splits: {known}" if known else "the graph has no splits: give input_nodes as ids or a mask, or None for all nodes"
    near = near_matches(split, known)
    if split.lower() == "all":
        near, hint = "", "input_nodes=None is all nodes" if node_type is None else f"input_nodes=({node_type!r}, None) is all nodes"
    elif of_links := [edge_type for edge_type, splits in graph.link_splits.items() if find_split(split, splits)]:
        said = repr(split if len(of_links) == 1 else (of_links[0], split))
        near, hint = " of nodes", f"it is one of links: loader.for_links({said}), or edge_label_index={said}"
    elif find_split(split, ["train"]):
        _check_no_split(graph)
    raise PlanError(f"there is no split {split!r}{near}", hint)


def _check_several(split: str, node_type: NodeType | None, graph: GraphHandle, index: int | None = None) -> None:
    """Refuses a name that several splits have, and a number that none of them has.

    Raises:
        PlanError: Says how many there are.
    """
    for owner, splits in graph.splits.items():
        numbers = [split_index_of(name) for name in splits if find_split(split, [name.partition(".")[0]])]
        count = sum(number is not None for number in numbers)
        if count and node_type in (None, owner):
            masks = [name for name in graph.arrays.schema.node_types[owner].arrays if name in SPLIT_MASKS]
            what = f"the masks {', '.join(masks)} hold" if masks else "there are"
            said = "" if index is None else f", and none of the number {index}"
            hint = (
                f"split_index=0 to split_index={count - 1} chooses one, for train, valid and test; {split!r} of it is '{split}.0' as well"
            )
            raise PlanError(f"{what} {count} splits {split!r} of {owner!r} nodes{said}", hint)


def _check_no_split(graph: GraphHandle) -> None:
    """Refuses a graph of which something speaks of training, and whose splits do not.

    Raises:
        PlanError: Says what.
    """
    arrays, schema = graph.arrays, graph.arrays.schema
    for owner, nodes in schema.node_types.items():
        rest = {**graph.type_extra.get(owner, {}), **(graph.extra if schema.is_homogeneous else {})}
        own = (
            (name, node_values(arrays, owner, name) if "train" in name.lower() and arrays.has_structure else ()) for name in nodes.arrays
        )
        check_no_split([*own, *rest.items()], nodes.num_nodes, "data." if schema.is_homogeneous else f"data[{owner!r}].")
        table = graph.metadata.get("tables", {}).get(owner, {})
        if column := next((name for name in table.get("unused", ()) if is_split_column(name)), None):
            raise PlanError(
                f"the graph has no split 'train', and the column {column!r} of {owner!r} nodes, which is unused, looks like one",
                f"split={column!r} of gnnkit.tables takes it; input_nodes=None starts from all nodes",
            )


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This trainer's rank and the number of trainers: as given, from the process group, from torchrun's environment, or 0 of 1.

    Raises:
        PlanError: Only one of the two is given, or the environment makes no sense.
    """
    if (rank is None) != (world_size is None):
        hint = "for example rank=0, world_size=2; or leave both out: launch() and torchrun say them"
        raise PlanError(f"rank and world_size go together, got rank={rank!r} and world_size={world_size!r}", hint)
    if rank is not None and world_size is not None:
        return rank, world_size
    return find_rank() or (0, 1)


def find_rank() -> tuple[int, int] | None:
    """This trainer's rank and the number of trainers, from the process group or torchrun's environment; None without either.

    Raises:
        PlanError: The environment makes no sense.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    values = tuple(os.environ.get(name, "").strip() for name in ("RANK", "WORLD_SIZE"))
    if not values[0] or not values[1]:
        return None
    try:
        return int(values[0]), int(values[1])
    except ValueError:
        raise PlanError(
            f"RANK={values[0]!r} and WORLD_SIZE={values[1]!r} in the environment are no numbers", "unset them, or give rank=0, world_size=1"
        ) from None


LINK_FORMS = "give a tensor [2, n], a split's name, (edge type, either of these), or an edge type for all its edges"


def to_links(value: Any, edge_type: EdgeType, schema: GraphSchema) -> NDArray[np.int64]:
    """Links from a tensor, array or list ``[2, n]``: int64, dataset ids of sources and targets.

    Raises:
        PlanError: Wrong dtype or shape, or an id out of range.
    """
    array = to_array(value, "edge_label_index", LINK_FORMS)
    if array.ndim != 2 or array.shape[0] != 2:
        raise PlanError(f"edge_label_index must be [2, n], sources and targets, got shape {list(array.shape)}", LINK_FORMS)
    if array.size and array.dtype.kind not in "iu":
        raise PlanError(f"edge_label_index must hold whole numbers, got dtype {array.dtype}", "for example edge_label_index.long()")
    for row, node_type, end in zip(array, (edge_type[0], edge_type[2]), ("source", "target"), strict=True):
        num_nodes = schema.node_types[node_type].num_nodes
        if row.size and not 0 <= row.min() <= row.max() < num_nodes:
            wrong = int(row[(row < 0) | (row >= num_nodes)][0])
            hint = OF_KEYS + ("; row 0 holds sources, row 1 targets" if edge_type[0] != edge_type[2] else "")
            raise PlanError(f"edge_label_index holds the {end} {wrong}, but ids of {node_type!r} go from 0 to {num_nodes - 1}", hint)
    return np.array(array, np.int64, order="C")


def to_rows(value: Any, what: str, count: int) -> NDArray[Any]:
    """Numbers ``[count, ...]`` that go with links; a copy.

    Raises:
        PlanError: They are none, or of another length.
    """
    array = to_array(value, what)
    if array.ndim == 0 or len(array) != count:
        hint = f"give {what} for the same links as edge_label_index, in their order"
        raise PlanError(f"{what} must have a row for each of {count} links, got shape {list(array.shape)}", hint)
    return np.array(array, order="C")


def to_times(value: Any, what: str, count: int, inputs: str, unit: str | None) -> NDArray[np.int64]:
    """Times of inputs: int64 ``[count]``.

    Args:
        value: Whole numbers, or dates as ``in_unit`` takes them.
        what: The argument's name, for messages.
        count: How many inputs there are.
        inputs: What they are, for messages.
        unit: The unit of the graph's times; None where they have none.

    Raises:
        PlanError: They are neither, of another shape, or in another unit.
    """
    array = to_array(in_unit(value, what, unit), what)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise PlanError(
            f"{what} must be whole numbers [{count}] or dates, one for each of {count} {inputs}; got {array.dtype} {list(array.shape)}",
            f"for example {what}.long()",
        )
    check_unit(array, what, unit)
    return array.astype(np.int64)


def as_of(ids: NDArray[np.int64], value: Any, unit: str | None) -> NDArray[np.int64]:
    """Ids of ``sample()`` with their times, as requests carry them: int64 ``[2 k]``, see ``InputRows.given``.

    Args:
        ids: int64 ``[k]``.
        value: One time for all of them, or ``[k]``; see ``to_times``.
        unit: See ``to_times``.

    Raises:
        PlanError: They are no times, or of another number.
    """
    if np.isscalar(value) or isinstance(value, date) or getattr(value, "ndim", 1) == 0:
        value = [value] * len(ids)
    return np.concatenate([~ids, to_times(value, "input_time", len(ids), "nodes", unit)])


def to_weight(value: Any, what: str) -> NDArray[np.float64] | None:
    """Weights of nodes: float64, or None where there are none.

    Raises:
        PlanError: They are no numbers.
    """
    return None if value is None else to_array(value, what).astype(np.float64)


# Options that speak of sampling hop by hop, and what they are where they are not given.
HOP_OPTIONS: dict[str, Any] = {
    "num_neighbors": None,
    "replace": False,
    "disjoint": False,
    "subgraph_type": "directional",
    "temporal_strategy": "uniform",
    "time_window": None,
    "temporal_comparison": "<=",
}


def check_sampling_options(options: LoaderOptions) -> None:
    """Checks what can be checked without a graph.

    Raises:
        PlanError: Neither or both of ``num_neighbors`` and ``sampler`` are given, or a value is unusable.
    """
    if options.sampler is None:
        if options.num_neighbors is None:
            raise PlanError("num_neighbors is missing", "give one number per hop, for example num_neighbors=[15, 10, 5]")
        check_fan_outs(options.num_neighbors)
        NeighborSampling({}, disjoint=options.disjoint, subgraph_type=options.subgraph_type)
        check_choice("temporal_strategy", options.temporal_strategy, TemporalStrategy)
        check_choice("temporal_comparison", options.temporal_comparison, TemporalComparison)
        one_window(in_unit(options.time_window, "time_window", "us"))  # in any unit: the graph's is not known yet
        return
    if isinstance(options.sampler, type) or not isinstance(options.sampler, Sampler):
        raise PlanError(
            f"sampler must be a way of sampling such as gnnkit.Labor(...), gnnkit.PPR() or gnnkit.HGT(...), got {options.sampler!r}",
            "num_neighbors=[15, 10, 5] samples hop by hop",
        )
    for name, usual in HOP_OPTIONS.items():
        value = getattr(options, name)
        if type(value) is not type(usual) or value != usual:  # a tensor cannot be compared
            kind = type(options.sampler).__name__
            raise PlanError(f"{name}={value!r} and sampler={kind}(...) do not go together", f"leave {name} out")


def resolve_sampling(
    options: LoaderOptions, schema: GraphSchema, *, edge_dir: EdgeDir, weight: str | None, time_attr: str | None, with_edge: bool
) -> Sampling:
    """Turns a user's options into a plan's way of sampling.

    Args:
        options: The loader's options.
        schema: The graph's schema.
        edge_dir: The direction in which it is sampled.
        weight: Name of the edge array that draws follow.
        time_attr: Name of the array that keeps later neighbours out.
        with_edge: Whether batches carry edge ids.

    Raises:
        PlanError: An option does not go with the graph or with another one.
    """
    if options.sampler is not None:
        sampler: Sampler = options.sampler
        return sampler.sampling(schema, edge_dir=edge_dir, weight=weight, time_attr=time_attr, with_edge=with_edge)
    assert options.num_neighbors is not None, "checked when the options were made"
    check_reverses(options.subgraph_type, schema)
    return NeighborSampling(
        resolve_fan_outs(options.num_neighbors, schema),
        bool(options.replace),
        edge_dir,
        weight,
        with_edge,
        options.disjoint,
        options.subgraph_type,
        time_attr,
        options.temporal_strategy,
        one_window(in_unit(options.time_window, "time_window", schema.time_unit(time_attr))),
        options.temporal_comparison,
    )


def check_reverses(subgraph_type: SubgraphType, schema: GraphSchema) -> None:
    """Checks that bidirectional batches are possible, where they are wanted.

    Raises:
        PlanError: An edge type has no reverse type, or several.
    """
    if subgraph_type != "bidirectional":
        return
    edge_types = [edge_type for edge_type in schema.edge_types if not is_label_edge_type(edge_type)]
    alone = [edge_type for edge_type in edge_types if find_reverse(edge_type, edge_types) is None]
    if alone:
        raise PlanError(
            f"subgraph_type='bidirectional' needs a reverse type of every edge type, and {alone[0]} has none, or several",
            "torch_geometric.transforms.ToUndirected() adds them",
        )


NegativesOption: TypeAlias = "Literal['auto', 'binary', 'triplet', 'official'] | Mapping[str, Any] | PyGNegativeSampling | None"
_NEGATIVE_WORDS = ("mode", "amount", "src_weight", "dst_weight")
_LINK_ATTRIBUTES = ("edge_label", "edge_label_index", "edge_label_time")


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """The options that a user may give for links, beside the links themselves.

    Attributes:
        edge_label: Numbers ``[n, ...]`` that go with the links; None: a split's own, where it has some.
        edge_label_time: Whole numbers ``[n]``, with ``time_attr``: nothing later is sampled around a link's ends.
        neg_sampling: The negatives of links. "binary": pairs of nodes, drawn over the whole graph, with the label 0; "triplet":
            targets for each link's source; "official": a split's own negatives; "auto": those where it has some, else None; None: nothing.
            Also PyG's ``NegativeSampling`` or ``{"mode": ..., "amount": ...}``.
        neg_amount: Drawn negatives for each link; a fraction is possible with "binary".
        neg_strict: Whether drawn negatives are never edges of the links' type.
        exclude_edges: "self" leaves a batch's links out of what is sampled, "reverse" also the edges that lead back.
    """

    edge_label: Array | None = None
    edge_label_time: Dates | None = None
    neg_sampling: NegativesOption = "auto"
    neg_amount: float = 1
    neg_strict: bool = False
    exclude_edges: ExcludeEdges | None = None

    def __post_init__(self) -> None:
        # Whatever can be found out without the graph is.
        check_fields(self)
        if self.exclude_edges is not None and (not isinstance(self.exclude_edges, str) or self.exclude_edges not in ("self", "reverse")):
            raise PlanError(f"exclude_edges is {self.exclude_edges!r}", "it is 'self', 'reverse' or None")
        negatives = self.negatives()
        if negatives is not None and negatives.mode == "triplet" and self.edge_label is not None:
            raise PlanError(
                "edge_label is given, and 'triplet' has no labels: src_index, dst_pos_index and dst_neg_index say which links are positive",
                "leave edge_label out, or use neg_sampling='binary'",
            )

    def negatives(self, has_own: bool = False) -> NegativeSampling | None:
        """Turns the options about negatives into a plan's form; None for no negatives.

        Args:
            has_own: Whether the links are a split that has negatives of its own.

        Raises:
            PlanError: A word is unknown, or does not fit another.
        """
        given = self.neg_sampling
        if given is None or isinstance(given, str):
            if given in (None, "auto", "official") and (self.neg_strict or self.neg_amount != 1):
                raise PlanError(
                    f"neg_amount and neg_strict are about negatives that are drawn, and neg_sampling={given!r} draws none",
                    "draw some with neg_sampling='binary' or 'triplet', or leave them out",
                )
            mode: Any = ("official" if has_own else None) if given == "auto" else given
            return None if mode is None else NegativeSampling(mode, self.neg_amount, bool(self.neg_strict))
        return self._from_object(given)

    def _from_object(self, given: Any) -> NegativeSampling:
        """PyG's record, or a dict of its arguments."""
        values = given if isinstance(given, Mapping) else vars(given) if hasattr(given, "mode") and hasattr(given, "amount") else None
        if values is None or "mode" not in values:
            raise PlanError(
                f"neg_sampling is a {type(given).__name__}", "give 'binary', 'triplet', 'official', None, or PyG's NegativeSampling"
            )
        unknown = [name for name, value in values.items() if name not in _NEGATIVE_WORDS and value is not None]
        if unknown:
            raise PlanError(f"neg_sampling names {unknown[0]!r}", f"known: {_NEGATIVE_WORDS}")
        if self.neg_amount != 1:
            raise PlanError(
                f"neg_amount={self.neg_amount!r} is given, and neg_sampling says {values.get('amount', 1)!r}", "give one of them"
            )
        mode: Any = getattr(values["mode"], "value", values["mode"])
        weights = [to_weight(values.get(name), name) for name in ("src_weight", "dst_weight")]
        return NegativeSampling(mode, values.get("amount", 1), bool(self.neg_strict), *weights)


def resolve_input_links(edge_label_index: Any, options: LinkOptions, sampling: Sampling, graph: GraphHandle) -> InputLinks:
    """The links that a user means.

    Args:
        edge_label_index: ``[2, n]`` dataset ids, a split's name, ``(edge type, either of these)``, or an edge type, with or without None
            behind it, for all its edges. Where the graph is homogeneous None does for that too.
        options: What else is said about them.
        sampling: What is sampled around them.
        graph: The graph.

    Raises:
        PlanError: A type or split is unknown or not clear, an array is unusable, or something does not fit something else.
    """
    check_no_mapping(edge_label_index, "edge_label_index")
    edge_type, which = _split_type(edge_label_index, graph)
    split = (find_split(which, graph.link_splits.get(edge_type, {})) or which) if isinstance(which, str) else None
    own = {} if split is None else _own_arrays(split, edge_type, graph)
    negatives = options.negatives(any(name in own for name in OWN_NEGATIVES))
    if negatives is not None and negatives.mode == "official" and not any(name in own for name in OWN_NEGATIVES):
        what = "links that are no split" if split is None else f"the split {split!r} of {edge_type}"
        raise PlanError(f"neg_sampling='official', and {what} have no negatives of their own", "draw some: 'binary' or 'triplet'")
    links = None if which is None or split is not None else to_links(which, edge_type, graph.arrays.schema)
    if which is None and any(part.edge_id is None for part in graph.arrays.edges[edge_type]):
        raise missing_edge_ids(edge_type)
    count = _count(links, own, edge_type, graph.arrays.schema)
    unit = graph.arrays.schema.time_unit(sampling.time_attr)
    label = None if options.edge_label is None else to_rows(options.edge_label, "edge_label", count)
    time = None if options.edge_label_time is None else to_times(options.edge_label_time, "edge_label_time", count, "links", unit)
    if sampling.time_attr is not None and negatives is not None and negatives.mode == "official" and "neg_edge_index" in own:
        raise PlanError(
            f"time_attr={sampling.time_attr!r}, and the negatives of the split {split!r} have no times",
            "draw some: 'binary' or 'triplet', or use neg_sampling=None",
        )
    _check_times(time is not None or "edge_label_time" in own, time is not None, sampling)
    if options.exclude_edges == "self" and isinstance(sampling, NeighborSampling) and sampling.subgraph_type == "bidirectional":
        raise PlanError(
            "exclude_edges='self' with subgraph_type='bidirectional', which shows every edge the other way round, too",
            "use exclude_edges='reverse'",
        )
    if options.exclude_edges == "reverse" and find_reverse(edge_type, graph.arrays.schema.edge_types) is None:
        raise PlanError(f"exclude_edges='reverse', and no edge type holds the reverses of {edge_type}", "use exclude_edges='self'")
    if negatives is not None:
        for node_type, what in ((edge_type[0], "src_weight"), (edge_type[2], "dst_weight")):
            if (weight := getattr(negatives, what)) is not None:
                integer_weights(weight, graph.arrays.schema.node_types[node_type].num_nodes, what)
        if sampling.time_attr is not None:
            _check_candidates(negatives, edge_type, own["edge_label_time"] if time is None else time, sampling.time_attr, graph)
    stream = f"link/{edge_type_name(edge_type)}/{split or ('all' if which is None else 'ids')}"
    return InputLinks(edge_type, stream, split, links, label, time, negatives, options.exclude_edges)


def checked_links(inputs: InputLinks, sampling: Sampling, graph: GraphHandle) -> InputLinks:
    """The links of a plan that may have been written by hand; see ``resolve_input_links``."""
    given = inputs.neg_sampling
    options = LinkOptions(
        edge_label=inputs.edge_label,
        edge_label_time=inputs.edge_label_time,
        neg_sampling=_option_of(given),
        neg_strict=given is not None and given.strict,
        exclude_edges=inputs.exclude_edges,
    )
    which = inputs.edge_label_index if inputs.split is None else inputs.split
    return replace(resolve_input_links((inputs.edge_type, which), options, sampling, graph), stream=inputs.stream)


def _option_of(negatives: NegativeSampling | None) -> NegativesOption:
    if negatives is None or negatives.mode == "official":
        return None if negatives is None else "official"
    return {name: getattr(negatives, name) for name in _NEGATIVE_WORDS}


def wants_all_edges(edge_label_index: Any) -> bool:
    """Whether a user means every edge of a type, whose order the edges' ids say."""
    return _is_edge_type(edge_label_index) or (
        isinstance(edge_label_index, tuple) and len(edge_label_index) == 2 and edge_label_index[1] is None
    )


def without_links(data: Data | HeteroData) -> Data | HeteroData:
    """A PyG object without what its transforms say of links, which is none of the graph's: batches say their own, under the same names."""
    found = copy.copy(data)
    for store in found.stores:
        for name in _LINK_ATTRIBUTES:
            if name in store:
                del store[name]
    return found


def _is_edge_type(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(word, str) for word in value)


def _split_type(value: Any, graph: GraphHandle) -> tuple[EdgeType, Any]:
    """The edge type that is meant, and which links: an array-like, a split's name, or None for all."""
    schema = graph.arrays.schema
    known = [str(edge_type) for edge_type in schema.edge_types]
    if _is_edge_type(value):
        value = (value, None)
    if isinstance(value, tuple) and len(value) == 2 and value[0] is None:
        value = value[1]
    if isinstance(value, tuple) and len(value) == 2 and (_is_edge_type(value[0]) or isinstance(value[0], str)):
        edge_type, which = value
        if edge_type not in schema.edge_types:
            raise PlanError(
                f"edge_label_index names the unknown edge type {edge_type!r}{near_edge_types(edge_type, schema.edge_types)}",
                f"known: {known}",
            )
        return edge_type, which
    if isinstance(value, str):
        having = [edge_type for edge_type, splits in graph.link_splits.items() if find_split(value, splits)]
        if len(having) == 1:
            return having[0], value
        if having:
            raise PlanError(f"several edge types have a split {value!r}: {having}", f"edge_label_index=({having[0]}, {value!r})")
        splits = sorted({name for splits in graph.link_splits.values() for name in splits})
        hint = f"known splits of links: {splits}" if splits else f"the graph has no splits of links: {LINK_FORMS}"
        near = near_matches(value, splits) or near_edge_types(value, schema.edge_types)
        raise PlanError(f"there is no split {value!r} of links{near}", hint)
    if len(schema.edge_types) != 1:
        raise PlanError(
            "the graph has several edge types, and edge_label_index does not say which one it means",
            f"give (edge type, links), with a type of {known}",
        )
    return next(iter(schema.edge_types)), value


def _own_arrays(split: str, edge_type: EdgeType, graph: GraphHandle) -> Mapping[str, NDArray[Any]]:
    splits = graph.link_splits.get(edge_type, {})
    if split not in splits:
        known = sorted(splits)
        raise PlanError(
            f"{edge_type} has no split {split!r}{near_matches(split, known)}", f"its splits of links: {known}" if known else LINK_FORMS
        )
    return splits[split]


def _count(links: NDArray[np.int64] | None, own: Mapping[str, NDArray[Any]], edge_type: EdgeType, schema: GraphSchema) -> int:
    if links is not None:
        return int(links.shape[1])
    return int(own["edge_label_index"].shape[1]) if own else schema.edge_types[edge_type].num_edges


def _check_candidates(
    negatives: NegativeSampling, edge_type: EdgeType, times: NDArray[np.int64], time_attr: str, graph: GraphHandle
) -> None:
    """Checks that each link has nodes that are old enough to be its negatives, where every link has some and all nodes are here."""
    if not graph.arrays.has_structure or negatives.mode == "official" or negatives.amount < 1:
        return
    sources = [(negatives.src_weight, edge_type[0])] if negatives.mode == "binary" else []
    for weight, node_type in (*sources, (negatives.dst_weight, edge_type[2])):
        nodes = graph.arrays.schema.node_types[node_type]
        if time_attr not in nodes.arrays:
            continue
        if weight is None:
            found = [part.arrays[time_attr] for part in graph.arrays.local_nodes(node_type)]
        else:
            found = [node_values(graph.arrays, node_type, time_attr)[integer_weights(weight, nodes.num_nodes, "weight") > 0]]
        earliest = min((int(rows.min()) for rows in found if len(rows)), default=None)
        if earliest is not None and (early := int((times < earliest).sum())):
            raise PlanError(
                f"{early} of {len(times)} links are older than every {node_type!r} node, so that no negative can be drawn for them",
                f"leave out links whose edge_label_time is below {earliest}, or use neg_sampling=None",
            )


def _check_times(has_times: bool, are_given: bool, sampling: Sampling) -> None:
    time_attr = sampling.time_attr if isinstance(sampling, NeighborSampling) else None
    if time_attr is not None and not has_times:
        raise PlanError(f"time_attr={time_attr!r}, and nothing says the links' times", "give edge_label_time, one whole number per link")
    if time_attr is None and are_given:
        raise PlanError("edge_label_time is given, and time_attr is not", "name the array of times: time_attr='time'")


def resolve_anchors(
    graph: GraphHandle,
    input_nodes: Any,
    positive: EdgeType | Sequence[EdgeType],
    negative: EdgeType | Sequence[EdgeType | None] | None = None,
    cap: int | None = None,
    output: LabelOutput = "dict",
    split_index: int | None = None,
) -> InputAnchors:
    """The anchors that a user means.

    Args:
        graph: The graph.
        input_nodes: The anchors: as ``resolve_input_nodes`` takes them; they need not name their type.
        positive: The type of the positive label edges, as it leads from anchors to labels; or several.
        negative: The same for negative ones; for several positive types a list of as many, with None where there are none.
        cap: See ``InputAnchors``.
        output: See ``InputAnchors``.
        split_index: Which of several splits of a name is meant.

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
    nodes = resolve_input_nodes(_of_type(input_nodes, anchor_types[0]), graph, split_index=split_index)
    stream = "anchor" + nodes.stream.removeprefix("node")
    return InputAnchors(nodes.node_type, stream, labels, nodes.split, nodes.ids, cap, output)


def checked_anchors(inputs: InputAnchors, graph: GraphHandle) -> InputAnchors:
    """Anchors of a plan that may have been edited, checked as if a user had said them.

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

    That is the type itself where edges are compressed by source; where they are compressed by target it is an opposite one, see
    ``opposite_label_types``.

    Args:
        outward: The type as it leads from anchors to labels.
        schema: The stored types.
        edge_dir: The direction in which they are compressed.

    Raises:
        PlanError: It is not stored.
    """
    wanted, others = [outward], opposite_label_types(outward)
    if edge_dir == "in":
        wanted, others = others, wanted
    if stored := [edge_type for edge_type in wanted if edge_type in schema.edge_types]:
        return stored[0]
    if stored := [edge_type for edge_type in others if edge_type in schema.edge_types]:
        away = "out" if edge_dir == "in" else "in"
        raise PlanError(
            f"the labels {outward} are stored as {stored[0]}; "
            f"with edge_dir={edge_dir!r} anchors do not own these edges, and cannot find them",
            f"gnnkit.add_label_edges(data, {{{outward}: edge_index}}, edge_dir={edge_dir!r}) stores them as {wanted[0]}; "
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


def _edge_type(name: str, value: Any) -> EdgeType:
    if not (isinstance(value, (tuple, list)) and _is_edge_type(tuple(value))):
        raise PlanError(f"{name} must be an edge type, or a list of some, got {value!r}", "for example ('user', 'buys', 'item')")
    source, relation, target = value
    return source, relation, target


def _several(name: str, value: Any) -> Sequence[Any]:
    if _is_edge_type(value):
        return [value]
    if not isinstance(value, (list, tuple)) or not value or isinstance(value[0], str):
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


def is_auto(input_nodes: Any) -> bool:
    """Whether a user says nothing of input nodes, so that batches start from the split "train", where the graph has one."""
    return isinstance(input_nodes, str) and input_nodes == "auto"


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """The inputs that batches start from.

    Attributes:
        input_nodes: A split's name, ids, a mask, ``("type", any of these)``, or None for all nodes. "auto" is the split "train", of nodes
            or else of links, and all nodes where the graph has no split.
        split_index: Which one of several splits, where masks are ``[n, splits]``: 0 is their first column, of "train" and, with
            ``for_split``, of "valid" and "test".
        input_time: Whole numbers ``[n]``, with ``time_attr``: nothing later is sampled around a node; None is each node's own time.
        edge_label_index: Makes batches start from links: ``[2, n]`` ids, a split's name, ``(edge type, either of these)``, or an edge type
            for all its edges.
        links: Further options for links.
    """

    input_nodes: NodesOption = "auto"
    split_index: int | None = None
    input_time: Dates | None = None
    edge_label_index: EdgesOption = None
    links: LinkOptions = field(default_factory=LinkOptions)

    def __post_init__(self) -> None:
        for name in ("input_nodes", "edge_label_index"):
            value = getattr(self, name)
            if np.isscalar(value) and not isinstance(value, str):
                raise PlanError(f"{name} must be several, got {value!r}", f"[{value!r}] is one of them")
        if self.edge_label_index is None:
            said = [one.name for one in fields(LinkOptions) if getattr(self.links, one.name) is not one.default]
            if said:
                raise PlanError(f"{said[0]} is about links, and edge_label_index says none", "give edge_label_index, or leave it out")
        elif self.input_time is not None:
            raise PlanError("input_time is about input nodes, and edge_label_index is given", "links have edge_label_time")

    @classmethod
    def of(cls, values: Mapping[str, Any], input_nodes: Any) -> InputOptions:
        """Takes the options about inputs.

        Args:
            values: Names and values of all that a constructor was given as ``options``.
            input_nodes: What the user says of nodes.

        Raises:
            PlanError: A value is unusable, or nodes and links are given.
        """
        links = LinkOptions(**{name: value for name, value in values.items() if name in LINK_OPTIONS})
        if values.get("edge_label_index") is not None and not is_auto(input_nodes):
            raise PlanError("input_nodes and edge_label_index are both given", "batches start from nodes or from links: give one of them")
        return cls(input_nodes=input_nodes, links=links, **{one.name: values[one.name] for one in fields(cls) if one.name in values})

    def resolve(self, sampling: Sampling, graph: GraphHandle) -> Inputs:
        """The plan's form.

        Raises:
            PlanError: A type or split is unknown or not clear, or an array is unusable.
        """
        if self.edge_label_index is not None:
            return resolve_input_links(self.edge_label_index, self.links, sampling, graph)
        nodes = self.input_nodes
        if is_auto(nodes):
            nodes = "train" if any(find_split("train", splits, self.split_index) for splits in graph.splits.values()) else None
            if nodes is None and self.input_time is None and any("train" in splits for splits in graph.link_splits.values()):
                return resolve_input_links("train", self.links, sampling, graph)
            if nodes is None:
                _check_several("train", None, graph, self.split_index)
                _check_no_split(graph)
            if nodes is None and (others := sorted({name for splits in graph.splits.values() for name in splits})):
                raise PlanError(
                    f"the graph has the splits {others} and none named 'train': batches would start from all nodes, held-out ones included",
                    f"input_nodes={others[0]!r} or ids or a mask (of one dimension), or None for all nodes",
                )
        if self.split_index is not None and not any(split_index_of(name) is not None for own in graph.splits.values() for name in own):
            raise PlanError(f"split_index={self.split_index}, and the graph has no splits of several", "leave it out")
        return resolve_input_nodes(nodes, graph, self.input_time, sampling.time_attr, self.split_index)


LINK_OPTIONS = tuple(one.name for one in fields(LinkOptions))
