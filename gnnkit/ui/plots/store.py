"""A store's picture: degrees, sizes of the parts, and the edges between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import EdgeType
from gnnkit.storage.report import StoreReport
from gnnkit.storage.writer import DegreeCounts, EdgeDegrees, edge_degrees
from gnnkit.ui.plots.style import INK, TEXT_SIZE, color_of, dress, label_of, legend, logarithmic, new_picture, note
from gnnkit.units import format_bytes, format_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnkit.storage.store import Store
    from gnnkit.ui.plots.picture import Picture

# Lines that can be told apart, and cells in which a number can be read.
_MAX_EDGE_TYPES = 6
_MAX_NUMBERED_PARTS = 8
_BAR_WIDTH = 0.27
# Degrees of which each has a dot of its own.
_FEW = 40


@dataclass(frozen=True)
class StoreNumbers:
    """The figures that a store's picture shows.

    Attributes:
        degrees: ``{edge type: degrees of its two ends}``.
        report: Sizes of the parts.
        cut: int64 ``[num_parts, num_parts]``, over all edge types: edges from a source in part ``row`` to a target in part ``column``.
    """

    degrees: dict[EdgeType, EdgeDegrees]
    report: StoreReport
    cut: NDArray[np.int64]


def plot_store(store: Store) -> Picture:
    """Draws a store: the degrees of its nodes, the sizes of its parts, and how many edges lead from part to part.

    Degrees are counted in one pass over the edges; the rest is in the manifest.

    Args:
        store: The store, with all of its parts open.

    Returns:
        A matplotlib figure; its ``data`` are ``StoreNumbers``.

    Raises:
        PlanError: matplotlib is not installed.
        StoreError: A part is not open.
    """
    report = store.require().report()
    shape = store.num_parts, store.num_parts
    owned = sum((cut for cut in report.cuts.values()), np.zeros(shape, np.int64))
    numbers = StoreNumbers({}, report, owned.T if store.edge_dir == "in" else owned)
    parts = f"{store.num_parts} part{'s' if store.num_parts > 1 else ''}"
    # First, so that a missing matplotlib is known before edges are counted.
    # Typed graphs have a legend below.
    size = 13.0 if store.num_parts > 1 else 9.5, 4.2 if store.schema.is_homogeneous else 5.3
    picture = new_picture(size, numbers, f"{store.name}: degrees, sizes and edge cut of {parts}")
    numbers.degrees.update(edge_degrees(store.arrays()))
    axes = picture.subplots(1, 3 if store.num_parts > 1 else 2, width_ratios=[1.25, 1, 1] if store.num_parts > 1 else [1.6, 1])
    left_out = _draw_degrees(axes[0], numbers.degrees, homogeneous=store.schema.is_homogeneous)
    _draw_sizes(axes[1], report)
    remarks = [f"{left_out} smaller edge types are not drawn"] if left_out else []
    if store.num_parts > 1:
        _draw_cut(picture, axes[2], numbers.cut)
    else:
        remarks.append("one part: no edge is cut")
    note(picture, store, f"{parts} ({report.partition})", *remarks)
    return picture


def _draw_degrees(axes: Axes, degrees: dict[EdgeType, EdgeDegrees], *, homogeneous: bool) -> int:
    """Draws the distributions; how many edge types have no place."""
    by_size = sorted(degrees, key=lambda name: -degrees[name].incoming.num_edges)
    for index, edge_type in enumerate(by_size[:_MAX_EDGE_TYPES]):
        for counts, word, dashes in _lines_of(degrees[edge_type]):
            missing = f" ({format_short(counts.without)} nodes without)" if counts.without else ""
            axes.plot(
                *counts.at_least(),
                drawstyle="steps-pre",
                linestyle=dashes,
                linewidth=1.6,
                color=color_of(index),
                label=f"{word}{missing}" if homogeneous else label_of(" ".join(edge_type)) if dashes == "-" else None,
                marker="." if len(counts.degree) < _FEW else "",
            )
    logarithmic(axes)
    dress(axes, "degrees", "edges of a node (k)", "nodes with at least k edges")
    if homogeneous:
        legend(axes)
    else:
        axes.plot([], [], color=INK, label="edges that arrive")
        axes.plot([], [], color=INK, linestyle="--", label="edges that leave")
        legend(axes, loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=2, columnspacing=1.0)
    return max(0, len(by_size) - _MAX_EDGE_TYPES)


def _lines_of(ends: EdgeDegrees) -> list[tuple[DegreeCounts, str, str]]:
    """The distributions of an edge type with their names and dashes: one where both are the same, as in undirected graphs."""
    incoming, outgoing = ends.incoming, ends.outgoing
    if np.array_equal(incoming.degree, outgoing.degree) and np.array_equal(incoming.num_nodes, outgoing.num_nodes):
        return [(incoming, "in and out", "-")]
    return [(incoming, "in", "-"), (outgoing, "out", "--")]


def _draw_sizes(axes: Axes, report: StoreReport) -> None:
    parts = np.arange(len(report.parts))
    columns: list[tuple[str, Any, list[int]]] = [
        ("nodes", format_short, [sum(part.num_nodes.values()) for part in report.parts]),
        ("edges", format_short, [sum(part.num_edges.values()) for part in report.parts]),
        ("", format_bytes, [part.nbytes for part in report.parts]),
    ]
    for index, (word, form, sizes) in enumerate(columns):
        share = 100.0 * np.array(sizes) / max(sum(sizes), 1)
        label = f"{form(sum(sizes))} {word}".rstrip()
        axes.bar(parts + (index - 1) * _BAR_WIDTH, share, _BAR_WIDTH * 0.9, color=color_of(index), label=label)
    if len(parts) > 1:
        axes.axhline(100.0 / len(parts), color=INK, linewidth=1, linestyle=":")
    dress(axes, "sizes of the parts", "part", "share of the whole (%)", grid="y")
    axes.set_xticks(_ticks(len(parts)))
    axes.margins(y=0.3)  # for the legend
    legend(axes, loc="upper center", ncols=3, columnspacing=1.0, handlelength=1.0)


def _draw_cut(picture: Picture, axes: Axes, cut: NDArray[np.int64]) -> None:
    total, inside = int(cut.sum()), int(np.trace(cut))
    # Cells have colours of their own on any page, and so have the numbers in them.
    image = axes.imshow(cut, cmap="cividis", vmin=0, vmax=max(int(cut.max()), 1))
    dress(axes, f"edges between parts, {(total - inside) / max(total, 1):.1%} cut", "part of the target", "part of the source", grid=None)
    for ticks in axes.set_xticks, axes.set_yticks:
        ticks(_ticks(len(cut)))
    if len(cut) <= _MAX_NUMBERED_PARTS:
        for row, column in np.ndindex(cut.shape):
            color = "black" if cut[row, column] > 0.5 * cut.max() else "white"
            axes.text(column, row, format_short(int(cut[row, column])), ha="center", va="center", color=color, fontsize=TEXT_SIZE - 1)
    bar = picture.colorbar(image, ax=axes, shrink=0.85, format=lambda value, _: format_short(value))
    bar.set_label("edges", color=INK, fontsize=TEXT_SIZE)
    bar.ax.tick_params(colors=INK, labelsize=TEXT_SIZE - 1)
    bar.outline.set_visible(False)


def _ticks(count: int) -> NDArray[np.int64]:
    """At most about ten numbers of parts."""
    return np.arange(0, count, -(-count // 10))
