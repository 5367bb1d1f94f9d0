"""Owners of nodes, and the variates that their draws are made with.

Every question can be asked again: an answer depends on nothing but the question and the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.keys import fold, variates_key
from gnnkit.plan import LaborDraws
from gnnkit.sampling.tables import GraphTables, address_of

# The largest hash of all: with it as the last one, no node has changed to the next period.
NO_CHANGE = (1 << 64) - 1
NO_VARIATES: NDArray[np.uint64] = np.empty(0, np.uint64)


@dataclass(frozen=True)
class Variates:
    """The keys of a batch's variates.

    Attributes:
        key: Of nodes that are still in the batch's period.
        next_key: Of those that are in the next one already.
        last_hash: The largest hash of a node that is in the period still.
        is_shared: Whether all hops have the same ones.
    """

    key: int
    next_key: int
    last_hash: int
    is_shared: bool

    @classmethod
    def of(cls, draws: LaborDraws, stream: int, epoch: int, index: int) -> Variates:
        """The variates of batch ``index`` of an epoch of the loader whose ``keys.stream_key`` is given."""
        dependency = draws.batch_dependency
        period, passed = divmod(index, dependency)
        # Nodes move on as soon as passed + hash * dependency / 2**64, rounded down, is a whole period.
        last_hash = min(NO_CHANGE, -(-((dependency - passed) << 64) // dependency) - 1)
        key, next_key = (variates_key(stream, epoch, number) for number in (period, period + 1))
        return cls(key, next_key, last_hash, draws.layer_dependency)

    def table(self, tables: GraphTables, hop: int) -> NDArray[np.uint64]:
        """uint64 ``[R, 4]``: the columns of ``picks`` for each edge type."""
        keys = [fold(key, 0 if self.is_shared else hop) for key in (self.key, self.next_key)]
        by_type = [[*(fold(key, of_type) for key in keys), self.last_hash, of_type] for of_type in tables.node_keys]
        return np.array([by_type[n] for n in tables.neighbor_types], np.uint64).reshape(-1, 4)


# Rows travel in messages of about so many bytes: large enough to be worth sending (with half of it both ends took 7 %
# more processor time), small enough to stay in the last cache.
MESSAGE_NBYTES = 1 << 22
NO_IDS: NDArray[np.int64] = np.empty(0, np.int64)


class BadRequest(ValueError):
    """A request that cannot be answered; the one who sent it is to blame."""


@dataclass(frozen=True)
class Expansion:
    """Asks for the edges that nodes draw in one hop, of all edge types together.

    Attributes:
        key: ``keys.batch_key`` of the batch.
        hop: The hop, from 0.
        fan_outs: int64 ``[R]``, of each edge type in canonical order; 0 leaves it out, -1 takes all.
        nodes: ``{index of a node type: int64 [n] store ids}``; where a host is asked, all of parts that it holds.
        replace: Whether an edge may be drawn more than once.
        weighted: Whether stored weights are followed.
        last: Whether a node's latest edges are taken, where they have times, instead of some that are drawn.
        roots: ``{index of a node type: int64 [n]}``, the root of each node; None is 0 for all.
        times: ``{index of a node type: int64 [n]}``: a node's later edges do not count; None where time plays no part.
        since: The same: a node's earlier edges do not count; None where none is too early.
        variates: What neighbours compete by; None where a node draws from them on its own. Not with ``roots`` or ``times``.
        wants_position: For each edge type, whether the positions of its edges are wanted; a ``GraphAccess`` fills it in.
    """

    key: int
    hop: int
    fan_outs: NDArray[np.int64]
    nodes: Mapping[int, NDArray[np.int64]]
    replace: bool = False
    weighted: bool = False
    last: bool = False
    roots: Mapping[int, NDArray[np.int64]] | None = None
    times: Mapping[int, NDArray[np.int64]] | None = None
    since: Mapping[int, NDArray[np.int64]] | None = None
    variates: Variates | None = None
    wants_position: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Question:
    """Asks about stored edges, without a draw.

    Attributes:
        what: "degrees": how many edges of ``relations`` each node owns, together. "has_edges": whether there is an edge between each node
            and the other one at its place. "induce": every edge of each node whose other end is among the others, and of the same root.
            "weights": the integer weight of each node's edges, but for those of weight 0.
        relations: Indices of edge types, with one type of nodes; a single one but for "degrees".
        nodes: int64 ``[n]`` store ids; where a host is asked, all of parts that it holds.
        others: int64 ``[m]`` store ids.
        node_roots: int64 ``[n]``; empty where roots play no part.
        other_roots: int64 ``[m]``, likewise.
        wants_position: Whether the positions of edges are wanted.
    """

    what: Literal["degrees", "has_edges", "induce", "weights"]
    relations: tuple[int, ...]
    nodes: NDArray[np.int64]
    others: NDArray[np.int64] = field(default_factory=lambda: NO_IDS)
    node_roots: NDArray[np.int64] = field(default_factory=lambda: NO_IDS)
    other_roots: NDArray[np.int64] = field(default_factory=lambda: NO_IDS)
    wants_position: bool = False


# ``{"degrees": int64 [n]}``, ``{"found": uint8 [n]}``, the fields of ``Picks``, or ``{"counts": int64 [n], "weights": int64 [sum]}``.
Answer = Mapping[str, NDArray[Any]]


class Picks(NamedTuple):
    """The edges of one type that nodes have drawn, node after node in the order of the request.

    Attributes:
        counts: int32 or int64 ``[n]``, edges of each node.
        neighbors: int32 or int64 ``[sum of counts]``, store ids.
        positions: The same shape, positions of the edges; None where they were not asked for.
    """

    counts: NDArray[Any]
    neighbors: NDArray[Any]
    positions: NDArray[Any] | None


class RowsPiece(NamedTuple):
    """Rows in a message.

    Attributes:
        section: Index in ``RowsRequest.sections``.
        first: The first of the section's rows that the message holds.
        num_rows: How many.
        offset: Bytes from the message's start.
    """

    section: int
    first: int
    num_rows: int
    offset: int


@dataclass(frozen=True)
class RowsRequest:
    """Asks for rows of arrays.

    Attributes:
        lists: ``(row of GraphTables.row_bounds, int64 [n])``: store ids of nodes or positions of edges, all of parts that the asked
            host holds.
        sections: ``(row of GraphTables.row_addresses, index in lists, bytes of one row)``, one for each array.
    """

    lists: tuple[tuple[int, NDArray[np.int64]], ...]
    sections: tuple[tuple[int, int, int], ...]

    @cached_property
    def messages(self) -> list[list[RowsPiece]]:
        """The pieces of each message of the answer: rows, section after section."""
        messages: list[list[RowsPiece]] = [[]]
        used = 0
        for section, (_, which, width) in enumerate(self.sections):
            first, count = 0, len(self.lists[which][1])
            while first < count and width:
                taken = min(count - first, (MESSAGE_NBYTES - used) // width)
                if taken == 0 and used:
                    messages.append([])
                    used = 0
                    continue
                taken = max(1, taken)
                messages[-1].append(RowsPiece(section, first, taken, used))
                first, used = first + taken, used + taken * width
        return [message for message in messages if message]

    def nbytes(self, message: list[RowsPiece]) -> int:
        """Bytes of a message."""
        last = message[-1]
        return last.offset + last.num_rows * self.sections[last.section][2]


class PartOwners(Protocol):
    """The other hosts, by number. All methods begin their requests at once and return a function that waits for all of them."""

    def expand(self, requests: Mapping[int, Expansion]) -> Callable[[], Mapping[int, Mapping[int, Picks]]]:
        """Asks hosts for edges.

        Returns:
            Waits and gives ``{host: {index of an edge type: Picks}}``, with every edge type that has a fan-out and nodes.

        Raises:
            GnnkitError: When waiting: a host could not be asked, or did not answer.
        """

    def answer(self, questions: Mapping[int, Question]) -> Callable[[], Mapping[int, Answer]]:
        """Asks hosts about edges.

        Returns:
            Waits and gives ``{host: its answer}``.

        Raises:
            GnnkitError: When waiting: a host could not be asked, or did not answer.
        """

    def rows(self, requests: Mapping[int, RowsRequest], take: Callable[[int, int, int], None]) -> Callable[[], None]:
        """Asks hosts for rows.

        Args:
            requests: What each host is asked.
            take: Called with a host, the index of a message, and the address of its bytes, from any thread; not for two messages of
                one host at a time.

        Returns:
            Waits until no call of ``take`` is or will be under way.

        Raises:
            GnnkitError: When waiting: a host could not be asked, or did not answer.
        """


def scatter(answers: Mapping[int, Answer], name: str, shares: Mapping[int, NDArray[np.int64]], into: NDArray[Any]) -> None:
    """Puts hosts' answers in their places."""
    for host, places in shares.items():
        into[places] = answers[host][name]


def stitched(answers: Mapping[int, Picks], shares: Mapping[int, NDArray[np.int64]], size: int, *, wants_position: bool) -> Picks:
    """Hosts' answers about one edge type as one, in the order of the nodes.

    Args:
        answers: ``{host: its answer}``.
        shares: ``{host: places of its nodes}``.
        size: Nodes in all.
        wants_position: Whether positions were asked for.
    """
    counts, starts, offset = np.zeros(size, np.int64), np.zeros(size, np.int64), 0
    parts: list[Picks] = []
    for host, places in shares.items():
        picks = answers[host]
        counts[places], starts[places] = picks.counts, offset + _offsets(picks)[:-1]
        offset += len(picks.neighbors)
        parts.append(picks)
    if len(parts) == 1:
        return Picks(counts, parts[0].neighbors, parts[0].positions)
    begins = np.cumsum(counts) - counts
    order = np.repeat(starts - begins, counts) + np.arange(offset)
    neighbors = np.concatenate([NO_IDS, *(picks.neighbors for picks in parts)])[order]
    positions = [picks.positions for picks in parts if picks.positions is not None]
    return Picks(counts, neighbors, np.concatenate([NO_IDS, *positions])[order] if wants_position else None)


def merge_sources(answers: Mapping[int, Picks], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """The hosts' answers about one edge type as ``merge.merge`` takes them, and what must be kept alive meanwhile.

    Args:
        answers: ``{host: its answer}``.
        counts: int64 ``[number of hosts]``, nodes that each was asked about.
    """
    sources, kept = np.zeros((len(counts), 5), np.int64), []
    for host in np.flatnonzero(counts).tolist():
        picks, offsets = answers[host], _offsets(answers[host])
        positions, width = (0, 8) if picks.positions is None else (address_of(picks.positions), picks.positions.itemsize)
        sources[host] = address_of(offsets), address_of(picks.neighbors), picks.neighbors.itemsize, positions, width
        kept.append(offsets)
    return sources, kept


def _offsets(picks: Picks) -> NDArray[np.int64]:
    """int64 ``[n + 1]``: where each node's edges begin, and where those of the last one end."""
    offsets = np.zeros(len(picks.counts) + 1, np.int64)
    np.cumsum(picks.counts, out=offsets[1:])
    return offsets
