"""Negatives of a batch of links: ends drawn over all nodes of a type, and again where an edge lies between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import SamplingError
from gnnkit.kernels.stream import PURPOSE_NEGATIVES, fold
from gnnkit.plan import InputLinks
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.seeders.draws import NodeDraws

# Draws of one negative before it is chosen among all that are left. Where half of all pairs are edges, one negative in 2**32 gets there.
MAX_TRIES = 32
# Pairs asked about at a time where every node is tried.
_CHUNK = 1 << 16


class Negatives:
    """Draws the negatives of one loader's batches; one object per thread.

    Args:
        inputs: The links, with ``neg_sampling``.
        time_attr: Name of the array of times that nodes have, if any do: none later than a link is drawn for it.
        reach: The graph.

    Raises:
        PlanError: Weights do not fit the graph.
    """

    def __init__(self, inputs: InputLinks, time_attr: str | None, reach: GraphAccess) -> None:
        options, tables = inputs.neg_sampling, reach.tables
        assert options is not None, "there is nothing to draw"
        self._options, self._edge_type = options, inputs.edge_type
        self._relation = tables.edge_types.index(inputs.edge_type)
        self._src_type, self._dst_type = (tables.node_types.index(inputs.edge_type[end]) for end in (0, 2))
        self._is_binary = options.mode == "binary"
        self._dst = _node_draws(reach, self._dst_type, time_attr, options.dst_weight, "dst_weight")
        self._src = _node_draws(reach, self._src_type, time_attr, options.src_weight, "src_weight") if self._is_binary else self._dst

    def draw(
        self, batch_key: int, src: NDArray[np.int64], time: NDArray[np.int64] | None, reach: GraphAccess
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The negatives of a batch.

        Args:
            batch_key: ``stream.batch_key``.
            src: int64 ``[b]``, the links' sources.
            time: int64 ``[b]``, the links' times, or None.
            reach: The graph.

        Returns:
            Sources and targets, int64 ``[count]`` each. "triplet" keeps the links' sources: negative ``i`` has that of link ``i % b``.

        Raises:
            SamplingError: There is no node to draw, or a source has an edge to every target that could be drawn.
        """
        key, count = fold(batch_key, PURPOSE_NEGATIVES), self._options.count(len(src))
        which = np.arange(count, dtype=np.int64)
        of_link = which % max(1, len(src))
        until = None if time is None else time[of_link]
        sources, targets = self._try(key, which, 0, src[of_link], until)
        if self._options.strict:
            bad = np.flatnonzero(self._are_edges(sources, targets, reach))
            for attempt in range(1, MAX_TRIES):
                if not len(bad):
                    break
                again = self._try(key, bad, attempt, src[of_link[bad]], None if until is None else until[bad])
                sources[bad], targets[bad] = again
                bad = bad[self._are_edges(*again, reach)]
            for number in bad.tolist():
                targets[number] = self._among_the_rest(
                    key, number, int(sources[number]), None if until is None else int(until[number]), reach
                )
        return sources, targets

    def _try(
        self, key: int, which: NDArray[np.int64], attempt: int, given: NDArray[np.int64], until: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if not self._is_binary:
            return given, self._dst.draw(key, which, attempt, until)
        return self._src.draw(key, which, 2 * attempt, until), self._dst.draw(key, which, 2 * attempt + 1, until)

    def _among_the_rest(self, key: int, number: int, source: int, until: int | None, reach: GraphAccess) -> int:
        """One more draw, among the targets to which the source has no edge."""
        targets = self._dst.listed(until)
        free = np.ones(len(targets), np.bool_)
        for start in range(0, len(targets), _CHUNK):
            some = targets[start : start + _CHUNK]
            free[start : start + _CHUNK] = ~self._are_edges(np.full(len(some), source), some, reach)
        found = self._dst.draw_among(key, number, 2 * MAX_TRIES if self._is_binary else MAX_TRIES, free, until)
        if found is None:
            raise SamplingError(
                f"no negative can be drawn for node {source}: it has an edge {self._edge_type} to every node that could be its target",
                "leave its links out, or draw with neg_strict=False",
            )
        return found

    def _are_edges(self, sources: NDArray[np.int64], targets: NDArray[np.int64], reach: GraphAccess) -> NDArray[np.bool_]:
        src, dst = reach.store_ids(self._src_type, sources), reach.store_ids(self._dst_type, targets)
        nodes, others = (dst, src) if reach.tables.graph.edge_dir == "in" else (src, dst)
        return np.array(reach.has_edges(self._relation, nodes, others), np.bool_)


def _node_draws(reach: GraphAccess, t: int, time_attr: str | None, weight: NDArray[np.float64] | None, what: str) -> NodeDraws:
    """What draws nodes of a type; it asks for all of their times, once."""
    tables = reach.tables
    schema = tables.graph.schema.node_types[tables.node_types[t]]
    times = None
    if time_attr is not None and time_attr in schema.arrays:
        every = reach.store_ids(t, np.arange(schema.num_nodes, dtype=np.int64))
        times = reach.rows(t, time_attr, every).reshape(-1).astype(np.int64)
    return NodeDraws(schema.num_nodes, weight, times, what)
