"""Pearson's test of counts against what is expected of them; with fixed seeds the outcome is the same in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc

# Both tails: counts that agree too well are as suspicious as ones that do not.
LIMIT = 1e-4


def p_value(statistic: float, degrees: int) -> float:
    """The probability of a larger statistic if the hypothesis is true."""
    return float(chdtrc(degrees, statistic))


def check_statistic(statistic: float, degrees: int) -> None:
    """Asserts that a chi-square statistic is an ordinary one."""
    p = p_value(statistic, degrees)
    assert LIMIT < p < 1 - LIMIT, f"chi-square {statistic:.1f} with {degrees} degrees of freedom: p = {p:.2g}"


def check_counts(counts: ArrayLike, probabilities: ArrayLike | None = None) -> None:
    """Asserts that independent outcomes, counted per cell, follow ``probabilities`` (None: all alike)."""
    observed = np.asarray(counts, np.float64).ravel()
    share = np.full(observed.size, 1 / observed.size) if probabilities is None else np.asarray(probabilities, np.float64).ravel()
    assert abs(share.sum() - 1) < 1e-9
    assert not observed[share == 0].any(), "an outcome of probability 0 came up"
    observed, expected = observed[share > 0], share[share > 0] * observed.sum()
    assert expected.min() >= 5, "too few draws for this test to say anything"
    check_statistic(float(((observed - expected) ** 2 / expected).sum()), observed.size - 1)


def check_independent(left: NDArray[Any], right: NDArray[Any], size: int) -> None:
    """Asserts that pairs ``(left[i], right[i])`` are uniform on ``[0, size)`` x ``[0, size)``."""
    check_counts(np.bincount(left * size + right, minlength=size * size))


def check_subsets(chosen: NDArray[np.bool_]) -> None:
    """Asserts that positions are equally often in fixed-size subsets.

    Args:
        chosen: bool ``[num_subsets, n]``, each row with the same number ``k`` of positions chosen. Counts of positions are
            correlated within a subset; the factor ``(n - 1) / n / (1 - k / n)`` makes up for it.
    """
    count, n = chosen.shape
    share = chosen[0].sum() / n
    observed, expected = chosen.sum(axis=0), count * share
    check_statistic(float(((observed - expected) ** 2).sum() / expected * (n - 1) / n / (1 - share)), n - 1)
