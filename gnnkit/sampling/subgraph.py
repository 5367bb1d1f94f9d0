"""A sampled batch before it becomes a PyG object: one block of memory and a description of what lies where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import EdgeType, NodeType

# Every array starts at a cache line, so that vectorised code never straddles one needlessly.
ALIGNMENT = 64


class NodeKey(NamedTuple):
    """Names an array of a node type in a batch."""

    type: NodeType
    name: str
    scope: Literal["node"] = "node"


class EdgeKey(NamedTuple):
    """Names an array of an edge type in a batch; the type is the one that the batch shows, reversed for ``edge_dir="out"``."""

    type: EdgeType
    name: str
    scope: Literal["edge"] = "edge"


BatchKey = NodeKey | EdgeKey


@dataclass(frozen=True, slots=True)
class Field:
    """One array in a batch's block.

    Attributes:
        key: What it is.
        dtype: NumPy's name of the element type, or "bfloat16" (stored as uint16).
        shape: Its shape.
        offset: Bytes from the start of the block, a multiple of ``ALIGNMENT``.
    """

    key: BatchKey
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the stored elements."""
        return np.dtype(np.uint16 if self.dtype == "bfloat16" else self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.numpy_dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class BatchLayout:
    """Where each array of a batch lies, and the counts that go with it.

    Attributes:
        fields: The arrays, in the order of their offsets.
        nbytes: Bytes of the block.
        num_sampled_nodes: ``{node type: [seeds, new nodes of hop 1, ...]}``.
        num_sampled_edges: ``{edge type: [edges of hop 1, ...]}``, edge types as the batch shows them.
        input_type: The seeds' node type.
        num_seeds: Seeds in the batch.
    """

    fields: tuple[Field, ...]
    nbytes: int
    num_sampled_nodes: Mapping[NodeType, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]]
    input_type: NodeType
    num_seeds: int

    @property
    def num_edges(self) -> int:
        """Sampled edges over all types and hops."""
        return sum(sum(counts) for counts in self.num_sampled_edges.values())

    @property
    def num_nodes(self) -> int:
        """Sampled nodes over all types and hops, seeds included."""
        return sum(sum(counts) for counts in self.num_sampled_nodes.values())


@dataclass
class SampledSubgraph:
    """A sampled batch.

    Attributes:
        epoch: Epoch of its batch key.
        batch_index: Index in the epoch's list of batches.
        is_padding: Whether it repeats another batch only to fill the last step.
        layout: What lies where in ``block``.
        block: uint8 ``[at least layout.nbytes]``; goes back to its owner when the last view on it dies.
        sample_s: Seconds spent choosing neighbours.
        gather_s: Seconds spent copying rows.
    """

    epoch: int
    batch_index: int
    is_padding: bool
    layout: BatchLayout
    block: NDArray[np.uint8]
    sample_s: float = 0.0
    gather_s: float = 0.0

    def array(self, field_: Field) -> NDArray[Any]:
        """A view of one array."""
        raw = self.block[field_.offset : field_.offset + field_.nbytes]
        return raw.view(field_.numpy_dtype).reshape(field_.shape)


class LayoutBuilder:
    """Lays arrays out one after another."""

    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.nbytes = 0

    def add(self, key: BatchKey, dtype: str, shape: tuple[int, ...]) -> Field:
        """Appends an array and returns its place."""
        field_ = Field(key, dtype, shape, self.nbytes)
        self.fields.append(field_)
        self.nbytes = -(-(self.nbytes + field_.nbytes) // ALIGNMENT) * ALIGNMENT
        return field_
