"""A graph's copy on a device: what sampling reads of it, and the rows that its batches carry."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnkit.errors import MemoryLimitError
from gnnkit.host import free_on
from gnnkit.plan import NeighborSampling
from gnnkit.sampling.subgraph import LOOSE_EDGE, damaged
from gnnkit.schema import ArraySpec, EdgeType, NodeType
from gnnkit.storage.arrays import GraphArrays, viewed
from gnnkit.storage.layout import FEATURE_NAME

# What is copied at a time, so that no second copy of an array is made on the way.
_PIECE_NBYTES = 64 << 20
_WIDEST = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


@dataclass(frozen=True)
class DeviceAdjacency:
    """The edges of one type.

    Attributes:
        indptr: int64 ``[nodes + 2]``, over the store ids of the nodes that own the edges, and over no node, which owns none.
        indices: int32 or int64 ``[edges + 1]``, store ids of the other ends; the last one leads to no node, but the number of nodes.
        rounds: The length in binary of the largest degree.
        is_wide: Whether a degree may be 2^31 or more.
        prefix: int64 ``[edges]``, see ``EdgePart.weight_prefix``; None where weights play no part.
        has_zeros: Whether an edge may have no weight.
        time: int64 ``[edges]``, see ``EdgePart.time``; None where times play no part.
    """

    indptr: Tensor
    indices: Tensor
    rounds: int
    is_wide: bool
    prefix: Tensor | None = None
    has_zeros: bool = False
    time: Tensor | None = None

    @classmethod
    def of(
        cls, indptr: Tensor, indices: Tensor, num_neighbors: int, prefix: Tensor | None = None, time: Tensor | None = None
    ) -> DeviceAdjacency:
        """Looks the edges through, on the device.

        Args:
            indptr: int64 ``[nodes + 1]``.
            indices: Likewise.
            num_neighbors: Nodes of the type of the other ends.
            prefix: See above.
            time: Likewise.

        Raises:
            StoreError: An edge leads to a node that does not exist.
        """
        degrees = indptr.diff()
        ends = (*degrees.aminmax(),) if len(degrees) else (torch.zeros(1), torch.zeros(1))
        least, largest = (int(end) for end in ends)
        is_sound = least >= 0 and int(indptr[0]) == 0 and int(indptr[-1]) == len(indices) - 1
        if is_sound and len(indices) > 1:
            first, last = (int(end) for end in indices[:-1].aminmax())
            is_sound = first >= 0 and last < num_neighbors
        if not is_sound:
            raise damaged(LOOSE_EDGE)
        has_zeros = False
        if prefix is not None and len(prefix):
            before = torch.cat([prefix.new_zeros(1), prefix[:-1]])
            before[indptr[:-1][degrees > 0]] = 0
            has_zeros = bool((prefix == before).any())
        return cls(torch.cat([indptr, indptr[-1:]]), indices, largest.bit_length(), largest >= 1 << 31, prefix, has_zeros, time)

    @property
    def count(self) -> int:
        """The number of edges, which is also the place of none."""
        return len(self.indices) - 1

    def ranges(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The places of nodes' first edges, and those behind their last ones."""
        begin, end = self.indptr.unfold(0, 2, 1)[nodes].unbind(1)
        return begin, end

    def weights(self, place: Tensor, begin: Tensor) -> Tensor:
        """The integer weights of edges; ``begin`` is the place of the first edge of each one's node."""
        assert self.prefix is not None
        return self.prefix[place] - torch.where(place > begin, self.prefix[(place - 1).clamp(min=0)], 0)


@dataclass(frozen=True)
class DeviceRows:
    """An array of a type.

    Attributes:
        words: ``[rows, words of a row]``, the bytes as the widest integers that they are a multiple of.
        dtype: What torch makes of the stored elements.
        shape: The shape of a row.
        name: The name of the elements' type, see ``ArraySpec``; "int64" for ids.
    """

    words: Tensor
    dtype: torch.dtype
    shape: tuple[int, ...]
    name: str

    def take(self, places: Tensor) -> Tensor:
        """The rows at these places."""
        return self.shown(self.words.index_select(0, places))

    def shown(self, words: Tensor) -> Tensor:
        """DeviceRows, which are given in words, as batches have them."""
        if not self.words.shape[1]:
            return torch.empty((len(words), *self.shape), dtype=self.dtype, device=words.device)
        return viewed(words.view(self.dtype).view(len(words), *self.shape), self.name) if self.name else words.view(self.dtype)


def words_of(array: NDArray[Any]) -> NDArray[Any]:
    """``[rows, words of a row]``: an array's bytes, see ``DeviceRows.words``; a copy."""
    count, nbytes = len(array), array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    width = next(width for width in _WIDEST if nbytes % width == 0)
    copied = np.array(array, order="C")
    if not nbytes:
        return np.empty((count, 0), np.uint8)
    return copied.reshape(-1).view(np.uint8).reshape(count, nbytes).view(np.dtype(f"i{width}" if width > 1 else "u1"))


def rows_of(parts: Iterable[NDArray[Any]], count: int, device: torch.device, name: str) -> DeviceRows:
    """Copies an array to a device.

    Args:
        parts: Its rows, part after part.
        count: How many there are.
        device: The device.
        name: See ``DeviceRows.name``.
    """
    arrays = list(parts)
    like, at = words_of(arrays[0][:0]), 0
    words = torch.empty((count, like.shape[1]), dtype=torch.from_numpy(like).dtype, device=device)
    for array in arrays:
        for piece in _pieces(array):
            words[at : at + len(piece)].copy_(torch.from_numpy(words_of(piece)))
            at += len(piece)
    shape = arrays[0].shape[1:]
    return DeviceRows(words, torch.from_numpy(np.empty(0, arrays[0].dtype)).dtype, shape, name)


def _pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    at_once = max(1, _PIECE_NBYTES // max(1, array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))))
    for first in range(0, len(array), at_once):
        yield array[first : first + at_once]


class DeviceGraph:
    """The copy of one graph on one device; loaders of a process share it. Arrays come when a loader first wants them.

    Args:
        arrays: The graph, with all of its parts here.
        device: The device.
    """

    def __init__(self, arrays: GraphArrays, device: torch.device) -> None:
        self.arrays, self.device = arrays, device
        self._kept: dict[tuple[Any, ...], Any] = {}
        self.lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Bytes of what is there."""
        return sum(value.nbytes for own in list(self._kept.values()) for value in vars(own).values() if isinstance(value, Tensor))

    def missing(self, sampling: NeighborSampling, *, skips_features: bool) -> dict[tuple[Any, ...], int]:
        """``{what a loader needs and is not there yet: bytes}``; see ``prepare``."""
        return {what: nbytes for what, (nbytes, _) in self._wanted(sampling, skips_features).items() if what not in self._kept}

    def prepare(self, sampling: NeighborSampling, *, skips_features: bool, beside: int) -> int:
        """Copies what a loader needs and is not there yet; nothing, where there is no room for it.

        Args:
            sampling: What the loader samples.
            skips_features: Whether features of nodes stay on the host.
            beside: Bytes that the loader needs beside the graph.

        Returns:
            Bytes that what it needs was predicted to take.

        Raises:
            MemoryLimitError: The device has no room.
            StoreError: The graph is damaged.
        """
        with self.lock:
            wanted = self._wanted(sampling, skips_features)
            check_room(self.missing(sampling, skips_features=skips_features), beside, self.device)
            for what, (_, make) in wanted.items():
                if what not in self._kept:
                    self._kept[what] = make()
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()  # from now on every stream finds it there
            return sum(nbytes for nbytes, _ in wanted.values())

    def _wanted(self, sampling: NeighborSampling, skips_features: bool) -> dict[tuple[Any, ...], tuple[int, Callable[[], Any]]]:
        """``{what: (its bytes, what copies it)}``."""
        found: dict[tuple[Any, ...], tuple[int, Callable[[], Any]]] = {}
        schema = self.arrays.schema

        def add(owner: NodeType | EdgeType, count: int, ids: Iterable[Any], arrays: Mapping[str, ArraySpec], parts: Sequence[Any]) -> None:
            if kept := [own for own in ids if own is not None]:
                found["ids", owner] = kept[0].itemsize * count, partial(rows_of, kept, count, self.device, "")
            for name, spec in arrays.items():
                make = partial(rows_of, [part.arrays[name] for part in parts], count, self.device, spec.dtype)
                found["rows", owner, name] = spec.row_nbytes * count, make

        for node_type, nodes in schema.node_types.items():
            parts = self.arrays.nodes[node_type]
            arrays = {name: spec for name, spec in nodes.arrays.items() if not (skips_features and name == FEATURE_NAME)}
            add(node_type, nodes.num_nodes, (part.global_id for part in parts), arrays, parts)
        for edge_type, edges in schema.edge_types.items():
            own = self.arrays.edges[edge_type]
            add(edge_type, edges.num_edges, (part.edge_id for part in own if sampling.with_edge), edges.arrays, own)
            weighted, timed = sampling.weight is not None and own[0].weight_prefix is not None, sampling.time_attr is not None
            timed = timed and own[0].time is not None
            num_nodes = schema.node_types[self.arrays.frontier_type(edge_type)].num_nodes
            itemsize = own[0].indices.itemsize
            nbytes = 8 * (num_nodes + 2) + itemsize + (itemsize + 8 * weighted + 8 * timed) * edges.num_edges
            found["edges", edge_type, weighted, timed] = nbytes, partial(self._adjacency_of, edge_type, weighted, timed)
        return found

    def _adjacency_of(self, edge_type: EdgeType, weighted: bool, timed: bool) -> DeviceAdjacency:
        parts, schema = self.arrays.edges[edge_type], self.arrays.schema
        bounds = self.arrays.edge_bounds[edge_type]
        num_nodes, num_neighbors = (
            schema.node_types[end].num_nodes for end in (self.arrays.frontier_type(edge_type), self.arrays.neighbor_type(edge_type))
        )
        indptr = torch.zeros(num_nodes + 1, dtype=torch.int64, device=self.device)
        at = 1
        for part, first in zip(parts, bounds.tolist(), strict=False):
            for piece in _pieces(part.indptr[1:]):
                indptr[at : at + len(piece)].copy_(torch.from_numpy(piece.astype(np.int64) + first))
                at += len(piece)

        def flat(values: Iterable[NDArray[Any] | None]) -> Tensor:
            arrays = [v for v in values if v is not None]
            return rows_of(arrays, sum(map(len, arrays)), self.device, "").words[:, 0]

        return DeviceAdjacency.of(
            indptr,
            flat((*(part.indices for part in parts), np.array([num_neighbors], parts[0].indices.dtype))),
            num_neighbors,
            flat(part.weight_prefix for part in parts) if weighted else None,
            flat(part.time for part in parts) if timed else None,
        )

    def adjacency(self, edge_type: EdgeType, sampling: NeighborSampling) -> DeviceAdjacency:
        """The edges of a type, as ``sampling`` wants them."""
        own = self.arrays.edges[edge_type][0]
        weighted, timed = sampling.weight is not None and own.weight_prefix is not None, sampling.time_attr is not None
        found: DeviceAdjacency = self._kept["edges", edge_type, weighted, timed and own.time is not None]
        return found

    def rows(self, owner: NodeType | EdgeType, name: str) -> DeviceRows | None:
        """The rows of an array of a type; None where they stay on the host."""
        return self._kept.get(("rows", owner, name))

    def ids(self, owner: NodeType | EdgeType) -> Tensor | None:
        """The dataset's ids of a type's nodes or edges; None where those of nodes are the store's, and those of edges not kept."""
        found: DeviceRows | None = self._kept.get(("ids", owner))
        return None if found is None else found.words[:, 0]


def check_room(needed: dict[tuple[Any, ...], int], beside: int, device: torch.device) -> None:
    """Checks that a device has room.

    Args:
        needed: ``{what is to be copied: bytes}``; its first word says what kind of array it is.
        beside: Bytes for numbering and batches.
        device: The device.

    Raises:
        MemoryLimitError: It has none.
    """
    by_kind = {kind: sum(n for what, n in needed.items() if what[0] == kind) for kind in ("edges", "ids", "rows")}
    free = free_on(device)
    total = sum(by_kind.values()) + beside
    if total > free:
        raise MemoryLimitError(
            f"OnDevice({str(device)!r}) needs {total / 1e6:.0f} MB: {by_kind['edges'] / 1e6:.0f} MB of structure,"
            f" {by_kind['ids'] / 1e6:.0f} MB of ids, {by_kind['rows'] / 1e6:.0f} MB of rows and {beside / 1e6:.0f} MB for numbering and"
            f" batches; {free / 1e6:.0f} MB are free",
            "feature_cache='2GB' keeps so many bytes of features there and has the host gather the others; InProcess() needs no device",
        )


_copies: weakref.WeakKeyDictionary[Any, dict[torch.device, weakref.ref[DeviceGraph]]] = weakref.WeakKeyDictionary()
_copies_lock = threading.Lock()


def device_graph(graph: Any, arrays: GraphArrays, device: torch.device) -> DeviceGraph:
    """The copy of a graph on a device: one for all loaders of this process, as long as one of them is open.

    Args:
        graph: What stands for the graph; not kept alive.
        arrays: Its arrays.
        device: The device.
    """
    with _copies_lock:
        of_graph = _copies.setdefault(graph, {})
        found = of_graph[device]() if device in of_graph else None
        if found is None:
            found = DeviceGraph(arrays, device)
            of_graph[device] = weakref.ref(found)
        return found
