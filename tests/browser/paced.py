"""What the notebooks import: a small graph, loaders of it, and a loop that goes as far as the test lets it."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

import gnnkit
from gnnkit import Colocated, GraphLoader

__all__ = ["Colocated", "afresh", "gnnkit", "hide_widgets", "loader_of", "paced"]

# In the kernel's folder, which is the notebook's.
STEPS, ALLOWED = Path("steps"), Path("allowed")
NUM_BATCHES = 40
_loaders: weakref.WeakSet[GraphLoader] = weakref.WeakSet()
_widgets: list[Any] = []


def loader_of(**options: Any) -> GraphLoader:
    """A loader of forty batches."""
    edges = torch.randint(2000, (2, 20000), generator=torch.Generator().manual_seed(1))
    words = {"num_neighbors": [5, 5], "batch_size": 50, "input_nodes": torch.arange(50 * NUM_BATCHES), **options}
    loader = GraphLoader.from_pyg(Data(x=torch.zeros(2000, 16), edge_index=edges), **words)
    _loaders.add(loader)
    return loader


def paced(batches: Iterable[Any]) -> Iterator[Any]:
    """Yields batch by batch, and after each of them waits until the test allows another."""
    for step, batch in enumerate(batches, 1):
        yield batch
        STEPS.write_text(str(step))
        while step >= int(ALLOWED.read_text() or 0):
            time.sleep(0.01)


def hide_widgets() -> None:
    """From now on ipywidgets is not installed."""
    _widgets.append(sys.modules.get("ipywidgets"))
    sys.modules["ipywidgets"] = None  # type: ignore[assignment]  # that is how Python writes it


def afresh() -> None:
    """Ends what notebooks before left behind."""
    for loader in [*_loaders]:
        loader.close()
    while _widgets:
        module = _widgets.pop()
        sys.modules.pop("ipywidgets")
        if module is not None:
            sys.modules["ipywidgets"] = module
