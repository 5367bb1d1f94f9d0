"""The shape of a graph: its node types and edge types with their sizes and arrays.

A graph is always typed. A homogeneous one has the single node type ``HOMOGENEOUS_NODE_TYPE`` and the single edge type
``HOMOGENEOUS_EDGE_TYPE``, and is unwrapped only where it meets the user.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.errors import PlanError, near_matches

NodeType: TypeAlias = str
EdgeType: TypeAlias = tuple[str, str, str]
EdgeDir: TypeAlias = Literal["in", "out"]

HOMOGENEOUS_NODE_TYPE: NodeType = "node"
HOMOGENEOUS_EDGE_TYPE: EdgeType = ("node", "to", "node")
# At the end of the relations of label edge types: supervision edges, along which no messages pass.
POSITIVE_LABELS, NEGATIVE_LABELS = "_gigl_positive", "_gigl_negative"
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class ElementType(NamedTuple):
    """An element type of arrays that NumPy does not have.

    Attributes:
        stored: NumPy's name of the type that its rows are kept in.
        shown: The name of the type that batches have.
        bits: Bits of a number that stands for another one, see ``Quantization``; None where a number stands for itself.
        decode: Makes float32 of stored bit patterns of numbers that stand for themselves.
        encode: Makes the nearest bit patterns of float32.
    """

    stored: str
    shown: str
    bits: int | None = None
    decode: Callable[[NDArray[Any]], NDArray[np.float32]] | None = None
    encode: Callable[[NDArray[np.float32]], NDArray[Any]] | None = None


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bit patterns of the nearest bfloat16 (ties to even); NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    patterns: NDArray[np.uint16] = np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16))
    return patterns


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloat16 bit patterns, exactly."""
    values: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


# What the bit patterns of float8_e4m3fn without a sign stand for, 0 to 448 and NaN, and the midpoints at which numbers are rounded.
_FLOAT8 = np.append([(p & 7) / 512 if p < 8 else (8 + (p & 7)) * 2.0 ** ((p >> 3) - 10) for p in range(127)], np.nan).astype(np.float32)
_FLOAT8_MIDDLES = np.append(_FLOAT8[:126] + np.diff(_FLOAT8[:127]) / 2, 464).astype(np.float32)


def float32_to_float8(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Bit patterns of the nearest float8_e4m3fn (ties to even); NaN beyond 464."""
    sizes = np.abs(values)
    patterns = np.searchsorted(_FLOAT8_MIDDLES, sizes)
    patterns += (patterns & 1) & (sizes == _FLOAT8_MIDDLES[np.minimum(patterns, 126)])
    found: NDArray[np.uint8] = (patterns | np.signbit(values) * 128).astype(np.uint8)
    return found


def float8_to_float32(bits: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values of float8_e4m3fn bit patterns, exactly."""
    values: NDArray[np.float32] = np.copysign(_FLOAT8[bits & 127], np.where(bits < 128, np.float32(1), np.float32(-1)))
    return values


# By torch's names. This is all that there is to declare: ``gnnkit.storage.convert`` packs and unpacks any number of bits that divides 8.
ELEMENT_TYPES: Mapping[str, ElementType] = {
    "bfloat16": ElementType("uint16", "bfloat16", decode=bfloat16_to_float32, encode=float32_to_bfloat16),
    "float8_e4m3fn": ElementType("uint8", "float8_e4m3fn", decode=float8_to_float32, encode=float32_to_float8),
    "quint8": ElementType("uint8", "float32", 8),
    "quint4x2": ElementType("uint8", "float32", 4),
    "quint2x4": ElementType("uint8", "float32", 2),
}


@cache
def element_type(dtype: str) -> ElementType:
    """The element type of an ``ArraySpec``'s dtype; NumPy's own are kept, and shown, as they are."""
    return ELEMENT_TYPES.get(dtype) or ElementType(dtype, dtype)


@cache
def stored_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype under which numbers of an ``ArraySpec``'s dtype are kept."""
    return np.dtype(element_type(dtype).stored)


@dataclass(frozen=True, slots=True)
class Quantization:
    """The meaning of the few bits of each column: ``q`` is the number ``q * scale + offset``, computed in float32.

    A row of ``c`` columns has ``w = ceil(c * bits / 8)`` bytes: column ``j`` is in byte ``j % w``, from bit ``j // w * bits`` on. Behind
    them are the columns that are kept whole, as float32 in the byte order of the machine; their bits are 0.

    Attributes:
        scale: One for each column, each the value of a float32, at least 0. Both are empty until the columns are measured.
        offset: One for each column, likewise.
        bits: Bits of each number.
        whole: The columns that are kept whole, ascending.

    Raises:
        PlanError: Their numbers differ, or one is not finite or no float32, a scale is negative, or there is no such column.
    """

    scale: tuple[float, ...]
    offset: tuple[float, ...]
    bits: int = 8
    whole: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.offset):
            raise PlanError(f"a quantisation has {len(self.scale)} scales and {len(self.offset)} offsets")
        for value in (*self.scale, *self.offset):
            if not math.isfinite(value) or abs(value) > _LARGEST_FLOAT32 or float(np.float32(value)) != value:
                raise PlanError(f"a quantisation holds {value!r}, which is no finite float32")
        if any(scale < 0 for scale in self.scale):
            raise PlanError(f"a quantisation holds the scale {min(self.scale)!r}, which is negative")
        ascending = list(self.whole) == sorted(set(self.whole))
        if self.whole and not (ascending and self.whole[0] >= 0 and (not self.scale or self.whole[-1] < len(self.scale))):
            raise PlanError(f"a quantisation of {len(self.scale)} columns keeps the columns {list(self.whole)} whole")

    @property
    def largest(self) -> int:
        """The largest number that the bits of a column hold."""
        return (1 << self.bits) - 1

    def packed_nbytes(self, columns: int) -> int:
        """Bytes of a row before the columns that are kept whole."""
        return -(-columns * self.bits // 8)

    def stored_nbytes(self, columns: int) -> int:
        """Bytes of a row."""
        return self.packed_nbytes(columns) + 4 * len(self.whole)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        return {"scale": list(self.scale), "offset": list(self.offset), **({"whole": list(self.whole)} if self.whole else {})}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], bits: int) -> Quantization:
        """Reverses ``to_json``, for numbers of ``bits`` bits."""
        return cls(tuple(map(float, value["scale"])), tuple(map(float, value["offset"])), bits, tuple(map(int, value.get("whole", ()))))


@checks_calls()
@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The dtype and the shape of one row of a node or edge array.

    Attributes:
        dtype: NumPy's name of the element type, or one of ``ELEMENT_TYPES``.
        row_shape: Shape of one row: ``()`` for labels ``[n]``, ``(100,)`` for features ``[n, 100]``.
        quantization: What the numbers of a quantised array stand for; None for other arrays.
        dim: The dimension of a batch's array that its rows lie along, PyG's ``__cat_dim__``: 1 for ``[2, n]``, which is stored ``[n, 2]``.
        unit: "s", "ms", "us" or "ns" where the numbers are times in this unit since 1970; None where nothing is known of them.
    """

    dtype: str
    row_shape: tuple[int, ...] = ()
    quantization: Quantization | None = None
    dim: int = 0
    unit: str | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.row_shape) if self.row_shape else ''}{f' in {self.unit}' if self.unit else ''}"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype under which the rows are stored."""
        return stored_dtype(self.dtype)

    @property
    def kind(self) -> str:
        """NumPy's letter for the kind of its numbers: "b", "i", "u" or "f"; "q" for those of a few bits that stand for others."""
        if self.dtype not in ELEMENT_TYPES:
            return np.dtype(self.dtype).kind
        return "f" if element_type(self.dtype).bits is None else "q"

    @property
    def batch_dtype(self) -> str:
        """The element type of these rows in a batch: quantised ones are float32 there."""
        return element_type(self.dtype).shown

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one row as it is stored: the bytes of quantised ones, see ``Quantization``."""
        if self.quantization is None:
            return self.row_shape
        return (self.quantization.stored_nbytes(self.row_shape[0]),)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return self.numpy_dtype.itemsize * math.prod(self.stored_shape)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        quantization = None if self.quantization is None else self.quantization.to_json()
        more = {"quantization": quantization, "dim": self.dim, "unit": self.unit}
        return {"dtype": self.dtype, "row_shape": list(self.row_shape)} | {name: value for name, value in more.items() if value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ArraySpec:
        """Reverses ``to_json``."""
        dtype = str(value["dtype"])
        bits = element_type(dtype).bits or 8
        quantization = Quantization.from_json(value["quantization"], bits) if "quantization" in value else None
        return cls(dtype, tuple(int(n) for n in value["row_shape"]), quantization, int(value.get("dim", 0)), value.get("unit"))


@checks_calls()
@dataclass(frozen=True, slots=True)
class NodeTypeSchema:
    """A node type: how many nodes it has and which arrays they carry ("x", "y", "time", "node_year", ...)."""

    num_nodes: int
    arrays: Mapping[str, ArraySpec] = field(default_factory=dict)


@checks_calls()
@dataclass(frozen=True, slots=True)
class EdgeTypeSchema:
    """An edge type: how many edges it has and which arrays they carry ("edge_attr", "weight", "time", ...)."""

    num_edges: int
    arrays: Mapping[str, ArraySpec] = field(default_factory=dict)


@checks_calls()
@dataclass(frozen=True)
class GraphSchema:
    """Node types and edge types of a graph, both in canonical (sorted) order.

    Raises:
        PlanError: An edge type names a node type that does not exist, or a type's name is unusable as a file name.
    """

    node_types: Mapping[NodeType, NodeTypeSchema]
    edge_types: Mapping[EdgeType, EdgeTypeSchema]
    is_homogeneous: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_types", dict(sorted(self.node_types.items())))
        object.__setattr__(self, "edge_types", dict(sorted(self.edge_types.items())))
        for edge_type in self.edge_types:
            for end in (edge_type[0], edge_type[2]):
                if end not in self.node_types:
                    raise PlanError(f"edge type {edge_type} ends in the unknown node type {end!r}", f"known: {list(self.node_types)}")

    @classmethod
    def homogeneous(
        cls,
        num_nodes: int,
        num_edges: int,
        node_arrays: Mapping[str, ArraySpec] | None = None,
        edge_arrays: Mapping[str, ArraySpec] | None = None,
    ) -> GraphSchema:
        """A graph of one node type and one edge type."""
        return cls(
            {HOMOGENEOUS_NODE_TYPE: NodeTypeSchema(num_nodes, dict(node_arrays or {}))},
            {HOMOGENEOUS_EDGE_TYPE: EdgeTypeSchema(num_edges, dict(edge_arrays or {}))},
            is_homogeneous=True,
        )

    @property
    def num_nodes(self) -> int:
        """Nodes over all types."""
        return sum(t.num_nodes for t in self.node_types.values())

    @property
    def counts(self) -> dict[NodeType | EdgeType, int]:
        """Nodes of each node type, then edges of each edge type."""
        nodes: dict[NodeType | EdgeType, int] = {name: t.num_nodes for name, t in self.node_types.items()}
        return nodes | {name: t.num_edges for name, t in self.edge_types.items()}

    def arrays_of(self, owner: NodeType | EdgeType) -> Mapping[str, ArraySpec]:
        """The arrays of a node type or an edge type."""
        return self.edge_types[owner].arrays if isinstance(owner, tuple) else self.node_types[owner].arrays

    def with_arrays(self, convert: Callable[[NodeType | EdgeType, Mapping[str, ArraySpec]], dict[str, ArraySpec]]) -> GraphSchema:
        """The schema with the arrays of each type that ``convert`` makes of a type and its arrays."""
        nodes = {t: replace(found, arrays=convert(t, found.arrays)) for t, found in self.node_types.items()}
        edges = {t: replace(found, arrays=convert(t, found.arrays)) for t, found in self.edge_types.items()}
        return replace(self, node_types=nodes, edge_types=edges)

    def time_unit(self, name: str | None) -> str | None:
        """The unit of the arrays of times of a name, see ``ArraySpec``; None where they have none, or nothing has this name."""
        found = (self.arrays_of(owner).get(name) for owner in self.counts) if name is not None else ()
        return next((spec.unit for spec in found if spec is not None and spec.unit), None)

    @property
    def num_edges(self) -> int:
        """Edges over all types."""
        return sum(t.num_edges for t in self.edge_types.values())

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        return {
            "is_homogeneous": self.is_homogeneous,
            "node_types": [
                {"type": name, "num_nodes": t.num_nodes, "arrays": {k: s.to_json() for k, s in sorted(t.arrays.items())}}
                for name, t in self.node_types.items()
            ],
            "edge_types": [
                {"type": list(name), "num_edges": t.num_edges, "arrays": {k: s.to_json() for k, s in sorted(t.arrays.items())}}
                for name, t in self.edge_types.items()
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GraphSchema:
        """Reverses ``to_json``."""
        nodes = {
            str(t["type"]): NodeTypeSchema(int(t["num_nodes"]), {k: ArraySpec.from_json(s) for k, s in t["arrays"].items()})
            for t in value["node_types"]
        }
        edges: dict[EdgeType, EdgeTypeSchema] = {}
        for t in value["edge_types"]:
            source, relation, target = (str(part) for part in t["type"])
            arrays = {k: ArraySpec.from_json(s) for k, s in t["arrays"].items()}
            edges[(source, relation, target)] = EdgeTypeSchema(int(t["num_edges"]), arrays)
        return cls(nodes, edges, bool(value["is_homogeneous"]))


def near_edge_types(value: Any, known: Iterable[EdgeType], names: Collection[str] = ()) -> str:
    """Returns ``"; did you mean ('a', 'to', 'b')?"`` for edge types with the words of ``value``, or close to it, else ``""``.

    Args:
        value: What a user says.
        known: The edge types that there are.
        names: Other things that may be meant; those that are close come before edge types.
    """
    if near := near_matches(str(value), list(names)):
        return near
    words = {*value} if isinstance(value, tuple) else {*re.split(r"__|,\s*", str(value))}
    close = [str(edge_type) for edge_type in known if words <= {*edge_type}]
    return f"; did you mean {' or '.join(close[:3])}?" if close else near_matches(str(value), list(map(str, known)))


def edge_type_name(edge_type: EdgeType) -> str:
    """``("paper", "cites", "paper")`` as ``"paper__cites__paper"``, its name where a text stands for it."""
    return "__".join(edge_type)


def plain(value: Any) -> Any:
    """A value as JSON has it: records as objects of their fields, edge types that are keys as texts, dtypes and paths by their names."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {edge_type_name(key) if isinstance(key, tuple) else key: plain(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(own) for own in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.name if isinstance(value, np.dtype) else str(value) if isinstance(value, Path) else value


def is_edge_type(value: Any) -> bool:
    """Whether a value is a canonical edge type: source, relation and target."""
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(part, str) for part in value)


def is_label_edge_type(edge_type: EdgeType) -> bool:
    """Whether edges of this type are labels."""
    return edge_type[1].endswith((POSITIVE_LABELS, NEGATIVE_LABELS))


def reverse_edge_type(edge_type: EdgeType) -> EdgeType:
    """The type of the same edges seen from the other end.

    Ends are swapped and, where they differ, the prefix ``rev_`` of the relation is toggled, as PyG's ``ToUndirected`` names
    reverse types and as graphlearn-torch names the output of sampling along out-edges. Of several such prefixes one is removed where
    their number is odd, and one added where it is even: the reverse types of ``x`` and of ``rev_rev_x`` are two.
    """
    source, relation, target = edge_type
    return opposite_edge_type(edge_type) if source != target else (target, relation, source)


def opposite_edge_type(edge_type: EdgeType) -> EdgeType:
    """``reverse_edge_type`` with the prefix toggled also where both ends are of one type: a type that may be stored beside the other."""
    source, relation, target = edge_type
    count = 0
    while relation.startswith("rev_", 4 * count):
        count += 1
    return (target, relation[4:] if count % 2 else f"rev_{relation}", source)


def opposite_label_types(edge_type: EdgeType) -> list[EdgeType]:
    """The names under which labels may be stored that lead from their nodes to the anchors.

    Args:
        edge_type: Their type as it leads from anchors to labels.

    Returns:
        ``opposite_edge_type``; and, as GiGL names them, the type with its ends swapped, where that is another one.
    """
    source, relation, target = edge_type
    swapped = (target, relation, source)
    return [opposite_edge_type(edge_type), *([swapped] if source != target else [])]


def find_reverse(edge_type: EdgeType, edge_types: Collection[EdgeType]) -> EdgeType | None:
    """Which of ``edge_types`` holds the reverse edges of one of them.

    That is the one whose relation has ``rev_`` added or removed, as in ``reverse_edge_type``; else, between nodes of one type, the type
    itself; else the only type that leads back. None where there is none, or where several lead back.
    """
    source, _, target = edge_type
    if opposite_edge_type(edge_type) in edge_types:
        return opposite_edge_type(edge_type)
    if source == target:
        return edge_type
    back = [other for other in edge_types if (other[0], other[2]) == (target, source)]
    return back[0] if len(back) == 1 else None
