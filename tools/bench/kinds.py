"""gnnkit's own measurements of every kind of batch, and the graph and loaders that they share."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import (
    HOMOGENEOUS_NODE_TYPE,
    POSITIVE_LABELS,
    ArraySpec,
    EdgeType,
    EdgeTypeSchema,
    GraphSchema,
    NodeType,
    opposite_edge_type,
)
from gnnkit.source import CHUNK_ROWS, GraphSource
from gnnkit.waiting import Deadline


def make_loader(options: argparse.Namespace, **more: Any) -> Any:
    """A loader of the training nodes on the store ``options.path``, where ``options.servers`` or ``options.workers`` say.

    Args:
        options: See ``tools.bench.tasks``.
        **more: What it is told beside, or instead.
    """
    from gnnkit.backends.colocated import Colocated
    from gnnkit.backends.graph_store import GraphStore
    from gnnkit.backends.inprocess import InProcess
    from gnnkit.graph_loader import GraphLoader
    from gnnkit.samplers import Labor

    backend: Any = InProcess(num_threads=options.threads)
    if options.servers:
        backend = GraphStore(num_servers=options.servers)
    elif options.workers:
        backend = Colocated(num_workers=options.workers, threads_per_worker=options.threads)
    sampled: dict[str, Any] = {"sampler": Labor(options.fanout)} if options.labor else {"num_neighbors": options.fanout}
    own = {**sampled, "batch_size": options.batch_size, "input_nodes": "train", "backend": backend}
    own["shuffle"] = "parts" if options.by_part else True
    return GraphLoader.from_store(options.path, **{**own, "drop_last": True, "progress": False, **more})


def time_epochs(loader: Any, options: argparse.Namespace) -> tuple[int, float]:
    """Counts the batches of ``options.epochs`` epochs, and measures the seconds that they took."""
    begin, batches = time.perf_counter(), 0
    for _ in range(options.epochs):
        for _batch in loader:
            batches += 1
    return batches, time.perf_counter() - begin


LABELS: EdgeType = (HOMOGENEOUS_NODE_TYPE, f"to{POSITIVE_LABELS}", HOMOGENEOUS_NODE_TYPE)
# As they lie in a store that is compressed by targets: anchors own them.
_STORED_LABELS = opposite_edge_type(LABELS)
TIME_SPAN = 1 << 20
# Odd, so that its multiples visit every residue: nodes and edges that are near each other get values that are not.
_STRIDE = 0x9E3779B1


class _Wrapped:
    """A source with another schema, which passes on what it does not know better."""

    def __init__(self, source: GraphSource, kind: str, schema: GraphSchema) -> None:
        self._source, self._kind, self.schema = source, kind, schema
        self.name, self.notice, self.edges_are_cheap = f"{source.name}-{kind}", source.notice, source.edges_are_cheap
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = source.splits
        self.link_splits, self.metadata = source.link_splits, source.metadata

    def fingerprint(self) -> str:
        """See ``GraphSource.fingerprint``."""
        return hashlib.sha256(f"{self._source.fingerprint()} {self._kind}".encode()).hexdigest()

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """See ``GraphSource.edge_chunks``."""
        return self._source.edge_chunks(edge_type)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.edge_array_chunks``."""
        return self._source.edge_array_chunks(edge_type, name)

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.node_array_chunks``."""
        return self._source.node_array_chunks(node_type, name)


class Weighted(_Wrapped):
    """Edges have a "weight" float32 ``[E]`` in (0, 1].

    Args:
        source: A homogeneous graph.
    """

    def __init__(self, source: GraphSource) -> None:
        (nodes,) = source.schema.node_types.values()
        weight = {"weight": ArraySpec("float32")}
        super().__init__(source, "weighted", GraphSchema.homogeneous(nodes.num_nodes, source.schema.num_edges, nodes.arrays, weight))

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.edge_array_chunks``."""
        for start, stop in _chunks(self.schema.num_edges):
            yield ((_spread(start, stop, TIME_SPAN) + 1) / TIME_SPAN).astype(np.float32)


class Timed(_Wrapped):
    """Nodes have a "time" int64 ``[N]`` in [0, TIME_SPAN).

    Args:
        source: A homogeneous graph.
    """

    def __init__(self, source: GraphSource) -> None:
        (nodes,) = source.schema.node_types.values()
        arrays = {**nodes.arrays, "time": ArraySpec("int64")}
        super().__init__(source, "timed", GraphSchema.homogeneous(nodes.num_nodes, source.schema.num_edges, arrays))

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.node_array_chunks``."""
        if name != "time":
            yield from super().node_array_chunks(node_type, name)
            return
        for start, stop in _chunks(self.schema.num_nodes):
            yield _spread(start, stop, TIME_SPAN)


class Labeled(_Wrapped):
    """Beside its edges, every node has one that is a label.

    Args:
        source: A homogeneous graph.
    """

    def __init__(self, source: GraphSource) -> None:
        labels = EdgeTypeSchema(source.schema.num_nodes)
        super().__init__(source, "labeled", GraphSchema(source.schema.node_types, {**source.schema.edge_types, _STORED_LABELS: labels}))

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """See ``GraphSource.edge_chunks``."""
        if edge_type != _STORED_LABELS:
            yield from super().edge_chunks(edge_type)
            return
        for start, stop in _chunks(self.schema.num_nodes):
            nodes = np.arange(start, stop)
            yield np.stack([_spread(start, stop, self.schema.num_nodes), nodes])


WRAPPERS = {"weighted": Weighted, "timed": Timed, "labeled": Labeled}

# A typed graph's share of ogbn-mag's sizes at scale 1, and the features of every node: what most people give those that have none.
TYPED_SHARE, _TYPED_FEATURES = 0.25, 128
# Of the nodes at the head of an order: a few of them have a large part of the edges.
_TYPED_SKEW = 2.5


def write_typed_graph(folder: Path, scale: float) -> None:
    """Writes arrays of a graph with ogbn-mag's types and so much of its sizes: skewed degrees, every relation both ways.

    Files: "feat-TYPE.npy" float32 ``[nodes, 128]``, "edges-SOURCE-RELATION-TARGET.npy" int64 ``[2, edges]``, "train.npy" int64 (papers).

    Args:
        folder: An empty folder.
        scale: 1 is ogbn-mag's size.
    """
    from gnnkit.datasets.ogb import published_graph

    published, generator = published_graph("ogbn-mag"), np.random.default_rng(0)
    counts = {name: max(8, int(nodes.num_nodes * scale)) for name, nodes in published.schema.node_types.items()}
    for name, count in counts.items():
        np.save(folder / f"feat-{name}.npy", generator.standard_normal((count, _TYPED_FEATURES), np.float32))
    for (source, relation, target), edges in published.schema.edge_types.items():
        size = max(8, int(edges.num_edges * scale))
        ends = []
        for count in (counts[source], counts[target]):
            ranks = (generator.random(size) ** _TYPED_SKEW * count).astype(np.int64)
            ends.append(ranks * _STRIDE % count)
        np.save(folder / f"edges-{source}-{relation}-{target}.npy", np.stack(ends))
        np.save(folder / f"edges-{target}-rev_{relation}-{source}.npy", np.stack(ends[::-1]))
    train = int(published.splits["paper"]["train"] * scale)
    np.save(folder / "train.npy", np.sort(generator.permutation(counts["paper"])[: max(1, train)]))


def typed_graph(folder: Path) -> Any:
    """Returns the graph of ``write_typed_graph`` as a ``HeteroData`` on the files' memory."""
    import torch
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for path in sorted(folder.glob("feat-*.npy")):
        data[path.stem.removeprefix("feat-")].x = torch.from_numpy(np.load(path))
    for path in sorted(folder.glob("edges-*.npy")):
        data[tuple(path.stem.split("-")[1:])].edge_index = torch.from_numpy(np.load(path))
    return data


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK_ROWS):
        yield start, min(count, start + CHUNK_ROWS)


def _spread(start: int, stop: int, span: int) -> NDArray[np.int64]:
    return np.arange(start, stop, dtype=np.int64) * _STRIDE % span


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


# PyG samples these with torch-sparse: pyg-lib has nothing for them.
SPARSE_KINDS = ("induced", "shadow", "hgt")
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
    "typed": lambda given: {"input_nodes": ("paper", _nodes(given)), "num_neighbors": SHORT_FAN_OUT},
    "ppr": _sampled("PPR", alpha=PPR_ALPHA, eps=PPR_EPS, max_ppr_nodes=PPR_NODES),
    "hgt": _sampled("HGT", list(HGT_SAMPLES)),
    "layer-wise": _sampled("LayerWise", list(LAYER_NODES)),
}


# How many times as long as a loop settles, the graph's copy may take.
_SETTLES_OF_COPY = 10


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
            start, batches, copied = time.perf_counter(), 0, Deadline(options.settle * _SETTLES_OF_COPY)
            # The graph's copy in memory is in use after that, as peers have theirs from the start.
            while (
                time.perf_counter() - start < options.settle or loader.epoch < 1 or not (loader.status().graph_bytes or copied.has_passed)
            ):
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
