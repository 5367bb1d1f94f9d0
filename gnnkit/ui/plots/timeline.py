"""An epoch's picture: what each worker did when, what the loop did, and how many batches were waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.loader.timeline import CONSUMER_STEPS, Timeline, timeline
from gnnkit.ui.plots.style import INK, TEXT_SIZE, color_of, dress, legend, name_of, new_picture, note, whole_numbers
from gnnkit.units import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnkit.loader.pipeline import Pipeline
    from gnnkit.ui.plots.picture import Picture

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
