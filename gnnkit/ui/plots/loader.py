"""Pictures of a loader: the memory that its batches touch, and when its workers sampled what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.loader.footprint import Footprint, footprint
from gnnkit.loader.timeline import CONSUMER_STEPS, Timeline, timeline
from gnnkit.storage.writer import DegreeCounts
from gnnkit.ui.plots.style import (
    INK,
    TEXT_SIZE,
    color_of,
    dress,
    label_of,
    legend,
    logarithmic,
    marker_of,
    name_of,
    new_picture,
    note,
    whole_numbers,
)
from gnnkit.units import format_bytes, format_duration, format_short

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


# What the rows of the consumer are called, in the order of ``CONSUMER_STEPS``, and the number of their colour.
_STEP_WORDS = ("loop: your code", "loop: paused", "loop: waits", "loop: collates", "loop: transforms", "loop: copies")
_STEP_COLORS = (2, 7, 1, 3, 4, 6)
_SAMPLE_COLOR, _GATHER_COLOR = 0, 4
# Sampling stands above gathering by height as well as by colour.
_TALL, _LOW = 0.72, 0.4
# Steps of the consumer that take less of the epoch than this have no row, but for waiting and the user's own.
_WORTH_A_ROW = 0.002
_ROW_INCHES, _MAX_INCHES = 0.26, 12.0


def plot_timeline(loader: Pipeline, epoch: int | None = None) -> Picture:
    """Draws what each worker of a loader did when in an epoch, what the loop did, and how many batches were waiting for it.

    Args:
        loader: The loader; it may be running, or closed.
        epoch: Which epoch; None takes the last one.

    Returns:
        A matplotlib figure; its ``data`` are a ``gnnkit.loader.timeline.Timeline``.

    Raises:
        PlanError: No batch of the epoch is known, or matplotlib is not installed.
    """
    numbers = timeline(loader.records, epoch)
    rows = _rows_of_consumer(numbers)
    height = min(_MAX_INCHES, 2.7 + _ROW_INCHES * (len(numbers.workers) + len(rows)))
    batches = f"{numbers.batches:,} batch{'es' * (numbers.batches > 1)} in {format_duration(numbers.seconds)}"
    text = f"epoch {numbers.epoch}: {batches}, {len(numbers.workers)} worker{'s' * (len(numbers.workers) != 1)}"
    picture = new_picture((11.0, height), numbers, f"{name_of(loader)}, {text}")
    lanes, waiting = picture.subplots(2, 1, sharex=True, height_ratios=[max(height - 2.3, 1.0), 1.0])
    # Short epochs in milliseconds, so that ticks are round numbers.
    scale, unit = (1e3, "ms") if numbers.seconds < 0.5 else (1.0, "s")
    _draw_lanes(lanes, numbers, rows, scale)
    _draw_waiting(waiting, numbers.ready, loader.status().slots, f"time since the epoch began ({unit})", scale)
    waiting.set_xlim(0, max(numbers.seconds, 1e-6) * scale)
    note(picture, loader, text, *_remarks(numbers))
    return picture


def _remarks(numbers: Timeline) -> list[str]:
    remarks = [] if numbers.is_whole else ["earlier batches are not known any more"]
    return remarks + ([f"the worker of {numbers.unseen:,} of them is not known"] if numbers.unseen else [])


def _rows_of_consumer(numbers: Timeline) -> list[int]:
    """Numbers of the consumer's steps that are drawn."""
    worth = [float(numbers.consumer[step][:, 1].sum()) > _WORTH_A_ROW * numbers.seconds for step in CONSUMER_STEPS]
    return [number for number, step in enumerate(CONSUMER_STEPS) if worth[number] or step in ("consumer_s", "wait_s")]


def _draw_lanes(axes: Axes, numbers: Timeline, rows: list[int], scale: float) -> None:
    names: list[str] = []
    handles: dict[str, Any] = {}
    for name, spans in numbers.workers.items():
        # One name for a backend that does not tell its workers apart.
        for word, color, tall in ("sample", _SAMPLE_COLOR, _TALL), ("gather", _GATHER_COLOR, _LOW):
            handles[word] = _draw_row(axes, len(names), spans[word] * scale, color, tall)
        names.append(name or "workers")
    for number in rows:
        _draw_row(axes, len(names), numbers.consumer[CONSUMER_STEPS[number]] * scale, _STEP_COLORS[number], _TALL)
        names.append(_STEP_WORDS[number])
    dress(axes, "who did what when", grid="x")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first row on top
    axes.tick_params(axis="x", labelbottom=False)
    axes.axhline(len(numbers.workers) - 0.5, color=INK, linewidth=0.8)
    if handles:
        labels = {"sample": "chooses neighbours", "gather": "copies features (low)"}
        for word, handle in handles.items():
            handle.set_label(labels[word])
        legend(axes, list(handles.values()), loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.1)


def _draw_row(axes: Axes, row: int, spans: NDArray[np.float64], color: int, tall: float) -> Any:
    # A thin edge of the same colour keeps spans visible that are shorter than a pixel.
    return axes.broken_barh(spans.tolist(), (row - tall / 2, tall), facecolor=color_of(color), edgecolor=color_of(color), linewidth=0.25)


def _draw_waiting(axes: Axes, ready: NDArray[np.float64], slots: int, xlabel: str, scale: float) -> None:
    axes.step(ready[:, 0] * scale, ready[:, 1], where="post", color=color_of(0), linewidth=1.4)
    if slots:
        axes.axhline(slots, color=INK, linewidth=1, linestyle=":")
        axes.annotate(
            f"{slots} slots", (1.0, slots), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=INK, fontsize=TEXT_SIZE - 1
        )
    dress(axes, "batches that were waiting for the loop", xlabel, "batches")
    axes.set_ylim(0, max(float(ready[:, 1].max(initial=0)), slots, 1) * 1.35)
    whole_numbers(axes.yaxis)
