"""A batch's picture: the neighbourhood of one of its seeds on rings, hop by hop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.loader.neighborhood import Neighborhood, neighborhood
from gnnkit.plan import PPRSampling
from gnnkit.ui.plots.style import (
    FAINT,
    INK,
    TEXT_SIZE,
    TITLE_SIZE,
    color_of,
    dress,
    label_of,
    legend,
    marker_of,
    name_of,
    new_picture,
    note,
    whole_numbers,
)
from gnnkit.units import format_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gnnkit.loader.pipeline import Pipeline
    from gnnkit.ui.plots.picture import Picture

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
    num_roots = int((parent < 0).sum())
    radius = np.where(hop == 0, _ROOT_RADIUS if num_roots > 1 else 0.0, hop)
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
        A matplotlib figure; its ``data`` are a ``gnnkit.loader.neighborhood.Neighborhood``.

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
    picture.text_form = f"{name_of(loader)}: {title}, {size}"
    note(picture, loader, size, direction, *found.remarks, *remarks)
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
        axes.annotate(f"hop {hop}", (0, hop), ha="center", va="center", color=INK, fontsize=TEXT_SIZE - 1, zorder=5)
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
        axes.annotate(
            str(found.n_id[node]),
            spots[node],
            (5 * side, 5 if side else 11),
            textcoords="offset points",
            color=INK,
            fontsize=TEXT_SIZE - 1,
            fontweight="normal" if side else "bold",
            ha=("center", "left", "right")[side],
            zorder=6,
        )
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
        axes.annotate(
            format_short(int(total)), (total, hop), (4, 0), textcoords="offset points", va="center", color=INK, fontsize=TEXT_SIZE - 1
        )
    dress(axes, "nodes by hop", "nodes", "hop", grid="x")
    axes.set_yticks(hops, ["seed" if hop == 0 else str(hop) for hop in hops])
    axes.set_ylim(len(hops) - 0.5, -0.5)
    axes.margins(x=0.2)
    whole_numbers(axes.xaxis)
