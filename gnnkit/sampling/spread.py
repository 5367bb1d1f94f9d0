"""Samples one batch from a graph whose parts lie on several hosts: the walk hop by hop, then the rows.

The draws of a hop depend on nothing but the nodes that draw, so every host is asked once a hop, about all edge types together, while
this one draws its own share. Numbers are given out when the answers are there, in the order in which ``walk.walk`` gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import SamplingError, StoreError
from gnnkit.plan import NeighborSampling
from gnnkit.sampling import fill as fill_kernel
from gnnkit.sampling import merge as kernels
from gnnkit.sampling.hosts import PartMap
from gnnkit.sampling.owned import PartOwner
from gnnkit.sampling.owners import ExpandRequest, PartOwners, Picks
from gnnkit.sampling.remote_rows import RowFiller, RowStep
from gnnkit.sampling.sampler import VERIFY_HINT, NeighborSampler, NodeScratch, SampleRequest
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.sampling.walk import CAPACITY, DAMAGED, DONE, FRONTIER, NEIGHBOR


@dataclass(eq=False)
class _Frontier:
    """The nodes of one type that draw in a hop, sorted by owner; scratch that grows."""

    owner: NDArray[np.int64]
    slot: NDArray[np.int64]
    lists: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, num_hosts: int, size: int) -> _Frontier:
        return cls(np.empty(size, np.int64), np.empty(size, np.int64), np.empty((num_hosts, size), np.int64), np.zeros(num_hosts, np.int64))

    def nodes(self, host: int) -> NDArray[np.int64]:
        return self.lists[host, : self.counts[host]]


class SpreadSampler(NeighborSampler):
    """A ``NeighborSampler`` for parts on several hosts; its batches are the same.

    Args:
        tables: The graph; parts of other hosts have no arrays.
        sampling: Fan-outs and options.
        max_seeds: The largest number of seeds in a batch.
        where: Where the parts are.
        owners: The other hosts.
        scratch: See ``NeighborSampler``.
    """

    def __init__(
        self,
        tables: GraphTables,
        sampling: NeighborSampling,
        max_seeds: int,
        where: PartMap,
        owners: PartOwners,
        scratch: NodeScratch | None = None,
    ) -> None:
        super().__init__(tables, sampling, max_seeds, scratch)
        self._where, self._owners = where, owners
        self._own = PartOwner(tables, tables.graph.local_parts)
        self._rows = RowFiller(tables, where, owners)
        self._frontiers = [_Frontier.of(where.num_hosts, 0) for _ in tables.node_types]

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""
        super().use(tables)
        self._own.use(tables)
        self._rows.use(tables)

    def _walk(self, request: SampleRequest) -> int:
        kernels.begin_walk(self._node_buffers, self._num_nodes)
        begin, end = np.zeros_like(self._num_nodes), self._num_nodes.copy()
        num_edges = np.zeros(len(self.tables.edge_types), np.int64)
        self._num_sampled_nodes[:, 0] = end
        for hop in range(self._fan_outs.shape[1]):
            before = num_edges.copy()
            if not self._take_hop(request, hop, begin, end, num_edges):
                return DAMAGED
            self._num_sampled_edges[:, hop] = num_edges - before
            self._num_sampled_nodes[:, hop + 1] = self._num_nodes - end
            begin, end = end, self._num_nodes.copy()
        return DONE

    def _take_hop(
        self, request: SampleRequest, hop: int, begin: NDArray[np.int64], end: NDArray[np.int64], num_edges: NDArray[np.int64]
    ) -> bool:
        """Samples one hop; False where the graph is damaged."""
        relations, fan_outs = self.tables.relations, self._fan_outs[:, hop]
        active = [r for r in range(len(relations)) if fan_outs[r] != 0 and end[relations[r, FRONTIER]] > begin[relations[r, FRONTIER]]]
        types = sorted({int(relations[r, FRONTIER]) for r in active})
        for t in types:
            self._sort(t, int(begin[t]), int(end[t]), are_seeds=hop == 0)
        answers = self._ask(self._requests(request.key, hop, types))
        for r in active:
            t, n = relations[r, FRONTIER], relations[r, NEIGHBOR]
            frontier, count = self._frontiers[t], int(end[t] - begin[t])
            of_type = {host: answer.get(r) for host, answer in answers.items()}
            sources, kept = _sources(of_type, frontier.counts, wants_position=self._wants_position[r])
            while True:
                neighbors, edges = kernels.merge(
                    relations[r], begin[t], frontier.owner, frontier.slot, count, sources, self._node_buffers[n], self._num_nodes[n],
                    self._edge_buffers[r], num_edges[r],
                )  # fmt: skip
                if edges > DAMAGED:
                    break
                if edges == DAMAGED:
                    return False
                self._grow_edges(r, DAMAGED - edges, int(num_edges[r]))
            self._num_nodes[n], num_edges[r] = neighbors, edges
            del kept
        return True

    def _sort(self, t: int, begin: int, end: int, *, are_seeds: bool) -> None:
        size, frontier = end - begin, self._frontiers[t]
        if len(frontier.owner) < size:
            frontier = self._frontiers[t] = _Frontier.of(self._where.num_hosts, size + size // 2)
        kernels.sort_by_owner(
            self._node_buffers[t], begin, end, are_seeds, self.tables.bounds[t], self._where.host_of_part, frontier.owner, frontier.slot,
            frontier.lists, frontier.counts,
        )  # fmt: skip

    def _requests(self, key: int, hop: int, types: list[int]) -> dict[int, ExpandRequest]:
        """What each host is asked, this one included."""
        requests = {}
        for host in range(self._where.num_hosts):
            nodes = {t: self._frontiers[t].nodes(host) for t in types if self._frontiers[t].counts[host]}
            if nodes:
                requests[host] = ExpandRequest(
                    key,
                    hop,
                    np.ascontiguousarray(self._fan_outs[:, hop]),
                    self._sampling.replace,
                    self._sampling.weight is not None,
                    tuple(self._wants_position),
                    nodes,
                )
        return requests

    def _ask(self, requests: dict[int, ExpandRequest]) -> dict[int, Mapping[int, Picks]]:
        own = requests.pop(self._where.here, None)
        wait = self._owners.expand(requests)
        try:
            answers: dict[int, Mapping[int, Picks]] = {} if own is None else {self._where.here: self._own.expand(own)}
        finally:
            others = wait()
        return answers | dict(others)

    def _grow_edges(self, r: int, capacity: int, used: int) -> None:
        """Makes an edge type's buffers larger; the edges that they hold stay."""
        before = self._edges[r]
        self._allocate_edges(r, max(capacity, 2 * int(self._edge_buffers[r, CAPACITY])))
        for old, new in zip(before, self._edges[r], strict=True):
            new[:used] = old[:used]

    def fill(self, block: NDArray[np.uint8]) -> None:
        """Writes the batch that was sampled last into ``block``, which has at least ``layout.nbytes`` bytes.

        Raises:
            StoreError: A node or edge has an id that the dataset does not have.
            SamplingError: A host did not answer.
        """
        start = address_of(block)
        copies: list[RowStep] = []
        rows: list[RowStep] = []
        for place, step in self._steps:
            (copies if step[0] == fill_kernel.COPY else rows).append((start + place.offset, step))
        steps = [(kind, ids, count, width, target, table, bounds) for target, (kind, ids, count, width, table, bounds) in copies]
        fill_kernel.fill(np.array(steps, np.int64).reshape(-1, 7), self.tables.row_addresses, self.tables.row_bounds)
        if not self._rows.fill(rows):
            raise StoreError("the graph is damaged: a node or an edge has an id that the dataset does not have", VERIFY_HINT)


def _sources(
    answers: Mapping[int, Picks | None], counts: NDArray[np.int64], *, wants_position: bool
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """The hosts' answers about one edge type as ``merge.merge`` takes them, and what must be kept alive meanwhile.

    Args:
        answers: ``{host: its answer}``.
        counts: int64 ``[number of hosts]``, nodes that each was asked about.
        wants_position: Whether positions were asked for.

    Raises:
        SamplingError: An answer does not fit its request.
    """
    sources, kept = np.zeros((len(counts), 5), np.int64), []
    for host, count in enumerate(counts.tolist()):
        if not count:
            continue
        picks, offsets = answers[host], np.zeros(count + 1, np.int64)
        if picks is None or not _fits(picks, count, offsets, wants_position=wants_position):
            raise SamplingError(f"host {host} sent an answer that does not fit the request", "all hosts must run the same gnnkit")
        positions, width = (0, 8) if picks.positions is None else (address_of(picks.positions), picks.positions.itemsize)
        sources[host] = address_of(offsets), address_of(picks.neighbors), picks.neighbors.itemsize, positions, width
        kept.append(offsets)
    return sources, kept


def _fits(picks: Picks, count: int, offsets: NDArray[np.int64], *, wants_position: bool) -> bool:
    """Whether an answer is one about ``count`` nodes; fills ``offsets``, where each node's edges begin."""
    if len(picks.counts) != count or picks.counts.min() < 0 or (picks.positions is None) == wants_position:
        return False
    np.cumsum(picks.counts, out=offsets[1:])
    return offsets[-1] == len(picks.neighbors) and (picks.positions is None or len(picks.positions) == len(picks.neighbors))
