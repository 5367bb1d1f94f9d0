"""``products_like``: a generated graph with the shape of OGBN-Products, for trying, testing and measuring without a download.

What decides a node's label can be seen neither in its features alone nor in its neighbourhood alone: features are a weak,
noisy sign of the class, and edges lead to nodes of the same class in about three cases out of five. Nodes come in
communities of consecutive ids, degrees fall off as a power law, classes differ in size by a factor of about 50.

Nothing is stored: every chunk is generated anew when it is asked for, bit for bit the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets import synthetic_kernels as kernels
from gnnkit.errors import PlanError
from gnnkit.events import EventSink, ignore_events
from gnnkit.kernels.keys import fold
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, ArraySpec, EdgeType, GraphSchema, NodeType
from gnnkit.source import LinkSplits

if TYPE_CHECKING:
    from gnnkit.storage.options import BuildOptions
    from gnnkit.storage.store import Store

# Changes whenever the same arguments would give another graph.
GENERATOR_VERSION = 1
NOTICE = "synthetic, shaped like ogbn-products; not OGB's data"

NUM_NODES = 2_449_029
NUM_UNDIRECTED_EDGES = 61_859_140
NUM_TRAIN = 196_615
NUM_VALID = 39_323
NUM_FEATURES = 100
NUM_CLASSES = 47

_MIN_NODES = 128
_MAX_SCALE = 400.0
_LABELS, _EDGES, _NOISE, _CENTROIDS, _COMMUNITIES, _SPLIT = range(6)
# Rows per chunk: 13 to 26 MB of features, 16 MB of edges.
_FEATURE_ROWS = 1 << 16
_EDGE_ROWS = 1 << 19
# Centroids differ by about a sixth of the noise's standard deviation in each of the 100 dimensions: see ``fill_features``.
_CENTROID_SHIFT = 10


class ProductsLikeSource:
    """A ``GraphSource`` that generates a graph with OGBN-Products' shape.

    At scale 1 it has 2 449 029 nodes with 100 float32 features ("x") and one of 47 classes ("y"), and 61 859 140 undirected
    edges, each stored in both directions one after the other, as OGB stores them. 8 % of the nodes are for training.

    Args:
        scale: Size of the graph relative to OGBN-Products, above 0.
        seed: Another seed is another graph of the same kind.

    Raises:
        PlanError: The scale gives fewer than 128 nodes or is above 400, or the seed is not an integer.
    """

    def __init__(self, scale: float = 0.01, *, seed: int = 0) -> None:
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale <= _MAX_SCALE:
            raise PlanError(f"scale must be a number above 0 and at most {_MAX_SCALE:g}, got {scale!r}", "scale=1 is ogbn-products' size")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise PlanError(f"seed must be an integer, got {seed!r}")
        self.scale, self.seed = float(scale), seed
        self.num_nodes = int(NUM_NODES * self.scale + 0.5)
        self.num_undirected_edges = int(NUM_UNDIRECTED_EDGES * self.scale + 0.5)
        if self.num_nodes < _MIN_NODES:
            smallest = _MIN_NODES / NUM_NODES
            raise PlanError(
                f"scale {scale!r} gives {self.num_nodes} nodes, fewer than {_MIN_NODES}", f"use a scale of at least {smallest:.1e}"
            )
        self.name = f"products-like-{self.scale:g}"
        self.notice: str | None = NOTICE
        self.edges_are_cheap = True
        self.metadata: Mapping[str, Any] = {
            "num_classes": NUM_CLASSES,
            "num_tasks": 1,
            "task_type": "multiclass classification",
            "eval_metric": "acc",
            "scale": self.scale,
            "seed": self.seed,
        }
        self.link_splits: LinkSplits = {}
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = _RandomSplits(self._key(_SPLIT), self.num_nodes)
        self.schema = GraphSchema.homogeneous(
            self.num_nodes,
            2 * self.num_undirected_edges,
            {"x": ArraySpec("float32", (NUM_FEATURES,)), "y": ArraySpec("int64")},
        )

    def __repr__(self) -> str:
        sizes = f"{self.num_nodes:,} nodes, {self.schema.num_edges:,} edges"
        return f"ProductsLikeSource(scale={self.scale:g}, seed={self.seed})  # {sizes}; {NOTICE}"

    def fingerprint(self) -> str:
        """A digest of what decides the content: generator, sizes and seed."""
        content = ["products-like", GENERATOR_VERSION, self.num_nodes, self.num_undirected_edges, self.seed]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @cached_property
    def labels(self) -> NDArray[np.uint8]:
        """The class of every node, uint8 ``[num_nodes]``."""
        labels = np.empty(self.num_nodes, np.uint8)
        kernels.fill_labels(self._key(_LABELS), 0, self._community_size, self._community_class, _class_bounds(), labels)
        return labels

    def edge_chunks(self, edge_type: EdgeType = HOMOGENEOUS_EDGE_TYPE) -> Iterator[NDArray[np.int64]]:
        """Yields int64 ``[2, k]``: an edge, its inverse, the next edge, its inverse, and so on."""
        _check(edge_type, HOMOGENEOUS_EDGE_TYPE, "edge type")
        communities = np.argsort(self._community_class, kind="stable")
        class_start = np.searchsorted(self._community_class[communities], np.arange(NUM_CLASSES + 1))
        stride = _coprime(self.num_nodes)
        for start in range(0, self.num_undirected_edges, _EDGE_ROWS):
            out = np.empty((2, 2 * min(_EDGE_ROWS, self.num_undirected_edges - start)), np.int64)
            kernels.fill_edges(self._key(_EDGES), start, self._community_size, stride, self.labels, communities, class_start, out)
            yield out

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """The edges carry nothing.

        Raises:
            PlanError: Always.
        """
        raise PlanError(f"the edges of {self.name} carry no array {name!r}")

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of "x" (float32 ``[k, 100]``) or "y" (int64 ``[k]``).

        Raises:
            PlanError: There is no such array.
        """
        _check(node_type, HOMOGENEOUS_NODE_TYPE, "node type")
        if name not in ("x", "y"):
            raise PlanError(f"the nodes of {self.name} carry 'x' and 'y', not {name!r}")
        return self._features() if name == "x" else self._label_chunks()

    def _features(self) -> Iterator[NDArray[np.float32]]:
        key, centroids = self._key(_NOISE), self._centroids()
        for start in range(0, self.num_nodes, _FEATURE_ROWS):
            out = np.empty((min(_FEATURE_ROWS, self.num_nodes - start), NUM_FEATURES), np.float32)
            kernels.fill_features(key, start, self.labels, centroids, out)
            yield out

    def _label_chunks(self) -> Iterator[NDArray[np.int64]]:
        for start in range(0, self.num_nodes, _EDGE_ROWS):
            yield self.labels[start : start + _EDGE_ROWS].astype(np.int64)

    def _key(self, purpose: int) -> np.uint64:
        key: np.uint64 = np.uint64(fold(fold(fold(0, GENERATOR_VERSION), self.seed & (1 << 64) - 1), purpose))
        return key

    def _centroids(self) -> NDArray[np.int64]:
        # Sums of two uniform 16-bit numbers less their mean, in units of 2**-FEATURE_BITS.
        hashes = np.empty(NUM_CLASSES * NUM_FEATURES, np.uint64)
        kernels.fill_hashes(self._key(_CENTROIDS), hashes)
        total = (hashes & np.uint64(0xFFFF)) + (hashes >> np.uint64(48))
        centroids: NDArray[np.int64] = (total.astype(np.int64) - 65535) >> _CENTROID_SHIFT
        return centroids.reshape(NUM_CLASSES, NUM_FEATURES)

    @property
    def _community_size(self) -> int:
        # Large enough that most edges of a community join different pairs, small enough that every class has communities.
        size = 64
        while size < 1024 and size * 192 <= self.num_nodes:
            size *= 2
        return size

    @cached_property
    def _community_class(self) -> NDArray[np.int64]:
        # Classes get shares of the communities by size (quantiles, not draws: also a small graph has about all of them).
        count = max(self.num_nodes // self._community_size, 1)
        quantiles = (2 * np.arange(count, dtype=np.int64) + 1) * (1 << 31) // count
        by_rank = np.searchsorted(_class_bounds(), quantiles, side="right") - 1
        classes = np.empty(count, np.int64)
        classes[_shuffled(self._key(_COMMUNITIES), count)] = by_rank
        return classes


class _RandomSplits(Mapping[NodeType, Mapping[str, NDArray[np.int64]]]):
    """Random train, valid and test nodes in OGB's proportions, ascending; drawn when they are first asked for."""

    def __init__(self, key: np.uint64, num_nodes: int) -> None:
        self._key, self._num_nodes = key, num_nodes

    def __getitem__(self, node_type: NodeType) -> Mapping[str, NDArray[np.int64]]:
        if node_type != HOMOGENEOUS_NODE_TYPE:
            raise KeyError(node_type)
        return self._ids

    def __iter__(self) -> Iterator[NodeType]:
        return iter((HOMOGENEOUS_NODE_TYPE,))

    def __len__(self) -> int:
        return 1

    @cached_property
    def _ids(self) -> dict[str, NDArray[np.int64]]:
        order = _shuffled(self._key, self._num_nodes)
        train = NUM_TRAIN * self._num_nodes // NUM_NODES
        valid = train + NUM_VALID * self._num_nodes // NUM_NODES
        parts = {"train": order[:train], "valid": order[train:valid], "test": order[valid:]}
        return {name: np.sort(ids) for name, ids in parts.items()}


@overload
def products_like(scale: float = 0.01, *, seed: int = 0, out: None = None) -> ProductsLikeSource: ...


@overload
def products_like(
    scale: float = 0.01, *, seed: int = 0, out: str | Path, options: BuildOptions | None = None, events: EventSink = ignore_events
) -> Store: ...


def products_like(
    scale: float = 0.01,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    options: BuildOptions | None = None,
    events: EventSink = ignore_events,
) -> ProductsLikeSource | Store:
    """A generated graph with OGBN-Products' shape, to be given to ``GraphLoader`` or ``gnnkit.partition``, or as a store.

    Args:
        scale: Size relative to OGBN-Products: 1 is 2 449 029 nodes and 123 718 280 directed edges.
        seed: Another seed is another graph of the same kind.
        out: Folder to build a store in; None only describes the graph.
        options: How to build the store; None is one part.
        events: Receives the progress of the build.

    Returns:
        A source that generates the graph whenever it is read (``write_ogb_layout`` writes it as files), or with ``out`` the store.

    Raises:
        PlanError: See ``ProductsLikeSource``.
        StoreError: The store cannot be built.
    """
    source = ProductsLikeSource(scale, seed=seed)
    if out is None:
        return source
    from gnnkit.storage.build import build_store
    from gnnkit.storage.options import BuildOptions

    return build_store(source, Path(out), BuildOptions() if options is None else options, events)


def _shuffled(key: np.uint64, count: int) -> NDArray[np.int64]:
    hashes = np.empty(count, np.uint64)
    kernels.fill_hashes(key, hashes)
    return np.argsort(hashes, kind="stable").astype(np.int64)


def _class_bounds() -> NDArray[np.int64]:
    # Class k has a share of 1 / (k + 1): the largest 23 %, the smallest 0.5 %. Integers: [num_classes + 1], 0 to 2**32.
    shares = [0]
    for k in range(NUM_CLASSES):
        shares.append(shares[-1] + (1 << 40) // (k + 1))
    return np.array([share * (1 << 32) // shares[-1] for share in shares], np.int64)


def _coprime(count: int) -> int:
    # Near the golden section, whose multiples are spread most evenly.
    stride = count * 618_034 // 1_000_000
    while math.gcd(stride, count) != 1:
        stride += 1
    return stride


def _check(got: object, expected: object, what: str) -> None:
    if got != expected:
        raise PlanError(f"unknown {what} {got!r}", f"a homogeneous graph has only {expected!r}")
