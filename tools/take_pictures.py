"""Takes the pictures of the documentation: a real dashboard in a real JupyterLab, while a loop trains.

    make pictures

Needs a Chromium, and of Python what the group ``browser`` names. Writes docs/images/dashboard.png and dashboard-dark.png; the numbers in
them are this machine's, so run it on an idle one.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.front_end import Lab, Notebook, browser, write_notebook  # noqa: E402
from tests.browser.server import JupyterServer  # noqa: E402

IMAGES = ROOT / "docs/images"
MAX_BYTES = 200_000
# The page is as wide as the dashboard, which is as wide as it gets; two pixels each for screens that have them.
PAGE, SCALE = (1090, 1100), 2.0
BEFORE = """
from gnnkit import Colocated, GraphLoader, partition
from gnnkit.datasets import products_like

partition(products_like({scale}), num_parts=2, out="store")
"""
SHOW = """
loader = GraphLoader.from_store("store", num_neighbors=[10, 5], batch_size=1024, backend=Colocated(2))
loader.dashboard()
"""
TRAIN = """
import torch
from torch_geometric.nn import GCN

torch.set_num_threads(1)
model = GCN(loader.num_features, 16, num_layers=2, out_channels=loader.metadata["num_classes"])
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for epoch in range(1000):
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
"""
BUILD_TIMEOUT_S = 300.0


def picture(shown: Any) -> bytes:
    """A locator's picture as a small PNG: an interface has few colours."""
    image = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
    # Without the upper edge of the next cell.
    image = image.crop((0, 0, image.width, image.height - round(3 * SCALE))).quantize(256, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    image.save(packed, "png", optimize=True)
    return packed.getvalue()


def take(lab: Lab, notebook: Notebook, seconds: float) -> dict[str, bytes]:
    """Trains for some time and takes the dashboard in both themes, then ends the training.

    Returns:
        ``{name of the file: its content}``.
    """
    notebook.run(0, BUILD_TIMEOUT_S)
    notebook.run(1, BUILD_TIMEOUT_S)
    notebook.start(2)
    notebook.page.mouse.move(0, 0)
    notebook.cell(1).locator(".gnnkit-dash .gk-state", has_text="sampling").wait_for(timeout=BUILD_TIMEOUT_S * 1000)
    notebook.page.wait_for_timeout(seconds * 1000)
    pictures = {}
    for theme, name in (("light", "dashboard.png"), ("dark", "dashboard-dark.png")):
        lab.theme(theme)
        notebook.panel.locator(".jp-Cell").nth(1).scroll_into_view_if_needed()
        pictures[name] = picture(notebook.cell(1))
    notebook.press("interrupt")
    notebook.finish(2)
    return pictures


def main() -> None:
    """Takes the pictures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=0.1, help="size of the graph relative to OGBN-Products")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the loop has trained when the picture is taken")
    parser.add_argument("--out", type=Path, default=IMAGES, help="the folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, JupyterServer(Path(folder)) as server, browser(Path(folder) / "chromium") as chromium:
        lab = Lab(chromium, server, size=PAGE, scale=SCALE)
        cells = [cell.strip() for cell in (BEFORE.format(scale=options.scale), SHOW, TRAIN)]
        notebook = lab.open(write_notebook(server, "dashboard", cells), server.start_kernel())
        for name, content in take(lab, notebook, options.seconds).items():
            if len(content) > MAX_BYTES:
                sys.exit(f"{name} has {len(content):,} bytes, more than {MAX_BYTES:,}")
            (options.out / name).write_bytes(content)
            print(f"{options.out / name}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
