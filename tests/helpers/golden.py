"""A graph made of integers alone, whose batches are the same on every machine, for ever: see ``tests/sampling/golden.json``.

``python -m tests.helpers.golden`` prints the digests of the batches that the interpreter at hand samples.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from tests.helpers.batches import digest, to_pyg
from tests.helpers.graphs import ArraySource, typed_source
from tests.helpers.subgraphs import subgraph_digests


def golden_source() -> ArraySource:
    users, items_ = np.arange(300), np.arange(120)
    follows = np.concatenate([np.stack([(users * 7 + k * 11) % 300, (users * users + k) % 300]) for k in range(9)], axis=1)
    likes = np.concatenate([np.stack([(items_ * 3 + k * k) % 300, (items_ // (k + 1)) % 120]) for k in range(8)], axis=1)
    edges = {("user", "follows", "user"): follows, ("user", "likes", "item"): likes, ("item", "rev_likes", "user"): likes[::-1].copy()}
    node_arrays = {
        "user": {"x": (users[:, None] * 5 + np.arange(3)).astype(np.float32), "y": users % 11},
        "item": {"x": items_[:, None] % 7},
    }
    edge_arrays = {t: {"weight": np.arange(e.shape[1]) * 37 % 101} for t, e in edges.items()}
    sizes = {t: len(next(iter(arrays.values()))) for t, arrays in node_arrays.items()}
    return typed_source(sizes, {t: edges[t] for t in edge_arrays}, node_arrays, edge_arrays)


GOLDEN_INPUT_NODES = list(range(0, 300, 2))
GOLDEN_OPTIONS: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 20, "epoch": 3}
GOLDEN_CASES: dict[str, dict[str, Any]] = {
    "in": {"num_neighbors": [5, 3, 2]},
    "out": {"num_neighbors": [5, 3], "edge_dir": "out"},
    "replace": {"num_neighbors": [4, -1], "replace": True},
    "weight": {"num_neighbors": [3, 3], "weight": "weight"},
    "weight, replace": {"num_neighbors": [3, 3], "weight": "weight", "replace": True},
    "all": {"num_neighbors": [-1, -1]},
    "labor": {"num_neighbors": [5, 3, 2], "labor": {}},
    "labor, weight, dependent": {
        "num_neighbors": [3, 3],
        "weight": "weight",
        "labor": {"layer_dependency": True, "batch_dependency": 4},
    },
}
# What ``Walks`` is told, and the loader beside.
GOLDEN_WALKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "walks": (
        {"length": 6, "per_node": 2, "p": 0.25, "q": 4.0, "num_negatives": 1, "metapath": [("user", "follows", "user")]},
        {"edge_dir": "out"},
    ),
    "walks, metapath, weight": (
        {"length": 5, "metapath": [("item", "rev_likes", "user"), ("user", "likes", "item")]},
        {"weight": "weight"},
    ),
}


def as_options(case: dict[str, Any]) -> dict[str, Any]:
    """A loader's options for a case: ``labor`` is what ``Labor`` is told beside the fan-outs."""
    from gnnkit import Labor

    if case.get("labor") is None:
        return {name: value for name, value in case.items() if name != "labor"}
    left = {name: value for name, value in case.items() if name not in ("labor", "num_neighbors")}
    return {**left, "sampler": Labor(case["num_neighbors"], **case["labor"])}


def golden_epoch(case: dict[str, Any]) -> list[Any]:
    """The batches of a case that a ``GraphLoader`` gives here."""
    from gnnkit import GraphLoader

    options = {**GOLDEN_OPTIONS, **case}
    epoch, input_nodes = options.pop("epoch"), ("user", np.array(GOLDEN_INPUT_NODES))
    with GraphLoader.from_pyg(to_pyg(golden_source()), input_nodes=input_nodes, with_edge=True, progress=False, **options) as loader:
        loader.set_epoch(epoch)
        return list(loader)


def golden_digests() -> dict[str, str]:
    """What a ``GraphLoader`` gives here."""
    from gnnkit import Walks

    cases = {name: as_options(case) for name, case in GOLDEN_CASES.items()}
    cases |= {name: {"sampler": Walks(**walks), **options} for name, (walks, options) in GOLDEN_WALKS.items()}
    return {name: digest(golden_epoch(case)) for name, case in cases.items()} | subgraph_digests()


if __name__ == "__main__":
    json.dump(golden_digests(), sys.stdout, indent=2)
