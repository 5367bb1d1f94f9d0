"""What a page looks like, computed by the browser itself."""

from __future__ import annotations

from typing import Any

# The least contrast of text that WCAG 2.2 asks for (success criterion 1.4.3), and of large text.
CONTRAST, CONTRAST_OF_LARGE = 4.5, 3.0

# For each piece of text within an element: the text, its contrast with what lies behind it, and whether it is large.
_TEXTS = """
root => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const parse = text => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      layers.push(parse(getComputedStyle(e).backgroundColor));
      if (layers.at(-1)[3] === 1) { break; }
    }
    return layers.reduceRight((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const seen = element => {
    let opacity = 1;
    for (let e = element; e; e = e.parentElement) { opacity *= parseFloat(getComputedStyle(e).opacity); }
    const colour = parse(getComputedStyle(element).color);
    return [colour[0], colour[1], colour[2], colour[3] * opacity];
  };
  const linear = value => value <= 10.31475 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const found = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || element.closest('style, svg, :disabled') || !element.checkVisibility()) { continue; }
    const back = behind(element), style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const [low, high] = [luminance(over(seen(element), back)), luminance(back)].sort((a, b) => a - b);
    const large = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    found.push([text, (high + 0.05) / (low + 0.05), large, luminance(back) < 0.2]);
  }
  return found;
}
"""


def assert_readable(shown: Any, *, dark: bool) -> None:
    """Asserts that every text within an element stands out from what is behind it, on a light or a dark ground.

    Args:
        shown: Playwright's ``Locator`` of the element.
        dark: Whether the ground must be dark.
    """
    texts = shown.evaluate(_TEXTS)
    assert texts
    faint = [f"{text!r}: {contrast:.1f}" for text, contrast, large, _ in texts if contrast < (CONTRAST_OF_LARGE if large else CONTRAST)]
    assert not faint, faint
    assert all(is_dark == dark for *_, is_dark in texts)
