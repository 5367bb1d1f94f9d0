"""The seeds of a batch of links: the ends of the links and of their negatives, and how negatives are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError, PlanError, SamplingError
from gnnkit.host import FreeMemory
from gnnkit.kernels.jit import kernel
from gnnkit.kernels.keys import PURPOSE_NEGATIVES, fold
from gnnkit.kernels.stream import bounded, draw_u64, fold_u64
from gnnkit.plan import InputLinks, NeighborSampling, Sampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, ExcludedEdges, NodeKey, SampleRequest, WalkSeeds, time_limits
from gnnkit.sampling.tables import GraphTables
from gnnkit.schema import find_reverse
from gnnkit.user_arrays import integer_weights

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


@kernel("void(uint64, int64[::1], int64, int64[::1], int64[::1])")
def draw_at(key: np.uint64, which: NDArray[np.int64], index: int, counts: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Draw ``index`` of each negative.

    Args:
        key: The key of the batch's negatives.
        which: int64 ``[n]``, numbers of the negatives.
        index: Which of their draws.
        counts: int64 ``[n]``, what each draw is below; of length 1 for all of them.
        out: int64 ``[n]``, filled.
    """
    for q in range(which.size):
        out[q] = bounded(draw_u64(fold_u64(key, uint64(which[q])), index), counts[q if counts.size > 1 else 0])


class NodeDraws:
    """Draws nodes of one type, in the dataset's ids.

    Args:
        num_nodes: How many there are.
        weight: Numbers ``[num_nodes]``, at least 0, that draws are in proportion to; None draws all alike.
        times: int64 ``[num_nodes]``: only nodes that are not later than a link are drawn for it; None where time plays no part.
        what: The weights' name, for messages.

    Raises:
        PlanError: The weights are of another length, negative, not finite, or all zero.
    """

    def __init__(self, num_nodes: int, weight: NDArray[Any] | None, times: NDArray[np.int64] | None, what: str) -> None:
        self._listing = np.arange(num_nodes, dtype=np.int64) if times is None else np.argsort(times, kind="stable").astype(np.int64)
        self._times = None if times is None else times[self._listing]
        weights = None if weight is None else integer_weights(weight, num_nodes, what)
        self._weights = None if weights is None else weights[self._listing]
        self._prefix = None if self._weights is None else np.cumsum(self._weights)

    def draw(self, key: int, which: NDArray[np.int64], index: int, until: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Draw ``index`` of each of some negatives.

        Args:
            key: The key of the batch's negatives.
            which: int64 ``[n]``, numbers of the negatives.
            index: Which of their draws.
            until: int64 ``[n]``, their links' times; used where nodes have times.

        Returns:
            int64 ``[n]``.

        Raises:
            SamplingError: There is no node that could be drawn.
        """
        counts = self._counts(until)
        totals = counts if self._prefix is None else np.where(counts > 0, self._prefix[counts - 1], 0)
        if len(which) and not totals.all():
            early = "" if self._times is None else ", or none that is early enough for a link"
            raise SamplingError(f"there is no node that a negative could be drawn from{early}", "draw no negatives for these links")
        out = np.empty(len(which), np.int64)
        draw_at(np.uint64(key), which, index, totals, out)
        return self._listing[out if self._prefix is None else np.searchsorted(self._prefix, out, side="right")]

    def _counts(self, until: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Counts the listed nodes that may be drawn; of length 1 where the number is the same for all."""
        if self._times is None or until is None:
            return np.array([len(self._listing)])
        return np.searchsorted(self._times, until, side="right").astype(np.int64)

    def listed(self, until: int | None) -> NDArray[np.int64]:
        """The nodes that may be drawn for a link, in the order in which draws count them."""
        count = int(self._counts(None if until is None else np.array([until]))[0])
        return self._listing[:count] if self._weights is None else self._listing[:count][self._weights[:count] > 0]

    def draw_among(self, key: int, which: int, index: int, chosen: NDArray[np.bool_], until: int | None) -> int | None:
        """Draw ``index`` of one negative, among the chosen ones of ``listed``; None where there are none."""
        nodes = self.listed(until)[chosen]
        if not len(nodes):
            return None
        if self._weights is None:
            prefix = np.arange(1, len(nodes) + 1)
        else:
            positive = self._weights[: int(self._counts(None if until is None else np.array([until]))[0])]
            prefix = np.cumsum(positive[positive > 0][chosen])
        out = np.empty(1, np.int64)
        draw_at(np.uint64(key), np.array([which]), index, prefix[-1:].astype(np.int64), out)
        return int(nodes[np.searchsorted(prefix, out[0], side="right")])


# Draws of one negative before it is chosen among all that are left. Where half of all pairs are edges, one negative in 2**32 gets there.
MAX_TRIES = 32
# Pairs asked about at a time where every node is tried.
_CHUNK = 1 << 16
# What a drawn negative takes until a batch is made: two ends, its number and its link, and their copies on the way to being numbered.
_NEGATIVE_BYTES = 64
_free_memory = FreeMemory()


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
            batch_key: ``keys.batch_key``.
            src: int64 ``[b]``, the links' sources.
            time: int64 ``[b]``, the links' times, or None.
            reach: The graph.

        Returns:
            Sources and targets, int64 ``[count]`` each. "triplet" keeps the links' sources: negative ``i`` has that of link ``i % b``.

        Raises:
            SamplingError: There is no node to draw, or a source has an edge to every target that could be drawn.
            MemoryLimitError: There is no memory for so many.
        """
        key, count = fold(batch_key, PURPOSE_NEGATIVES), self._options.count(len(src))
        needed, free = count * _NEGATIVE_BYTES, _free_memory.take(count * _NEGATIVE_BYTES)
        if needed > free:
            raise MemoryLimitError(
                f"a batch's negatives need {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free", "lower batch_size or neg_amount"
            )
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
    """Makes the draws of nodes of a type, and asks for all of their times, once."""
    tables = reach.tables
    schema = tables.graph.schema.node_types[tables.node_types[t]]
    times = None
    if time_attr is not None and time_attr in schema.arrays:
        every = reach.store_ids(t, np.arange(schema.num_nodes, dtype=np.int64))
        times = reach.rows(t, time_attr, every).reshape(-1).astype(np.int64)
    return NodeDraws(schema.num_nodes, weight, times, what)


@dataclass(frozen=True)
class _Ends:
    """The ends of a batch's links, and behind them those of negatives: negative ``j`` goes with link ``j % count``.

    Attributes:
        src: int64 ``[count + negatives]``, dataset ids.
        dst: The same for targets; not as long where links have negatives of one end only.
        count: Links.
        by_link: Whether batches show the negatives of each link, and not a list of pairs.
    """

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    count: int
    by_link: bool

    def link_of(self, length: int) -> NDArray[np.int64]:
        """int64 ``[length]``: the link that each end goes with."""
        return np.arange(length, dtype=np.int64) % max(1, self.count)


class LinkSeeder:
    """Makes a batch's seeds from its links; one object per thread.

    A request's arrays are ``src`` and ``dst`` int64 ``[b]``, and where there are such: ``label`` ``[b, ...]``, ``time`` and ``window``
    int64 ``[b]``, ``neg_src`` and ``neg_dst`` int64 ``[b, k]`` (a split's own negatives of each link), and ``is_negative`` bool ``[b]``.

    Args:
        inputs: The links.
        sampling: What is sampled around them.
    """

    def __init__(self, inputs: InputLinks, sampling: Sampling) -> None:
        self._inputs, self._sampling, self._edge_type = inputs, sampling, inputs.edge_type
        # With roots, every end of every link has a neighbourhood of its own.
        self._has_roots = isinstance(sampling, NeighborSampling) and sampling.has_roots
        self._time_attr = sampling.time_attr
        self._mode = None if inputs.neg_sampling is None else inputs.neg_sampling.mode
        self._negatives: Negatives | None = None
        self._excluded: list[tuple[int, bool]] = []
        self._src = self._dst = -1

    def _begin(self, reach: GraphAccess) -> None:
        """Learns what the graph's tables call things; they are the same for every copy of it."""
        tables = reach.tables
        self._src, self._dst = (tables.node_types.index(self._edge_type[end]) for end in (0, 2))
        if self._mode in ("binary", "triplet"):
            self._negatives = Negatives(self._inputs, self._time_attr, reach)
        self._excluded = _excluded_types(self._inputs, tables)

    def seeds(self, request: SampleRequest, reach: GraphAccess) -> WalkSeeds:
        """Returns the seeds of a batch's walk.

        Raises:
            PlanError: The links of a temporal batch have no times.
            SamplingError: As ``Negatives.draw``.
            GnnkitError: As ``GraphAccess``'s methods.
        """
        if self._src < 0:
            self._begin(reach)
        if self._time_attr is not None and "time" not in request.arrays:
            raise PlanError("links that are given to sample() have no times", "make a loader of them: for_links(..., edge_label_time=...)")
        ends = self._ends(request, reach)
        given, of_src, of_dst, roots = self._seeds_of(ends)
        arrays: dict[BatchKey, NDArray[Any]] = {EdgeKey(self._edge_type, "input_id"): request.input_id}
        arrays.update(self._places(ends, of_src, of_dst))
        arrays.update(self._labels(request.arrays, ends))
        seeds = WalkSeeds({t: reach.store_ids(t, ids) for t, ids in given.items()}, self._edge_type, ends.count, arrays, roots)
        if roots is not None:
            seeds.batch_of_root = np.concatenate([ends.link_of(len(ends.src)), ends.link_of(len(ends.dst))])
        if self._time_attr is not None:
            self._limit(seeds, request.arrays, ends)
        seeds.excluded = self._exclude(request.arrays, reach)
        return seeds

    def _limit(self, seeds: WalkSeeds, arrays: Mapping[str, NDArray[Any]], ends: _Ends) -> None:
        """Says of each end what is too late and too early around it: it has its link's time."""
        assert isinstance(self._sampling, NeighborSampling), "nothing else has times"
        window = arrays.get("window", self._sampling.time_window)
        last, first = time_limits(arrays["time"], window, self._sampling.temporal_comparison)
        of_src, of_dst = (ends.link_of(len(part)) for part in (ends.src, ends.dst))
        seeds.times = self._by_type(last[of_src], last[of_dst])
        seeds.since = None if first is None else self._by_type(first[of_src], first[of_dst])

    def _ends(self, request: SampleRequest, reach: GraphAccess) -> _Ends:
        """The ends of links and negatives."""
        arrays = request.arrays
        src, dst, neg_src, neg_dst = arrays["src"], arrays["dst"], arrays.get("neg_src"), arrays.get("neg_dst")
        by_link = self._mode == "triplet" or neg_src is not None or neg_dst is not None
        if self._negatives is not None:
            drawn, neg_dst = self._negatives.draw(request.key, src, arrays.get("time"), reach)
            neg_src = drawn if self._mode == "binary" else None
        # Transposed, the k-th negative of link i is negative k * count + i.
        more = [None if part is None else part.T.ravel() for part in (neg_src, neg_dst)]
        whole = [own if part is None else np.concatenate([own, part]) for own, part in zip((src, dst), more, strict=True)]
        return _Ends(whole[0], whole[1], len(src), by_link)

    def _by_type(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        """Values of sources and targets, one behind the other where they are of one type."""
        return {self._src: np.concatenate([src, dst])} if self._src == self._dst else {self._src: src, self._dst: dst}

    def _seeds_of(
        self, ends: _Ends
    ) -> tuple[dict[int, NDArray[np.int64]], NDArray[np.int64], NDArray[np.int64], dict[int, NDArray[np.int64]] | None]:
        """Each type's seeds in the dataset's ids, the numbers that sources and targets have among them, and the seeds' roots."""
        num_src, num_dst, same = len(ends.src), len(ends.dst), self._src == self._dst
        given = self._by_type(ends.src, ends.dst)
        if self._has_roots:
            of_src, of_dst = np.arange(num_src), np.arange(num_dst)
            return given, of_src, of_dst + num_src if same else of_dst, self._by_type(of_src, of_dst + num_src)
        unique = {t: np.unique(ids, return_inverse=True) for t, ids in given.items()}
        of_src, of_dst = unique[self._src][1], unique[self._dst][1]
        if same:
            of_src, of_dst = of_src[:num_src], of_src[num_src:]
        return {t: ids for t, (ids, _) in unique.items()}, of_src.astype(np.int64), of_dst.astype(np.int64), None

    def _places(self, ends: _Ends, of_src: NDArray[np.int64], of_dst: NDArray[np.int64]) -> dict[BatchKey, NDArray[Any]]:
        """The numbers of the ends, under PyG's names."""
        if not ends.by_link:
            return {EdgeKey(self._edge_type, "edge_label_index"): np.stack([of_src, of_dst])}
        (source, _, target), count = self._edge_type, ends.count
        shown: dict[BatchKey, NDArray[Any]] = {
            NodeKey(source, "src_index"): of_src[:count],
            NodeKey(target, "dst_pos_index"): of_dst[:count],
        }
        for node_type, name, places in ((source, "src_neg_index", of_src), (target, "dst_neg_index", of_dst)):
            if len(places) > count:
                rows = np.ascontiguousarray(places[count:].reshape(-1, count).T)
                shown[NodeKey(node_type, name)] = rows[:, 0].copy() if rows.shape[1] == 1 else rows
        return shown

    def _labels(self, arrays: Mapping[str, NDArray[Any]], ends: _Ends) -> dict[BatchKey, NDArray[Any]]:
        """Labels and times as batches show them."""
        label, time = arrays.get("label"), arrays.get("time")
        found: dict[BatchKey, NDArray[Any]] = {}
        if self._mode == "binary":
            label = np.ones(ends.count, np.float32) if label is None else label
            label = np.concatenate([label, np.zeros((len(ends.src) - ends.count, *label.shape[1:]), label.dtype)])
        if label is not None:
            found[EdgeKey(self._edge_type, "edge_label")] = label
        if time is not None and ends.by_link:
            found.update({NodeKey(self._edge_type[end], "seed_time"): time for end in (0, 2)})
        elif time is not None:
            found[EdgeKey(self._edge_type, "edge_label_time")] = time[ends.link_of(len(ends.src))]
        return found

    def _exclude(self, arrays: Mapping[str, NDArray[Any]], reach: GraphAccess) -> tuple[ExcludedEdges, ...]:
        if not self._excluded:
            return ()
        src, dst = arrays["src"], arrays["dst"]
        if "is_negative" in arrays:
            src, dst = src[~arrays["is_negative"]], dst[~arrays["is_negative"]]
        source, target = reach.store_ids(self._src, src), reach.store_ids(self._dst, dst)
        return tuple(ExcludedEdges(r, target, source) if swapped else ExcludedEdges(r, source, target) for r, swapped in self._excluded)


def _excluded_types(inputs: InputLinks, tables: GraphTables) -> list[tuple[int, bool]]:
    """The edge types that hold a batch's links, and whether the other way round."""
    if inputs.exclude_edges is None:
        return []
    known, found = tables.edge_types, [(tables.edge_types.index(inputs.edge_type), False)]
    reverse = find_reverse(inputs.edge_type, known) if inputs.exclude_edges == "reverse" else None
    return found if reverse is None else [*found, (known.index(reverse), True)]
