"""Small pictures as numbers: the points of a line, the shares of a bar, a row of block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Units of the drawing: wide enough that neighbouring points differ, whole numbers so that they are short.
WIDTH, HEIGHT = 236, 40
_BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def line_points(values: Sequence[float], top: float) -> str:
    """Points of an SVG polyline from left to right, zero at the bottom: "0,40 4,12 ...".

    Args:
        values: What to draw.
        top: The value at the upper edge.
    """
    step = WIDTH / max(len(values) - 1, 1)
    return " ".join(f"{round(i * step)},{_height(value, top)}" for i, value in enumerate(values))


def area_path(values: Sequence[float], top: float) -> str:
    """The SVG path of what lies below that line."""
    return f"M0,{HEIGHT}L{line_points(values, top)} {WIDTH},{HEIGHT}z"


def blocks(values: Sequence[float], top: float, width: int = 30) -> str:
    """The last ``width`` values as a row of block characters; "" where there is nothing above zero."""
    if not top > 0:
        return ""
    levels = [min(len(_BLOCKS) - 1, math.floor(max(value, 0.0) / top * len(_BLOCKS))) for value in values[-width:]]
    return "".join(_BLOCKS[level] for level in levels)


def whole_percents(fractions: Sequence[float]) -> list[int]:
    """Fractions as whole percents that sum to what the fractions sum to, by largest remainders (Hamilton's method)."""
    exact = [max(fraction, 0.0) * 100 for fraction in fractions]
    floors = [math.floor(value + 1e-9) for value in exact]
    missing = round(sum(exact)) - sum(floors)
    for index in sorted(range(len(exact)), key=lambda i: floors[i] - exact[i])[: max(missing, 0)]:
        floors[index] += 1
    return floors


def _height(value: float, top: float) -> int:
    # The line is drawn with a width: at the very edges it would be cut.
    share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
    return round(HEIGHT - 1 - share * (HEIGHT - 3))
