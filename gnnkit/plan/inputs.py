"""Inputs that batches start from: nodes, links with negatives, anchors with labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.bounds import check_flag, check_text, is_real, keep_whole_number, shown
from gnnkit.errors import PlanError
from gnnkit.plan.files import array_from_json, array_to_json, edge_type_from_json
from gnnkit.schema import EdgeType, NodeType

# For each link: beyond this there is no memory for a batch.
_MOST_NEGATIVES = 1 << 31
NegativeMode: TypeAlias = Literal["binary", "triplet", "official"]
ExcludeEdges: TypeAlias = Literal["self", "reverse"]


@dataclass(frozen=True, eq=False)
class NegativeSampling:
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

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {
            "mode": self.mode,
            "amount": self.amount,
            "strict": self.strict,
            "src_weight": array_to_json(self.src_weight),
            "dst_weight": array_to_json(self.dst_weight),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> NegativeSampling | None:
        """Reverses ``to_json``; None stays None."""
        if value is None:
            return None
        weights = array_from_json(value["src_weight"]), array_from_json(value["dst_weight"])
        return cls(value["mode"], value["amount"], value["strict"], *weights)


@dataclass(frozen=True, eq=False)
class InputLinks:
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

    edge_type: EdgeType
    stream: str
    split: str | None = None
    edge_label_index: NDArray[np.int64] | None = None
    edge_label: NDArray[Any] | None = None
    edge_label_time: NDArray[np.int64] | None = None
    neg_sampling: NegativeSampling | None = None
    exclude_edges: ExcludeEdges | None = None
    weights: NDArray[np.float64] | None = None
    window: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        _check_names(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputLinks) and self.to_json() == other.to_json()

    @property
    def input_type(self) -> EdgeType:
        """The type whose inputs they are."""
        return self.edge_type

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {
            "kind": "links",
            "edge_type": list(self.edge_type),
            "stream": self.stream,
            "split": self.split,
            "edge_label_index": array_to_json(self.edge_label_index),
            "edge_label": array_to_json(self.edge_label),
            "edge_label_time": array_to_json(self.edge_label_time),
            "neg_sampling": None if self.neg_sampling is None else self.neg_sampling.to_json(),
            "exclude_edges": self.exclude_edges,
            **_arrays_to_json(weights=self.weights, window=self.window),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InputLinks:
        """Reverses ``to_json``."""
        return cls(
            edge_type_from_json(value["edge_type"]),
            value["stream"],
            value["split"],
            array_from_json(value["edge_label_index"]),
            array_from_json(value["edge_label"]),
            array_from_json(value["edge_label_time"]),
            NegativeSampling.from_json(value["neg_sampling"]),
            value["exclude_edges"],
            array_from_json(value.get("weights")),
            array_from_json(value.get("window")),
        )


def _check_names(inputs: InputNodes | InputLinks | InputAnchors) -> None:
    """Checks the texts that inputs of every kind have.

    Raises:
        PlanError: One is none.
    """
    kind = inputs.input_type
    names = (
        ("stream", inputs.stream),
        ("split", inputs.split or ""),
        *(("type", name) for name in ([kind] if isinstance(kind, str) else kind)),
    )
    for name, value in names:
        check_text(f"the inputs' {name}", value)


LabelOutput: TypeAlias = Literal["dict", "edge_index"]
LabelKind: TypeAlias = Literal["positive", "negative"]
LABEL_KINDS: tuple[LabelKind, ...] = ("positive", "negative")
# Behind label_name(...), of a batch's arrays: int64 [b], labels of each anchor; int64 [sum], their numbers, anchor after anchor.
LABEL_COUNTS, LABEL_NODES = "/counts", "/nodes"


@dataclass(frozen=True, eq=False)
class LabelLists:
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

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {"counts": array_to_json(self.counts), "nodes": array_to_json(self.nodes)}


# A stored edge type that anchors own the edges of, or the labels themselves.
LabelSource: TypeAlias = EdgeType | LabelLists


@dataclass(frozen=True, eq=False)
class AnchorLabels:
    """The labels of one supervised edge type.

    Attributes:
        edge_type: The type, as it leads from anchors to labels; what batches call the labels where there are several types.
        positive: Where the positive labels are.
        negative: Where the negative ones are; None: there are none.
    """

    edge_type: EdgeType
    positive: LabelSource
    negative: LabelSource | None = None

    def source(self, kind: LabelKind) -> LabelSource | None:
        """Returns the source of the labels of a kind."""
        return self.positive if kind == "positive" else self.negative

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        positive, negative = _source_to_json(self.positive), _source_to_json(self.negative)
        return {"edge_type": list(self.edge_type), "positive": positive, "negative": negative}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AnchorLabels:
        """Reverses ``to_json``."""
        positive, negative = _source_from_json(value["positive"]), _source_from_json(value["negative"])
        if positive is None:
            raise PlanError("the plan's anchors have no positive labels")
        return cls(edge_type_from_json(value["edge_type"]), positive, negative)


@dataclass(frozen=True, eq=False)
class InputAnchors:
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

    node_type: NodeType
    stream: str
    labels: tuple[AnchorLabels, ...]
    split: str | None = None
    ids: NDArray[np.int64] | None = None
    cap: int | None = None
    output: LabelOutput = "dict"
    weights: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not self.labels:
            raise PlanError("anchors need labels", "name at least one edge type of positive labels")
        _check_names(self)
        if self.cap is not None:
            keep_whole_number(self, "cap", 1, hint="None takes all labels of an anchor")
        if self.output not in ("dict", "edge_index"):
            raise PlanError(f"output must be 'dict' or 'edge_index', got {self.output!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputAnchors) and self.to_json() == other.to_json()

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
        found = {}
        for number, labels in enumerate(self.labels):
            for kind in LABEL_KINDS:
                source = labels.source(kind)
                if isinstance(source, LabelLists):
                    found[label_name(number, kind)] = source.rows(positions)
        return found

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {
            "kind": "anchors",
            "node_type": self.node_type,
            "stream": self.stream,
            "labels": [labels.to_json() for labels in self.labels],
            "split": self.split,
            "ids": array_to_json(self.ids),
            "cap": self.cap,
            "output": self.output,
            **_arrays_to_json(weights=self.weights),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InputAnchors:
        """Reverses ``to_json``."""
        labels = tuple(AnchorLabels.from_json(item) for item in value["labels"])
        ids, weights = array_from_json(value["ids"]), array_from_json(value.get("weights"))
        return cls(value["node_type"], value["stream"], labels, value["split"], ids, value["cap"], value["output"], weights)


def label_name(number: int, kind: LabelKind) -> str:
    """Returns the name of the labels of a kind of the ``number``-th supervised type, until they are in a batch."""
    return f"y_{kind}/{number}"


def _source_to_json(source: LabelSource | None) -> Any:
    if source is None:
        return None
    return source.to_json() if isinstance(source, LabelLists) else list(source)


def _source_from_json(value: Any) -> LabelSource | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return edge_type_from_json(value)
    counts, nodes = array_from_json(value["counts"]), array_from_json(value["nodes"])
    if counts is None or nodes is None or counts.ndim != 1 or nodes.ndim != 1 or counts.min(initial=0) < 0 or counts.sum() != len(nodes):
        raise PlanError("the plan's labels of anchors are damaged: their counts are not those of their nodes")
    return LabelLists(counts.astype(np.int64), nodes.astype(np.int64))


@dataclass(frozen=True, eq=False)
class InputNodes:
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

    node_type: NodeType
    stream: str
    split: str | None = None
    ids: NDArray[np.int64] | None = None
    time: NDArray[np.int64] | None = None
    is_mask: bool = False
    weights: NDArray[np.float64] | None = None
    window: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        _check_names(self)
        check_flag("inputs.is_mask", self.is_mask)

    @property
    def input_type(self) -> NodeType:
        """The type whose inputs they are."""
        return self.node_type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputNodes) and self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {
            "kind": "nodes",
            "node_type": self.node_type,
            "stream": self.stream,
            "split": self.split,
            "ids": array_to_json(self.ids),
            "time": array_to_json(self.time),
            **({"is_mask": True} if self.is_mask else {}),
            **_arrays_to_json(weights=self.weights, window=self.window),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InputNodes:
        """Reverses ``to_json``."""
        ids, time = array_from_json(value["ids"]), array_from_json(value["time"])
        weights, window = array_from_json(value.get("weights")), array_from_json(value.get("window"))
        return cls(value["node_type"], value["stream"], value["split"], ids, time, value.get("is_mask", False), weights, window)


def _arrays_to_json(**arrays: NDArray[Any] | None) -> dict[str, Any]:
    """Nothing for those that are None, so that other plans stay as they are."""
    return {name: array_to_json(array) for name, array in arrays.items() if array is not None}


Inputs: TypeAlias = InputNodes | InputLinks | InputAnchors

_KINDS: dict[str, Callable[[Mapping[str, Any]], Inputs]] = {
    "nodes": InputNodes.from_json,
    "links": InputLinks.from_json,
    "anchors": InputAnchors.from_json,
}


def inputs_from_json(value: Mapping[str, Any]) -> Inputs:
    """Reverses the ``to_json`` of any inputs.

    Raises:
        PlanError: Their kind is unknown.
    """
    kind = value["kind"]
    if kind not in _KINDS:
        raise PlanError(f"the plan's inputs are of the unknown kind {kind!r}", f"known: {list(_KINDS)}")
    return _KINDS[kind](value)
