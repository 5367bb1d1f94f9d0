"""A footprint's picture: how often nodes are touched, and what a cache of features saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnnkit.loader.footprint import Footprint, footprint
from gnnkit.storage.writer import DegreeCounts
from gnnkit.ui.plots.style import INK, TEXT_SIZE, color_of, dress, label_of, legend, logarithmic, marker_of, name_of, new_picture, note
from gnnkit.units import format_bytes, format_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnkit.loader.pipeline import Pipeline
    from gnnkit.ui.plots.picture import Picture

_MAX_NODE_TYPES = 6
# Sizes of caches whose savings are written down, as shares of all features.
_NAMED_SIZES = (0.05, 0.2, 0.5)


def plot_footprint(loader: Pipeline, num_batches: int | None = None) -> Picture:
    """Draws how often nodes are touched, and what a cache of the features that are touched most would save.

    The cache is filled by what batches of one epoch touch and judged by batches of the next one; a dashed line says what it could save at
    most if it knew those. Batches are sampled one after the other, features included, outside the loader's own epoch.

    Args:
        loader: The loader.
        num_batches: Batches of each of the two epochs; None takes 32, or all where there are fewer.

    Returns:
        A matplotlib figure; its ``data`` are a ``gnnkit.loader.footprint.Footprint``.

    Raises:
        PlanError: ``num_batches`` is no number from 1 to ``len(loader)``, there is no batch, or matplotlib is not installed.
        LoaderClosed: The loader is closed.
    """
    # First, so that a missing matplotlib is known before batches are sampled.
    picture = new_picture((11.0, 4.4), None, "")
    picture.data = numbers = footprint(loader, num_batches)
    batches = f"{numbers.num_batches} of {numbers.batches_of_epoch} batches"
    picture.text_form = f"{name_of(loader)}: touches of nodes in {batches}, and what caches save"
    has_features = numbers.all_feature_bytes > 0
    axes = picture.subplots(1, 2 if has_features else 1, squeeze=False)[0]
    left_out = _draw_touches(axes[0], numbers)
    remarks = [f"{left_out} smaller node types are not drawn"] if left_out else []
    if has_features:
        _draw_savings(axes[1], numbers)
        remarks.append("the cache holds what one epoch touched most, and is judged by the next")
    else:
        remarks.append("the graph has no features, so there is nothing to cache")
    note(picture, loader, f"{batches} of an epoch", *remarks)
    return picture


def _draw_touches(axes: Axes, numbers: Footprint) -> int:
    """Draws the distributions; how many node types have no place."""
    by_touches = sorted(numbers.touches, key=lambda name: -int(numbers.touches[name].sum(dtype=np.int64)))
    for index, node_type in enumerate(by_touches[:_MAX_NODE_TYPES]):
        counts = DegreeCounts.of(numbers.touches[node_type])
        total = len(numbers.touches[node_type])
        name = f"{label_of(node_type)}: " if len(by_touches) > 1 else ""
        label = f"{name}{format_short(counts.without)} of {format_short(total)} nodes never"
        few = len(counts.degree) < 40
        axes.plot(
            *counts.at_least(),
            drawstyle="steps-pre",
            color=color_of(index),
            linewidth=1.6,
            marker=marker_of(index) if few else "",
            markersize=4,
            label=label,
        )
    logarithmic(axes)
    dress(axes, "how often nodes are touched", f"times in {numbers.num_batches} batches (k)", "nodes touched at least k times")
    legend(axes)
    return max(0, len(by_touches) - _MAX_NODE_TYPES)


def _draw_savings(axes: Axes, numbers: Footprint) -> None:
    curve, best, everything = numbers.savings(), numbers.best_savings(), numbers.all_feature_bytes
    axes.plot(100 * best.nbytes / everything, 100 * best.saved, color=color_of(1), linestyle="--", linewidth=1.4, label="at most")
    axes.plot(100 * curve.nbytes / everything, 100 * curve.saved, color=color_of(0), linewidth=1.8, label="filled by the epoch before")
    axes.plot([0, 100], [0, 100], color=INK, linestyle=":", linewidth=1, label="filled by lot")
    shares = [(share, curve.saved_by(share * everything)) for share in _NAMED_SIZES]
    axes.plot(*[[100 * value for value in values] for values in zip(*shares, strict=True)], "o", markersize=5, color=color_of(0))
    lines = [f"{format_bytes(share * everything)} save {100 * saved:.0f} %" for share, saved in shares]
    # Below the diagonal, where there is no curve.
    axes.text(0.985, 0.27, "\n".join(lines), transform=axes.transAxes, ha="right", va="bottom", color=INK, fontsize=TEXT_SIZE - 1)
    dress(axes, "what a cache of features saves", f"size of the cache (% of {format_bytes(everything)})", "bytes read from it (%)")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 104)
    legend(axes, loc="lower right")
