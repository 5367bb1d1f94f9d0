"""A batch's structure on its way between the process that walks and the process that fetches the rows, and batches made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.errors import SamplingError
from gnnkit.kernels.jit import kernel
from gnnkit.kernels.native import load_i64, store_i64
from gnnkit.sampling.batch_writer import BatchWriter, CarriedArray, carried_arrays, layout_of
from gnnkit.sampling.subgraph import BatchKey, BatchLayout, EdgeKey, LayoutBuilder, NodeKey, SampleRequest, Walked, WalkedEdges, WalkSeeds
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.schema import EdgeType

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


NODE, SOURCE, COUNT, TARGET, POSITION = ".node", ".source", ".count", ".target", ".position"

_LARGEST_INT32 = (1 << 31) - 1
_LARGEST_UINT8 = 255
_NO_BYTES, _NO_INTS = np.empty(0, np.uint8), np.empty(0, np.int32)


@kernel("int64(int64, int64)")
def longest_run(col: int, num_edges: int) -> int:
    """The most edges of one node, where edges lie in the order of their nodes; -1 where they do not.

    Args:
        col: Address of int64 ``[num_edges]``: the nodes' numbers.
        num_edges: How many.
    """
    longest, run, before = 0, 0, -1
    for e in range(num_edges):
        node = load_i64(col + e * 8)
        if node < before:
            return -1
        run = run + 1 if node == before else 1
        longest, before = max(longest, run), node
    return longest


@kernel("void(int64, int64, uint8[::1], int32[::1])")
def count_edges(col: int, num_edges: int, narrow: NDArray[np.uint8], wide: NDArray[np.int32]) -> None:
    """Counts the edges that each node drew.

    Args:
        col: Address of int64 ``[num_edges]``: the nodes' numbers.
        num_edges: How many.
        narrow: uint8 ``[n]``, filled; empty where ``wide`` is to be filled.
        wide: int32 ``[n]``, likewise.
    """
    narrow[:] = 0
    wide[:] = 0
    for e in range(num_edges):
        node = load_i64(col + e * 8)
        if narrow.size:
            narrow[node] += np.uint8(1)
        else:
            wide[node] += np.int32(1)


@kernel("boolean(uint8[::1], int32[::1], int64, int64)")
def write_columns(narrow: NDArray[np.uint8], wide: NDArray[np.int32], col: int, num_edges: int) -> bool:
    """Reverses ``count_edges``; False where the counts are not those of ``num_edges`` edges."""
    e, size = 0, max(narrow.size, wide.size)
    for node in range(size):
        count = int(narrow[node]) if narrow.size else int(wide[node])
        if count < 0 or count > num_edges - e:
            return False
        for q in range(e, e + count):
            store_i64(col + q * 8, node)
        e += count
    return e == num_edges


@dataclass(frozen=True)
class Structure:
    """A structure as it lies in memory.

    Attributes:
        layout: What lies where.
        block: uint8 ``[at least layout.nbytes]``, of any alignment.
    """

    layout: BatchLayout
    block: NDArray[np.uint8]

    @cached_property
    def arrays(self) -> dict[BatchKey, NDArray[Any]]:
        """Views of the arrays."""
        return {
            field.key: self.block[field.offset : field.offset + field.nbytes].view(field.numpy_dtype).reshape(field.shape)
            for field in self.layout.fields
        }


class StructureWriter(BatchWriter):
    """A ``BatchWriter`` whose batches are structures: it gathers nothing.

    Args:
        tables: The graph.
    """

    _batches: list[tuple[BatchLayout, Walked, list[CarriedArray]]]

    @override
    def lay_out(self, walked: Sequence[Walked]) -> list[BatchLayout]:
        self._batches = [self._lay_out(own) for own in walked]
        return [layout for layout, *_ in self._batches]

    def _lay_out(self, walked: Walked) -> tuple[BatchLayout, Walked, list[CarriedArray]]:
        tables, builder = self.tables, LayoutBuilder()
        schema = tables.graph.schema
        for t, node_type in enumerate(tables.node_types):
            builder.add(NodeKey(node_type, NODE), _width(schema.node_types[node_type].num_nodes), (len(walked.nodes[t]),))
        for edges in walked.edges:
            self._lay_out_edges(builder, edges)
        carried = carried_arrays(builder, walked)
        return layout_of(builder, walked, tables), walked, carried

    def _lay_out_edges(self, builder: LayoutBuilder, edges: WalkedEdges) -> None:
        count = len(edges.row)
        builder.add(EdgeKey(edges.type, SOURCE), "int32", (count,))
        longest = longest_run(address_of(np.ascontiguousarray(edges.col)), count)
        if longest < 0:
            builder.add(EdgeKey(edges.type, TARGET), "int32", (count,))
        else:
            targets = int(edges.col[-1]) + 1 if count else 0
            builder.add(EdgeKey(edges.type, COUNT), "uint8" if longest <= _LARGEST_UINT8 else "int32", (targets,))
        if edges.position is not None and edges.relation is not None:
            edge_type = self.tables.edge_types[edges.relation]
            builder.add(EdgeKey(edges.type, POSITION), _width(self.tables.graph.schema.edge_types[edge_type].num_edges), (count,))

    @override
    def fill(self, blocks: Sequence[NDArray[np.uint8]]) -> None:
        for batch, block in zip(self._batches, blocks, strict=True):
            self._fill(*batch, block)

    def _fill(self, layout: BatchLayout, walked: Walked, carried: list[CarriedArray], block: NDArray[np.uint8]) -> None:
        arrays = Structure(layout, block).arrays
        for node_type, nodes in zip(self.tables.node_types, walked.nodes, strict=True):
            np.copyto(arrays[NodeKey(node_type, NODE)], nodes, casting="unsafe")
        for edges in walked.edges:
            np.copyto(arrays[EdgeKey(edges.type, SOURCE)], edges.row, casting="unsafe")
            counts, targets = arrays.get(EdgeKey(edges.type, COUNT)), arrays.get(EdgeKey(edges.type, TARGET))
            if counts is not None:
                col = np.ascontiguousarray(edges.col)
                count_edges(address_of(col), len(col), *as_counts(counts))
            if targets is not None:
                np.copyto(targets, edges.col, casting="unsafe")
            positions = arrays.get(EdgeKey(edges.type, POSITION))
            if positions is not None and edges.position is not None:
                np.copyto(positions, edges.position, casting="unsafe")
        for place, array in carried:
            np.copyto(arrays[place.key], array)


def _width(count: int) -> str:
    """The narrower of the types of ids that holds all below ``count``."""
    return "int32" if count - 1 <= _LARGEST_INT32 else "int64"


def as_counts(counts: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Counts of edges as the kernels take them."""
    return (counts, _NO_INTS) if counts.dtype == np.uint8 else (_NO_BYTES, counts)


@dataclass(kw_only=True)
class WalkedRequest(SampleRequest):
    """A batch that another process has walked; its ``key`` is 0, because nothing is drawn here any more.

    Attributes:
        structure: The walk.
    """

    structure: Structure

    @classmethod
    def of(cls, structure: Structure, waited_s: float) -> WalkedRequest:
        """The request that a structure answers, which took ``waited_s`` seconds to come."""
        return cls(key=0, input_id=np.empty(0, np.int64), arrays={}, waited_s=waited_s, structure=structure)


class ReceivedChooser:
    """Takes the nodes and edges of batches from structures.

    Args:
        tables: The graph's outline.
    """

    def __init__(self, tables: GraphTables) -> None:
        self._tables = tables

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""
        self._tables = tables

    def choose(self, requests: Sequence[SampleRequest]) -> list[Walked]:
        """Chooses one batch, the first of these.

        Args:
            requests: ``WalkedRequest`` each.

        Raises:
            SamplingError: The structure does not fit the plan and the graph.
        """
        request = requests[0]
        assert isinstance(request, WalkedRequest), "nothing is drawn here"
        try:
            return [self._taken(request.structure)]
        except (AttributeError, KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise _misfit() from error

    def _taken(self, structure: Structure) -> Walked:
        tables, layout, arrays = self._tables, structure.layout, structure.arrays
        nodes = [_numbers(arrays[NodeKey(node_type, NODE)], tables.num_rows[t]) for t, node_type in enumerate(tables.node_types)]
        stored = {tables.shown_type(edge_type): r for r, edge_type in enumerate(tables.edge_types)}
        edges = [self._edges(structure, shown, stored.get(shown), nodes) for shown in layout.num_sampled_edges]
        carried = {key: array for key, array in arrays.items() if not key.name.startswith(".")}
        counts = [(layout.num_sampled_nodes[t], found) for t, found in zip(tables.node_types, nodes, strict=True)]
        counts += [(found.num_sampled, found.row) for found in edges]
        if any(any(type(n) is not int or n < 0 for n in hops) or (hops and sum(hops) != len(found)) for hops, found in counts):
            raise _misfit()
        input_ids = [array for key, array in carried.items() if key.name == "input_id"]
        if not input_ids or len(input_ids[0]) != layout.num_seeds:
            raise _misfit()
        seeds = WalkSeeds({}, layout.input_type, layout.num_seeds, carried)
        return Walked(nodes, [layout.num_sampled_nodes[node_type] for node_type in tables.node_types], edges, seeds)

    def _edges(self, structure: Structure, shown: EdgeType, r: int | None, nodes: list[NDArray[np.int64]]) -> WalkedEdges:
        tables, arrays = self._tables, structure.arrays
        sources, targets = (len(nodes[tables.node_types.index(shown[end])]) for end in (0, 2))
        row = _numbers(arrays[EdgeKey(shown, SOURCE)], sources)
        counts, position = arrays.get(EdgeKey(shown, COUNT)), arrays.get(EdgeKey(shown, POSITION))
        if counts is None:
            col = _numbers(arrays[EdgeKey(shown, TARGET)], targets)
        else:
            col, is_list = np.empty(len(row), np.int64), counts.ndim == 1 and counts.dtype.name in ("uint8", "int32")
            if not is_list or not write_columns(*as_counts(np.require(counts, requirements="A")), address_of(col), len(row)):
                raise _misfit()
            col = _numbers(col, targets)
        if position is not None:
            position = _numbers(position, 0 if r is None else tables.num_edges(r))
        if len(col) != len(row) or (position is not None and len(position) != len(row)):
            raise _misfit()
        return WalkedEdges(shown, r, row, col, position, structure.layout.num_sampled_edges[shown])


def _numbers(array: NDArray[Any], limit: int) -> NDArray[np.int64]:
    """int64 ``[n]``: a list of numbers that has arrived, of which each must be at least 0 and below ``limit``."""
    if array.ndim != 1 or array.dtype.kind not in "iu" or (len(array) and not 0 <= array.min() <= array.max() < limit):
        raise _misfit()
    return array.astype(np.int64)


def _misfit() -> SamplingError:
    return SamplingError("a server sent a batch that does not fit the request", "servers and trainers must run the same gnnkit")
