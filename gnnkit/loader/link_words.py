"""What users write about links, turned into what a plan holds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.link_arrays import LINK_FORMS, to_links, to_rows, to_times, to_weight
from gnnkit.plan import ExcludeEdges, InputLinks, NegativeSampling, NeighborSampling, Sampling
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.link_inputs import OWN_NEGATIVES, missing_edge_ids
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, EdgeType, GraphSchema, edge_type_name, find_reverse

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

NegWord: TypeAlias = Literal["auto", "binary", "triplet", "official"] | Mapping[str, Any] | Any | None
_NEGATIVE_WORDS = ("mode", "amount", "src_weight", "dst_weight")
_LINK_ATTRIBUTES = ("edge_label", "edge_label_index", "edge_label_time")


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """What a user may say about links, beside which ones they are.

    Attributes:
        edge_label: Numbers ``[n, ...]`` that go with the links; None: a split's own, where it has some.
        edge_label_time: Whole numbers ``[n]``, with ``time_attr``: nothing later is sampled around a link's ends.
        neg_sampling: What links are told apart from. "binary": pairs of nodes, drawn over the whole graph, with the label 0; "triplet":
            targets for each link's source; "official": a split's own negatives; "auto": those where it has some, else None; None: nothing.
            Also PyG's ``NegativeSampling`` or ``{"mode": ..., "amount": ...}``.
        neg_amount: Drawn negatives for each link; a fraction is possible with "binary".
        neg_strict: Whether drawn negatives are never edges of the links' type.
        exclude_edges: "self" leaves a batch's links out of what is sampled, "reverse" also the edges that lead back.
    """

    edge_label: Any = None
    edge_label_time: Any = None
    neg_sampling: NegWord = "auto"
    neg_amount: float = 1
    neg_strict: bool = False
    exclude_edges: ExcludeEdges | None = None

    def __post_init__(self) -> None:
        # Whatever can be found out without the graph is.
        if self.exclude_edges is not None and (not isinstance(self.exclude_edges, str) or self.exclude_edges not in ("self", "reverse")):
            raise PlanError(f"exclude_edges is {self.exclude_edges!r}", "it is 'self', 'reverse' or None")
        if not isinstance(self.neg_strict, (bool, np.bool_)):
            raise PlanError(f"neg_strict must be True or False, got {self.neg_strict!r}")
        negatives = self.negatives()
        if negatives is not None and negatives.mode == "triplet" and self.edge_label is not None:
            raise PlanError(
                "edge_label is given, and 'triplet' has no labels: src_index, dst_pos_index and dst_neg_index say which links are positive",
                "leave edge_label out, or use neg_sampling='binary'",
            )

    def negatives(self, has_own: bool = False) -> NegativeSampling | None:
        """What the words about negatives mean.

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
    edge_type, which = _split_type(edge_label_index, graph)
    split = which if isinstance(which, str) else None
    own = {} if split is None else _own_arrays(split, edge_type, graph)
    negatives = options.negatives(any(name in own for name in OWN_NEGATIVES))
    if negatives is not None and negatives.mode == "official":
        _check_official(own, split, edge_type)
    links = None if which is None or split is not None else to_links(which, edge_type, graph.arrays.schema)
    if which is None and any(part.edge_id is None for part in graph.arrays.edges[edge_type]):
        raise missing_edge_ids(edge_type)
    count = _count(links, own, edge_type, graph.arrays.schema)
    label = None if options.edge_label is None else to_rows(options.edge_label, "edge_label", count)
    time = None if options.edge_label_time is None else to_times(options.edge_label_time, count)
    if sampling.time_attr is not None and _is_paired(negatives, own):
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
        _check_weights(negatives, edge_type, graph.arrays.schema)
    stream = f"link/{edge_type_name(edge_type)}/{split or ('all' if which is None else 'ids')}"
    return InputLinks(edge_type, stream, split, links, label, time, negatives, options.exclude_edges)


def checked_links(inputs: InputLinks, sampling: Sampling, graph: GraphHandle) -> InputLinks:
    """The links of a plan that somebody may have written by hand; see ``resolve_input_links``."""
    given = inputs.neg_sampling
    options = LinkOptions(
        edge_label=inputs.edge_label,
        edge_label_time=inputs.edge_label_time,
        neg_sampling=_words_of(given),
        neg_strict=given is not None and given.strict,
        exclude_edges=inputs.exclude_edges,
    )
    which = inputs.edge_label_index if inputs.split is None else inputs.split
    return replace(resolve_input_links((inputs.edge_type, which), options, sampling, graph), stream=inputs.stream)


def _words_of(negatives: NegativeSampling | None) -> NegWord:
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
                f"edge_label_index names the unknown edge type {edge_type!r}{near_matches(str(edge_type), known)}", f"known: {known}"
            )
        return edge_type, which
    if isinstance(value, str):
        having = [edge_type for edge_type, splits in graph.link_splits.items() if value in splits]
        if len(having) == 1:
            return having[0], value
        if having:
            raise PlanError(f"several edge types have a split {value!r}: {having}", f"give ({having[0]}, {value!r})")
        splits = sorted({name for splits in graph.link_splits.values() for name in splits})
        hint = f"known splits of links: {splits}" if splits else f"the graph has no splits of links: {LINK_FORMS}"
        raise PlanError(f"there is no split {value!r} of links{near_matches(value, splits)}", hint)
    if not schema.is_homogeneous:
        raise PlanError(
            "the graph has several edge types, and edge_label_index does not say which one it means",
            f"give (edge type, links), with a type of {known}",
        )
    return HOMOGENEOUS_EDGE_TYPE, value


def _own_arrays(split: str, edge_type: EdgeType, graph: GraphHandle) -> Mapping[str, NDArray[Any]]:
    splits = graph.link_splits.get(edge_type, {})
    if split not in splits:
        known = sorted(splits)
        raise PlanError(
            f"{edge_type} has no split {split!r}{near_matches(split, known)}", f"its splits of links: {known}" if known else LINK_FORMS
        )
    return splits[split]


def _check_official(own: Mapping[str, Any], split: str | None, edge_type: EdgeType) -> None:
    if not any(name in own for name in OWN_NEGATIVES):
        what = "links that are no split" if split is None else f"the split {split!r} of {edge_type}"
        raise PlanError(f"neg_sampling='official', and {what} have no negatives of their own", "draw some: 'binary' or 'triplet'")


def _is_paired(negatives: NegativeSampling | None, own: Mapping[str, Any]) -> bool:
    """Whether a split's own pairs of negatives are inputs like its links."""
    return negatives is not None and negatives.mode == "official" and "neg_edge_index" in own


def _count(links: NDArray[np.int64] | None, own: Mapping[str, NDArray[Any]], edge_type: EdgeType, schema: GraphSchema) -> int:
    if links is not None:
        return int(links.shape[1])
    return int(own["edge_label_index"].shape[1]) if own else schema.edge_types[edge_type].num_edges


def _check_weights(negatives: NegativeSampling, edge_type: EdgeType, schema: GraphSchema) -> None:
    from gnnkit.sampling.seeders.draws import integer_weights

    for weight, node_type, what in ((negatives.src_weight, edge_type[0], "src_weight"), (negatives.dst_weight, edge_type[2], "dst_weight")):
        if weight is not None:
            integer_weights(weight, schema.node_types[node_type].num_nodes, what)


def _check_times(has_times: bool, are_given: bool, sampling: Sampling) -> None:
    time_attr = sampling.time_attr if isinstance(sampling, NeighborSampling) else None
    if time_attr is not None and not has_times:
        raise PlanError(f"time_attr={time_attr!r}, and nothing says the links' times", "give edge_label_time, one whole number per link")
    if time_attr is None and are_given:
        raise PlanError("edge_label_time is given, and time_attr is not", "name the array of times: time_attr='time'")
