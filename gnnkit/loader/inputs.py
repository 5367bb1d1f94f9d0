"""A user's options of inputs and sampling as a plan holds them: fan-outs, nodes, links, anchors, ranks."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import Array, Dates, EdgesOption, NodesOption, check_fields
from gnnkit.callers import warn
from gnnkit.errors import PlanError, near_matches
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
)
from gnnkit.runtime.batches import OWN_NEGATIVES, InputRows, LinkArrays, input_rows
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.schema import (
    EdgeDir,
    EdgeType,
    GraphSchema,
    NodeType,
    edge_type_name,
    find_reverse,
    is_edge_type,
    is_label_edge_type,
    near_edge_types,
    opposite_label_types,
)
from gnnkit.splits import check_no_split, check_several, find_split, has_label, is_split_column, owners_of, split_index_of
from gnnkit.storage.arrays import node_values
from gnnkit.storage.layout import LABEL_NAME
from gnnkit.user_arrays import LINK_FORMS, in_unit, integer_weights, one_window, to_array, to_ids, to_links, to_rows, to_times

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.sampler import NegativeSampling as PyGNegativeSampling


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
    elif isinstance(value, str) and value in schema.node_types and not schema.is_homogeneous:
        node_type, value = value, None
    types = list(schema.node_types)
    if isinstance(value, str) and node_type in (None, *types):
        if (found := _split_input(value, node_type, graph, split_index)) is not None:
            return found
        value = None
    if node_type not in (None, *types):
        raise PlanError(f"input_nodes names the unknown node type {node_type!r}{near_matches(str(node_type), types)}", f"known: {types}")
    if node_type is None:
        if len(types) != 1:
            raise PlanError(
                "the graph has several node types, and input_nodes does not say which one it means",
                f"give (type, ids), with a type of {types}",
            )
        (node_type,) = types
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


def _split_input(split: str, node_type: NodeType | None, graph: GraphHandle, index: int | None) -> InputNodes | None:
    """The nodes of a split; None where "auto" finds a graph that has no splits."""
    is_open = node_type is None and is_auto(split)
    split = "train" if is_open else split
    splits = {owner: own for owner, own in graph.splits.items() if node_type in (None, owner)}
    if found := owners_of(split, splits, index):
        owner, name = next(iter(found.items()))
        if len(found) == 1:
            return InputNodes(owner, f"node/{owner}/{name}", split=name)
        raise PlanError(f"several node types have a split {split!r}: {list(found)}", f"give ({owner!r}, {split!r})")
    check_several(split, splits, graph.arrays.schema, index)
    if is_open:
        _check_no_split(graph)
        if others := sorted({name for own in splits.values() for name in own}):
            raise PlanError(
                f"the graph has the splits {others} and none named 'train': batches would start from all nodes, held-out ones included",
                f"input_nodes={others[0]!r} or ids or a mask (of one dimension), or None for all nodes",
            )
        return None
    if split.lower() == "all":
        near, hint = "", "input_nodes=None is all nodes" if node_type is None else f"input_nodes=({node_type!r}, None) is all nodes"
    elif of_links := list(owners_of(split, graph.link_splits)):
        said = repr(split if len(of_links) == 1 else (of_links[0], split))
        near, hint = " of nodes", f"it is one of links: loader.for_links({said}), or edge_label_index={said}"
    else:
        if find_split(split, ["train"]):
            _check_no_split(graph)
        known = sorted({name for own in splits.values() for name in own})
        hint = f"known splits: {known}" if known else "the graph has no splits: give input_nodes as ids or a mask, or None for all nodes"
        near = near_matches(split, known)
    raise PlanError(f"there is no split {split!r}{near}", hint)


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
        weights = [
            None if values.get(name) is None else to_array(values[name], name).astype(np.float64) for name in ("src_weight", "dst_weight")
        ]
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
    edge_type, split, which = _find_links(edge_label_index, graph)
    own: Mapping[str, NDArray[Any]] = {} if split is None else graph.link_splits[edge_type][split]
    negatives = options.negatives(any(name in own for name in OWN_NEGATIVES))
    if negatives is not None and negatives.mode == "official" and not any(name in own for name in OWN_NEGATIVES):
        what = "links that are no split" if split is None else f"the split {split!r} of {edge_type}"
        raise PlanError(f"neg_sampling='official', and {what} have no negatives of their own", "draw some: 'binary' or 'triplet'")
    if sampling.time_attr is not None and negatives is not None and negatives.mode == "official" and "neg_edge_index" in own:
        raise PlanError(
            f"time_attr={sampling.time_attr!r}, and the negatives of the split {split!r} have no times",
            "draw some: 'binary' or 'triplet', or use neg_sampling=None",
        )
    is_neighbors = isinstance(sampling, NeighborSampling)
    if is_neighbors and sampling.time_attr is not None and options.edge_label_time is None and "edge_label_time" not in own:
        hint = "give edge_label_time, one whole number per link"
        raise PlanError(f"time_attr={sampling.time_attr!r}, and nothing says the links' times", hint)
    if not (is_neighbors and sampling.time_attr) and options.edge_label_time is not None:
        raise PlanError("edge_label_time is given, and time_attr is not", "name the array of times: time_attr='time'")
    if options.exclude_edges == "self" and isinstance(sampling, NeighborSampling) and sampling.subgraph_type == "bidirectional":
        raise PlanError(
            "exclude_edges='self' with subgraph_type='bidirectional', which shows every edge the other way round, too",
            "use exclude_edges='reverse'",
        )
    schema = graph.arrays.schema
    links = None if which is None else to_links(which, edge_type, schema)
    ends = own.get("edge_label_index", links)
    count = schema.edge_types[edge_type].num_edges if ends is None else ends.shape[1]
    label = None if options.edge_label is None else to_rows(options.edge_label, "edge_label", count)
    time, unit = options.edge_label_time, schema.time_unit(sampling.time_attr)
    time = None if time is None else to_times(time, "edge_label_time", count, "links", unit)
    for node_type, what in ((edge_type[0], "src_weight"), (edge_type[2], "dst_weight")):
        if (weight := getattr(negatives, what, None)) is not None:
            integer_weights(weight, schema.node_types[node_type].num_nodes, what)
    stream = f"link/{edge_type_name(edge_type)}/{split or ('all' if which is None else 'ids')}"
    found = InputLinks(edge_type, stream, split, links, label, time, negatives, options.exclude_edges)
    LinkArrays(found, graph).check(sampling.time_attr)
    return found


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
    return is_edge_type(edge_label_index) or (
        isinstance(edge_label_index, tuple) and len(edge_label_index) == 2 and edge_label_index[1] is None
    )


def without_links(data: Data | HeteroData) -> Data | HeteroData:
    """A PyG object without what its transforms say of links, which is none of the graph's: batches say their own, under the same names."""
    found = copy.copy(data)
    for store in getattr(found, "stores", ()):  # what is no such object is refused by who reads it
        for name in _LINK_ATTRIBUTES:
            if name in store:
                del store[name]
    return found


def _find_links(value: Any, graph: GraphHandle) -> tuple[EdgeType, str | None, Any]:
    """The edge type that is meant, the name of its split, and, where that is None, which links: an array-like, or None for all."""
    types, edge_type, which = list(graph.arrays.schema.edge_types), None, value
    if is_edge_type(value):
        edge_type, which = value, None
    elif isinstance(value, tuple) and len(value) == 2 and (value[0] is None or isinstance(value[0], str) or is_edge_type(value[0])):
        edge_type, which = value
    splits = graph.link_splits if edge_type is None else {edge_type: graph.link_splits.get(edge_type, {})}
    found = owners_of(which, splits) if isinstance(which, str) else {}
    if len(found) > 1:
        raise PlanError(f"several edge types have a split {which!r}: {list(found)}", f"edge_label_index=({next(iter(found))}, {which!r})")
    for owner, split in found.items():
        return owner, split, None
    is_unknown = edge_type is not None and edge_type not in types
    if is_unknown or isinstance(which, str):
        names = sorted({name for own in splits.values() for name in own})
        near = near_edge_types(edge_type if is_unknown else which, types, names)
        if is_unknown:
            raise PlanError(f"edge_label_index names the unknown edge type {edge_type!r}{near}", f"known: {list(map(str, types))}")
        if edge_type is not None:
            raise PlanError(f"{edge_type} has no split {which!r}{near}", f"its splits of links: {names}" if names else LINK_FORMS)
        hint = f"known splits of links: {names}" if names else f"the graph has no splits of links: {LINK_FORMS}"
        raise PlanError(f"there is no split {which!r} of links{near}", hint)
    if edge_type is None and len(types) != 1:
        raise PlanError(
            "the graph has several edge types, and edge_label_index does not say which one it means",
            f"give (edge type, links), with a type of {list(map(str, types))}",
        )
    return edge_type or types[0], None, which


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
    outward: list[EdgeType] = _several("positive", positive)
    bad: list[EdgeType | None] = [None] * len(outward) if negative is None else _several("negative", negative, may_lack=True)
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


def _several(name: str, value: Any, *, may_lack: bool = False) -> list[Any]:
    """The edge types that a user names, one or several; None stands for one that is lacking, where it may be.

    Raises:
        PlanError: They are none.
    """
    given = [value] if is_edge_type(value) else value if isinstance(value, (list, tuple)) else []
    found = [tuple(each) if isinstance(each, list) else each for each in given]
    if not found or not all(is_edge_type(each) or (may_lack and each is None) for each in found):
        raise PlanError(f"{name} must be an edge type, or a list of some, got {value!r}", "for example ('user', 'buys', 'item')")
    return found


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
        links = self.edge_label_index
        if links is None and is_auto(self.input_nodes) and self.input_time is None and not owners_of("train", graph.splits, 0):
            links = "train" if owners_of("train", graph.link_splits) else None
        if links is not None:
            return resolve_input_links(links, self.links, sampling, graph)
        if self.split_index is not None and not any(split_index_of(name) is not None for own in graph.splits.values() for name in own):
            raise PlanError(f"split_index={self.split_index}, and the graph has no splits of several", "leave it out")
        return resolve_input_nodes(self.input_nodes, graph, self.input_time, sampling.time_attr, self.split_index)


LINK_OPTIONS = tuple(one.name for one in fields(LinkOptions))
