"""Several hosts in one process: each has arrays of its own parts only, and answers the others by a function call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import InputNodes, Inputs, NeighborSampling
from gnnkit.sampling.kinds import BatchSampler, local_sampler
from gnnkit.sampling.owned import PartOwner
from gnnkit.sampling.owners import Answer, Expansion, Picks, Question, RowsRequest
from gnnkit.sampling.remote import PartMap, spread_sampler
from gnnkit.sampling.subgraph import SampleRequest
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.storage.arrays import EdgePart, GraphArrays, NodePart, placeholder


def part_of_graph(graph: GraphArrays, parts: tuple[int, ...], *, whole_structure: bool = False) -> GraphArrays:
    """The graph as a host with some of the parts, and perhaps the structure of the others, has it."""

    def gone(array: NDArray[Any] | None) -> Any:
        return None if array is None else placeholder(array.dtype, array.shape)

    def no_nodes(part: NodePart) -> NodePart:
        if whole_structure:
            return replace(part, arrays={name: array for name, array in part.arrays.items() if name != "x"})
        return NodePart({name: gone(a) for name, a in part.arrays.items()}, gone(part.global_id))

    def no_edges(part: EdgePart) -> EdgePart:
        if whole_structure:
            return replace(part, arrays={name: array for name, array in part.arrays.items() if name != "edge_attr"})
        arrays = {name: gone(a) for name, a in part.arrays.items()}
        return EdgePart(gone(part.indptr), gone(part.indices), gone(part.edge_id), gone(part.weight_prefix), arrays, gone(part.time))

    nodes = {t: tuple(part if p in parts else no_nodes(part) for p, part in enumerate(found)) for t, found in graph.nodes.items()}
    edges = {t: tuple(part if p in parts else no_edges(part) for p, part in enumerate(found)) for t, found in graph.edges.items()}
    return replace(graph, nodes=nodes, edges=edges, local_parts=parts, whole_structure=whole_structure)


class OwnersHere:
    """``PartOwners`` by function calls.

    Attributes:
        asked: ``(kind, host)`` of every request.
    """

    def __init__(self, owners: Mapping[int, PartOwner]) -> None:
        self._owners = owners
        self.asked: list[tuple[str, int]] = []
        self.rows_asked = 0

    def expand(self, requests: Mapping[int, Expansion]) -> Callable[[], Mapping[int, Mapping[int, Picks]]]:
        self.asked += [("expand", host) for host in requests]

        def wait() -> Mapping[int, Mapping[int, Picks]]:
            # Answers are as narrow as the wire has them, and not aligned.
            return {host: {r: _narrow(picks) for r, picks in self._owners[host].expand(q).items()} for host, q in requests.items()}

        return wait

    def answer(self, questions: Mapping[int, Question]) -> Callable[[], Mapping[int, Answer]]:
        self.asked += [("answer", host) for host in questions]
        return lambda: {host: self._owners[host].answer(question) for host, question in questions.items()}

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
    placement: Mapping[int, tuple[int, ...]],
    hot: Mapping[int, Any] | None = None,
    inputs: Inputs | None = None,
    *,
    whole_structure: bool = False,
) -> dict[int, tuple[BatchSampler, OwnersHere]]:
    """A sampler for each host; of nodes unless told otherwise."""
    weighted = sampling.weight is not None
    held = {host: part_of_graph(graph, parts, whole_structure=whole_structure) for host, parts in placement.items()}
    tables = {host: GraphTables(of_host, weighted) for host, of_host in held.items()}
    samplers = {}
    for here, parts in placement.items():
        others = OwnersHere({host: PartOwner(tables[host], placement[host]) for host in placement if host != here})
        elsewhere = {host: placement[host] for host in placement if host != here}
        where = PartMap.of(graph.num_parts, here, parts, elsewhere, (hot or {}).get(here))
        samplers[here] = (spread_sampler(tables[here], inputs or inputs_of(graph), sampling, where, others), others)
    return samplers


def inputs_of(graph: GraphArrays) -> InputNodes:
    """Input nodes of the first type that has nodes."""
    return InputNodes(next(t for t, schema in graph.schema.node_types.items() if schema.num_nodes), "test")


def sampler_on(graph: GraphArrays, sampling: NeighborSampling, *, walks_only: bool = False, inputs: Inputs | None = None) -> BatchSampler:
    """A sampler of one host with the whole graph; of nodes unless told otherwise."""
    return local_sampler(GraphTables(graph, sampling.weight is not None), inputs or inputs_of(graph), sampling, walks_only=walks_only)


def sampled(sampler: BatchSampler, request: SampleRequest) -> tuple[Any, dict[Any, bytes]]:
    """A batch's layout, and the bytes of its arrays."""
    layout, block, *_ = sampler.sample_into(request, lambda nbytes: np.zeros(max(1, nbytes), np.uint8))
    return layout, {field.key: block[field.offset : field.offset + field.nbytes].tobytes() for field in layout.fields}
