"""Sampling across hosts: who has which parts, walks over other hosts' answers, rows from local and remote parts, and their samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.errors import PlanError, SamplingError
from gnnkit.kernels.jit import kernel
from gnnkit.kernels.native import LINE, asks, copy_bytes, copy_row, int32_at, load_i64, prefetch, prefetch_bytes, store_i64
from gnnkit.plan import Inputs, NeighborSampling, Sampling
from gnnkit.sampling.batch_writer import COPY, KIND, LOOK_UP, TABLE, RowFiller, RowStep, RowWriter, ask_rows, row_gatherer, rows_ahead
from gnnkit.sampling.graph_access import GraphAccess, LocalGraphAccess, NodeScratch
from gnnkit.sampling.kinds import BatchSampler, StagedChooser, cached_nodes
from gnnkit.sampling.numbering import enter_seeds
from gnnkit.sampling.owners import Answer, Expansion, PartOwners, Picks, Question, RowsRequest, merge_sources, stitched
from gnnkit.sampling.passes import (
    BASE,
    BLOCK,
    CAPACITY,
    COL,
    FRONTIER,
    LOCAL_OF,
    NEIGHBOR,
    NODES,
    POSITION,
    ROW,
    find_part,
    load_id,
    relabel,
)
from gnnkit.sampling.structure import ReceivedChooser, StructureWriter
from gnnkit.sampling.subgraph import LOOSE_EDGE, Walked, WalkSeeds, damaged
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.schema import NodeType
from gnnkit.storage.layout import FEATURE_NAME
from gnnkit.storage.store import Store


@dataclass(frozen=True)
class HotRows:
    """Features of one node type that this host replicates from others.

    Attributes:
        row: int32 ``[num_nodes]``, by store id: which replicated row it is, -1 for none.
        arrays: ``[k, *row_shape]`` each, the rows in their order.
    """

    row: NDArray[np.int32]
    arrays: tuple[NDArray[Any], ...]

    @property
    def bounds(self) -> NDArray[np.int64]:
        """int64 ``[number of arrays + 1]``: the row at which each array starts."""
        return np.cumsum([0, *map(len, self.arrays)], dtype=np.int64)

    @property
    def addresses(self) -> NDArray[np.int64]:
        """int64 ``[number of arrays]``."""
        return np.array([address_of(array) for array in self.arrays], np.int64)


@dataclass(frozen=True)
class PartMap:
    """The host at which this host finds each part.

    Attributes:
        here: This host's number.
        host_of_part: int64 ``[num_parts]``: the host that is asked about each part, this one for its own.
        hot: ``{node type: its replicated features}``.
    """

    here: int
    host_of_part: NDArray[np.int64]
    hot: Mapping[NodeType, HotRows] = field(default_factory=dict)

    @property
    def num_hosts(self) -> int:
        """One more than the largest number of a host."""
        return int(max(self.here, self.host_of_part.max())) + 1

    @classmethod
    def of(
        cls,
        num_parts: int,
        here: int,
        local: tuple[int, ...],
        elsewhere: Mapping[int, tuple[int, ...]],
        hot: Mapping[NodeType, HotRows] | None = None,
    ) -> PartMap:
        """Finds each part on this host, or on the next one after it that has it.

        Args:
            num_parts: Parts of the graph.
            here: This host's number.
            local: Its parts.
            elsewhere: ``{other host: its parts}``.
            hot: See ``hot_rows``.

        Raises:
            PlanError: A part is nowhere.
        """
        last = max([here, *elsewhere]) + 1
        order = sorted(elsewhere, key=lambda host: (host - here) % last)
        found = {part: host for host in reversed(order) for part in elsewhere[host]} | dict.fromkeys(local, here)
        missing = [part for part in range(num_parts) if part not in found]
        if missing:
            raise PlanError(f"no host has part {missing[0]} of {num_parts}", "give the parts of every host in placement")
        return cls(here, np.array([found[part] for part in range(num_parts)], np.int64), hot or {})


def hot_rows(store: Store) -> dict[NodeType, HotRows]:
    """The features that the parts of this host replicate; empty for a store without ``cache_ratio``."""
    caches = [store.cache(part) for part in store.local_parts]
    hot = {}
    for node_type in caches[0] if caches else ():
        row, arrays, first = np.full(store.schema.node_types[node_type].num_nodes, -1, np.int32), [], 0
        for cache in caches:
            cached = cache[node_type]
            row[store.to_store_ids(node_type, cached.global_id)] = np.arange(first, first + len(cached.x), dtype=np.int32)
            arrays.append(cached.x)
            first += len(cached.x)
        if first:
            hot[node_type] = HotRows(row, tuple(arrays))
    return hot


# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


# Columns of ``sources`` [number of hosts, 5], a host's answer about one edge type: address of int64 ``[n + 1]`` offsets of the
# nodes' edges, of the neighbours and their width, of the edges' positions and their width.
OFFSETS, NEIGHBORS, NEIGHBOR_WIDTH, POSITIONS, POSITION_WIDTH = range(5)

_AHEAD = 16


@kernel("void(int64[::1], int64, int64, boolean, int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1])")
def sort_by_owner(
    node_buffer: NDArray[np.int64],
    begin: int,
    end: int,
    are_seeds: bool,
    bounds: NDArray[np.int64],
    host_of_part: NDArray[np.int64],
    owner: NDArray[np.int64],
    slot: NDArray[np.int64],
    lists: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Sorts the nodes ``[begin, end)`` of one type by the host that owns them, each node once.

    Args:
        node_buffer: int64 ``[3]``, see ``graph_access.walk``.
        begin: Number of the first node.
        end: One more than the last's.
        are_seeds: Whether a node may come twice.
        bounds: int64 ``[P + 1]``.
        host_of_part: int64 ``[P]``.
        owner: int64 ``[end - begin]``, filled: each node's host.
        slot: int64 ``[end - begin]``, filled: its index in the host's list.
        lists: int64 ``[number of hosts, end - begin]``, filled: store ids.
        counts: int64 ``[number of hosts]``, filled: lengths of the lists.
    """
    counts[:] = 0
    for i in range(begin, end):
        v = load_i64(node_buffer[NODES] + i * 8)
        if are_seeds:
            first = int32_at(node_buffer[LOCAL_OF], v) - node_buffer[BASE] - 1
            if first != i:
                owner[i - begin], slot[i - begin] = owner[first - begin], slot[first - begin]
                continue
        host = host_of_part[find_part(bounds, v)]
        owner[i - begin], slot[i - begin] = host, counts[host]
        lists[host, counts[host]] = v
        counts[host] += 1


@kernel("UniTuple(int64, 2)(int64, int64[::1], int64[::1], int64, int64[:, ::1], int64[::1], int64, int64[::1], int64)")
def merge(
    begin: int,
    owner: NDArray[np.int64],
    slot: NDArray[np.int64],
    count: int,
    sources: NDArray[np.int64],
    neighbor: NDArray[np.int64],
    num_neighbors: int,
    buffers: NDArray[np.int64],
    num_edges: int,
) -> tuple[int, int]:
    """Takes one edge type's edges of a hop from the hosts' answers, in the order of the frontier, and numbers their neighbours.

    Args:
        begin: Number of the first frontier node.
        owner: int64 ``[count]``, see ``sort_by_owner``.
        slot: int64 ``[count]``.
        count: Frontier nodes.
        sources: int64 ``[number of hosts, 5]``, see the column names above.
        neighbor: int64 ``[3]``, the neighbours' node buffer.
        num_neighbors: Nodes that it holds.
        buffers: int64 ``[4]``, the edge type's buffers.
        num_edges: Edges that they hold.

    Returns:
        The new numbers of neighbour nodes and of edges; ``-n`` in the place of the edges where nothing was done because the buffers must
        hold ``n``.
    """
    needed = num_edges
    for i in range(count):
        offset = sources[owner[i], OFFSETS] + slot[i] * 8
        needed += load_i64(offset + 8) - load_i64(offset)
    if needed > buffers[CAPACITY]:
        return num_neighbors, -needed
    row, col, position, e = buffers[ROW], buffers[COL], buffers[POSITION], num_edges
    for first in range(0, count, BLOCK):
        start = e
        for i in range(first, min(count, first + BLOCK)):
            source = sources[owner[i]]
            begins, ends = load_i64(source[OFFSETS] + slot[i] * 8), load_i64(source[OFFSETS] + slot[i] * 8 + 8)
            for q in range(begins, ends):
                u = load_id(source[NEIGHBORS], q, source[NEIGHBOR_WIDTH])
                prefetch(neighbor[LOCAL_OF] + u * 4)
                store_i64(row + e * 8, u)
                store_i64(col + e * 8, begin + i)
                if position != 0:
                    store_i64(position + e * 8, load_id(source[POSITIONS], q, source[POSITION_WIDTH]))
                e += 1
        num_neighbors = relabel(row, start, e, neighbor, num_neighbors)
    return num_neighbors, e


@kernel("void(int64, int64, int64[::1], int64[::1], int64, int64, int64, int64[:, ::1], int64[:, ::1], int64[::1])")
def list_rows(
    ids: int,
    count: int,
    bounds: NDArray[np.int64],
    host_of_part: NDArray[np.int64],
    here: int,
    hot: int,
    found: int,
    lists: NDArray[np.int64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Finds where the rows of a batch come from.

    Args:
        ids: Address of int64 ``[count]``.
        count: Rows of the batch.
        bounds: int64 ``[P + 1]``.
        host_of_part: int64 ``[P]``.
        here: This host.
        hot: Address of int32 ``[number of ids]``: rows that are not negative there are replicated here; 0 for none.
        found: Address of int64 ``[count]``, filled: ids of rows of this host, ``bounds[P]`` and more for replicated ones, -1 for others.
        lists: int64 ``[number of hosts, count]``, filled: the ids of the others, by host.
        places: int64 ``[number of hosts, count]``, filled: the rows of the batch that they are for.
        counts: int64 ``[number of hosts]``, filled: lengths of the lists.
    """
    counts[:] = 0
    for i in range(count):
        if hot != 0 and i + 4 * _AHEAD < count:
            prefetch(hot + load_i64(ids + (i + 4 * _AHEAD) * 8) * 4)
        v = load_i64(ids + i * 8)
        host = host_of_part[find_part(bounds, v)]
        if host != here:
            row = int32_at(hot, v) if hot != 0 else -1
            if row < 0:
                lists[host, counts[host]], places[host, counts[host]] = v, i
                counts[host] += 1
                v = -1
            else:
                v = bounds[bounds.size - 1] + row
        store_i64(found + i * 8, v)


_copy_4 = copy_row(4)
_gather_present = row_gatherer(gaps=True)


@kernel("boolean(int64[::1], int64, int64, int64[::1], int64[::1], int64, int64, boolean, int64)")
def copy_local(
    ahead: NDArray[np.int64],
    ids: int,
    count: int,
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    width: int,
    target: int,
    widen: bool,
    limit: int,
) -> bool:
    """Copies the rows that are here into their places.

    Args:
        ahead: int64 ``[9 + 2 K]``, ``ReadAhead.table``.
        ids: Address of int64 ``[count]``, as ``list_rows`` finds them.
        count: Rows of the batch.
        parts: int64 ``[P + R]``, the addresses of each part's rows, and of each array of replicated rows; 0 for parts of other hosts.
        bounds: int64 ``[P + R + 1]``: the ids at which each of them starts.
        width: Bytes of one row.
        target: Address of the batch's rows.
        widen: Whether rows are ids, to be widened to int64.
        limit: What ids stay below.

    Returns:
        Whether every id that was widened is one that its type has.
    """
    inside, together = True, rows_ahead(ahead, count, width)
    if asks(ahead):
        ask_rows(ahead, parts, bounds, ids, 0, min(count, together), width, False)
    for first in range(0, count, together):
        here, number = ids + first * 8, min(together, count - first)
        if asks(ahead):
            ask_rows(ahead, parts, bounds, here, number, min(2 * together, count - first), width, False)
            ask_rows(ahead, parts, bounds, here, 0, number, width, True)
        if not widen and width != 8:
            _gather_present(ahead, parts, bounds, here, number, width, target + first * width)
            continue
        for i in range(first, first + number):
            if i + _AHEAD < first + number:
                v = load_i64(ids + (i + _AHEAD) * 8)
                p = find_part(bounds, v)
                prefetch(parts[p] + (v - bounds[p]) * width)
            v = load_i64(ids + i * 8)
            if v < 0:
                continue
            p = find_part(bounds, v)
            value = load_id(parts[p], v - bounds[p], width)
            inside &= not widen or 0 <= value < limit
            store_i64(target + i * 8, value)
    return inside


@kernel("boolean(int64, int64, int64[::1], int64, int64, boolean, int64)")
def place_rows(source: int, count: int, places: NDArray[np.int64], width: int, target: int, widen: bool, limit: int) -> bool:
    """Copies rows that came from elsewhere into their places.

    Args:
        source: Address of the rows, one after the other; of any alignment.
        count: How many.
        places: int64 ``[count]``, rows of the batch.
        width: Bytes of one row.
        target: Address of the batch's rows.
        widen: Whether rows are ids, to be widened to int64.
        limit: What ids stay below.

    Returns:
        Whether every id that was widened is one that its type has.
    """
    inside = True
    for i in range(count):
        if widen:
            value = load_id(source, i, width)
            inside &= 0 <= value < limit
            store_i64(target + places[i] * 8, value)
            continue
        if i + _AHEAD < count:  # lines that are written in part are fetched first: asked of memory long before
            prefetch(target + places[i + _AHEAD] * width)
            prefetch_bytes(True, target + places[i + _AHEAD] * width, width)
        if 4 * LINE < width <= 8 * LINE:
            _copy_4(target + places[i] * width, source + i * width, width)
        else:
            copy_bytes(target + places[i] * width, source + i * width, width)
    return inside


@dataclass(eq=False)
class _Listed:
    """The rows of one group of arrays by where they are; scratch that grows. See ``list_rows``."""

    found: NDArray[np.int64]
    lists: NDArray[np.int64]
    places: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, num_hosts: int, size: int) -> _Listed:
        lists, places = np.empty((num_hosts, size), np.int64), np.empty((num_hosts, size), np.int64)
        return cls(np.empty(size, np.int64), lists, places, np.zeros(num_hosts, np.int64))


class SpreadRowFiller(RowFiller):
    """Fills rows of arrays whose parts are on several hosts.

    Args:
        tables: The graph; parts of other hosts have no arrays.
        where: Where the parts are.
        owners: The other hosts.
    """

    def __init__(self, tables: GraphTables, where: PartMap, owners: PartOwners) -> None:
        super().__init__(tables)
        self._where, self._owners = where, owners
        self._scratch: list[_Listed] = []
        # Replicated features, by row of ``row_addresses``.
        self._hot: dict[int, HotRows] = {
            table.index: where.hot[node_type]
            for (node_type, name), table in tables.node_rows.items()
            if name == FEATURE_NAME and node_type in where.hot
        }

    @override
    def fill(self, steps: NDArray[np.int64]) -> bool:
        """See ``RowFiller.fill``.

        Raises:
            SamplingError: A host did not answer.
        """
        are_here = (steps[:, KIND] == COPY) | self.tables.are_here[steps[:, TABLE]]
        inside = super().fill(steps[are_here])
        groups: dict[tuple[int, int, int, int], list[RowStep]] = {}
        for step in map(tuple, steps[~are_here].tolist()):
            _, ids, count, width, _, table, bounds = step
            if count and width:
                hot = self._hot.get(table)
                groups.setdefault((ids, count, bounds, 0 if hot is None else address_of(hot.row)), []).append(step)
        listed = [self._list(number, *group) for number, group in enumerate(groups)]
        requests, targets = self._requests(list(groups), list(groups.values()), listed)
        damaged = []

        def take(host: int, message: int, address: int) -> None:
            request = requests[host]
            for piece in request.messages[message]:
                _, which, width = request.sections[piece.section]
                target, group, widen, limit = targets[host][piece.section]
                places = listed[group].places[host, piece.first : piece.first + piece.num_rows]
                if not place_rows(address + piece.offset, piece.num_rows, places, width, target, widen, limit):
                    damaged.append(which)

        wait = self._owners.rows(requests, take)
        try:
            inside &= all([self._copy(step, rows) for rows, members in zip(listed, groups.values(), strict=True) for step in members])
        finally:
            wait()
        return inside and not damaged

    def _list(self, number: int, ids: int, count: int, bounds: int, hot: int) -> _Listed:
        if number == len(self._scratch):
            self._scratch.append(_Listed.of(self._where.num_hosts, 0))
        if self._scratch[number].lists.shape[1] < count:
            self._scratch[number] = _Listed.of(self._where.num_hosts, count + count // 2)
        found = self._scratch[number]
        here, host_of_part = self._where.here, self._where.host_of_part
        own = self.tables.row_bounds[bounds]
        list_rows(ids, count, own, host_of_part, here, hot, address_of(found.found), found.lists, found.places, found.counts)
        return found

    def _requests(
        self, groups: list[tuple[int, int, int, int]], members: list[list[RowStep]], listed: list[_Listed]
    ) -> tuple[dict[int, RowsRequest], dict[int, list[tuple[int, int, bool, int]]]]:
        """Returns each host's request, and for each section its address, its group, whether it is widened, and its ids' upper bound."""
        requests, targets = {}, {}
        for host in range(self._where.num_hosts):
            lists: list[tuple[int, NDArray[np.int64]]] = []
            sections, places = [], []
            for number, (_, _, bounds, _) in enumerate(groups):
                count = int(listed[number].counts[host])
                if not count or host == self._where.here:
                    continue
                for kind, _, _, width, target, table, _ in members[number]:
                    sections.append((table, len(lists), width))
                    places.append((target, number, kind == LOOK_UP, int(self.tables.row_bounds[bounds, -1])))
                lists.append((bounds, listed[number].lists[host, :count]))
            if sections:
                requests[host], targets[host] = RowsRequest(tuple(lists), tuple(sections)), places
        return requests, targets

    def _copy(self, step: RowStep, rows: _Listed) -> bool:
        kind, _, count, width, target, table, which = step
        tables, hot = self.tables, self._hot.get(table)
        parts, bounds = tables.row_addresses[table], tables.row_bounds[which]
        limit = int(bounds[-1])
        if hot is not None:
            parts, bounds = np.concatenate([parts, hot.addresses]), np.concatenate([bounds, limit + hot.bounds[1:]])
        return copy_local(tables.ahead, address_of(rows.found), count, parts, bounds, width, target, kind == LOOK_UP, limit)


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


# The largest integer weight of an edge; see ``gnnkit.storage.edge_values.weight_exponent``.
_MOST_WEIGHT = 1 << 32


def _check_edges(host: int, request: Expansion, answer: Mapping[int, Picks], tables: GraphTables) -> None:
    """Looks at every number of another host's answer about edges: what works with them afterwards looks at none.

    Raises:
        SamplingError: The answer does not fit the request and the graph.
        StoreError: An edge leads out of the graph.
    """
    for r, (t, n) in enumerate(zip(tables.frontier_types, tables.neighbor_types, strict=True)):
        fan_out, num_edges = int(request.fan_outs[r]), tables.num_edges(r)
        if fan_out == 0 or t not in request.nodes:
            continue
        most, positions = num_edges if fan_out < 0 else fan_out, num_edges if request.wants_position[r] else None
        if r not in answer or not _fits(answer[r], len(request.nodes[t]), most, positions):
            raise _misfit(host)
        if not _lies_in(answer[r].neighbors, range(tables.num_rows[n])):
            raise damaged(LOOSE_EDGE)


def _check_answer(host: int, question: Question, answer: Answer, tables: GraphTables) -> None:
    """The same of another host's answer to a question.

    Raises:
        SamplingError: The answer does not fit the question and the graph.
    """
    what, count, num_edges = question.what, len(question.nodes), sum(map(tables.num_edges, question.relations))
    try:
        if what == "degrees":
            fits = len(answer["degrees"]) == count and _lies_in(answer["degrees"], range(num_edges + 1))
        elif what == "has_edges":
            fits = len(answer["found"]) == count and _lies_in(answer["found"], range(2), "uint8")
        elif what == "weights":
            fits = _fits(Picks(answer["counts"], answer["weights"], None), count, num_edges, None)
            fits = fits and _lies_in(answer["weights"], range(1, _MOST_WEIGHT + 1))
        else:
            picks = Picks(answer["counts"], answer["neighbors"], answer.get("positions"))
            fits = _fits(picks, count, num_edges, num_edges if question.wants_position else None)
            fits = fits and _lies_in(picks.neighbors, range(len(question.others)))
    except KeyError:
        fits = False
    if not fits:
        raise _misfit(host)


def _fits(picks: Picks, count: int, most: int, num_positions: int | None) -> bool:
    """Whether an answer is one about ``count`` nodes, of ``most`` edges each at most; None where no positions were asked for."""
    counts, neighbors, positions = picks
    if len(counts) != count or not _lies_in(counts, range(most + 1)):
        return False
    # As float64, in which a sum does not wrap: one that is too large to be exact is none of an array's length.
    if counts.sum(dtype=np.float64) != len(neighbors) or (positions is None) != (num_positions is None):
        return False
    return positions is None or (len(positions) == len(neighbors) and _lies_in(positions, range(num_positions or 0)))


def _lies_in(array: NDArray[Any], values: range, *dtypes: str) -> bool:
    """Whether an array is of these dtypes, int32 and int64 unless said otherwise, and holds nothing but these values."""
    is_known = array.dtype.name in (dtypes or ("int32", "int64"))
    return is_known and (not len(array) or values.start <= array.min() <= array.max() < values.stop)


def _misfit(host: int) -> SamplingError:
    """The error to raise for an answer that does not fit."""
    return SamplingError(f"host {host} sent an answer that does not fit the request", "all hosts must run the same gnnkit")


class RemoteGraphAccess(GraphAccess):
    """A ``GraphAccess`` where parts are on several hosts; its answers are those of ``LocalGraphAccess`` on one.

    Args:
        tables: The graph; parts of other hosts have no arrays.
        with_edge: Whether batches carry edge ids.
        where: Where the parts are.
        owners: The other hosts.
        scratch: See ``GraphAccess``.
    """

    def __init__(
        self, tables: GraphTables, with_edge: bool, where: PartMap, owners: PartOwners, scratch: NodeScratch | None = None
    ) -> None:
        super().__init__(tables, with_edge, scratch, SpreadRowFiller(tables, where, owners))
        self._where, self._owners = where, owners
        self._frontiers = [_Frontier.of(where.num_hosts, 0) for _ in tables.node_types]

    # Walks --------------------------------------------------------------------------------------------------------------------

    walks_together = False

    def walk(self, seeds: Sequence[WalkSeeds], keys: Sequence[int], sampling: NeighborSampling) -> list[Walked]:
        """See ``GraphAccess.walk``; one batch, hop by hop.

        Raises:
            StoreError: The graph is damaged.
            SamplingError: A host did not answer, or with something else.
        """
        tables, fan_outs, scratch, own = self.tables, self.fan_outs(sampling), self.scratch, seeds[0]
        num_hops = fan_outs.shape[1]
        num_sampled_nodes = np.zeros((len(tables.node_types), num_hops + 1), np.int64)
        num_sampled_edges = np.zeros(fan_outs.shape, np.int64)
        self.reserve(fan_outs, sum(map(len, own.nodes.values())))
        scratch.begin(own.nodes)
        enter_seeds(scratch.buffers, scratch.num_nodes)
        begin, end = np.zeros_like(scratch.num_nodes), scratch.num_nodes.copy()
        num_edges = np.zeros(len(tables.edge_types), np.int64)
        num_sampled_nodes[:, 0] = end
        for hop in range(num_hops):
            before = num_edges.copy()
            weighted, variates = sampling.weight is not None, own.variates
            expansion = Expansion(keys[0], hop, fan_outs[:, hop].copy(), {}, sampling.replace, weighted, variates=variates)
            self._take_hop(expansion, begin, end, num_edges)
            num_sampled_edges[:, hop] = num_edges - before
            num_sampled_nodes[:, hop + 1] = scratch.num_nodes - end
            begin, end = end, scratch.num_nodes.copy()
        return self.walked([own], num_sampled_nodes[None], num_sampled_edges[None])

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
            of_type = {host: answer[r] for host, answer in answers.items() if frontier.counts[host]}
            sources, kept = merge_sources(of_type, frontier.counts)
            while True:
                neighbors, edges = merge(
                    begin[t], frontier.owner, frontier.slot, count, sources, scratch.buffers[n], scratch.num_nodes[n],
                    self.edges.table[r], num_edges[r],
                )  # fmt: skip
                if edges >= 0:
                    break
                self.edges.reserve(r, 2 * int(-edges), int(num_edges[r]))
            scratch.num_nodes[n], num_edges[r] = neighbors, edges
            del kept

    def _sort(self, t: int, begin: int, end: int, *, are_seeds: bool) -> None:
        size, frontier = end - begin, self._frontiers[t]
        if len(frontier.owner) < size:
            frontier = self._frontiers[t] = _Frontier.of(self._where.num_hosts, size + size // 2)
        sort_by_owner(
            self.scratch.buffers[t], begin, end, are_seeds, self.tables.bounds[t], self._where.host_of_part, frontier.owner, frontier.slot,
            frontier.lists, frontier.counts,
        )  # fmt: skip

    def _hop_requests(self, hop: Expansion, types: list[int]) -> dict[int, Expansion]:
        """Returns the request for each host, this one included."""
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
        for host, answer in others.items():
            _check_edges(host, requests[host], answer, self.tables)
        return answers | dict(others)

    # Questions ----------------------------------------------------------------------------------------------------------------

    @override
    def expand(self, expansion: Expansion) -> dict[int, Picks]:
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
                    since=None if expansion.since is None else {t: expansion.since[t][places] for t, places in chosen.items()},
                    wants_position=self.wants_position,
                )
        answers, found = self._ask(requests), {}
        for r, t in enumerate(relations[:, FRONTIER].tolist()):
            if expansion.fan_outs[r] != 0 and t in expansion.nodes:
                of_type = {host: answers[host][r] for host in shares[t]}
                found[r] = stitched(of_type, shares[t], len(expansion.nodes[t]), wants_position=self.wants_position[r])
        return found

    def _shares(self, t: int, nodes: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        """``{host: places of its nodes}``, hosts with none left out."""
        owner = self._where.host_of_part[np.searchsorted(self.tables.bounds[t], nodes, side="right") - 1]
        places = {host: np.flatnonzero(owner == host) for host in range(self._where.num_hosts)}
        return {host: found for host, found in places.items() if len(found)}

    def _answers(self, shares: Mapping[int, NDArray[np.int64]], question: Callable[[NDArray[np.int64]], Question]) -> dict[int, Answer]:
        here = self._where.here
        questions = {host: question(places) for host, places in shares.items() if host != here}
        wait = self._owners.answer(questions)
        try:
            own: dict[int, Answer] = {here: self.own.answer(question(shares[here]))} if here in shares else {}
        finally:
            others = wait()
        for host, answer in others.items():
            _check_answer(host, questions[host], answer, self.tables)
        return own | dict(others)


def spread_sampler(
    tables: GraphTables,
    inputs: Inputs,
    sampling: Sampling,
    where: PartMap,
    owners: PartOwners,
    scratch: NodeScratch | None = None,
    *,
    walks_only: bool = False,
    cached: Mapping[NodeType, NDArray[np.uint64]] | None = None,
) -> BatchSampler:
    """A sampler whose batches are those of ``local_sampler`` on one host.

    Args:
        tables: The graph; parts of other hosts have no arrays.
        inputs: What batches start from.
        sampling: What is sampled around it.
        where: Where the parts are.
        owners: The other hosts.
        scratch: See ``local_sampler``.
        walks_only: See ``local_sampler``.
        cached: See ``local_sampler``.
    """
    rows, with_edge = SpreadRowFiller(tables, where, owners), sampling.with_edge
    reach: GraphAccess = LocalGraphAccess(tables, with_edge, scratch, rows)
    if not tables.graph.whole_structure:
        reach = RemoteGraphAccess(tables, with_edge, where, owners, scratch)
    emitter = StructureWriter(tables) if walks_only else RowWriter(tables, with_edge, cached_nodes(cached), rows=rows)
    return BatchSampler(tables, StagedChooser(inputs, sampling, reach), emitter)


def receiving_sampler(
    tables: GraphTables,
    sampling: Sampling,
    where: PartMap,
    owners: PartOwners,
    cached: Mapping[NodeType, NDArray[np.uint64]] | None = None,
) -> BatchSampler:
    """A sampler of ``received.WalkedRequest``: every row is asked of the server that has it.

    Args:
        tables: The graph's outline.
        sampling: What is sampled.
        where: Who is asked for the rows of each part.
        owners: Those who are.
        cached: See ``local_sampler``.
    """
    rows = SpreadRowFiller(tables, where, owners)
    return BatchSampler(tables, ReceivedChooser(tables), RowWriter(tables, sampling.with_edge, cached_nodes(cached), rows=rows))
