"""Several hosts in one process: each has arrays of its own parts only, and answers the others by a function call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import NeighborSampling
from gnnkit.sampling.hosts import PartMap
from gnnkit.sampling.owned import PartOwner
from gnnkit.sampling.owners import ExpandRequest, Picks, RowsRequest
from gnnkit.sampling.sampler import NeighborSampler, SampleRequest
from gnnkit.sampling.spread import SpreadSampler
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.storage.arrays import EdgePart, GraphArrays, NodePart, placeholder


def part_of_graph(graph: GraphArrays, parts: tuple[int, ...]) -> GraphArrays:
    """The graph as a host with some of the parts has it."""

    def gone(array: NDArray[Any] | None) -> Any:
        return None if array is None else placeholder(array.dtype, array.shape)

    def no_nodes(part: NodePart) -> NodePart:
        return NodePart({name: gone(a) for name, a in part.arrays.items()}, gone(part.global_id))

    def no_edges(part: EdgePart) -> EdgePart:
        arrays = {name: gone(a) for name, a in part.arrays.items()}
        return EdgePart(gone(part.indptr), gone(part.indices), gone(part.edge_id), gone(part.weight_prefix), arrays)

    nodes = {t: tuple(part if p in parts else no_nodes(part) for p, part in enumerate(found)) for t, found in graph.nodes.items()}
    edges = {t: tuple(part if p in parts else no_edges(part) for p, part in enumerate(found)) for t, found in graph.edges.items()}
    return replace(graph, nodes=nodes, edges=edges, local_parts=parts)


class OwnersHere:
    """``PartOwners`` by function calls.

    Attributes:
        asked: ``(kind, host)`` of every request.
    """

    def __init__(self, owners: Mapping[int, PartOwner]) -> None:
        self._owners = owners
        self.asked: list[tuple[str, int]] = []
        self.rows_asked = 0

    def expand(self, requests: Mapping[int, ExpandRequest]) -> Callable[[], Mapping[int, Mapping[int, Picks]]]:
        self.asked += [("expand", host) for host in requests]

        def wait() -> Mapping[int, Mapping[int, Picks]]:
            # Answers are as narrow as the wire has them, and not aligned.
            return {host: {r: _narrow(picks) for r, picks in self._owners[host].expand(q).items()} for host, q in requests.items()}

        return wait

    def rows(self, requests: Mapping[int, RowsRequest], take: Callable[[int, int, int], None]) -> Callable[[], None]:
        self.asked += [("rows", host) for host in requests]
        self.rows_asked += sum(len(request.lists[which][1]) for request in requests.values() for _, which, _ in request.sections)

        def wait() -> None:
            for host, request in requests.items():
                for message, rows in enumerate(self._owners[host].rows(request)):
                    unaligned = np.empty(len(rows) + 1, np.uint8)[1:]
                    unaligned[:] = rows
                    take(host, message, address_of(unaligned))

        return wait


def _narrow(picks: Picks) -> Picks:
    positions = None if picks.positions is None else picks.positions.astype(np.int32)
    return Picks(picks.counts.astype(np.int32), picks.neighbors.astype(np.int32), positions)


def spread_samplers(
    graph: GraphArrays,
    sampling: NeighborSampling,
    max_seeds: int,
    placement: Mapping[int, tuple[int, ...]],
    hot: Mapping[int, Any] | None = None,
) -> dict[int, tuple[SpreadSampler, OwnersHere]]:
    """A sampler for each host."""
    weighted = sampling.weight is not None
    tables = {host: GraphTables(part_of_graph(graph, parts), weighted) for host, parts in placement.items()}
    samplers = {}
    for here, parts in placement.items():
        others = OwnersHere({host: PartOwner(tables[host], placement[host]) for host in placement if host != here})
        elsewhere = {host: placement[host] for host in placement if host != here}
        where = PartMap.of(graph.num_parts, here, parts, elsewhere, (hot or {}).get(here))
        samplers[here] = (SpreadSampler(tables[here], sampling, max_seeds, where, others), others)
    return samplers


def sampled(sampler: NeighborSampler, request: SampleRequest) -> tuple[Any, dict[Any, bytes]]:
    """A batch's layout, and the bytes of its arrays."""
    layout, block, *_ = sampler.sample_into(request, lambda nbytes: np.zeros(max(1, nbytes), np.uint8))
    return layout, {field.key: block[field.offset : field.offset + field.nbytes].tobytes() for field in layout.fields}
