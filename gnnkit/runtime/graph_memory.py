"""A graph's arrays in memory: shared by descriptor, copied to huge pages in the background, opened once per process."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError, PlanError, StoreError
from gnnkit.host import available_memory
from gnnkit.plan import StoreRef
from gnnkit.runtime.limits import copy_budget
from gnnkit.runtime.ring import SharedBlock, first_pages, joined, page_start, rounded
from gnnkit.runtime.wire import Message
from gnnkit.sampling.subgraph import LOOSE_EDGE, by_shown_name, damaged
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.arrays import HUGE_PAGE, EdgePart, GraphArrays, NodePart, P, by_name, part_of_arrays
from gnnkit.storage.files import Guarded
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.users import StoreUse

if TYPE_CHECKING:
    from gnnkit.source import GraphSource, LinkSplits
    from gnnkit.storage.layout import BuildOptions
    from gnnkit.storage.store import Store

K = TypeVar("K")
V = TypeVar("V")
logger = logging.getLogger(__name__)

_ALIGN = 64
# Bytes copied between two looks at whether the copy is still wanted.
_CHUNK = 32 << 20
# The part of a level of hotness up to which a copy is filled.
_LEAST_STEP = 1 / 256


def _room(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def graph_nbytes(graph: GraphArrays) -> int:
    """Bytes of a graph's arrays in a shared block."""
    return sum(_room(array.nbytes) for array in graph.each())


class ArrayPlace(NamedTuple):
    """The place of an array in a shared block.

    Attributes:
        offset: Where it begins, in bytes.
        held: Bytes of the pages of its file that are there, from the one in which the array begins; None where all of the array is.
    """

    offset: int
    held: int | None = None


def _places(graph: GraphArrays, most: int) -> tuple[list[ArrayPlace], int]:
    """The places of a graph's arrays in a block, in the order of ``GraphArrays.each``, and the block's bytes.

    Args:
        graph: The graph; where not all of it fits, one whose hottest nodes come first.
        most: Bytes that the block may have.
    """
    if graph_nbytes(graph) <= most:
        return _placed(graph, [array.nbytes for array in graph.each()])
    # As many levels of hotness as fit, the last one in part: first of the nodes' rows, then of their edges. A hot node has so many edges
    # that a byte of them is read no more often than one of any other's.
    every = float(max(len(counts) for parts in graph.hotness.values() for counts in parts))

    def at(filled: float) -> tuple[list[ArrayPlace], int]:
        return _placed(graph, _leading(graph, min(filled, every), max(0.0, filled - every)))

    low, high = 0.0, 2 * every
    while high - low > _LEAST_STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if rounded(at(middle)[1]) <= most else (low, middle)
    return at(low)


def _leading(graph: GraphArrays, levels: float, levels_of_edges: float) -> list[int]:
    """The bytes of each array that belong to the nodes of the hottest levels, and of a part of the next.

    Args:
        graph: The graph.
        levels: Levels of the nodes' rows, with their ids and the bounds of their edges.
        levels_of_edges: Levels of the nodes' edges.
    """

    def count(node_type: NodeType, part: int, levels: float) -> int:
        counts, whole = graph.hotness[node_type][part], int(levels)
        return sum(counts[:whole]) + (int((levels - whole) * counts[whole]) if whole < len(counts) else 0)

    found = []
    for node_type in graph.schema.node_types:
        for number, nodes in zip(graph.structure_parts, graph.local_nodes(node_type), strict=True):
            found += [count(node_type, number, levels) * _row_nbytes(array) for array in by_name(nodes).values()]
    for edge_type in graph.schema.edge_types:
        for number, edges in zip(graph.structure_parts, graph.local_edges(edge_type), strict=True):
            owner = graph.frontier_type(edge_type)
            own = int(edges.indptr[count(owner, number, levels_of_edges)])
            if not 0 <= own <= len(edges.indices):
                raise damaged(LOOSE_EDGE)
            bounds = (count(owner, number, levels) + 1) * edges.indptr.itemsize
            found += [bounds if array is edges.indptr else own * _row_nbytes(array) for array in by_name(edges).values()]
    return found


def _row_nbytes(array: NDArray[Any]) -> int:
    return array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))


def _placed(graph: GraphArrays, leading: list[int]) -> tuple[list[ArrayPlace], int]:
    """The places of what each array has in a block, and the block's bytes."""
    places, end = [], 0
    for array, nbytes in zip(graph.each(), leading, strict=True):
        if nbytes >= array.nbytes:
            places.append(ArrayPlace(end))
            end += _room(array.nbytes)
            continue
        held = (array.ctypes.data - page_start(array) + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        unit = HUGE_PAGE if held >= HUGE_PAGE else mmap.PAGESIZE
        end = -(-end // unit) * unit if held else end
        places.append(ArrayPlace(end, held))
        end += held
    return places, end


@dataclass(frozen=True, eq=False)
class SharedGraph:
    """A graph in a shared block, all of it or its hottest part; the rest is then read where it lies.

    Attributes:
        graph: Its arrays, on the block.
        block: The block.
        description: JSON that says what lies where in the block; with the block's descriptor, all that another process needs.
    """

    graph: GraphArrays
    block: SharedBlock
    description: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self.block.nbytes

    @property
    def is_whole(self) -> bool:
        """Whether all of the graph is in the block."""
        return bool(self.description["is_whole"])

    @classmethod
    def attach(cls, fd: int, description: Mapping[str, Any], template: GraphArrays | None = None) -> SharedGraph:
        """A graph that another process copied.

        Args:
            fd: The block's descriptor; taken over.
            description: What came with it.
            template: The same graph as this process knows it, for the schema and what the block does not hold; None makes both anew.

        Raises:
            OSError: The system refuses the mapping.
        """
        block = SharedBlock.attach(fd, writable=False)
        return cls(_find(description, block, template), block, description)


def share(graph: GraphArrays, most: int | None = None, stop: threading.Event | None = None) -> SharedGraph:
    """Copies a graph, or its hottest part, into a new shared block of huge pages.

    Args:
        graph: The graph.
        most: Bytes that the copy may take; None is all of the graph.
        stop: Ends it when it is set.

    Raises:
        OSError: The system has no shared memory for it, or ``stop`` was set meanwhile.
    """
    places, nbytes = _places(graph, graph_nbytes(graph) if most is None else most)
    block = SharedBlock.create("gnnkit-graph", nbytes)
    populated, is_huge = 0, True
    for array, (offset, held) in zip(graph.each(), places, strict=True):
        source = array.reshape(-1).view(np.uint8) if held is None else first_pages(array, held)
        for start in range(0, len(source), _CHUNK):
            if stop is not None and stop.is_set():
                raise InterruptedError("it is no longer wanted")
            chunk = source[start : start + _CHUNK]
            end = offset + start + len(chunk)
            if is_huge and end > populated:
                is_huge = block.populate(populated, end - populated)
                populated = rounded(end)
            block.bytes[end - len(chunk) : end] = chunk
    if not is_huge:
        logger.info("the kernel gives no huge pages for shared memory; the copy of the graph uses ordinary pages")
    description = _describe(graph, places)
    return SharedGraph(_find(description, block, graph), block, description)


def _describe(graph: GraphArrays, places: list[ArrayPlace]) -> dict[str, Any]:
    in_order = iter(places)

    def place(part: NodePart | EdgePart) -> dict[str, list[Any]]:
        return {name: [array.dtype.str, list(array.shape), *next(in_order)] for name, array in by_name(part).items()}

    # The order of these calls is that of ``GraphArrays.each``.
    nodes = [list(map(place, graph.local_nodes(node_type))) for node_type in graph.schema.node_types]
    edges = [list(map(place, graph.local_edges(edge_type))) for edge_type in graph.schema.edge_types]
    return {
        "is_whole": all(held is None for _, held in places),
        "schema": graph.schema.to_json(),
        "edge_dir": graph.edge_dir,
        "local_parts": list(graph.local_parts),
        "node_bounds": {node_type: bounds.tolist() for node_type, bounds in graph.node_bounds.items()},
        "nodes": nodes,
        "edges": edges,
    }


def _find(description: Mapping[str, Any], block: SharedBlock, template: GraphArrays | None) -> GraphArrays:
    memory = block.bytes

    def find(place: list[Any], own: NDArray[Any] | None) -> Any:
        """An array of the block; ``own`` is the same as this process has mapped it."""
        dtype, shape, offset, held = np.dtype(place[0]), tuple(place[1]), place[2], place[3]
        if held is not None:
            assert own is not None, "a part of a graph that this process has not opened"
            return joined(block.fd, offset, held, own) if held else own
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        return memory[offset : offset + nbytes].view(dtype).reshape(shape)

    def part(kind: type[P], places: Mapping[str, list[Any]], own: P | None) -> P:
        mapped = {} if own is None else by_name(own)
        return part_of_arrays(kind, {name: find(place, mapped.get(name)) for name, place in places.items()})

    ahead = None if template is None or description["is_whole"] else template.read_ahead
    is_known, frame = template is not None, template or _frame(description)

    def parts(kind: type[P], name: str, types: Iterable[K], known: Mapping[K, tuple[P, ...]], local: Callable[[K], Iterable[P]]) -> Any:
        found = {
            t: map(partial(part, kind), places, local(t) if is_known else repeat(None))
            for t, places in zip(types, description[name], strict=True)
        }
        return {t: _with_local(frame, known.get(t), own) for t, own in found.items()}

    nodes = parts(NodePart, "nodes", frame.schema.node_types, frame.nodes, frame.local_nodes)
    edges = parts(EdgePart, "edges", frame.schema.edge_types, frame.edges, frame.local_edges)
    return replace(frame, nodes=nodes, edges=edges, ahead=ahead)


def _with_local(template: GraphArrays, parts: tuple[V, ...] | None, found: Iterable[V]) -> tuple[V, ...]:
    """All parts of a type, with what was found in the place of the local ones."""
    local = dict(zip(template.structure_parts, found, strict=True))
    return tuple(local.values()) if parts is None else tuple(local.get(number, part) for number, part in enumerate(parts))


def _frame(description: Mapping[str, Any]) -> GraphArrays:
    """A graph without arrays, in the dataset's own numbering."""
    schema = GraphSchema.from_json(description["schema"])

    def ordered(kind: type[P], types: Mapping[K, Any], places: list[Any]) -> dict[K, Any]:
        """Types with their arrays in the order that the user's object has, as batches carry them; JSON sorts them by name."""
        names = (part_of_arrays(kind, first).arrays for first, *_ in places)
        return {t: replace(known, arrays={n: known.arrays[n] for n in own}) for (t, known), own in zip(types.items(), names, strict=True)}

    node_types = ordered(NodePart, schema.node_types, description["nodes"])
    schema = replace(schema, node_types=node_types, edge_types=ordered(EdgePart, schema.edge_types, description["edges"]))
    bounds = {node_type: np.array(bounds, np.int64) for node_type, bounds in description["node_bounds"].items()}
    return GraphArrays(schema, description["edge_dir"], {}, {}, bounds, dict.fromkeys(schema.node_types), tuple(description["local_parts"]))


class GraphMemory:
    """The arrays of one graph, first as they came, then in huge pages.

    Args:
        graph: The arrays as mapped.

    Attributes:
        graph: The arrays to read now; replaced once, when the copy is complete.
        shared: The copy; None until it is in use.
    """

    def __init__(self, graph: GraphArrays) -> None:
        self.graph = graph
        self.shared: SharedGraph | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._stop.set).atexit = False

    def want_copy(self, most: int, shared: SharedGraph | None) -> None:
        """Uses a copy, or else has one made; one caller at a time.

        Args:
            most: Most bytes that the copy may take; 0 makes no copy.
            shared: A copy that exists by now.
        """
        if self.shared is not None or self.is_copying:
            return
        if shared is not None:
            self.graph, self.shared = shared.graph, shared
        elif most:
            _ = self.graph.read_ahead  # decided before a copy takes memory
            arguments = weakref.ref(self), self.graph, self._stop, most
            thread = threading.Thread(target=_copy_in_background, args=arguments, name="gnnkit-graph-memory", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                logger.info("no copy of the graph in huge pages: %s", error)
            else:
                self._thread = thread

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copy, 0 until it is in use."""
        return 0 if self.shared is None else self.shared.nbytes

    @property
    def is_copying(self) -> bool:
        """Whether the copy is being made."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the copy, if one is being made; whether it is in use then."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.shared is not None


def _copy_in_background(memory_ref: weakref.ref[GraphMemory], graph: GraphArrays, stop: threading.Event, most: int) -> None:
    try:
        with Guarded(lambda: graph.each()):
            shared = share(graph, most, stop)
    except (OSError, PlanError, StoreError) as error:
        logger.info("no copy of the graph in huge pages: %s", error)
        return
    if (memory := memory_ref()) is not None:
        memory.graph, memory.shared = shared.graph, shared


@dataclass(eq=False)
class GraphHandle:
    """A graph and what is known about it.

    Attributes:
        arrays: Its arrays as mapped, or the user's own.
        splits: ``{node type: {split: int64 [k] dataset ids}}``.
        store: Where it is stored; None for a graph in memory.
        name: What users call it.
        notice: A line to show wherever it is shown, or None.
        extra: Attributes of the whole graph that every batch carries.
        type_extra: Attributes of a whole node type or edge type that every batch carries, by type.
        metadata: Facts about the dataset.
        link_splits: ``{edge type: {split: {name: array}}}``, dataset ids; see ``GraphSource.link_splits``.
        source: Where a graph in memory comes from, for those who need it stored; None for one that is.
        build: How a store of a graph in memory has to be built so that it has the same edges in the same order.
        check_unchanged: Raises where a graph in memory has been changed in place since it was taken.
    """

    arrays: GraphArrays
    splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]]
    store: StoreRef | None = None
    name: str = "graph"
    notice: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    type_extra: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    link_splits: LinkSplits = field(default_factory=dict)
    source: GraphSource | None = None
    build: BuildOptions | None = None
    check_unchanged: Callable[[], None] = lambda: None
    _memory: GraphMemory | None = None
    _shared: SharedGraph | None = None
    # The copy of a graph that is in memory anyway: held by those whose processes need it.
    _lent: weakref.ref[SharedGraph] | None = None
    _copier: weakref.ref[object] | None = None
    _use: StoreUse | None = None
    # Reentrant: a forgotten loader's finalizer may run in the middle of anything.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, store: Store) -> GraphHandle:
        """The graph of a store, as processes that sample it need it."""
        return cls(store.arrays(), store.splits, store.reference, link_splits=store.link_splits)

    def names(self) -> set[str]:
        """The names of all that batches carry of the graph."""
        schema = self.arrays.schema
        arrays = [nodes.arrays for nodes in schema.node_types.values()] + [edges.arrays for edges in schema.edge_types.values()]
        return {name for values in (self.extra, *self.type_extra.values(), *arrays) for name in values}

    def shown_extra(self) -> tuple[dict[str, Any], dict[Any, dict[str, Any]]]:
        """``extra`` and ``type_extra`` as batches carry them."""
        return by_shown_name(self.extra), {owner: by_shown_name(values) for owner, values in self.type_extra.items()}

    def memory(self, memory_budget: int | None) -> GraphMemory:
        """The arrays to sample from, one for all callers; the first budget that allows it has them copied into huge pages.

        A graph that is in memory already is not copied.
        """
        with self._lock:
            self._memory = self._memory or GraphMemory(self.arrays)
            if self.store is not None and not self._has_copier:
                self._memory.want_copy(self.copy_nbytes(memory_budget), self._shared)
            return self._memory

    @property
    def num_users(self) -> int:
        """Processes of this machine that may want a copy of the stored graph, this one included; 0 where none was asked for here."""
        return 0 if self._use is None else self._use.count()

    def copy_nbytes(self, memory_budget: int | None) -> int:
        """Bytes that a copy of the stored graph in shared memory may take; 0 where none is wanted.

        Where the graph does not fit, its hottest part is copied if its nodes are in the order of hotness, and nothing otherwise.

        Args:
            memory_budget: Most bytes that the copy may take; None is this process's share of a quarter of what is free, 0 makes no copy.
        """
        if not hasattr(os, "memfd_create"):
            return 0
        if memory_budget is None and self.store is not None:
            self._use = self._use or StoreUse(Path(self.store.path) / MANIFEST_NAME)
        budget, whole = copy_budget(max(1, self.num_users)) if memory_budget is None else memory_budget, graph_nbytes(self.arrays)
        if whole <= budget:
            return whole
        return budget if self.arrays.hotness and budget >= HUGE_PAGE else 0

    def after_fork(self) -> GraphHandle:
        """The same graph in a forked child, whose memory is a copy: without the parent's threads, and locks that those may hold."""
        return replace(self, _memory=None, _shared=self.shared, _lent=None, _copier=None, _use=None, _lock=threading.RLock())

    @property
    def shared(self) -> SharedGraph | None:
        """The copy that every process of this host may map; None while there is none."""
        if self._shared is None and self._memory is not None:
            return self._memory.shared
        return self._shared

    @property
    def mapped_nbytes(self) -> int:
        """Bytes that are read from mapped files; 0 where the graph is in memory, or has been copied there."""
        shared = self.shared
        if self.store is None or (shared is not None and shared.is_whole):
            return 0
        return max(0, graph_nbytes(self.arrays) - (0 if shared is None else shared.nbytes))

    @property
    def comes_from_disk(self) -> bool:
        """Whether the graph does not fit in memory, so that its pages are read from the disk again and again."""
        shared = self.shared
        return self.store is not None and (shared is None or not shared.is_whole) and self.arrays.read_ahead.is_on

    def share_now(self) -> SharedGraph:
        """Copies a graph that is only in this process's memory, once for all processes that sample from it.

        The copy lasts for as long as the returned object is kept.

        Raises:
            MemoryLimitError: The copy does not fit.
        """
        with self._lock:
            shared = None if self._lent is None else self._lent()
            if shared is None:
                needed, free = graph_nbytes(self.arrays), available_memory()
                if needed > free:
                    raise MemoryLimitError(
                        f"sampling processes need a copy of the graph: {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free",
                        "use InProcess(), or build a store with gnnkit.partition() and open it with from_store()",
                    )
                shared = share(self.arrays)
                self._lent = weakref.ref(shared)
            return shared

    def wants_copy(self, copier: object, memory_budget: int | None) -> bool:
        """Whether ``copier`` is to have a copy of the stored graph made; at most one is told so at a time.

        Only for holders of the pool registry's lock, which is why neither this nor ``copy_made`` takes the lock of ``memory``: a
        finalizer that runs in the middle of that may wait for the registry's.
        """
        memory = self._memory
        if self._has_copier or (memory is not None and memory.is_copying) or self.shared is not None or not self.copy_nbytes(memory_budget):
            return False
        self._copier = weakref.ref(copier)
        return True

    @property
    def _has_copier(self) -> bool:
        """Whether a supervisor has been told to make the copy."""
        return self._copier is not None and self._copier() is not None

    def copy_made(self, copier: object, shared: SharedGraph | None) -> None:
        """Takes over the copy that ``copier`` has had made; None where it gave up."""
        if self._copier is not None and self._copier() is copier:
            self._copier = None
        if shared is not None and self.shared is None:
            self._shared = shared

    def to_store_ids(self, node_type: NodeType, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Dataset ids as store ids.

        Returns:
            int64, of the same shape.
        """
        table = self.arrays.store_id[node_type]
        return ids if table is None else table[ids].astype(np.int64)


class CopySpreading:
    """The copy of a graph that some processes on this host share: which of them know of it, and which one makes it.

    Known here by its descriptor alone; the memory is not mapped.

    Attributes:
        copier: The process that is making it; None where none is.
    """

    def __init__(self) -> None:
        self.copier: int | None = None
        self._may_ask, self._told = True, set[int]()
        self._copy: tuple[int, Mapping[str, Any]] | None = None

    def _found(self) -> tuple[int, Mapping[str, Any]] | None:
        """The copy's descriptor and description; None while there is none."""
        return self._copy

    def _order(self) -> dict[str, Any] | None:
        """The body of the request to make a copy; None where none is wanted now."""
        return {}

    def take_over(self, message: Message) -> bool:
        """Takes over what a process has made, if it has made anything; whether there is a copy then."""
        if message.fds:
            self._copy = message.fds.pop(0), message.body["description"]
        return self._copy is not None

    def close(self) -> None:
        """Lets the copy go."""
        if self._copy is not None:
            os.close(self._copy[0])
            self._copy = None

    def setup_message(self, rank: int) -> tuple[tuple[int, ...], dict[str, Any] | None]:
        """The copy's descriptor and description for a process that starts."""
        found = self._found()
        if found is None:
            return (), None
        self._told.add(rank)
        return found[:1], dict(found[1])

    def spread(self, ready: Set[int], send: Callable[..., None], *, ask: bool) -> None:
        """Tells every process of the copy; where there is none, ``ask`` has one made.

        Args:
            ready: The processes that are ready.
            send: ``Supervisor.send``.
            ask: See above.
        """
        if ready <= self._told:  # asked for each batch
            return
        found = self._found()
        if found is not None:
            for rank in ready - self._told:
                self._told.add(rank)
                send(rank, "graph", found[:1], description=dict(found[1]))
        elif ask and self._may_ask and self.copier is None and (order := self._order()) is not None:
            self.copier = min(ready)
            send(self.copier, "copy", **order)

    def take(self, rank: int, message: Message) -> None:
        """A process has made the copy, or says that it cannot."""
        self.copier, self._may_ask = None, self.take_over(message)
        if self._may_ask:
            self._told.add(rank)

    def lost(self, rank: int) -> None:
        """A process is gone, and perhaps the copy that it was making."""
        self._told.discard(rank)
        if self.copier == rank:
            self.give_up()

    def give_up(self) -> None:
        """Lets another one make the copy."""
        self.copier = None


class GraphSharing(CopySpreading):
    """The shared copy of a graph, as the processes of one supervisor see it.

    A stored graph is read from its file mapping until one process has made the copy; a graph in memory is copied before they start.

    Args:
        graph: The graph; other loaders of this process may have had the copy made, or wait for it.
        memory_budget: Most bytes that the copy of a stored graph may take; see ``GraphHandle.copy_nbytes``.

    Raises:
        MemoryLimitError: The graph is in memory only, and there is no room for the copy.
    """

    def __init__(self, graph: GraphHandle, memory_budget: int | None) -> None:
        super().__init__()
        self._graph, self._budget, self._may_ask = graph, memory_budget, graph.store is not None
        self._own = graph.share_now() if graph.store is None else None

    @property
    def shared(self) -> SharedGraph | None:
        """The copy; None while there is none."""
        return self._own or self._graph.shared

    @property
    def nbytes(self) -> int:
        """Bytes of the copy, 0 while there is none."""
        shared = self.shared
        return 0 if shared is None else shared.nbytes

    def _found(self) -> tuple[int, Mapping[str, Any]] | None:
        shared = self.shared
        return None if shared is None else (shared.block.fd, shared.description)

    def _order(self) -> dict[str, Any] | None:
        return {"nbytes": self._graph.copy_nbytes(self._budget)} if self._graph.wants_copy(self, self._budget) else None

    def take_over(self, message: Message) -> bool:
        """Takes over what a process of this host has made, if it has made anything; whether there is a copy then."""
        description, shared = message.body["description"], None
        if description is not None:
            with contextlib.suppress(OSError):  # no address space left: sampling stays on the file mapping
                shared = SharedGraph.attach(message.fds[0], description, self._graph.arrays)
        self._graph.copy_made(self, shared)
        return shared is not None

    def give_up(self) -> None:
        """Lets another loader have the copy made."""
        super().give_up()
        self._graph.copy_made(self, None)
