"""Pages that batches of a store read from the disk where memory holds only some of them, on paper."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.disk import probe_disk
from gnnkit.storage.partition.hotness import expected_frontiers, input_seeds
from gnnkit.storage.store import Store

_STEPS = 60


@dataclass(frozen=True)
class PageReads:
    """The pages of a store and how often a batch is expected to touch each.

    Attributes:
        rate: float64 ``[number of pages that batches touch]``: rows, bounds or edges of the page that a batch reads.
    """

    rate: NDArray[np.float64]

    @classmethod
    def of(cls, store: Store, seed_type: NodeType, num_neighbors: Sequence[int], batch_size: int) -> PageReads:
        """Works them out from the graph, for epochs over the split "train", or over all nodes where there is none.

        Args:
            store: The store, with all of its parts.
            seed_type: The seeds' type.
            num_neighbors: Fan-outs, the same for all edge types.
            batch_size: Seeds of a batch.

        Raises:
            PlanError: There are no seeds of this type.
            StoreError: A part is not open.
        """
        graph = store.require().arrays()
        ids = input_seeds(graph, store.splits).get(seed_type, np.empty(0, np.int64))
        if not len(ids):
            raise PlanError(f"the store {store.path} has no {seed_type!r} nodes to start from")
        seeds, num_batches = {seed_type: ids}, -(-len(ids) // batch_size)
        hops = [
            {t: values / (unit * num_batches) for t, values in frontier.items()}
            for unit, frontier in expected_frontiers(graph, seeds, num_neighbors)
        ]
        rates = [*_of_nodes(graph, hops), *_of_edges(graph, hops, num_neighbors)]
        every = np.concatenate(rates)
        return cls(every[every > 0])

    @property
    def touched(self) -> float:
        """Pages that a batch reads, from memory or from the disk."""
        return float(-np.expm1(-self.rate).sum())

    def missed(self, nbytes: int) -> float:
        """Pages of a batch that come from the disk where memory holds the pages that were read last (Che's approximation of such a cache).

        H. Che, Y. Tung, Z. Wang: Hierarchical Web Caching Systems, IEEE JSAC 20(7), 2002: a page is there if it was read within the last
        ``t`` batches, and ``t`` is such that as many pages are expected to have been read within them as there is room for.

        Args:
            nbytes: Memory for pages.
        """
        room = nbytes / mmap.PAGESIZE
        if room >= len(self.rate):
            return 0.0
        low, high = 0.0, 1.0
        while -np.expm1(-self.rate * high).sum() < room and high < 1e12:
            high *= 2
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if -np.expm1(-self.rate * middle).sum() < room else (low, middle)
        return float((-np.expm1(-self.rate) * np.exp(-self.rate * low)).sum())


@dataclass(frozen=True)
class StoreDisk:
    """A store that may not fit in memory, and its disk.

    Attributes:
        reads: The pages of its batches.
        pages_per_s: The most that the disk reads in a second.
        depth: Reads under way at once that give it.
    """

    reads: PageReads
    pages_per_s: float
    depth: int

    @classmethod
    def probed(cls, store: Store, seed_type: NodeType, num_neighbors: Sequence[int], batch_size: int) -> StoreDisk | None:
        """Works the reads out, and probes the disk; None where the disk cannot be probed.

        Args:
            store: See ``PageReads.of``.
            seed_type: See ``PageReads.of``.
            num_neighbors: See ``PageReads.of``.
            batch_size: See ``PageReads.of``.
        """
        try:
            rate = probe_disk(store.path)
        except OSError:  # a file system in memory, or one that cannot read past its cache
            return None
        return cls(PageReads.of(store, seed_type, num_neighbors, batch_size), rate.best, rate.best_depth)


Hops = list[dict[NodeType, NDArray[np.float64]]]


def _of_nodes(graph: GraphArrays, hops: Hops) -> Iterator[NDArray[np.float64]]:
    """Rates of the pages of node arrays and ids."""
    for node_type in graph.schema.node_types:
        visits = _reached(sum((hop[node_type] for hop in hops), np.zeros(graph.schema.node_types[node_type].num_nodes)))
        bounds = graph.node_bounds[node_type]
        for part, nodes in enumerate(graph.nodes[node_type]):
            own = visits[bounds[part] : bounds[part + 1]]
            for array in (*nodes.arrays.values(), *([] if nodes.global_id is None else [nodes.global_id])):
                yield _page_rates(array, own)


def _of_edges(graph: GraphArrays, hops: Hops, num_neighbors: Sequence[int]) -> Iterator[NDArray[np.float64]]:
    """Rates of the pages of adjacency."""
    for edge_type in graph.schema.edge_types:
        yield from _of_edge_type(graph, edge_type, hops, num_neighbors)


def _of_edge_type(graph: GraphArrays, edge_type: EdgeType, hops: Hops, num_neighbors: Sequence[int]) -> Iterator[NDArray[np.float64]]:
    owner = graph.frontier_type(edge_type)
    bounds = graph.node_bounds[owner]
    for part, edges in enumerate(graph.edges[edge_type]):
        degree = np.diff(edges.indptr).astype(np.int64)
        expanded = [_reached(hop[owner][bounds[part] : bounds[part + 1]]) for hop, _ in zip(hops, num_neighbors, strict=False)]
        yield _page_rates(edges.indptr, sum(expanded, np.zeros(len(degree))))
        drawn = [degree if fan_out < 0 else np.minimum(degree, fan_out) for fan_out in num_neighbors]
        for array in (edges.indices, *edges.arrays.values(), *([] if edges.edge_id is None else [edges.edge_id])):
            yield _adjacency_rates(array, edges.indptr, expanded, drawn)


def _adjacency_rates(
    array: NDArray[Any], indptr: NDArray[Any], expanded: list[NDArray[np.float64]], drawn: list[NDArray[np.int64]]
) -> NDArray[np.float64]:
    """Rates of the pages of an array of edges: a node's draws fall on all of its edges alike, and most nodes' edges are in one page.

    Args:
        array: The array.
        indptr: Where each node's edges begin.
        expanded: Of each hop, the chance that a batch draws from a node.
        drawn: Of each hop, how many edges it draws then.
    """
    own = np.flatnonzero(np.diff(indptr))
    if not len(own):
        return np.zeros(0)
    row, offset = array.nbytes // len(array), array.ctypes.data % mmap.PAGESIZE
    begin, end = (offset + indptr[own + k].astype(np.int64) * row for k in (0, 1))
    first, last = begin // mmap.PAGESIZE, (end - 1) // mmap.PAGESIZE
    # A line for each node and page that has some of its edges.
    node = np.repeat(np.arange(len(own)), last - first + 1)
    page = np.arange(len(node)) - np.repeat(np.cumsum(last - first + 1) - (last - first + 1), last - first + 1) + first[node]
    inside = np.minimum(end[node], (page + 1) * mmap.PAGESIZE) - np.maximum(begin[node], page * mmap.PAGESIZE)
    share = inside / (end - begin)[node]
    rates = sum((e[own][node] * (1 - (1 - share) ** d[own][node]) for e, d in zip(expanded, drawn, strict=True)), np.zeros(len(node)))
    return np.bincount(page, rates).astype(np.float64)


def _reached(visits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance that a batch has a node in which so many walks are expected to arrive: it is there once, however many do."""
    return -np.expm1(-visits)


def _page_rates(array: NDArray[Any], rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rates of an array's pages, given those of its first rows, all that are read."""
    if not len(rates) or not array.nbytes:
        return np.zeros(0)
    row = array.nbytes // len(array)
    begin = array.ctypes.data % mmap.PAGESIZE + np.arange(len(rates)) * row
    first, last = begin // mmap.PAGESIZE, (begin + row - 1) // mmap.PAGESIZE
    found = np.bincount(first, rates, int(last[-1]) + 1).astype(np.float64)
    for step in range(1, int((last - first).max()) + 1):
        further = first + step <= last
        found += np.bincount(first[further] + step, rates[further], len(found))
    return found
