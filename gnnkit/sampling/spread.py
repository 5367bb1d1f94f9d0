"""A ``GraphAccess`` over a graph whose parts lie on several hosts.

What a node answers depends on nothing but the question, so every host is asked once, about all edge types together, while this one works
out its own share. In a walk, numbers are given out when the answers are there, in the order in which ``walk.walk`` gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import NeighborSampling
from gnnkit.sampling import merge as kernels
from gnnkit.sampling.answers import merge_sources, stitched
from gnnkit.sampling.damage import LOOSE_EDGE, damaged
from gnnkit.sampling.fill import RowStep
from gnnkit.sampling.graph_access import BaseGraphAccess
from gnnkit.sampling.hosts import PartMap
from gnnkit.sampling.numbering import enter_seeds
from gnnkit.sampling.owners import Answer, Expansion, PartOwners, Picks, Question
from gnnkit.sampling.passes import DAMAGED, FRONTIER, NEIGHBOR
from gnnkit.sampling.remote_rows import RowFiller
from gnnkit.sampling.scratch import NodeScratch
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import Seeds, Walked


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


class RemoteGraphAccess(BaseGraphAccess):
    """A ``GraphAccess`` where parts are on several hosts; its answers are those of ``LocalGraphAccess`` on one.

    Args:
        tables: The graph; parts of other hosts have no arrays.
        with_edge: Whether batches carry edge ids.
        where: Where the parts are.
        owners: The other hosts.
        scratch: See ``BaseGraphAccess``.
    """

    def __init__(
        self, tables: GraphTables, with_edge: bool, where: PartMap, owners: PartOwners, scratch: NodeScratch | None = None
    ) -> None:
        super().__init__(tables, with_edge, scratch)
        self._where, self._owners = where, owners
        self._rows = RowFiller(tables, where, owners)
        self._frontiers = [_Frontier.of(where.num_hosts, 0) for _ in tables.node_types]

    def use(self, tables: GraphTables) -> None:
        """See ``GraphAccess.use``."""
        super().use(tables)
        self._rows.use(tables)

    # Walks --------------------------------------------------------------------------------------------------------------------

    def walk(self, seeds: Seeds, key: int, sampling: NeighborSampling) -> Walked:
        """See ``GraphAccess.walk``; hop by hop.

        Raises:
            StoreError: The graph is damaged.
            SamplingError: A host did not answer, or with something else.
        """
        tables, fan_outs, scratch = self.tables, self.fan_outs(sampling), self.scratch
        num_hops = fan_outs.shape[1]
        num_sampled_nodes = np.zeros((len(tables.node_types), num_hops + 1), np.int64)
        num_sampled_edges = np.zeros(fan_outs.shape, np.int64)
        self.reserve(fan_outs, sum(map(len, seeds.nodes.values())))
        scratch.begin(seeds.nodes)
        enter_seeds(scratch.buffers, scratch.num_nodes)
        begin, end = np.zeros_like(scratch.num_nodes), scratch.num_nodes.copy()
        num_edges = np.zeros(len(tables.edge_types), np.int64)
        num_sampled_nodes[:, 0] = end
        for hop in range(num_hops):
            before = num_edges.copy()
            self._take_hop(
                Expansion(key, hop, fan_outs[:, hop].copy(), {}, sampling.replace, sampling.weight is not None), begin, end, num_edges
            )
            num_sampled_edges[:, hop] = num_edges - before
            num_sampled_nodes[:, hop + 1] = scratch.num_nodes - end
            begin, end = end, scratch.num_nodes.copy()
        return self.walked(seeds, num_sampled_nodes, num_sampled_edges)

    def _take_hop(self, hop: Expansion, begin: NDArray[np.int64], end: NDArray[np.int64], num_edges: NDArray[np.int64]) -> None:
        """Samples one hop."""
        relations, scratch = self.tables.relations, self.scratch
        active = [r for r in range(len(relations)) if hop.fan_outs[r] != 0 and end[relations[r, FRONTIER]] > begin[relations[r, FRONTIER]]]
        types = sorted({int(relations[r, FRONTIER]) for r in active})
        for t in types:
            self._sort(t, int(begin[t]), int(end[t]), are_seeds=hop.hop == 0)
        answers = self._ask(self._hop_requests(hop, types))
        for r in active:
            t, n = relations[r, FRONTIER], relations[r, NEIGHBOR]
            frontier, count = self._frontiers[t], int(end[t] - begin[t])
            of_type = {host: answer.get(r) for host, answer in answers.items()}
            sources, kept = merge_sources(of_type, frontier.counts, wants_position=self.wants_position[r])
            while True:
                neighbors, edges = kernels.merge(
                    relations[r], begin[t], frontier.owner, frontier.slot, count, sources, scratch.buffers[n], scratch.num_nodes[n],
                    self.edges.table[r], num_edges[r],
                )  # fmt: skip
                if edges > DAMAGED:
                    break
                if edges == DAMAGED:
                    scratch.num_nodes[n] = neighbors  # they have their numbers already, and the next batch must know
                    raise damaged(LOOSE_EDGE)
                self.edges.reserve(r, 2 * int(DAMAGED - edges), int(num_edges[r]))
            scratch.num_nodes[n], num_edges[r] = neighbors, edges
            del kept

    def _sort(self, t: int, begin: int, end: int, *, are_seeds: bool) -> None:
        size, frontier = end - begin, self._frontiers[t]
        if len(frontier.owner) < size:
            frontier = self._frontiers[t] = _Frontier.of(self._where.num_hosts, size + size // 2)
        kernels.sort_by_owner(
            self.scratch.buffers[t], begin, end, are_seeds, self.tables.bounds[t], self._where.host_of_part, frontier.owner, frontier.slot,
            frontier.lists, frontier.counts,
        )  # fmt: skip

    def _hop_requests(self, hop: Expansion, types: list[int]) -> dict[int, Expansion]:
        """What each host is asked, this one included."""
        requests = {}
        for host in range(self._where.num_hosts):
            nodes = {t: self._frontiers[t].nodes(host) for t in types if self._frontiers[t].counts[host]}
            if nodes:
                requests[host] = replace(hop, nodes=nodes, wants_position=self.wants_position)
        return requests

    def _ask(self, requests: dict[int, Expansion]) -> dict[int, Mapping[int, Picks]]:
        own = requests.pop(self._where.here, None)
        wait = self._owners.expand(requests)
        try:
            answers: dict[int, Mapping[int, Picks]] = {} if own is None else {self._where.here: self.own.expand(own)}
        finally:
            others = wait()
        return answers | dict(others)

    # Questions ----------------------------------------------------------------------------------------------------------------

    def expand(self, expansion: Expansion) -> dict[int, Picks]:
        """See ``GraphAccess.expand``."""
        relations = self.tables.relations
        shares = {t: self._shares(t, nodes) for t, nodes in expansion.nodes.items()}
        requests: dict[int, Expansion] = {}
        for host in range(self._where.num_hosts):
            chosen = {t: places[host] for t, places in shares.items() if host in places}
            if chosen:
                requests[host] = replace(
                    expansion,
                    nodes={t: expansion.nodes[t][places] for t, places in chosen.items()},
                    roots=None if expansion.roots is None else {t: expansion.roots[t][places] for t, places in chosen.items()},
                    times=None if expansion.times is None else {t: expansion.times[t][places] for t, places in chosen.items()},
                    wants_position=self.wants_position,
                )
        answers, found = self._ask(requests), {}
        for r, t in enumerate(relations[:, FRONTIER].tolist()):
            if expansion.fan_outs[r] != 0 and t in expansion.nodes:
                of_type = {host: answers.get(host, {}).get(r) for host in shares[t]}
                found[r] = stitched(of_type, shares[t], len(expansion.nodes[t]), wants_position=self.wants_position[r])
        return found

    def _fill_rows(self, steps: list[RowStep]) -> None:
        self._rows.fill(steps)

    def _shares(self, t: int, nodes: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        """``{host: places of its nodes}``, hosts with none left out."""
        owner = self._where.host_of_part[np.searchsorted(self.tables.bounds[t], nodes, side="right") - 1]
        places = {host: np.flatnonzero(owner == host) for host in range(self._where.num_hosts)}
        return {host: found for host, found in places.items() if len(found)}

    def _answers(self, shares: Mapping[int, NDArray[np.int64]], question: Callable[[NDArray[np.int64]], Question]) -> dict[int, Answer]:
        here = self._where.here
        wait = self._owners.answer({host: question(places) for host, places in shares.items() if host != here})
        try:
            own: dict[int, Answer] = {here: self.own.answer(question(shares[here]))} if here in shares else {}
        finally:
            others = wait()
        return own | dict(others)
