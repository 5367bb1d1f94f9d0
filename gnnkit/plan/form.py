"""The form in which a loader hands batches out: padded to a few shapes, and with PyG's ``EdgeIndex``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gnnkit.errors import PlanError
from gnnkit.plan.encoding import edge_type_from_json
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType

_HINT = (
    "'bucket', or sizes: pad=[(2000, 6000), (2500, 7500)] is nodes and edges of two shapes; types: {'paper': 2000, ('a', 'b', 'c'): 600}"
)


@dataclass(frozen=True)
class Shape:
    """The size of a padded batch. Of each type it lists a bound for the end of every hop, ascending; the last one is the padded size.

    Attributes:
        nodes: ``{node type: (after the seeds, after hop 1, ...)}``; of one bound where hops do not matter.
        edges: ``{edge type: (after hop 1, ...)}``, edge types as batches show them; likewise.
    """

    nodes: Mapping[NodeType, tuple[int, ...]]
    edges: Mapping[EdgeType, tuple[int, ...]]

    def __post_init__(self) -> None:
        for bounds in (*self.nodes.values(), *self.edges.values()):
            whole = all(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds)
            if not bounds or not whole or bounds[0] < 0 or list(bounds) != sorted(bounds):
                raise PlanError(
                    f"a shape of padded batches needs sizes of at least 0 that ascend from hop to hop, got {list(bounds)}", _HINT
                )
        for node_type, bounds in self.nodes.items():
            if bounds[-1] < 1:
                raise PlanError(f"a padded batch needs room for a node of padding of each type, {node_type!r} has none", _HINT)

    @classmethod
    def of(cls, sizes: Any) -> Shape:
        """The shape that a user means by ``(nodes, edges)`` or ``{type: size}``.

        Raises:
            PlanError: It is none.
        """
        if isinstance(sizes, tuple) and len(sizes) == 2:
            sizes = {HOMOGENEOUS_NODE_TYPE: sizes[0], HOMOGENEOUS_EDGE_TYPE: sizes[1]}
        if not isinstance(sizes, Mapping) or not all(isinstance(key, (str, tuple)) for key in sizes):
            raise PlanError(f"pad has a shape that says no sizes: {sizes!r}", _HINT)
        nodes = {key: (size,) for key, size in sizes.items() if isinstance(key, str)}
        return cls(nodes, {key: (size,) for key, size in sizes.items() if isinstance(key, tuple)})

    @property
    def size(self) -> int:
        """Rows and edges of all types."""
        return sum(bounds[-1] for bounds in (*self.nodes.values(), *self.edges.values()))

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        edges = [{"edge_type": list(edge_type), "bounds": list(bounds)} for edge_type, bounds in sorted(self.edges.items())]
        return {"nodes": {node_type: list(bounds) for node_type, bounds in sorted(self.nodes.items())}, "edges": edges}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Shape:
        """Reverses ``to_json``."""
        nodes = {str(node_type): tuple(bounds) for node_type, bounds in value["nodes"].items()}
        return cls(nodes, {edge_type_from_json(row["edge_type"]): tuple(row["bounds"]) for row in value["edges"]})


PadOption = Literal["bucket"] | tuple[Shape, ...] | None


def to_pad(value: Any) -> PadOption:
    """The option ``pad`` as a plan holds it.

    Args:
        value: None, "bucket", the sizes of a shape, or a list of these.

    Raises:
        PlanError: It is none of these.
    """
    if value is None or value == "bucket":
        return value  # type: ignore[no-any-return]
    if isinstance(value, (Mapping, Shape)) or (isinstance(value, tuple) and all(isinstance(size, int) for size in value)):
        value = [value]
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise PlanError(f"pad must be None, 'bucket' or sizes, got {value!r}", _HINT)
    shapes = tuple(sorted((each if isinstance(each, Shape) else Shape.of(each) for each in value), key=lambda shape: shape.size))
    if not shapes:
        raise PlanError("pad has no shape", _HINT)
    return shapes


@dataclass(frozen=True)
class BatchForm:
    """The form of the batches that a loader hands out. What is sampled does not depend on it.

    Attributes:
        is_edge_index: Whether ``edge_index`` is PyG's ``EdgeIndex``.
        pad: The shapes that were asked for: "bucket", or their sizes, the smallest first; None for batches as they are.
        shapes: What batches are padded to, the smallest first; empty until trial batches have been looked at.
    """

    is_edge_index: bool = False
    pad: PadOption = None
    shapes: tuple[Shape, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        pad = [shape.to_json() for shape in self.pad] if isinstance(self.pad, tuple) else self.pad
        return {"is_edge_index": self.is_edge_index, "pad": pad, "shapes": [shape.to_json() for shape in self.shapes]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BatchForm:
        """Reverses ``to_json``.

        Raises:
            PlanError: A value is unusable.
        """
        if not isinstance(value["is_edge_index"], bool):
            raise PlanError(f"the plan's is_edge_index must be true or false, got {value['is_edge_index']!r}")
        asked = value["pad"]
        pad = tuple(map(Shape.from_json, asked)) if isinstance(asked, list) else to_pad(asked)
        shapes = tuple(map(Shape.from_json, value["shapes"]))
        if shapes and pad is None:
            raise PlanError("the plan has shapes that batches are padded to, and its pad is null")
        return cls(value["is_edge_index"], pad, shapes)
