"""A figure that shows itself in notebooks. Importing this module imports matplotlib."""

from __future__ import annotations

import base64
import io
from typing import Any

from matplotlib.figure import Figure

# Pixels of the image for each pixel on the page: sharp on dense screens, and below 100 kB.
_DENSITY = 2
_PAGE_DPI = 72


class Picture(Figure):
    """A matplotlib figure with the numbers that are drawn in it.

    It belongs to no pyplot window: a notebook shows it once, where a cell ends with it, and it goes when the last reference does.

    Args:
        size: Width and height in inches.
        data: The numbers.
        text: What is to be seen, in a line, for terminals.

    Attributes:
        data: The numbers.
    """

    def __init__(self, size: tuple[float, float], data: Any, text: str) -> None:
        super().__init__(figsize=size, dpi=_PAGE_DPI * _DENSITY, facecolor="none", layout="constrained")
        self.data = data
        self.text_form = text

    def __repr__(self) -> str:
        return f"<Picture {self.text_form}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        image, (width, height) = self._png()
        size = {"width": width // _DENSITY, "height": height // _DENSITY, "alt": self.text_form}
        return {"image/png": base64.b64encode(image).decode(), "text/plain": repr(self)}, {"image/png": size}

    def _png(self) -> tuple[bytes, tuple[int, int]]:
        """An image of 256 colours, transparent ones among them, and its size: a quarter of the bytes, without a visible difference."""
        from PIL import Image  # matplotlib needs it too

        whole, small = io.BytesIO(), io.BytesIO()
        self.savefig(whole, format="png", transparent=True, pil_kwargs={"compress_level": 1})
        with Image.open(whole) as image:
            image.quantize(256, method=Image.Quantize.FASTOCTREE).save(small, format="png", optimize=True)
            return small.getvalue(), image.size
