"""Requests, what was walked for them, and the batch that comes of it in one block of memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import StoreError
from gnnkit.plan import TemporalComparison
from gnnkit.sampling.owners import Variates
from gnnkit.schema import EdgeType, NodeType, stored_dtype
from gnnkit.storage.layout import FEATURE_NAME

V = TypeVar("V")

# Every array starts at a cache line, so that vectorised code never straddles one needlessly.
ALIGNMENT = 64
# What a batch carries of a node type with cached features (``gnnkit.sampling.cached``), beside ``x`` without their rows. SLOT: int32
# [nodes], the place of each node's row in the cache, 0 for a node that has none there. MISSING: int32 [rows of x], the nodes, by their
# numbers in the batch, that those rows belong to.
SLOT: Final = ".slot"
MISSING: Final = ".missing"


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

# What batches say of themselves under these names, no array or attribute of the graph takes the place of.
_OWN_NAMES: Final = ("n_id", "e_id", "batch", "ptr", "input_id", "batch_size", "seed_time", "seed_mask", "edge_index", "num_nodes") + (
    "num_sampled_nodes",
    "num_sampled_edges",
)
_OWN: Final = re.compile(f"(graph_)*({'|'.join(_OWN_NAMES)})")


def shown_name(name: str) -> str:
    """Returns the name of a graph's array or attribute in batches: its own, or ``graph_n_id`` where batches call something of theirs so."""
    return f"graph_{name}" if _OWN.fullmatch(name) else name


def by_shown_name(values: Mapping[str, V]) -> dict[str, V]:
    """A graph's arrays or attributes by their names in batches."""
    return {shown_name(name): value for name, value in values.items()}


class Field(NamedTuple):
    """One array in a batch's block: a named tuple, because several are made for every batch.

    Attributes:
        key: What it is.
        dtype: The element type's name, see ``ArraySpec``.
        shape: Its shape; that of the bytes where numbers are packed.
        offset: Bytes from the start of the block, a multiple of ``ALIGNMENT``.
    """

    key: BatchKey
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the stored elements."""
        return stored_dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return stored_dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass  # not frozen: one is made for every batch, in a third of the time
class BatchLayout:
    """The place of each array of a batch, and the counts that go with it.

    Attributes:
        fields: The arrays, in the order of their offsets.
        nbytes: Bytes of the block.
        num_sampled_nodes: ``{node type: [seeds, new nodes of hop 1, ...]}``; empty lists where batches have no hops.
        num_sampled_edges: ``{edge type: [edges of hop 1, ...]}``, edge types as the batch shows them; likewise.
        input_type: The type of the loader's inputs: a node type, or an edge type for links.
        num_seeds: Inputs in the batch.
    """

    fields: tuple[Field, ...]
    nbytes: int
    num_sampled_nodes: Mapping[NodeType, list[int]]
    num_sampled_edges: Mapping[EdgeType, list[int]]
    input_type: NodeType | EdgeType
    num_seeds: int

    def sizes(self) -> tuple[int, int, int]:
        """Returns three numbers: nodes over all types, seeds included; edges; bytes of the features that it comes without.

        These are on the trainer's device: see ``gnnkit.sampling.cached``.
        """
        nodes = edges = cached_nbytes = 0
        for (node_type, name, _), _, shape, _ in self.fields:
            if name == "n_id":
                nodes += shape[0]
            elif name == "edge_index":
                edges += shape[1]
            elif name == SLOT:
                x = next(field for field in self.fields if field.key == (node_type, FEATURE_NAME, "node"))
                cached_nbytes += (shape[0] - x.shape[0]) * x.numpy_dtype.itemsize * math.prod(x.shape[1:])
        return nodes, edges, cached_nbytes


@dataclass
class SampledSubgraph:
    """A sampled batch.

    Attributes:
        epoch: Epoch of its batch key.
        batch_index: Index in the epoch's list of batches.
        is_padding: Whether it repeats another batch only to fill the last step; None where no batch of the epoch can.
        layout: What lies where in ``block``.
        block: uint8 ``[at least layout.nbytes]``; goes back to its owner when the last view on it dies.
        sample_s: Seconds spent choosing neighbours.
        gather_s: Seconds spent copying rows.
        worker: Who sampled it, in words; "" where that is not known.
        began_s: When it began to, as ``time.monotonic()`` of this host; nan where that is not known.
        ready: Batches of the epoch that were sampled and waiting when it was asked for, itself included if it was.
        padding: Rows and edges of padding that were added on its way to the user.
        is_oversized: Whether it fits none of the shapes that were planned for padded batches.
        tensors: Its arrays where they were made on a device: then ``block`` is empty, and offsets mean nothing.
    """

    epoch: int
    batch_index: int
    is_padding: bool | None
    layout: BatchLayout
    block: NDArray[np.uint8]
    sample_s: float = 0.0
    gather_s: float = 0.0
    worker: str = ""
    began_s: float = math.nan
    ready: int = 0
    padding: int = 0
    is_oversized: bool = False
    tensors: Mapping[BatchKey, Any] | None = None

    def array(self, field_: Field) -> NDArray[Any]:
        """A view of one array; a copy of what is on a device."""
        if self.tensors is not None:
            found: NDArray[Any] = self.tensors[field_.key].cpu().numpy()
            return found
        return self.views((field_,))[0]

    def views(self, fields: Iterable[Field]) -> list[NDArray[Any]]:
        """Views of arrays of a batch that is on no device."""
        # In one step each instead of slicing, viewing and reshaping. Of the block's own class: NumPy would keep the memory that a leased
        # block lies on instead of the block otherwise, and its owner would take it back.
        block = self.block
        kind: Any = type(block)
        return [kind(shape, stored_dtype(dtype), block, offset) for _, dtype, shape, offset in fields]


class LayoutBuilder:
    """Lays arrays out one after another."""

    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.nbytes = 0

    def add(self, key: BatchKey, dtype: str, shape: tuple[int, ...]) -> Field:
        """Appends an array and returns its place."""
        return self.add_bytes(key, dtype, shape, stored_dtype(dtype).itemsize * math.prod(shape))

    def add_bytes(self, key: BatchKey, dtype: str, shape: tuple[int, ...], nbytes: int) -> Field:
        """Appends an array of so many bytes and returns its place."""
        field_ = Field(key, dtype, shape, self.nbytes)
        self.fields.append(field_)
        self.nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return field_


VERIFY_HINT = "gnnkit info --verify names the file"
LOOSE_EDGE = "an edge leads to a node that does not exist"
STRANGE_SEED = "a seed is numbered as a node that does not exist"
STRANGE_ID = "a node or an edge has an id that the dataset does not have"


def damaged(what: str) -> StoreError:
    """The error to raise; ``what`` is one of the texts above, or says as much."""
    return StoreError(f"the graph is damaged: {what}", VERIFY_HINT)


def time_limits(
    time: NDArray[np.int64], window: NDArray[np.int64] | int | None, comparison: TemporalComparison
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """The last and the first time that count around seeds.

    Args:
        time: int64 ``[n]``, the seeds' times.
        window: How much earlier a time may be: int64 ``[n]``, or one number for all; None is any.
        comparison: Whether the seeds' own times count.

    Returns:
        int64 ``[n]`` each; None for the first ones where none is too early. Where nothing counts the first is later than the last.
    """
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    last, first = time, None
    if window is not None:
        first = np.where(time < low + window, low, time - window)
    if comparison == "<":
        last = np.where(time == low, low, time - 1)
        if (time == low).any():  # no time is before the earliest one
            first = np.where(time == low, high, low if first is None else first)
    return last, first


@dataclass  # not frozen, like layouts
class SampleRequest:
    """The key and the inputs that one batch is sampled from.

    Attributes:
        key: ``keys.batch_key`` of the batch.
        input_id: int64 ``[b]``, positions in the loader's inputs.
        arrays: The inputs' arrays for them, ``[b]`` or ``[b, k]`` each, nodes in the dataset's ids; see the seeder of their kind.
        variates: What neighbours compete by; None where every node draws from them on its own.
        waited_s: Seconds that another process has taken to choose the batch already.
    """

    key: int
    input_id: NDArray[np.int64]
    arrays: Mapping[str, NDArray[Any]]
    variates: Variates | None = None
    waited_s: float = 0.0


@dataclass(frozen=True)
class ExcludedEdges:
    """Edges that a batch must not show.

    Attributes:
        relation: Index of their stored edge type.
        source: int64 ``[n]``, store ids of their sources, as the type is stored.
        target: int64 ``[n]``, store ids of their targets.
    """

    relation: int
    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass
class WalkSeeds:
    """The seeds of a walk.

    Attributes:
        nodes: ``{index of a node type: int64 [n] store ids}``, in the order of their numbers.
        input_type: The type of the loader's inputs: a node type, or an edge type for links.
        num_seeds: Inputs in the batch.
        arrays: Arrays that the batch carries as they are.
        roots: ``{index of a node type: int64 [n]}``, which neighbourhood each seed belongs to; None where all share one.
        times: ``{index of a node type: int64 [n]}``: nothing later is sampled around a seed; None where time plays no part.
        since: The same: nothing earlier is sampled around a seed; None where nothing is too early.
        batch_of_root: int64 ``[number of roots]``, what ``batch`` shows for each root: of a link's ends, the link; None: the root itself.
        excluded: Edges to leave out.
        variates: See ``SampleRequest``.
    """

    nodes: dict[int, NDArray[np.int64]]
    input_type: NodeType | EdgeType
    num_seeds: int
    arrays: dict[BatchKey, NDArray[Any]]
    roots: dict[int, NDArray[np.int64]] | None = None
    times: dict[int, NDArray[np.int64]] | None = None
    since: dict[int, NDArray[np.int64]] | None = None
    batch_of_root: NDArray[np.int64] | None = None
    excluded: tuple[ExcludedEdges, ...] = ()
    variates: Variates | None = None


@dataclass
class WalkedEdges:
    """Edges of one type that a walk has chosen.

    Attributes:
        type: The type as the batch shows it.
        relation: Index of the stored edge type whose rows they have; None for edges that are none of the graph's.
        row: int64 ``[n]``, numbers of their sources as shown.
        col: int64 ``[n]``, numbers of their targets as shown: the seeds' side.
        position: int64 ``[n]``, their positions in the store; None where no rows of theirs are wanted.
        num_sampled: Edges of each hop.
    """

    type: EdgeType
    relation: int | None
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    position: NDArray[np.int64] | None
    num_sampled: list[int]


@dataclass
class Walked:
    """The nodes and edges of a batch; arrays may lie in the sampling thread's scratch, valid until the next walk.

    Attributes:
        nodes: int64 ``[n]`` per node type: store ids in the order of their numbers.
        num_sampled_nodes: Per node type: new nodes of each hop, seeds first.
        edges: Every edge type that the batch shows.
        seeds: What the walk started from.
        arrays: What was worked out on the way.
    """

    nodes: list[NDArray[np.int64]]
    num_sampled_nodes: list[list[int]]
    edges: list[WalkedEdges]
    seeds: WalkSeeds
    arrays: dict[BatchKey, NDArray[Any]] = field(default_factory=dict)
