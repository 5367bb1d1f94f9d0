"""The arrays of a store's parts, mapped, the ids of their nodes and edges, and how their pages are read.

Nodes are numbered twice. The *dataset's id* is what users see. The *store id* numbers the nodes of a type so that each part
owns one range: part ``p`` owns ``[node_bounds[p], node_bounds[p + 1])``, in the dataset's order within the part or the hottest
first. Adjacency holds store ids, so finding a node's part is a search in ``num_parts + 1`` bounds, whatever the partitioner did.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.host import available_memory
from gnnkit.schema import EdgeDir, EdgeType, GraphSchema, NodeType, element_type
from gnnkit.source import CHUNK_ROWS
from gnnkit.splits import has_label
from gnnkit.storage.layout import LABEL_NAME

if TYPE_CHECKING:
    import torch

# Rows that a thread asks for before it reads the first of them. With fewer the disk is idle at times; more are of no use, and where memory
# is short they push out what was asked for before it is read: their pages take no more than this part of what is free.
_WINDOW, _LEAST_WINDOW, _PART_OF_FREE = 2048, 64, 1 / 64
# Pages that were asked for lately and are not asked for again: so few that the system has not given them up meanwhile.
_LATELY, _LEAST_LATELY, _PART_LATELY = 1 << 17, 1 << 10, 1 / 4
# The last five of them say how rows are copied: ``GraphTables`` fills them in.
_SETTINGS = 9
HUGE_PAGE = 2 << 20
# MADV_POPULATE_READ, of Linux from 5.14 on, on all of its machines.
_POPULATE_READ = 22


def place_of(values: NDArray[Any], number: int, side: Literal["left", "right"] = "left") -> int:
    """The place of a number in ascending whole numbers of any dtype; ``side`` is ``np.searchsorted``'s.

    NumPy copies all of an array for a number of another dtype: 0.24 s of 111 million bounds, of which a search looks at 27.
    """
    ends = np.iinfo(values.dtype)
    if not ends.min <= number <= ends.max:
        return 0 if number < ends.min else len(values)
    return int(np.searchsorted(values, values.dtype.type(number), side=side))


class ReadAhead:
    """The way in which kernels ask for the pages of a mapped graph before they read them; decided once, when the graph is opened.

    A graph that fits in memory is left to the system, which fills its cache in a few large reads: kernels ask for nothing. One that
    does not fit is read page by page: otherwise every row is read from the disk with the 128 KB (8 MB on some systems) around it, which
    only pushes out what was read before. What is about to be read is asked for together, so that the disk has many pages to read at a time.

    Args:
        arrays: The graph's arrays; those that are not mapped files count as memory.

    Attributes:
        table: int64 ``[9 + 2 K]``, read and written by kernels; see ``gnnkit.kernels.native``, which cannot be imported here: it brings
            the compiler, which reading a store does without.
    """

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        mappings = [(array, mapping) for array in arrays if (mapping := _mapping_of(array)) is not None]
        self.table = np.zeros(_SETTINGS, np.int64)
        free = available_memory() if mappings else 0
        if not hasattr(mmap, "MADV_RANDOM") or sum(array.nbytes for array, _ in mappings) <= free:
            return
        for _, mapping in mappings:
            with contextlib.suppress(OSError):  # a filter of system calls: pages come one at a time, and are right
                mapping.madvise(mmap.MADV_RANDOM)
        window = min(_WINDOW, max(_LEAST_WINDOW, int(free * _PART_OF_FREE) // mmap.PAGESIZE))
        lately = 1 << (min(_LATELY, max(_LEAST_LATELY, int(free * _PART_LATELY) // mmap.PAGESIZE)).bit_length() - 1)
        self.table = np.zeros(_SETTINGS + 2 * lately, np.int64)
        self.table[:4] = address_of("madvise"), mmap.PAGESIZE, window, _advice_of_use()

    @property
    def is_on(self) -> bool:
        """Whether pages are asked for."""
        return bool(self.table[0])


@cache
def address_of(name: str) -> int:
    """The address of a function of the system's library."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


@cache
def _advice_of_use() -> int:
    """The advice by which pages are counted as used; 0 where there is none."""
    return _POPULATE_READ if sys.platform == "linux" and ctypes.CDLL(None).madvise(None, 0, _POPULATE_READ) == 0 else 0


def _mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def allocate(nbytes: int) -> NDArray[np.uint8]:
    """Anonymous memory, where a page begins; from the size of a huge page on where one begins, and zeros without pages.

    Private: pages of shared memory take 1.6 times as long to come and three times as long to go. No huge pages are asked for, which NumPy
    asks for: on a virtual machine, where the host has to find them, they take several times as long.
    """
    if nbytes < HUGE_PAGE:
        whole = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
        start = -whole.ctypes.data % mmap.PAGESIZE
        return whole[start : start + nbytes]
    block = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(block, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE
    return whole[start : start + nbytes]


def placeholder(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array that stands for one that is not here: read-only, ``[*shape]``, and of one element's memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


@dataclass(frozen=True)
class NodePart:
    """The nodes of one type in one part.

    Attributes:
        arrays: ``{name: [num_local_nodes, *row_shape]}``, C-contiguous.
        global_id: int32 or int64 ``[num_local_nodes]``, the dataset's ids, ascending unless the hottest come first; None where store
            ids are dataset ids.
    """

    arrays: Mapping[str, NDArray[Any]]
    global_id: NDArray[Any] | None = None


@dataclass(frozen=True)
class EdgePart:
    """The edges of one type that one part owns: those whose target (``edge_dir="in"``) or source ("out") it owns.

    Attributes:
        indptr: int32 or int64 ``[num_local_nodes + 1]`` over the owning end's local nodes, from 0.
        indices: int32 or int64 ``[num_local_edges]``, store ids of the other end; within a node in the dataset's edge order, or by ``time``
            and in that order among equal ones.
        edge_id: int32 or int64 ``[num_local_edges]``, the dataset's edge ids; None where they were not stored.
        weight_prefix: uint64 ``[num_local_edges]``, running sums of integer weights, restarting at each node; None without weights.
        arrays: ``{name: [num_local_edges, *row_shape]}`` in the order of ``indices``.
        time: int64 ``[num_local_edges]``, ascending within each node, the times that temporal sampling compares (see
            ``gnnkit.storage.edge_values``); None without any.
    """

    indptr: NDArray[Any]
    indices: NDArray[Any]
    edge_id: NDArray[Any] | None = None
    weight_prefix: NDArray[np.uint64] | None = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    time: NDArray[np.int64] | None = None


P = TypeVar("P", NodePart, EdgePart)


def by_name(part: NodePart | EdgePart) -> dict[str, NDArray[Any]]:
    """The arrays of a part: its own by their names, and those that nodes or edges carry by theirs behind "arrays/"."""
    found: dict[str, NDArray[Any]] = {}
    for name, value in vars(part).items():
        if isinstance(value, Mapping):
            found |= {f"arrays/{own}": array for own, array in value.items()}
        elif value is not None:
            found[name] = value
    return found


def part_of_arrays(kind: type[P], arrays: Mapping[str, Any]) -> P:
    """Reverses ``by_name``."""
    carried = {name.partition("/")[2]: array for name, array in arrays.items() if "/" in name}
    return kind(**{name: array for name, array in arrays.items() if "/" not in name}, arrays=carried)


@dataclass(frozen=True)
class GraphArrays:
    """Every array that sampling may read. All parts of an edge type agree in dtypes.

    Attributes:
        schema: Types, sizes and arrays.
        edge_dir: "in" (compressed by target; sampling walks from targets to sources) or "out".
        nodes: ``{node type: one NodePart per part}``.
        edges: ``{edge type: one EdgePart per part}``.
        node_bounds: ``{node type: int64 [num_parts + 1]}``, see above.
        store_id: ``{node type: int32 or int64 [num_nodes]}`` from the dataset's id to the store id; None for the identity.
        local_parts: The parts whose arrays are here, ascending. Those of other parts are placeholders of the right dtype and shape
            that take no memory and must never be read.
        whole_structure: Whether the structure of all parts is here, which is all that walks read: of the other parts only the features
            are missing, which are not among their ``arrays``.
        hotness: See ``Manifest.hotness``; empty where nodes are in the dataset's order.
        check: Looks offsets and ids of types through, see ``checked``; None where they are not those of files.
        ahead: How its pages come into memory, where that has been decided; None decides it when it is first asked for.
        chunk_edges: Edges that a pass over all of them reads at once: 32 MB as int64, which stays in a last-level cache on its way
            to the kernel.
    """

    schema: GraphSchema
    edge_dir: EdgeDir
    nodes: Mapping[NodeType, tuple[NodePart, ...]]
    edges: Mapping[EdgeType, tuple[EdgePart, ...]]
    node_bounds: Mapping[NodeType, NDArray[np.int64]]
    store_id: Mapping[NodeType, NDArray[Any] | None]
    local_parts: tuple[int, ...]
    whole_structure: bool = False
    hotness: Mapping[NodeType, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    check: Callable[[Iterable[NodeType | EdgeType]], None] | None = field(default=None, compare=False)
    ahead: ReadAhead | None = None
    chunk_edges: int = 1 << 22

    def checked(self, *types: NodeType | EdgeType) -> GraphArrays:
        """The graph itself, once its offsets and ids of these types have been looked through, so that readers may follow each of them.

        Samplers look at what they draw instead.

        Raises:
            StoreError: A file is damaged; names it.
        """
        if self.check is not None:
            self.check(types)
        return self

    @property
    def num_parts(self) -> int:
        """Parts of every type."""
        return len(next(iter(self.node_bounds.values()))) - 1

    @property
    def is_whole(self) -> bool:
        """Whether every part is here."""
        return len(self.local_parts) == self.num_parts

    @property
    def has_structure(self) -> bool:
        """Whether all but features is here of every part."""
        return self.whole_structure or self.is_whole

    @property
    def structure_parts(self) -> tuple[int, ...]:
        """The parts whose structure is here, ascending."""
        return tuple(range(self.num_parts)) if self.whole_structure else self.local_parts

    def local_nodes(self, node_type: NodeType) -> tuple[NodePart, ...]:
        """The parts of a node type that are here, those included of which only the structure is."""
        return tuple(self.nodes[node_type][part] for part in self.structure_parts)

    def local_edges(self, edge_type: EdgeType) -> tuple[EdgePart, ...]:
        """The parts of an edge type, likewise."""
        return tuple(self.edges[edge_type][part] for part in self.structure_parts)

    def each(self) -> Iterator[NDArray[Any]]:
        """Yields every array that is here: nodes first, type by type and part by part."""
        for node_type in self.schema.node_types:
            for node_part in self.local_nodes(node_type):
                yield from by_name(node_part).values()
        for edge_type in self.schema.edge_types:
            for edge_part in self.local_edges(edge_type):
                yield from by_name(edge_part).values()

    @cached_property
    def read_ahead(self) -> ReadAhead:
        """The way in which its pages come into memory; decided when it is first asked for."""
        return ReadAhead(self.each()) if self.ahead is None else self.ahead

    @cached_property
    def edge_bounds(self) -> dict[EdgeType, NDArray[np.int64]]:
        """``{edge type: int64 [num_parts + 1]}``: part ``p`` owns the positions from ``[p]`` up to ``[p + 1]``."""
        return {
            edge_type: np.cumsum([0] + [len(part.indices) for part in parts], dtype=np.int64) for edge_type, parts in self.edges.items()
        }

    def frontier_type(self, edge_type: EdgeType) -> NodeType:
        """The end of an edge type that sampling starts from, and that owns the edges."""
        return edge_type[2] if self.edge_dir == "in" else edge_type[0]

    def neighbor_type(self, edge_type: EdgeType) -> NodeType:
        """The end of an edge type that sampling arrives at."""
        return edge_type[0] if self.edge_dir == "in" else edge_type[2]


def dataset_ids(graph: GraphArrays, node_type: NodeType, part: int) -> NDArray[np.int64]:
    """int64 ``[num_local_nodes]``: the dataset's ids of a part's nodes; ascending unless the hottest come first."""
    ids = graph.checked(node_type).nodes[node_type][part].global_id
    bounds = graph.node_bounds[node_type]
    return np.arange(bounds[part], bounds[part + 1]) if ids is None else np.asarray(ids, np.int64)


def all_dataset_ids(graph: GraphArrays, node_type: NodeType) -> NDArray[np.int64]:
    """int64 ``[num_nodes]``: the dataset's id of every store id, also of parts that are not open."""
    table, num_nodes = graph.checked(node_type).store_id[node_type], graph.schema.node_types[node_type].num_nodes
    ids = np.arange(num_nodes, dtype=np.int64)
    if table is None:
        return ids
    found = np.empty(num_nodes, np.int64)
    found[table] = ids
    return found


def node_values(graph: GraphArrays, node_type: NodeType, name: str) -> NDArray[Any]:
    """``[num_nodes, ...]``: one array of all nodes of a type, by the dataset's ids; every part must be open."""
    spec = graph.schema.node_types[node_type].arrays[name]
    found = np.empty((graph.schema.node_types[node_type].num_nodes, *spec.stored_shape), spec.numpy_dtype)
    for part, nodes in enumerate(graph.nodes[node_type]):
        found[dataset_ids(graph, node_type, part)] = nodes.arrays[name]
    return found


def num_classes(graph: GraphArrays, node_type: NodeType, metadata: Mapping[str, Any]) -> int:
    """Returns the outputs that a model needs for the labels ``y`` of a node type: classes, or columns where a node has several.

    Args:
        graph: The graph.
        node_type: The type.
        metadata: What the dataset says of itself; classes that it counts are those.

    Returns:
        0 where the type has no labels, or no node of it has one.

    Raises:
        PlanError: The labels are numbers to predict, or how many classes there are is not known, and other hosts have some of them.
    """
    spec = graph.schema.node_types[node_type].arrays.get(LABEL_NAME)
    width = 0 if spec is None else int(np.prod(spec.row_shape, dtype=np.int64))
    if spec is None or width != 1:
        return width
    if metadata.get("num_classes"):
        return int(metadata["num_classes"])
    if spec.numpy_dtype.kind not in "iu":
        raise PlanError(
            f"the labels y are {spec.dtype}: numbers to predict, and no classes",
            "a model has one output for them; whole numbers are classes: data.y = data.y.long()",
        )
    if not graph.has_structure:
        raise PlanError(
            f"how many classes there are is not known: labels of {graph.num_parts - len(graph.local_parts)} parts are on other hosts",
            "write the number into the model",
        )
    return 1 + max((int(labels.max()) for labels in _label_chunks(graph, node_type)), default=-1)


def num_unlabelled(graph: GraphArrays, node_type: NodeType) -> int:
    """Returns how many nodes of a type have no label ``y``, of the parts that are open."""
    return sum(int((~has_label(labels)).sum()) for labels in _label_chunks(graph, node_type))


def _label_chunks(graph: GraphArrays, node_type: NodeType) -> Iterator[NDArray[Any]]:
    """Yields labels some at a time, so that they take little memory, and an interrupt waits for no more."""
    for part in graph.local_nodes(node_type):
        rows = part.arrays[LABEL_NAME]
        yield from (rows[first : first + CHUNK_ROWS] for first in range(0, len(rows), CHUNK_ROWS))


def part_edge_ids(graph: GraphArrays, edge_type: EdgeType, part: int) -> NDArray[np.int64]:
    """int64 ``[num_local_edges]``: the dataset's ids of a part's edges, or their places in the store where it has no ids."""
    ids = graph.checked(edge_type).edges[edge_type][part].edge_id
    bounds = graph.edge_bounds[edge_type]
    return np.arange(bounds[part], bounds[part + 1]) if ids is None else np.asarray(ids, np.int64)


def edge_order(graph: GraphArrays, edge_type: EdgeType, part: int) -> NDArray[np.int64] | None:
    """int64 ``[num_local_edges]``: a part's edges by the dataset's ids of their owners; None where they lie in this order."""
    owners = dataset_ids(graph, graph.frontier_type(edge_type), part)
    if (owners[1:] > owners[:-1]).all():
        return None
    return np.argsort(np.repeat(owners, np.diff(graph.checked(edge_type).edges[edge_type][part].indptr)), kind="stable")


class PartNodeRows:
    """Finds a part's rows of nodes."""

    def __init__(self, graph: GraphArrays, node_type: NodeType, part: int) -> None:
        self._table = graph.checked(node_type).store_id[node_type]
        self._first, self._end = (int(bound) for bound in graph.node_bounds[node_type][part : part + 2])
        self._num_nodes = graph.schema.node_types[node_type].num_nodes

    def rows(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Rows ``[k]`` of the dataset's ids ``[k]``; -1 for ids that the part does not have."""
        known = (ids >= 0) & (ids < self._num_nodes)
        numbers = ids if self._table is None else self._table[np.where(known, ids, 0)] if self._num_nodes else ids
        return np.where(known & (numbers >= self._first) & (numbers < self._end), numbers - self._first, -1)


class PartEdgeRows:
    """Finds a part's rows of edges; sorts their ids when it is first asked."""

    def __init__(self, graph: GraphArrays, edge_type: EdgeType, part: int) -> None:
        self._edge_ids = part_edge_ids(graph, edge_type, part)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self._edge_ids, kind="stable")

    def rows(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Rows ``[k]`` of the dataset's ids ``[k]``; -1 for ids that the part does not have."""
        if not len(self._edge_ids):
            return np.full(len(ids), -1)
        places = np.searchsorted(self._edge_ids, ids, sorter=self._order)
        rows = self._order[np.minimum(places, len(self._order) - 1)]
        return np.where(self._edge_ids[rows] == ids, rows, -1)


def as_tensor(rows: NDArray[Any], dtype: str) -> torch.Tensor:
    """Stored rows of an ``ArraySpec``'s dtype as a tensor on the same memory; quantised ones are bytes."""
    import torch  # heavy

    return viewed(torch.from_numpy(rows), dtype)


def viewed(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """A tensor of stored rows as one of the element type that torch has for them, on the same memory."""
    import torch  # heavy

    kept = element_type(dtype)
    return tensor if kept.bits or kept.stored == kept.shown else tensor.view(getattr(torch, kept.shown))


def stored_rows(tensor: torch.Tensor) -> tuple[NDArray[Any], str]:
    """Rows of a tensor in memory as they are stored, on the same memory, and an ``ArraySpec``'s dtype for them; ``as_tensor`` reverses it.

    Raises:
        TypeError: NumPy has no such element type, and ``ELEMENT_TYPES`` neither.
    """
    import torch  # heavy

    dtype = dtype_name(tensor)
    if (kept := element_type(dtype)).decode is None:
        return tensor.numpy(), dtype
    bits: torch.dtype = getattr(torch, f"int{8 * tensor.element_size()}")
    return tensor.contiguous().view(bits).numpy().view(kept.stored), dtype


def dtype_name(tensor: torch.Tensor) -> str:
    """The element type of a tensor as an ``ArraySpec`` spells it."""
    return str(tensor.dtype).removeprefix("torch.")
