"""Inputs that batches start from: nodes, links with negatives, anchors with labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.bounds import check_choice, check_flag, check_text, is_real, keep_whole_number, shown
from gnnkit.errors import PlanError
from gnnkit.plan.files import edge_type_from_json
from gnnkit.plan.records import OMITTED, Record, of_kind, read_by
from gnnkit.schema import EdgeType, NodeType

# For each link: beyond this there is no memory for a batch.
_MOST_NEGATIVES = 1 << 31
NegativeMode: TypeAlias = Literal["binary", "triplet", "official"]
ExcludeEdges: TypeAlias = Literal["self", "reverse"]


@dataclass(frozen=True, eq=False)
class NegativeSampling(Record):
    """The negatives of a batch of links.

    Attributes:
        mode: "binary" draws pairs of nodes, "triplet" targets for each link's source, "official" takes those of the split.
        amount: Negatives for each link; a fraction is possible in "binary" mode alone.
        strict: Whether drawn negatives are never edges of the links' type.
        src_weight: Numbers ``[number of source nodes]`` that sources are drawn in proportion to; None draws them alike.
        dst_weight: The same for targets.

    Raises:
        PlanError: The mode is unknown, ``amount`` is not positive, or a fraction in "triplet" mode.
    """

    mode: NegativeMode
    amount: float = 1
    strict: bool = False
    src_weight: NDArray[np.float64] | None = None
    dst_weight: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("binary", "triplet", "official"):
            raise PlanError(f"neg_sampling is {self.mode!r}", "it is 'binary', 'triplet', 'official' or None")
        amount = self.amount
        if not is_real(amount) or not 0 < amount <= _MOST_NEGATIVES:
            limit = f", and at most {_MOST_NEGATIVES}" if is_real(amount) and amount > 0 else ""
            raise PlanError(f"neg_amount must be a positive number{limit}, got {shown(amount)}", "neg_sampling=None draws no negatives")
        if self.mode == "triplet" and amount != int(amount):
            raise PlanError(f"neg_amount={amount!r}, and 'triplet' draws whole numbers of targets", "give a whole number, or use 'binary'")
        check_flag("neg_strict", self.strict)
        object.__setattr__(self, "amount", int(amount) if amount == int(amount) else float(amount))
        if self.mode != "binary" and self.src_weight is not None:
            raise PlanError(f"src_weight is given, and {self.mode!r} draws no sources", "leave it out")
        if self.mode == "official" and self.dst_weight is not None:
            raise PlanError("dst_weight is given, and 'official' draws nothing", "leave it out")

    def count(self, num_links: int) -> int:
        """Drawn negatives of a batch of so many links."""
        return 0 if self.mode == "official" else math.ceil(num_links * self.amount)


class _Inputs(Record):
    """Members of inputs of every kind; they are equal where their JSON is."""

    stream: str
    split: str | None

    @property
    def input_type(self) -> NodeType | EdgeType:
        """The type whose inputs they are."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        kind = self.input_type
        types = [("type", name) for name in ([kind] if isinstance(kind, str) else kind)]
        for name, value in [("stream", self.stream), ("split", self.split or ""), *types]:
            check_text(f"the inputs' {name}", value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and bool(self.to_json() == other.to_json())


@dataclass(frozen=True, eq=False)
class InputLinks(_Inputs):
    """The links that an epoch's batches start from.

    Attributes:
        edge_type: Their type, as the graph stores it.
        stream: Name that keeps the draws of different loaders apart, e.g. ``"link/node__to__node/train"``.
        split: The split that they are read from, or None.
        edge_label_index: int64 ``[2, n]`` dataset ids of sources and targets; None for a split or for every edge of the type.
        edge_label: Numbers ``[n, ...]``, or None: then a split's own, where it has some.
        edge_label_time: int64 ``[n]``, or None, likewise.
        neg_sampling: What they are told apart from; None: nothing.
        exclude_edges: Whether the links themselves ("self"), or they and their reverses ("reverse"), are left out of what is sampled.
        weights: float64 ``[n]``: an epoch draws its links in proportion to them, with replacement; None visits each once.
        window: int64 ``[n]``: a time window for each; None is that of the sampling.
    """

    kind = "links"

    edge_type: EdgeType
    stream: str
    split: str | None = None
    edge_label_index: NDArray[np.int64] | None = None
    edge_label: NDArray[Any] | None = None
    edge_label_time: NDArray[np.int64] | None = None
    neg_sampling: NegativeSampling | None = None
    exclude_edges: ExcludeEdges | None = None
    weights: NDArray[np.float64] | None = field(default=None, metadata=OMITTED)
    window: NDArray[np.int64] | None = field(default=None, metadata=OMITTED)

    @property
    def input_type(self) -> EdgeType:
        """The type whose inputs they are."""
        return self.edge_type


LabelOutput: TypeAlias = Literal["dict", "edge_index"]
LabelKind: TypeAlias = Literal["positive", "negative"]
LABEL_KINDS: tuple[LabelKind, ...] = ("positive", "negative")
# Behind label_name(...), of a batch's arrays: int64 [b], labels of each anchor; int64 [sum], their numbers, anchor after anchor.
LABEL_COUNTS, LABEL_NODES = "/counts", "/nodes"


@dataclass(frozen=True, eq=False)
class LabelLists(Record):
    """Labels of anchors as lists of any length, one after the other.

    Attributes:
        counts: int64 ``[n]``, labels of each anchor.
        nodes: int64 ``[sum of counts]``, dataset ids.
    """

    counts: NDArray[np.int64]
    nodes: NDArray[np.int64]

    @classmethod
    def from_rows(cls, rows: NDArray[Any]) -> LabelLists:
        """Lists of rows ``[n, k]`` that are filled up with -1."""
        valid = rows >= 0
        return cls(valid.sum(axis=1).astype(np.int64), rows[valid].astype(np.int64))

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 ``[b, k]``: the labels of some anchors, filled up with -1 to the longest of them.

        Args:
            positions: int64 ``[b]``.
        """
        counts = self.counts[positions]
        first = (np.cumsum(self.counts) - self.counts)[positions]
        found = np.full((len(positions), int(counts.max(initial=0))), -1, np.int64)
        within = np.arange(found.shape[1])
        valid = within < counts[:, None]
        found[valid] = self.nodes[(first[:, None] + within)[valid]]
        return found

    @classmethod
    def from_json(cls, value: Any) -> LabelLists:
        """Reverses ``to_json``."""
        found = super().from_json(value)
        counts, nodes = found.counts, found.nodes
        # Arrays may be null in JSON.
        are_lists = counts is not None and nodes is not None and counts.ndim == nodes.ndim == 1
        if not are_lists or counts.min(initial=0) < 0 or counts.sum() != len(nodes):
            raise PlanError("the plan's labels of anchors are damaged: their counts are not those of their nodes")
        return cls(counts.astype(np.int64), nodes.astype(np.int64))


# A stored edge type that anchors own the edges of, or the labels themselves.
LabelSource: TypeAlias = EdgeType | LabelLists


def _source_from_json(value: Any) -> LabelSource | None:
    if value is None:
        return None
    return LabelLists.from_json(value) if isinstance(value, Mapping) else edge_type_from_json(value)


@dataclass(frozen=True, eq=False)
class AnchorLabels(Record):
    """The labels of one supervised edge type.

    Attributes:
        edge_type: The type, as it leads from anchors to labels; what batches call the labels where there are several types.
        positive: Where the positive labels are.
        negative: Where the negative ones are; None: there are none.
    """

    edge_type: EdgeType
    positive: LabelSource = field(metadata=read_by(_source_from_json))
    negative: LabelSource | None = field(default=None, metadata=read_by(_source_from_json))

    def __post_init__(self) -> None:
        if self.positive is None:
            raise PlanError("the plan's anchors have no positive labels")

    def source(self, kind: LabelKind) -> LabelSource | None:
        """Returns the source of the labels of a kind."""
        return self.positive if kind == "positive" else self.negative


@dataclass(frozen=True, eq=False)
class InputAnchors(_Inputs):
    """The anchors that an epoch's batches start from, together with their labels.

    Attributes:
        node_type: Their type.
        stream: Name that keeps the draws of different loaders apart, e.g. ``"anchor/node/train"``.
        labels: What labels they have, by supervised edge type; at least one.
        split: The store's split that the ids are read from, or None.
        ids: int64 ``[n]`` dataset ids, or None for a split or for every node of the type.
        cap: Labels of each kind and anchor, at most: the first ones in the stored order; None is all.
        output: Whether batches have labels as ``{anchor: labels}`` or as an edge index.
        weights: float64 ``[n]``: an epoch draws its anchors in proportion to them, with replacement; None visits each once.
    """

    kind = "anchors"

    node_type: NodeType
    stream: str
    labels: tuple[AnchorLabels, ...]
    split: str | None = None
    ids: NDArray[np.int64] | None = None
    cap: int | None = None
    output: LabelOutput = "dict"
    weights: NDArray[np.float64] | None = field(default=None, metadata=OMITTED)

    def __post_init__(self) -> None:
        if not self.labels:
            raise PlanError("anchors need labels", "name at least one edge type of positive labels")
        super().__post_init__()
        if self.cap is not None:
            keep_whole_number(self, "cap", 1, hint="None takes all labels of an anchor")
        check_choice("output", self.output, LabelOutput)

    @property
    def input_type(self) -> NodeType:
        """The type whose inputs they are."""
        return self.node_type

    @property
    def label_types(self) -> tuple[EdgeType, ...]:
        """The stored edge types that hold labels: along these no neighbourhood is sampled."""
        sources = [labels.source(kind) for labels in self.labels for kind in LABEL_KINDS]
        return tuple(dict.fromkeys(source for source in sources if isinstance(source, tuple)))

    def given(self, positions: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Labels that are not looked up, of some of the anchors: ``{label_name(...): int64 [b, k]}``, filled up with -1."""
        sources = {label_name(number, kind): labels.source(kind) for number, labels in enumerate(self.labels) for kind in LABEL_KINDS}
        return {name: source.rows(positions) for name, source in sources.items() if isinstance(source, LabelLists)}


def label_name(number: int, kind: LabelKind) -> str:
    """Returns the name of the labels of a kind of the ``number``-th supervised type, until they are in a batch."""
    return f"y_{kind}/{number}"


@dataclass(frozen=True, eq=False)
class InputNodes(_Inputs):
    """The nodes that an epoch's batches start from.

    Attributes:
        node_type: Their type.
        stream: Name that keeps the draws of different loaders apart, e.g. ``"node/train"``.
        split: The store's split that the ids are read from, or None.
        ids: int64 ``[n]`` dataset ids, or None for a split or for every node of the type.
        time: int64 ``[n]``, for temporal sampling: nothing later is sampled around a node; None is the node's own time.
        is_mask: Whether ``ids`` are where a mask is true: ``input_id`` of a batch then holds positions in the mask, as in PyG.
        weights: float64 ``[n]``: an epoch draws its nodes in proportion to them, with replacement; None visits each once.
        window: int64 ``[n]``: a time window for each; None is that of the sampling.
    """

    kind = "nodes"

    node_type: NodeType
    stream: str
    split: str | None = None
    ids: NDArray[np.int64] | None = None
    time: NDArray[np.int64] | None = None
    is_mask: bool = field(default=False, metadata=OMITTED)
    weights: NDArray[np.float64] | None = field(default=None, metadata=OMITTED)
    window: NDArray[np.int64] | None = field(default=None, metadata=OMITTED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("inputs.is_mask", self.is_mask)

    @property
    def input_type(self) -> NodeType:
        """The type whose inputs they are."""
        return self.node_type


Inputs: TypeAlias = InputNodes | InputLinks | InputAnchors

_KINDS: Mapping[str, type[Inputs]] = {kind.kind: kind for kind in (InputNodes, InputLinks, InputAnchors)}


def inputs_from_json(value: Mapping[str, Any]) -> Inputs:
    """Reverses the ``to_json`` of any inputs.

    Raises:
        PlanError: Their kind is unknown.
    """
    return of_kind(_KINDS, value, "the plan's inputs are of the unknown kind")
