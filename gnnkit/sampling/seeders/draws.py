"""Draws nodes of a type for links that are none: alike or by weight, over all of them or over those that are early enough."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.errors import PlanError, SamplingError
from gnnkit.kernels.jit import kernel
from gnnkit.kernels.stream import bounded, draw_u64, fold_u64

# A weight's share of 64 bits: sums over all nodes stay below 2**63.
_WEIGHT_BITS = 32


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
        """How many of the listed nodes may be drawn; of length 1 where it is the same for all."""
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


def integer_weights(weight: NDArray[Any], num_nodes: int, what: str) -> NDArray[np.int64]:
    """Weights as ``docs/sampling.md`` makes integers of them: the largest lies between 2**31 and 2**32.

    Raises:
        PlanError: They are of another length, negative, not finite, or all zero.
    """
    values = np.asarray(weight, np.float64)
    if values.shape != (num_nodes,):
        raise PlanError(f"{what} has shape {values.shape}, and there are {num_nodes} nodes to draw", "give one number per node")
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise PlanError(f"{what} must hold finite numbers of at least 0, not all of them 0")
    # From the exponent alone and not by libm's powers, which differ between CPUs.
    shift = _WEIGHT_BITS - int(np.frexp(values.max())[1])
    scaled = np.rint(np.ldexp(values, shift))
    return np.where(values > 0, np.maximum(scaled, 1), 0).astype(np.int64)
