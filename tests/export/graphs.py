"""Small stores with features, labels and splits for the tests of exporting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gnnkit import BuildOptions, LoaderPlan
from gnnkit.export.exporter import JobOptions, export_plan
from tests.helpers.graphs import homogeneous_source, random_edges, stored, typed_source

NUM_NODES, NUM_CLASSES = 200, 5


def exported(plan: LoaderPlan, directory: Path, launcher: str = "torchrun", **options: Any) -> Any:
    """``loader.export`` of a plan that may be of backends that this machine has not."""
    words = {key: options.pop(key) for key in ("overwrite", "train") if key in options}
    return export_plan(plan, directory, JobOptions(launcher, **options), **words)


def make_store(path: Path, num_parts: int = 1, *, y: Any = None, **options: Any) -> Path:
    """A homogeneous one."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, NUM_CLASSES, NUM_NODES) if y is None else y
    x = rng.standard_normal((NUM_NODES, 8)).astype(np.float32)
    splits = {"train": np.arange(0, NUM_NODES, 2), "valid": np.arange(1, NUM_NODES, 4)}
    source = homogeneous_source(random_edges(rng, NUM_NODES, NUM_NODES, 1500), NUM_NODES, x=x, y=labels, splits=splits)
    stored(source, path, BuildOptions(num_parts, **options))
    return path


def make_typed_store(path: Path, **options: Any) -> Path:
    """Papers with features and labels, and authors with neither, that no edge leads to."""
    rng = np.random.default_rng(1)
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    source = typed_source(
        {"author": 50, "paper": NUM_NODES},
        {cites: random_edges(rng, NUM_NODES, NUM_NODES, 1200), writes: random_edges(rng, 50, NUM_NODES, 600)},
        {"paper": {"x": rng.standard_normal((NUM_NODES, 8)).astype(np.float32), "y": rng.integers(0, NUM_CLASSES, NUM_NODES)}},
        splits={"paper": {"train": np.arange(0, NUM_NODES, 2), "valid": np.arange(1, NUM_NODES, 4)}},
    )
    stored(source, path, BuildOptions(**options))
    return path
