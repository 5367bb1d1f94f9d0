"""Links that batches start from, and the negatives that go with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.plan.encoding import array_from_json, array_to_json, edge_type_from_json
from gnnkit.schema import EdgeType

NegativeMode: TypeAlias = Literal["binary", "triplet", "official"]
ExcludeEdges: TypeAlias = Literal["self", "reverse"]


@dataclass(frozen=True, eq=False)
class NegativeSampling:
    """What a batch of links is told apart from.

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
        if isinstance(amount, bool) or not isinstance(amount, (int, float, np.number)) or not 0 < amount < math.inf:
            raise PlanError(f"neg_amount must be a positive number, got {amount!r}", "neg_sampling=None draws no negatives")
        if self.mode == "triplet" and amount != int(amount):
            raise PlanError(f"neg_amount={amount!r}, and 'triplet' draws whole numbers of targets", "give a whole number, or use 'binary'")
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
        return cls(value["mode"], value["amount"], bool(value["strict"]), *weights)


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
    """

    edge_type: EdgeType
    stream: str
    split: str | None = None
    edge_label_index: NDArray[np.int64] | None = None
    edge_label: NDArray[Any] | None = None
    edge_label_time: NDArray[np.int64] | None = None
    neg_sampling: NegativeSampling | None = None
    exclude_edges: ExcludeEdges | None = None

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
        )
