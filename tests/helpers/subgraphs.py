"""Cases of clusters and GraphSAINT whose digests ``tests/sampling/golden.json`` has, on a graph made of integers alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnkit import Clusters, GraphLoader, Saint
from tests.helpers.batches import digest, to_pyg
from tests.helpers.graphs import ArraySource, homogeneous_source

_COMMON: dict[str, Any] = {"seed": 20, "epoch": 3}
GOLDEN_SUBGRAPHS: dict[str, tuple[Clusters | Saint, dict[str, Any]]] = {
    "clusters": (Clusters(30, 4, np.arange(300) * 7 % 30), {**_COMMON, "shuffle": True}),
    "saint, nodes": (Saint("nodes", num_steps=5), {**_COMMON, "batch_size": 16}),
    "saint, edges": (Saint("edges", num_steps=5), {**_COMMON, "batch_size": 16, "edge_dir": "out"}),
    "saint, walks, norms": (Saint("walks", 3, num_steps=5, sample_coverage=4), {**_COMMON, "batch_size": 16}),
}


def golden_homogeneous() -> ArraySource:
    """300 nodes and 2700 edges."""
    nodes = np.arange(300)
    edges = np.concatenate([np.stack([(nodes * 7 + k * 11) % 300, (nodes * nodes + k) % 300]) for k in range(9)], axis=1)
    return homogeneous_source(edges, 300, y=nodes % 11)


def subgraph_digests() -> dict[str, str]:
    """What a ``GraphLoader`` gives here."""
    data, digests = to_pyg(golden_homogeneous()), {}
    for name, (sampler, case) in GOLDEN_SUBGRAPHS.items():
        options = {"input_nodes": np.arange(0, 300, 2), **case}
        epoch = options.pop("epoch")
        with GraphLoader.from_pyg(data, sampler=sampler, with_edge=True, progress=False, **options) as loader:
            loader.set_epoch(epoch)
            digests[name] = digest(list(loader))
    return digests
