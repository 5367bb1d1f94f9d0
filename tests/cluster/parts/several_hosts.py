"""Several hosts in one process: each has arrays of its own parts only, and answers the others by a function call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit import Store
from gnnkit.cluster.network.requests import answer_from_value, picks_from_value, to_args
from gnnkit.cluster.parts.answers import Answers
from gnnkit.plan import InputNodes
from gnnkit.sampling.collate import collate, contents_of
from gnnkit.sampling.kinds import local_sampler
from gnnkit.sampling.owned import PartOwner
from gnnkit.sampling.owners import Picks
from gnnkit.sampling.remote import PartMap, hot_rows, receiving_sampler, spread_sampler
from gnnkit.sampling.structure import Structure, WalkedRequest
from gnnkit.sampling.subgraph import SampledSubgraph, SampleRequest
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.storage.arrays import EdgePart, NodePart, placeholder
from tests.helpers.wires import sent


def part_of_graph(graph: Any, parts: tuple[int, ...], *, whole_structure: bool = False) -> Any:
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


def host_of(graph: Any, parts: tuple[int, ...], pause: Callable[[], Any] | None = None, *, weighted: bool = False) -> PartOwner:
    """What answers for a host with some of the parts."""
    return PartOwner(GraphTables(part_of_graph(graph, parts), weighted), parts, *([] if pause is None else [pause]))


def key_of(seed: int, index: int) -> int:
    """A key of 64 bits for the batch of a number."""
    return ((seed << 32) + index) * 0x9E3779B97F4A7C15 % (1 << 64)


def request_of(key: int, ids: Any, **arrays: Any) -> SampleRequest:
    """A request for the batch of a key around some nodes."""
    return SampleRequest(key, np.arange(len(ids)), {"node": ids, **arrays})


class OwnersHere:
    """``PartOwners`` by function calls.

    Attributes:
        asked: ``(kind, host)`` of every request.
    """

    def __init__(self, graph: Any, placement: Mapping[int, tuple[int, ...]], *, weighted: bool = False) -> None:
        self._owners = {host: host_of(graph, parts, weighted=weighted) for host, parts in placement.items()}
        self.asked: list[tuple[str, int]] = []
        self.rows_asked = 0

    def expand(self, requests: Mapping[int, Any]) -> Callable[[], Mapping[int, Mapping[int, Picks]]]:
        self.asked += [("expand", host) for host in requests]

        def wait() -> Mapping[int, Mapping[int, Picks]]:
            # Answers are as narrow as the wire has them, and not aligned.
            return {host: {r: _narrow(picks) for r, picks in self._owners[host].expand(q).items()} for host, q in requests.items()}

        return wait

    def answer(self, questions: Mapping[int, Any]) -> Callable[[], Mapping[int, Any]]:
        self.asked += [("answer", host) for host in questions]
        return lambda: {host: self._owners[host].answer(question) for host, question in questions.items()}

    def rows(self, requests: Mapping[int, Any], take: Callable[[int, int, int], None]) -> Callable[[], None]:
        self.asked += [("rows", host) for host in requests]
        self.rows_asked += sum(len(request.lists[which][1]) for request in requests.values() for _, which, _ in request.sections)

        def wait() -> None:
            for host, request in requests.items():
                for message, rows in enumerate(self._owners[host].rows(request)):
                    unaligned = np.empty(len(rows) + 1, np.uint8)[1:]
                    unaligned[:] = rows
                    take(host, message, address_of(unaligned))

        return wait


class OwnersOverTheWire(OwnersHere):
    """Questions and answers in the form in which they travel."""

    def __init__(self, graph: Any, placement: Mapping[int, tuple[int, ...]], *, weighted: bool = False) -> None:
        super().__init__(graph, placement, weighted=True)
        self._answers = {host: Answers(part_of_graph(graph, parts), parts) for host, parts in placement.items()}

    def expand(self, requests: Mapping[int, Any]) -> Callable[[], Mapping[int, Mapping[int, Picks]]]:
        asked = {host: sent(to_args(request, [1 << 40] * (1 + max(request.nodes)))) for host, request in requests.items()}
        return lambda: {host: picks_from_value(sent(self._answers[host].expand(**args))) for host, args in asked.items()}

    def answer(self, questions: Mapping[int, Any]) -> Callable[[], Mapping[int, Any]]:
        self.asked += [(question.what, host) for host, question in questions.items()]
        asked = {host: sent(to_args(question, [])) for host, question in questions.items()}
        return lambda: {host: answer_from_value(sent(self._answers[host].question(**args))) for host, args in asked.items()}


def _narrow(picks: Picks) -> Picks:
    positions = None if picks.positions is None else picks.positions.astype(np.int32)
    return Picks(picks.counts.astype(np.int32), picks.neighbors.astype(np.int32), positions)


def spread_samplers(
    graph: Any,
    sampling: Any,
    placement: Mapping[int, tuple[int, ...]],
    hot: Mapping[int, Any] | None = None,
    inputs: Any | None = None,
    *,
    owners: Callable[..., OwnersHere] = OwnersHere,
    walks_only: bool = False,
    whole_structure: bool = False,
) -> dict[int, tuple[Any, OwnersHere]]:
    """A sampler for each host; of nodes unless told otherwise."""
    weighted = sampling.weight is not None
    samplers = {}
    for here, parts in placement.items():
        elsewhere = {host: placement[host] for host in placement if host != here}
        held = part_of_graph(graph, parts, whole_structure=whole_structure)
        tables, others = GraphTables(held, weighted), owners(graph, elsewhere, weighted=weighted)
        where = PartMap.of(graph.num_parts, here, parts, elsewhere, (hot or {}).get(here))
        samplers[here] = (spread_sampler(tables, inputs or inputs_of(graph), sampling, where, others, walks_only=walks_only), others)
    return samplers


def hot_of(store: Store, placement: Mapping[int, tuple[int, ...]]) -> dict[int, Any]:
    """The rows that each host replicates."""
    return {host: hot_rows(Store.open(store.path, parts)) for host, parts in placement.items()}


def sampler_of_host(store: Any, here: int, elsewhere: Mapping[int, tuple[int, ...]], sampling: Any, owners: Any) -> Any:
    """A sampler of the host ``here``, whose store holds its parts only."""
    where = PartMap.of(store.num_parts, here, store.local_parts, elsewhere, hot_rows(store))
    graph = store.arrays()
    return spread_sampler(GraphTables(graph, sampling.weight is not None), inputs_of(graph), sampling, where, owners)


def receiver(graph: Any, sampling: Any, placement: Any = None, owners: Callable[..., OwnersHere] = OwnersHere) -> Any:
    """A sampler that has no part, and asks a host with every second part for its rows, and another one for the rest."""
    every = tuple(range(graph.num_parts))
    placement = placement or {0: every[::2], 1: every[1::2]}
    where = PartMap.of(graph.num_parts, 2, (), placement)
    return receiving_sampler(GraphTables(part_of_graph(graph, ()), sampling.weight is not None), sampling, where, owners(graph, placement))


def walked(sampler: Any, request: SampleRequest) -> Structure:
    """A structure as it arrives: at an odd address."""
    layout, block, *_ = sampler.sample_all([request], lambda nbytes: np.zeros(nbytes + 1, np.uint8))[0]
    unaligned = np.empty(len(block) + 1, np.uint8)[1:]
    unaligned[:] = block
    return Structure(layout, unaligned)


def received(structure: Structure, sample_s: float = 0.0) -> WalkedRequest:
    """The request for the rows of a structure."""
    return WalkedRequest.of(structure, sample_s)


def batch_of(layout: Any, block: Any, source: Any, tensors: Any = None) -> Any:
    """The batch that users get of a layout and a block, or of tensors."""
    found = contents_of(SampledSubgraph(0, 0, False, layout, block, tensors=tensors))
    return collate(found, {}, {}, homogeneous=source.schema.is_homogeneous)


def inputs_of(graph: Any) -> InputNodes:
    """Input nodes of the first type that has nodes."""
    return InputNodes(next(t for t, schema in graph.schema.node_types.items() if schema.num_nodes), "test")


def sampler_on(graph: Any, sampling: Any, *, walks_only: bool = False, inputs: Any | None = None) -> Any:
    """A sampler of one host with the whole graph; of nodes unless told otherwise."""
    return local_sampler(GraphTables(graph, sampling.weight is not None), inputs or inputs_of(graph), sampling, walks_only=walks_only)


def lines(nbytes: int) -> NDArray[np.uint8]:
    """Memory that begins where a line of the cache does, as blocks of rings do."""
    memory = np.zeros(nbytes + 64, np.uint8)
    first = -address_of(memory) % 64
    return memory[first : first + max(1, nbytes)]


def sampled(sampler: Any, request: SampleRequest) -> tuple[Any, dict[Any, bytes]]:
    """A batch's layout, and the bytes of its arrays."""
    layout, block, *_ = sampler.sample_all([request], lines)[0]
    return layout, {field.key: block[field.offset : field.offset + field.nbytes].tobytes() for field in layout.fields}
