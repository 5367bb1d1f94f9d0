"""The seeds of a batch of links: the ends of the links and of their negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.plan import InputLinks, NeighborSampling, Sampling
from gnnkit.sampling.seeders.negatives import Negatives
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, NodeKey
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import ExcludedEdges, SampleRequest, Seeds
from gnnkit.schema import find_reverse

if TYPE_CHECKING:
    from gnnkit.sampling.graph_access import GraphAccess


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

    A request's arrays are ``src`` and ``dst`` int64 ``[b]``, and where there are such: ``label`` ``[b, ...]``, ``time`` int64 ``[b]``,
    ``neg_src`` and ``neg_dst`` int64 ``[b, k]`` (a split's own negatives of each link), and ``is_negative`` bool ``[b]``.

    Args:
        inputs: The links.
        sampling: What is sampled around them.
    """

    def __init__(self, inputs: InputLinks, sampling: Sampling) -> None:
        self._inputs, self._edge_type = inputs, inputs.edge_type
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

    def seeds(self, request: SampleRequest, reach: GraphAccess) -> Seeds:
        """What a batch's walk starts from.

        Raises:
            PlanError: Nothing says the times of links in a temporal batch.
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
        seeds = Seeds({t: reach.store_ids(t, ids) for t, ids in given.items()}, self._edge_type, ends.count, arrays, roots)
        if roots is not None:
            seeds.batch_of_root = np.concatenate([ends.link_of(len(ends.src)), ends.link_of(len(ends.dst))])
        if self._time_attr is not None:
            src, dst = (request.arrays["time"][ends.link_of(len(part))] for part in (ends.src, ends.dst))
            seeds.times = self._by_type(src, dst)
        seeds.excluded = self._exclude(request.arrays, reach)
        return seeds

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
