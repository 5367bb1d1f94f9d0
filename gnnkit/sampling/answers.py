"""Several hosts' answers about edges, made one: in the order of the question, after they were found to fit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import SamplingError
from gnnkit.sampling.owners import NO_IDS, Answer, Picks
from gnnkit.sampling.tables import address_of


def scatter(answers: Mapping[int, Answer], name: str, shares: Mapping[int, NDArray[np.int64]], into: NDArray[Any]) -> None:
    """Puts hosts' answers in their places.

    Raises:
        SamplingError: An answer does not fit its question.
    """
    for host, places in shares.items():
        values = answers[host].get(name)
        if values is None or len(values) != len(places):
            raise _misfit(host)
        into[places] = values


def stitched(answers: Mapping[int, Picks | None], shares: Mapping[int, NDArray[np.int64]], size: int, *, wants_position: bool) -> Picks:
    """Hosts' answers about one edge type as one, in the order of the nodes.

    Args:
        answers: ``{host: its answer}``.
        shares: ``{host: places of its nodes}``.
        size: Nodes in all.
        wants_position: Whether positions were asked for.

    Raises:
        SamplingError: An answer does not fit its question.
    """
    counts, starts, offset = np.zeros(size, np.int64), np.zeros(size, np.int64), 0
    parts: list[Picks] = []
    for host, places in shares.items():
        picks, ends = answers[host], np.zeros(len(places) + 1, np.int64)
        if picks is None or not _fits(picks, len(places), ends, wants_position=wants_position):
            raise _misfit(host)
        counts[places], starts[places] = picks.counts, offset + ends[:-1]
        offset += len(picks.neighbors)
        parts.append(picks)
    if len(parts) == 1:
        return Picks(counts, parts[0].neighbors, parts[0].positions)
    begins = np.cumsum(counts) - counts
    order = np.repeat(starts - begins, counts) + np.arange(offset)
    neighbors = np.concatenate([NO_IDS, *(picks.neighbors for picks in parts)])[order]
    positions = [picks.positions for picks in parts if picks.positions is not None]
    return Picks(counts, neighbors, np.concatenate([NO_IDS, *positions])[order] if wants_position else None)


def merge_sources(
    answers: Mapping[int, Picks | None], counts: NDArray[np.int64], *, wants_position: bool
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """The hosts' answers about one edge type as ``merge.merge`` takes them, and what must be kept alive meanwhile.

    Args:
        answers: ``{host: its answer}``.
        counts: int64 ``[number of hosts]``, nodes that each was asked about.
        wants_position: Whether positions were asked for.

    Raises:
        SamplingError: An answer does not fit its request.
    """
    sources, kept = np.zeros((len(counts), 5), np.int64), []
    for host, count in enumerate(counts.tolist()):
        if not count:
            continue
        picks, offsets = answers[host], np.zeros(count + 1, np.int64)
        if picks is None or not _fits(picks, count, offsets, wants_position=wants_position):
            raise _misfit(host)
        positions, width = (0, 8) if picks.positions is None else (address_of(picks.positions), picks.positions.itemsize)
        sources[host] = address_of(offsets), address_of(picks.neighbors), picks.neighbors.itemsize, positions, width
        kept.append(offsets)
    return sources, kept


def _fits(picks: Picks, count: int, offsets: NDArray[np.int64], *, wants_position: bool) -> bool:
    """Whether an answer is one about ``count`` nodes; fills ``offsets``, where each node's edges begin."""
    if len(picks.counts) != count or picks.counts.min() < 0 or (picks.positions is None) == wants_position:
        return False
    np.cumsum(picks.counts, out=offsets[1:])
    return offsets[-1] == len(picks.neighbors) and (picks.positions is None or len(picks.positions) == len(picks.neighbors))


def _misfit(host: int) -> SamplingError:
    return SamplingError(f"host {host} sent an answer that does not fit the request", "all hosts must run the same gnnkit")
