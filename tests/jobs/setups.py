"""A small store with a plan of it, and what an uninterrupted epoch of it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import gnnkit
from gnnkit import GraphLoader
from tests.helpers.graphs import homogeneous_source, random_edges

NUM_NODES, BATCH_SIZE = 240, 10
NUM_BATCHES = NUM_NODES // BATCH_SIZE


class Steps:
    """How many steps the weights of a checkpoint know; ``inspect.getsource`` brings it into train files."""

    done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def planned(folder: Path, **options: object) -> Path:
    """Builds a store in a folder, and a plan of batches of all its nodes beside it; the plan's file."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((NUM_NODES, 4)).astype(np.float32), np.arange(NUM_NODES) % 3
    source = homogeneous_source(random_edges(rng, NUM_NODES, NUM_NODES, 900), NUM_NODES, x=x, y=y)
    store = gnnkit.partition(source, 2, out=folder / "store")
    words = {"num_neighbors": [3, 2], "batch_size": BATCH_SIZE, "shuffle": True, "seed": 5, **options}
    with GraphLoader.from_store(store.path, input_nodes=None, progress=False, **words) as loader:
        loader.plan.save(folder / "plan.json")
    return folder / "plan.json"


def epochs(plan: Path, count: int) -> list[list[list[int]]]:
    """The seeds of every batch of the first epochs, as one rank gets them."""
    with GraphLoader.from_plan(plan, progress=False) as loader:
        return [[batch.input_id.tolist() for batch in loader] for _ in range(count)]
