"""Pictures: matplotlib figures of batches, stores, epochs and footprints. matplotlib is imported when one is drawn.

Of tones that keep a contrast of 3 (WCAG 2, for graphics) against white and against JupyterLab's dark page at once there is a narrow band
only; the palette takes hues from Okabe and Ito's (https://jfly.uni-koeln.de/color) that fall into it, or are moved into it, in an order in
which neighbours differ also to the colour-blind. Markers, line styles and heights show the same once more.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.loader.feature_cache import Footprint, footprint
from gnnkit.loader.history import CONSUMER_STEPS, Timeline, timeline
from gnnkit.loader.inspection import Neighborhood, neighborhood
from gnnkit.plan import PPRSampling
from gnnkit.schema import EdgeType
from gnnkit.storage.partition.topology import DegreeCounts, EdgeDegrees, edge_degrees
from gnnkit.storage.report import StoreReport
from gnnkit.units import format_bytes, format_duration, format_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from gnnkit.loader.pipeline import Pipeline
    from gnnkit.runtime.graph_memory import GraphHandle
    from gnnkit.storage.store import Store
    from gnnkit.ui.picture import Picture


# Text, axes: the grey that is as far from white as from the dark page (4.3 to each).
INK = "#7a7a7a"
FAINT = "#7a7a7a55"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b8689b", "#a07d00", "#3b8bba", "#8c6d52", "#7a7a7a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
TEXT_SIZE, TITLE_SIZE = 10, 11
WORDS: dict[str, Any] = {"color": INK, "fontsize": TEXT_SIZE - 1}
_LETTERS_PER_INCH, _MAX_LETTERS = 14, 30

Grid = Literal["x", "y", "both"]


def new_picture(size: tuple[float, float], data: Any, text: str) -> Picture:
    """An empty picture.

    Args:
        size: Width and height in inches.
        data: The numbers that will be drawn.
        text: What is to be seen, in a line.

    Raises:
        PlanError: matplotlib is not installed.
    """
    try:
        from gnnkit.ui.picture import Picture  # matplotlib
    except ModuleNotFoundError as error:
        raise PlanError(f"pictures are drawn by matplotlib, which cannot be imported: {error}", "pip install 'gnnkit[plots]'") from error
    return Picture(size, data, text)


def color_of(index: int) -> str:
    """The colour of the thing of number ``index``; after eight they repeat, with other markers."""
    return PALETTE[index % len(PALETTE)]


def marker_of(index: int) -> str:
    """The marker of the thing of number ``index``: together with its colour one of 56."""
    return MARKERS[(index + index // len(PALETTE)) % len(MARKERS)]


def dress(axes: Axes, title: str, xlabel: str = "", ylabel: str = "", *, grid: Grid | None = "both") -> None:
    """Gives axes their title, labels with units, and quiet lines.

    Args:
        axes: The axes.
        title: Their title.
        xlabel: What runs along x, with its unit.
        ylabel: The same for y.
        grid: The lines across: "x", "y", "both" or None.
    """
    axes.set_facecolor("none")
    axes.set_title(title, color=INK, fontsize=TITLE_SIZE, loc="left", fontweight="bold")
    axes.set_xlabel(xlabel, color=INK, fontsize=TEXT_SIZE)
    axes.set_ylabel(ylabel, color=INK, fontsize=TEXT_SIZE)
    axes.tick_params(which="both", colors=INK, labelsize=TEXT_SIZE - 1)
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))
    axes.grid(visible=False, which="both")
    if grid:
        axes.grid(visible=True, axis=grid, which="major", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def logarithmic(axes: Axes) -> None:
    """Makes both axes logarithmic."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in axes.xaxis, axes.yaxis:
        axis.set_major_formatter(tick_words)


def tick_words(value: float, position: float = 0.0) -> str:
    """A count beside an axis, as people write it: "100", "10k", "1.2M"."""
    shown = format_short(value) if value >= 1 else ""
    return re.sub(r"\.?0+(?=\D*$)", "", shown) if "." in shown else shown


def whole_numbers(axis: Axis) -> None:
    """Lets no tick stand between two numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins="auto", integer=True))


def legend(axes: Axes, handles: Sequence[Any] | None = None, **options: Any) -> None:
    """Adds a legend without a frame; of what has a label, unless ``handles`` are given."""
    found = axes.get_legend_handles_labels()[0] if handles is None else list(handles)
    if found:
        drawn = axes.legend(handles=found, frameon=False, fontsize=TEXT_SIZE - 1, labelcolor=INK, **options)
        for text in drawn.get_texts():
            text.set_parse_math(False)  # a dollar sign in a name is one


def label_of(name: str) -> str:
    """A type's name for a legend, which leaves labels out that begin with "_", and has no room for long ones."""
    shown = f" {name}" if name.startswith("_") else name
    return shown if len(shown) <= _MAX_LETTERS else f"{shown[: _MAX_LETTERS - 1]}…"


def note(picture: Picture, graph: GraphHandle | Store, *remarks: str) -> None:
    """Writes a line below everything: the name of the graph, its notice, and remarks; in several lines where it is long."""
    words = "; ".join([graph.name, *([graph.notice] if graph.notice else []), *remarks])
    # About as many letters as a line has room for.
    lines = textwrap.wrap(words, int(picture.get_figwidth() * _LETTERS_PER_INCH))
    picture.supxlabel("\n".join(lines), color=INK, fontsize=TEXT_SIZE - 1, x=0.01, ha="left", parse_math=False)


# Roots that share the middle stand this far from it, in rings.
_ROOT_RADIUS = 0.3
# What stays free at the top, in radians, for the names of the rings.
GAP = 0.42


def thinned(parent: NDArray[np.int64], hop: NDArray[np.int64], limit: int) -> NDArray[np.bool_]:
    """Chooses nodes to draw where there are too many: of every node the same number of children, the first ones, and theirs.

    Args:
        parent: int64 ``[n]``, parents come before their children; -1 for roots.
        hop: int64 ``[n]``, ascending; 0 for roots.
        limit: The most nodes, if roots and one child of each are not more.

    Returns:
        ``[n]``, whether a node is drawn.
    """
    order = _rank_among_siblings(parent)
    kept = np.ones(len(parent), np.bool_)
    most = int(order.max(initial=0)) + 1
    while kept.sum() > limit and most > 1:
        # Halved while far too many, then one by one: what is left is close to the limit.
        most = max(1, min(most - 1, most // 2 if kept.sum() > 2 * limit else most - 1))
        kept = (order < most) | (parent < 0)
        for depth in range(1, int(hop.max(initial=0)) + 1):
            here = (hop == depth) & (parent >= 0)
            kept[here] &= kept[parent[here]]
    return kept


def _rank_among_siblings(parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of earlier children of the same parent: int64 ``[n]``."""
    by_parent = np.argsort(parent, kind="stable")
    grouped = parent[by_parent]
    first = np.searchsorted(grouped, grouped, side="left")
    rank = np.empty(len(parent), np.int64)
    rank[by_parent] = np.arange(len(parent)) - first
    return rank


def place(parent: NDArray[np.int64], hop: NDArray[np.int64]) -> NDArray[np.float64]:
    """Places nodes on rings: hop ``h`` at radius ``h``, each in the middle of a sector as wide as its descendants need; the top stays free.

    Args:
        parent: int64 ``[n]``, parents come before their children; -1 for roots, which come first.
        hop: int64 ``[n]``, ascending; 0 for roots.

    Returns:
        float64 ``[n, 2]``, x and y.
    """
    count = len(parent)
    leaves = np.ones(count, np.float64)
    has_children = np.zeros(count, np.bool_)
    has_children[parent[parent >= 0]] = True
    leaves[has_children] = 0.0
    for node in range(count - 1, -1, -1):
        if parent[node] >= 0:
            leaves[parent[node]] += leaves[node]
    width = (2 * np.pi - GAP) * leaves / max(float(leaves[parent < 0].sum()), 1.0)
    begin, taken = np.zeros(count), np.zeros(count)
    turn = (np.pi + GAP) / 2  # from the top, so that two roots stand beside each other
    for node in range(count):
        above = parent[node]
        if above < 0:
            begin[node] = turn
            turn += width[node]
        else:
            begin[node] = begin[above] + taken[above]
            taken[above] += width[node]
    angle = begin + width / 2
    radius = np.where(hop == 0, _ROOT_RADIUS if (parent < 0).sum() > 1 else 0.0, hop)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


# Nodes that can be told apart in a picture of this size, and those whose ids can be read.
_MAX_NODES = 1500
_MAX_NAMED = 40
_MAX_TYPES_IN_LEGEND = 14
# Nodes from which on they and their lines are drawn smaller.
_MANY = 200


def plot_batch(loader: Pipeline, seed: Any = None, batch: Any = None) -> Picture:
    """Draws what was sampled around one seed: rings are hops, and lines lead to the node for which a neighbour was sampled.

    A link is drawn with both of its ends in the middle, an anchor with its labels. A node that is met again stays where it was met first,
    on the nearest ring; lines on which it was met again are faint.

    Args:
        loader: The loader.
        seed: Its id in the dataset, for links the ids of both ends; None takes the first one of the batch.
        batch: A batch of the loader; None samples around ``seed``, or peeks at the next batch if there is none.

    Returns:
        A matplotlib figure; its ``data`` are a ``gnnkit.loader.inspection.Neighborhood``.

    Raises:
        PlanError: The batch has no such seed, lacks what it is drawn from, or matplotlib is not installed.
        LoaderClosed: The loader is closed, and no batch was given.
    """
    # First, so that a missing matplotlib is known before a batch is sampled.
    picture = new_picture((11.0, 5.6), None, "")
    picture.data = found = neighborhood(loader, seed, batch)
    title = _title(found)
    rings, counts = picture.subplots(1, 2, width_ratios=[2.4, 1])
    drawn = thinned(found.parent, found.hop, _MAX_NODES)
    _draw_rings(rings, found, drawn)
    rings.set_title(title, color=INK, fontsize=TITLE_SIZE, loc="left", fontweight="bold", parse_math=False)
    _draw_counts(counts, found)
    remarks = [f"{int(drawn.sum()):,} of its {len(drawn):,} nodes are drawn"] if not drawn.all() else []
    kept = isinstance(loader.plan.sampling, PPRSampling)
    direction = "lines lead to the nodes that are kept" if kept else "lines lead inwards, the way messages pass"
    size = f"{len(found.n_id):,} nodes, {found.edges.shape[1]:,} edges"
    picture.text_form = f"{loader.graph.name}: {title}, {size}"
    note(picture, loader.graph, size, direction, *found.remarks, *remarks)
    return picture


def _title(found: Neighborhood) -> str:
    typed = len(found.node_types) > 1

    def name(node: int) -> str:
        return f"{found.node_types[found.node_type[node]]} {found.n_id[node]}" if typed else str(found.n_id[node])

    if any(pair.kind == "link" for pair in found.pairs):
        return f"around the link {name(found.pairs[0].source)} → {name(found.pairs[0].target)}"
    return f"around {'' if typed else 'node '}{name(0)}" + (" and its labels" if found.pairs else "")


def _draw_rings(axes: Axes, found: Neighborhood, drawn: NDArray[np.bool_]) -> None:
    from matplotlib.collections import LineCollection

    axes.set_facecolor("none")
    axes.set_axis_off()
    axes.set_aspect("equal")
    spots = np.zeros((len(drawn), 2))
    number = np.cumsum(drawn) - 1
    parent = found.parent[drawn]
    spots[drawn] = place(np.where(parent >= 0, number[parent], -1), found.hop[drawn])
    for hop in range(1, int(found.hop.max(initial=0)) + 1):
        axes.add_patch(_ring(hop))
        axes.annotate(f"hop {hop}", (0, hop), ha="center", va="center", **WORDS, zorder=5)
    neighbor, center = found.edges
    visible = drawn[neighbor] & drawn[center]
    first = (found.parent[neighbor] == center) | (found.parent[center] == neighbor)
    count = int(drawn.sum())
    alpha = min(1.0, (_MANY / max(count, 1)) ** 0.5)  # where lines lie above one another, what is below them stays visible
    for chosen, width, style, faint in (~first, 0.5, ":", 0.55 * alpha), (first, 1.0 if count <= _MANY else 0.5, "-", 0.8 * alpha):
        lines = np.stack([spots[neighbor], spots[center]], axis=1)[visible & chosen]
        colors = [color_of(int(t)) for t in found.edge_type[visible & chosen]] if len(found.edge_types) > 1 else INK
        axes.add_collection(LineCollection(lines, colors=colors, linewidths=width, linestyles=style, alpha=faint, zorder=1))
    for pair in found.pairs:
        axes.plot(*spots[[pair.source, pair.target]].T, **_pair_line(pair.kind), zorder=2)
    _draw_nodes(axes, found, spots, drawn)
    reach = max(int(found.hop.max(initial=0)), 1) + 0.25
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)


def _ring(radius: int) -> Any:
    """A circle that is open at the top, where its name stands."""
    from matplotlib.patches import Arc

    gap = math.degrees(GAP) / 2 / math.sqrt(radius)
    return Arc((0, 0), 2 * radius, 2 * radius, theta1=90 + gap, theta2=450 - gap, color=FAINT, linewidth=0.8, zorder=0)


def _draw_nodes(axes: Axes, found: Neighborhood, spots: NDArray[np.float64], drawn: NDArray[np.bool_]) -> None:
    count, typed = int(drawn.sum()), len(found.node_types) > 1
    size = 46 if count <= _MAX_NAMED else 22 if count <= _MANY else 9
    roots, (x, y) = found.hop == 0, spots.T
    groups = found.node_type if typed else np.minimum(found.hop, len(_HOP_COLORS) - 1)
    for group in np.unique(groups[drawn]):
        mine = drawn & (groups == group)
        color, marker = (color_of(int(group)), marker_of(int(group))) if typed else (color_of(_HOP_COLORS[group]), "o")
        label = label_of(found.node_types[group]) if typed else None
        axes.scatter(x[mine & ~roots], y[mine & ~roots], size, color=color, marker=marker, linewidths=0, zorder=3, label=label)
        axes.scatter(x[mine & roots], y[mine & roots], 130, color=color, marker=marker, edgecolors=INK, linewidths=1.5, zorder=4)
    for node in np.flatnonzero(drawn & (roots | (count <= _MAX_NAMED))):
        side = 0 if roots[node] else -1 if x[node] < -0.05 else 1  # outwards
        style = {"fontweight": "normal" if side else "bold", "ha": ("center", "left", "right")[side], **WORDS}
        axes.annotate(str(found.n_id[node]), spots[node], (5 * side, 5 if side else 11), textcoords="offset points", zorder=6, **style)
    if typed or found.pairs:
        legend(axes, _legend_handles(axes, found), loc="upper right", bbox_to_anchor=(0.0, 1.0))  # beside the rings


# Of untyped graphs nodes have the colour of their ring.
_HOP_COLORS = (1, 0, 2, 3, 4, 5, 6)


def _legend_handles(axes: Axes, found: Neighborhood) -> list[Any]:
    """Node types by their markers, and edge types that occur, and pairs, by their lines."""
    from matplotlib.lines import Line2D

    nodes = axes.get_legend_handles_labels()[0]
    edges = [
        Line2D([], [], color=color_of(int(t)), linewidth=1.2, label=label_of(" ".join(found.edge_types[t])))
        for t in np.unique(found.edge_type)
    ]
    pairs = [Line2D([], [], label=kind, **_pair_line(kind)) for kind in dict.fromkeys(pair.kind for pair in found.pairs)]
    return [*pairs, *nodes, *(edges if len(found.edge_types) > 1 else [])][:_MAX_TYPES_IN_LEGEND]


def _pair_line(kind: str) -> dict[str, Any]:
    return {"color": INK, "linewidth": 2.8, "linestyle": ":" if kind == "negative label" else "-"}


def _draw_counts(axes: Axes, found: Neighborhood) -> None:
    """Draws the number of nodes on each ring, by type."""
    hops = range(int(found.hop.max(initial=0)) + 1)
    below = np.zeros(len(hops), np.int64)
    typed = len(found.node_types) > 1
    for number in range(len(found.node_types)):
        here = np.bincount(found.hop[found.node_type == number], minlength=len(hops))
        colors = color_of(number) if typed else [color_of(_HOP_COLORS[min(hop, len(_HOP_COLORS) - 1)]) for hop in hops]
        axes.barh(hops, here, left=below, height=0.6, color=colors)
        below += here
    for hop, total in enumerate(below):
        axes.annotate(format_short(int(total)), (total, hop), (4, 0), textcoords="offset points", va="center", **WORDS)
    dress(axes, "nodes by hop", "nodes", "hop", grid="x")
    axes.set_yticks(hops, ["seed" if hop == 0 else str(hop) for hop in hops])
    axes.set_ylim(len(hops) - 0.5, -0.5)
    axes.margins(x=0.2)
    whole_numbers(axes.xaxis)


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
        A matplotlib figure; its ``data`` are a ``gnnkit.loader.feature_cache.Footprint``.

    Raises:
        PlanError: ``num_batches`` is no number from 1 to ``len(loader)``, there is no batch, or matplotlib is not installed.
        LoaderClosed: The loader is closed.
    """
    # First, so that a missing matplotlib is known before batches are sampled.
    picture = new_picture((11.0, 4.4), None, "")
    picture.data = numbers = footprint(loader, num_batches)
    batches = f"{numbers.num_batches} of {numbers.batches_of_epoch} batches"
    picture.text_form = f"{loader.graph.name}: touches of nodes in {batches}, and what caches save"
    has_features = numbers.all_feature_bytes > 0
    axes = picture.subplots(1, 2 if has_features else 1, squeeze=False)[0]
    left_out = _draw_touches(axes[0], numbers)
    remarks = [f"{left_out} smaller node types are not drawn"] if left_out else []
    if has_features:
        _draw_savings(axes[1], numbers)
        remarks.append("the cache holds what one epoch touched most, and is judged by the next")
    else:
        remarks.append("the graph has no features, so there is nothing to cache")
    note(picture, loader.graph, f"{batches} of an epoch", *remarks)
    return picture


def _draw_touches(axes: Axes, numbers: Footprint) -> int:
    """Draws the distributions; how many node types have no place."""
    by_touches = sorted(numbers.touches, key=lambda name: -int(numbers.touches[name].sum(dtype=np.int64)))
    for index, node_type in enumerate(by_touches[:_MAX_NODE_TYPES]):
        counts = DegreeCounts.of(numbers.touches[node_type])
        name = f"{label_of(node_type)}: " if len(by_touches) > 1 else ""
        label = f"{name}{format_short(counts.without)} of {format_short(len(numbers.touches[node_type]))} nodes never"
        _draw_counts_from(axes, counts, index, marker_of(index), markersize=4, label=label)
    logarithmic(axes)
    dress(axes, "how often nodes are touched", f"times in {numbers.num_batches} batches (k)", "nodes touched at least k times")
    legend(axes)
    return max(0, len(by_touches) - _MAX_NODE_TYPES)


def _draw_counts_from(axes: Axes, counts: DegreeCounts, index: int, marker: str, **options: Any) -> None:
    """Draws how many nodes have at least each count; where there are few counts, each has a marker."""
    shown = marker if len(counts.degree) < _FEW else ""
    axes.plot(*counts.at_least(), drawstyle="steps-pre", color=color_of(index), linewidth=1.6, marker=shown, **options)


def _draw_savings(axes: Axes, numbers: Footprint) -> None:
    curve, best, everything = numbers.savings(), numbers.best_savings(), numbers.all_feature_bytes
    axes.plot(100 * best.nbytes / everything, 100 * best.saved, color=color_of(1), linestyle="--", linewidth=1.4, label="at most")
    axes.plot(100 * curve.nbytes / everything, 100 * curve.saved, color=color_of(0), linewidth=1.8, label="filled by the epoch before")
    axes.plot([0, 100], [0, 100], color=INK, linestyle=":", linewidth=1, label="filled by lot")
    shares = [(share, curve.saved_by(share * everything)) for share in _NAMED_SIZES]
    axes.plot(*[[100 * value for value in values] for values in zip(*shares, strict=True)], "o", markersize=5, color=color_of(0))
    lines = [f"{format_bytes(share * everything)} save {100 * saved:.0f} %" for share, saved in shares]
    # Below the diagonal, where there is no curve.
    axes.text(0.985, 0.27, "\n".join(lines), transform=axes.transAxes, ha="right", va="bottom", **WORDS)
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
        A matplotlib figure; its ``data`` are a ``gnnkit.loader.history.Timeline``.

    Raises:
        PlanError: No batch of the epoch is known, or matplotlib is not installed.
    """
    numbers = timeline(loader.records, epoch)
    rows = _rows_of_consumer(numbers)
    height = min(_MAX_INCHES, 2.7 + _ROW_INCHES * (len(numbers.workers) + len(rows)))
    batches = f"{numbers.batches:,} batch{'es' * (numbers.batches > 1)} in {format_duration(numbers.seconds)}"
    text = f"epoch {numbers.epoch}: {batches}, {len(numbers.workers)} worker{'s' * (len(numbers.workers) != 1)}"
    picture = new_picture((11.0, height), numbers, f"{loader.graph.name}, {text}")
    lanes, waiting = picture.subplots(2, 1, sharex=True, height_ratios=[max(height - 2.3, 1.0), 1.0])
    # Short epochs in milliseconds, so that ticks are round numbers.
    scale, unit = (1e3, "ms") if numbers.seconds < 0.5 else (1.0, "s")
    _draw_lanes(lanes, numbers, rows, scale)
    _draw_waiting(waiting, numbers.ready, loader.status().slots, f"time since the epoch began ({unit})", scale)
    waiting.set_xlim(0, max(numbers.seconds, 1e-6) * scale)
    remarks = [] if numbers.is_whole else ["earlier batches are not known any more"]
    remarks += [f"the worker of {numbers.unseen:,} of them is not known"] if numbers.unseen else []
    note(picture, loader.graph, text, *remarks)
    return picture


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
        axes.annotate(f"{slots} slots", (1.0, slots), xycoords=("axes fraction", "data"), ha="right", va="bottom", **WORDS)
    dress(axes, "batches that were waiting for the loop", xlabel, "batches")
    axes.set_ylim(0, max(float(ready[:, 1].max(initial=0)), slots, 1) * 1.35)
    whole_numbers(axes.yaxis)


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
    owned = sum((cut for cut in report.cuts.values()), np.zeros((store.num_parts, store.num_parts), np.int64))
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
            label = f"{word}{missing}" if homogeneous else label_of(" ".join(edge_type)) if dashes == "-" else None
            _draw_counts_from(axes, counts, index, ".", linestyle=dashes, label=label)
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
