"""Seeds per second of every kind of batch, on the same graph: gnnkit's own measurements."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.bench.kind_graph import LABELS, TIME_SPAN

# Nodes of each type that HGT and layer-wise sampling take in each hop, and what PPR keeps of a seed's: usual values.
HGT_SAMPLES, LAYER_NODES = (512,) * 4, (512, 512)
PPR_ALPHA, PPR_EPS, PPR_NODES = 0.25, 1e-4, 50
# Neighbourhoods of two hops, for kinds whose seeds share nothing or come in pairs.
SHORT_FAN_OUT = (10, 5)


def _links(options: argparse.Namespace) -> NDArray[np.int64]:
    """int64 ``[2, batches * batch size]``: edges of the graph, spread over all of it."""
    arrays = Path(options.arrays)
    row, col = (np.load(arrays / f"{name}.npy", mmap_mode="r") for name in ("row", "col"))
    count = min(options.batches * options.batch_size, len(row))
    chosen = np.arange(count) * (len(row) // count)
    return np.stack([row[chosen], col[chosen]])


def _nodes(options: argparse.Namespace) -> NDArray[np.int64]:
    """int64: the training nodes of so many batches, in random order."""
    train = np.load(Path(options.arrays) / "train.npy")
    count = min(options.batches, len(train) // options.batch_size) * options.batch_size
    return np.random.default_rng(0).permutation(train)[:count]


def _nodes_with(**options: Any) -> Callable[[argparse.Namespace], dict[str, Any]]:
    return lambda given: {"input_nodes": _nodes(given), **options}


def _links_with(**options: Any) -> Callable[[argparse.Namespace], dict[str, Any]]:
    return lambda given: {"edge_label_index": _links(given), "num_neighbors": SHORT_FAN_OUT, **options}


def _sampled(name: str, *arguments: Any, **options: Any) -> Callable[[argparse.Namespace], dict[str, Any]]:
    def words(given: argparse.Namespace) -> dict[str, Any]:
        from gnnkit import samplers

        return {"input_nodes": _nodes(given), "sampler": getattr(samplers, name)(*arguments, **options)}

    return words


# What a loader is told, by kind.
KINDS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "link-binary": _links_with(neg_sampling="binary"),
    "link-triplet": _links_with(neg_sampling="triplet"),
    "anchors": _nodes_with(num_neighbors=SHORT_FAN_OUT),
    "induced": _nodes_with(num_neighbors=SHORT_FAN_OUT, subgraph_type="induced"),
    "shadow": _nodes_with(num_neighbors=SHORT_FAN_OUT, subgraph_type="induced", disjoint=True),
    "disjoint": _nodes_with(num_neighbors=SHORT_FAN_OUT, disjoint=True),
    "temporal": lambda given: {
        "input_nodes": _nodes(given),
        "input_time": np.full(len(_nodes(given)), TIME_SPAN // 2),
        "num_neighbors": SHORT_FAN_OUT,
        "time_attr": "time",
    },
    "weighted": _nodes_with(num_neighbors=SHORT_FAN_OUT, weight="weight"),
    "ppr": _sampled("PPR", alpha=PPR_ALPHA, eps=PPR_EPS, max_ppr_nodes=PPR_NODES),
    "hgt": _sampled("HGT", list(HGT_SAMPLES)),
    "layer-wise": _sampled("LayerWise", list(LAYER_NODES)),
}


def kind_epoch(options: argparse.Namespace) -> dict[str, Any]:
    """Iterates epochs of ``options.batches`` batches of the kind ``options.kind``, and reports the speed of whole ones."""
    import torch_geometric.data  # noqa: F401 - what every user has imported before the clock starts

    from gnnkit.backends.inprocess import InProcess
    from gnnkit.graph_loader import GraphLoader

    words = KINDS[options.kind](options)
    shared = {"batch_size": options.batch_size, "drop_last": True, "backend": InProcess(num_threads=options.threads), "progress": False}
    anchors = options.kind == "anchors"
    nodes = words.pop("input_nodes") if anchors else None
    with GraphLoader.from_store(options.path, **words, **shared) as first:
        loader = first.for_anchors(LABELS, input_nodes=nodes) if anchors else first
        with loader:
            start, batches = time.perf_counter(), 0
            while time.perf_counter() - start < options.settle or loader.epoch < 1:
                for _ in loader:
                    pass
            begin = time.perf_counter()
            while batches == 0 or time.perf_counter() - begin < options.settle:
                batches += sum(1 for _ in loader)
            elapsed = time.perf_counter() - begin
            stats = loader.stats()
    return {
        "seeds_per_s": batches * options.batch_size / elapsed,
        "nodes_per_batch": stats.nodes / max(1, stats.batches),
        "edges_per_batch": stats.edges / max(1, stats.batches),
    }
