"""What an epoch's batches start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.plan.anchors import InputAnchors
from gnnkit.plan.encoding import array_from_json, array_to_json
from gnnkit.plan.links import InputLinks
from gnnkit.schema import NodeType


@dataclass(frozen=True, eq=False)
class InputNodes:
    """The nodes that an epoch's batches start from.

    Attributes:
        node_type: Their type.
        stream: Name that keeps the draws of different loaders apart, e.g. ``"node/train"``.
        split: The store's split that the ids are read from, or None.
        ids: int64 ``[n]`` dataset ids, or None for a split or for every node of the type.
        time: int64 ``[n]``, for temporal sampling: nothing later is sampled around a node; None is the node's own time.
    """

    node_type: NodeType
    stream: str
    split: str | None = None
    ids: NDArray[np.int64] | None = None
    time: NDArray[np.int64] | None = None

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
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InputNodes:
        """Reverses ``to_json``."""
        ids, time = array_from_json(value["ids"]), array_from_json(value["time"])
        return cls(value["node_type"], value["stream"], value["split"], ids, time)


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
