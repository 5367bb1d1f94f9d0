"""The style of pictures: transparent, so that they stand on any page, in tones that are readable on white paper and on dark screens.

Of tones that keep a contrast of 3 (WCAG 2, for graphics) against white and against JupyterLab's dark page at once there is a narrow band
only; the palette takes hues from Okabe and Ito's (https://jfly.uni-koeln.de/color) that fall into it, or are moved into it, in an order in
which neighbours differ also to the colour-blind. Markers, line styles and heights show the same once more.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from gnnkit.errors import PlanError
from gnnkit.loader.pipeline import Pipeline
from gnnkit.units import format_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from gnnkit.storage.store import Store
    from gnnkit.ui.plots.picture import Picture

# Text, axes: the grey that is as far from white as from the dark page (4.3 to each).
INK = "#7a7a7a"
FAINT = "#7a7a7a55"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b8689b", "#a07d00", "#3b8bba", "#8c6d52", "#7a7a7a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
TEXT_SIZE, TITLE_SIZE = 10, 11
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
        from gnnkit.ui.plots.picture import Picture
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


def name_of(owner: Pipeline | Store) -> str:
    """The name of the graph that a loader or a store is of."""
    return owner.graph.name if isinstance(owner, Pipeline) else owner.name


def note(picture: Picture, owner: Pipeline | Store, *remarks: str) -> None:
    """Writes a line below everything: the name of the graph, its notice, and remarks; in several lines where it is long."""
    graph = owner.graph if isinstance(owner, Pipeline) else owner
    words = "; ".join([graph.name, *([graph.notice] if graph.notice else []), *remarks])
    # About as many letters as a line has room for.
    lines = textwrap.wrap(words, int(picture.get_figwidth() * _LETTERS_PER_INCH))
    picture.supxlabel("\n".join(lines), color=INK, fontsize=TEXT_SIZE - 1, x=0.01, ha="left", parse_math=False)
