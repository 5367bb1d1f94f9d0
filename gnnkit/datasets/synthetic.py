"""``products_like`` and ``papers_like``: generated graphs with the shapes of OGBN-Products and OGBN-Papers100M, without a download.

What decides a node's label can be seen neither in its features alone nor in its neighbourhood alone: features are a weak,
noisy sign of the class, and edges lead to nodes of the same class as a rule. Nodes come in communities, degrees fall off as a power law,
classes differ in size by a factor of about 50 and more.

Nothing is stored: every chunk is generated anew when it is asked for, bit for bit the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numba import uint64
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.arguments import checks_calls
from gnnkit.datasets.ogb_table import with_inverses
from gnnkit.datasets.streaming import overlap
from gnnkit.errors import PlanError
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import user_path
from gnnkit.host import available_cpus
from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.keys import fold
from gnnkit.kernels.native import multiply_high
from gnnkit.kernels.stream import bounded, draw_u64, fold_u64
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, ArraySpec, EdgeType, GraphSchema, NodeType
from gnnkit.source import LazyMapping, LinkSplits, RangedSource
from gnnkit.storage.build import build_store
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.store import Store

# Features are multiples of 2**-7 (0.0078125) below 8 in magnitude: exact in float16 and short as text.
FEATURE_BITS = 7
# Elements of ``law`` int64 [13], which decides a graph's edges and labels.
# Popularity falls off as ``rank ** (1 / POWER - 1)``. It begins at the share HEAD of 2**64, without which the largest hub would grow with
# the graph; HEAD_RAISED is that to the power.
POWER, HEAD, HEAD_RAISED = range(3)
# Shares of edges, in 1/256: to the same community, to another community of the source's class; the rest goes anywhere.
LOCAL, SIMILAR = 3, 4
# Share of nodes, in 1/256, that have their community's class; the others draw any class by its size.
TYPICAL = 5
# Share of edges, in 1/256, whose popular end lies among the first REGION nodes in the order of communities.
FOCUS, REGION = 6, 7
# Coprime to the numbers of nodes and of the region's nodes: they spread the ranks of popularity over all ids.
STRIDE, REGION_STRIDE = 8, 9
# A node's id is its place in the order of communities times SPREAD, modulo the number of nodes; GATHER is the inverse of SPREAD.
SPREAD, GATHER = 10, 11
COMMUNITY_SIZE = 12
LAW_SIZE = 13


@helper
def _popular(draw: np.uint64, count: int, law: NDArray[np.int64]) -> int:
    """Maps a draw to a rank in ``[0, count)`` with a probability that falls off as a power law, cut off at the head."""
    root = uint64(law[HEAD]) + multiply_high(draw, uint64(0) - uint64(law[HEAD]))
    raised = root
    for _ in range(law[POWER] - 1):
        raised = multiply_high(raised, root)
    rank: int = np.int64(multiply_high(raised - min(raised, uint64(law[HEAD_RAISED])), uint64(count)))
    return rank


@helper
def _member(draw: np.uint64, community: int, size: int, num_communities: int, num_nodes: int) -> int:
    """A node of a community, with probability about ``rank ** (-1 / 2)``; the last one also holds what the division left over."""
    first = community * size
    count = num_nodes - first if community == num_communities - 1 else size
    rank: int = np.int64(multiply_high(multiply_high(draw, draw), uint64(count)))
    return first + rank


@kernel("void(uint64, int64[::1], int64[::1], int64[::1], uint8[::1])")
def fill_labels(
    key: np.uint64, law: NDArray[np.int64], community_class: NDArray[np.int64], class_bounds: NDArray[np.int64], out: NDArray[np.uint8]
) -> None:
    """Labels of all nodes: mostly the class of the node's community.

    Args:
        key: Key of the labels' draws.
        law: See ``LAW_SIZE``.
        community_class: ``[num_communities]``.
        class_bounds: ``[num_classes + 1]``, cumulative sizes of the classes from 0 to ``2**32``.
        out: ``[num_nodes]``, filled.
    """
    last = community_class.size - 1
    for node in range(out.size):
        node_key = fold_u64(key, uint64(node))
        if np.int64(draw_u64(node_key, 0) >> uint64(56)) < law[TYPICAL]:
            out[node] = community_class[min(node * law[GATHER] % out.size // law[COMMUNITY_SIZE], last)]
        else:
            draw = np.int64(draw_u64(node_key, 1) >> uint64(32))
            out[node] = np.searchsorted(class_bounds, draw, side="right") - 1


@kernel("void(uint64, int64, int64[::1], uint8[::1], int64[::1], int64[::1], int64[:, ::1])")
def fill_edges(
    key: np.uint64,
    start: int,
    law: NDArray[np.int64],
    labels: NDArray[np.uint8],
    communities: NDArray[np.int64],
    class_start: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Edges from ``start`` on, each from a popular node to a node that it is near to; none is a self loop.

    Args:
        key: Key of the edges' draws.
        start: The first edge.
        law: See ``LAW_SIZE``.
        labels: ``[num_nodes]``.
        communities: ``[num_communities]``, sorted by class.
        class_start: ``[num_classes + 1]``, where each class starts in ``communities``.
        out: ``[2, count]``, filled: popular nodes, then the others.
    """
    num_nodes, num_communities, size, spread = labels.size, communities.size, law[COMMUNITY_SIZE], law[SPREAD]
    for i in range(out.shape[1]):
        edge_key = fold_u64(key, uint64(start + i))
        kinds = draw_u64(edge_key, 1)
        kind = np.int64(kinds >> uint64(56))
        if np.int64(kinds >> uint64(48) & uint64(0xFF)) < law[FOCUS]:
            source = _popular(draw_u64(edge_key, 0), law[REGION], law) * law[REGION_STRIDE] % law[REGION]
        else:
            source = _popular(draw_u64(edge_key, 0), num_nodes, law) * law[STRIDE] % num_nodes
        label = labels[source * spread % num_nodes]
        low, high = class_start[label], class_start[label + 1]
        if kind < law[LOCAL]:
            community = min(source // size, num_communities - 1)
            target = _member(draw_u64(edge_key, 2), community, size, num_communities, num_nodes)
        elif kind < law[LOCAL] + law[SIMILAR] and high > low:
            community = communities[low + bounded(draw_u64(edge_key, 3), high - low)]
            target = _member(draw_u64(edge_key, 2), community, size, num_communities, num_nodes)
            if labels[target * spread % num_nodes] != label:
                target = _member(draw_u64(edge_key, 4), community, size, num_communities, num_nodes)
        else:
            target = _popular(draw_u64(edge_key, 2), num_nodes, law) * law[STRIDE] % num_nodes
        if target == source:
            target = source - 1 if source > 0 else 1
        out[0, i], out[1, i] = source * spread % num_nodes, target * spread % num_nodes


@kernel("void(uint64, int64, uint8[::1], int64[:, ::1], float32[:, ::1])")
def fill_features(key: np.uint64, start: int, labels: NDArray[np.uint8], centroids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Features of the nodes from ``start`` on: the class' centroid and nearly normal noise of standard deviation 1.15.

    Args:
        key: Key of the noise.
        start: The first node.
        labels: ``[num_nodes]``.
        centroids: ``[num_classes, num_features]``, in units of ``2**-FEATURE_BITS``.
        out: ``[count, num_features]``, filled.
    """
    quantum = np.float32(1.0 / (1 << FEATURE_BITS))
    for i in range(out.shape[0]):
        node_key = fold_u64(key, uint64(start + i))
        label = labels[start + i]
        for j in range(out.shape[1]):
            draw = draw_u64(node_key, j)
            # The sum of four uniform 16-bit numbers is bell-shaped (Irwin and Hall); its mean is 2 * 65535.
            total = (
                (draw & uint64(0xFFFF))
                + ((draw >> uint64(16)) & uint64(0xFFFF))
                + ((draw >> uint64(32)) & uint64(0xFFFF))
                + (draw >> uint64(48))
            )
            noise = (np.int64(total) - 131070) >> 8
            out[i, j] = np.float32(centroids[label, j] + noise) * quantum


@kernel("void(uint64, uint64[::1])")
def fill_hashes(key: np.uint64, out: NDArray[Any]) -> None:
    """``out[i]`` is the draw of number ``i``: sorting by it shuffles."""
    for i in range(out.size):
        out[i] = draw_u64(key, i)


T = TypeVar("T", bound=np.generic)

# Changes whenever the same arguments would give another graph.
GENERATOR_VERSION = 1

_LABELS, _EDGES, _NOISE, _CENTROIDS, _COMMUNITIES, _SPLIT = range(6)
# Rows per chunk: 13 to 17 MB of features, 16 MB of edges.
_FEATURE_ROWS = 1 << 15
_EDGE_ROWS = 1 << 19
# Centroids differ by about a sixth of the noise's standard deviation in each of the 100 dimensions: see ``fill_features``.
_CENTROID_SHIFT = 10
# Communities have at least so many nodes, and at most.
_SMALLEST_COMMUNITY, _LARGEST_COMMUNITY = 64, 1024


@dataclass(frozen=True)
class GraphShape:
    """The shape of a generated graph at scale 1, and the law by which its edges fall.

    Attributes:
        name: Its own name, which names of sources begin with.
        dataset: The OGB dataset whose shape it has.
        num_nodes, num_draws: Nodes, and edges that are drawn.
        both_directions: Whether each drawn edge is stored in both directions, one after the other; else it goes to its popular end.
        num_features, num_classes: float32 features of a node, and its classes.
        splits: Sizes of "train", "valid" and "test". Where they are not all nodes, the others have the label -1.
        min_nodes, max_scale: The smallest graph and the largest one.
        num_communities: Communities that even a small graph has, before they grow.
        num_fields: Further classes, of nodes that are in no split: each is a field of research without labels.
        labelled_share: Share of the nodes that have one of ``num_classes`` classes.
        power, head: Popularity falls off as ``rank ** (1 / power - 1)``, and begins at this share of all.
        local, similar, focus, typical: Shares in 1/256, see ``LOCAL``, ``SIMILAR``, ``FOCUS`` and ``TYPICAL``.
        scattered: Whether the nodes of a community have ids far from each other; else they follow each other.
    """

    name: str
    dataset: str
    num_nodes: int
    num_draws: int
    both_directions: bool
    num_features: int
    num_classes: int
    splits: Mapping[str, int]
    min_nodes: int
    max_scale: float
    num_communities: int
    num_fields: int
    labelled_share: Fraction
    power: int
    head: Fraction
    local: int
    similar: int
    focus: int
    typical: int
    scattered: bool

    @property
    def notice(self) -> str:
        """The line that is shown wherever the graph is."""
        return f"synthetic, shaped like {self.dataset}; not OGB's data"

    def class_bounds(self) -> NDArray[np.int64]:
        """Cumulative sizes of classes and fields: int64 ``[num_classes + num_fields + 1]``, from 0 to ``2**32``.

        Class k has a share of 1 / (k + 1) of the labelled nodes, fields are equally large.
        """
        shares = [0]
        for k in range(self.num_classes):
            shares.append(shares[-1] + (1 << 40) // (k + 1))
        rest = int(shares[-1] / self.labelled_share) - shares[-1]
        shares += [shares[-1] + rest * (k + 1) // self.num_fields for k in range(self.num_fields)]
        return np.array([share * (1 << 32) // shares[-1] for share in shares], np.int64)


PRODUCTS = GraphShape(
    name="products-like",
    dataset="ogbn-products",
    num_nodes=2_449_029,
    num_draws=61_859_140,
    both_directions=True,
    num_features=100,
    num_classes=47,
    splits={"train": 196_615, "valid": 39_323, "test": 2_213_091},
    min_nodes=128,
    max_scale=400.0,
    num_communities=192,
    num_fields=0,
    labelled_share=Fraction(1),
    power=3,
    head=Fraction(1, 40),
    local=112,
    similar=104,
    focus=0,
    typical=170,
    scattered=False,
)
# Chosen so that batches touch as much of the graph, and the same nodes again as often, as is published of the real one: docs/datasets.md.
PAPERS = GraphShape(
    name="papers-like",
    dataset="ogbn-papers100M",
    num_nodes=111_059_956,
    num_draws=1_615_685_872,
    both_directions=False,
    num_features=128,
    num_classes=172,
    splits={"train": 1_207_179, "valid": 125_265, "test": 214_338},
    min_nodes=4096,
    max_scale=9.0,
    num_communities=4096,
    num_fields=83,
    labelled_share=Fraction(1, 20),
    power=5,
    head=Fraction(7, 100),
    local=26,
    similar=222,
    focus=51,
    typical=256,
    scattered=True,
)


class GeneratedSource(RangedSource):
    """A ``GraphSource`` that generates a graph.

    Args:
        shape: What it is like.
        scale: Size of the graph relative to the shape's dataset, above 0.
        seed: Another seed is another graph of the same kind.

    Raises:
        PlanError: The scale gives too few nodes or is too large, or the seed is not an integer.
    """

    def __init__(self, shape: GraphShape, scale: float, seed: int) -> None:
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale <= shape.max_scale:
            hint = f"scale=1 is {shape.dataset}'s size"
            raise PlanError(f"scale must be a number above 0 and at most {shape.max_scale:g}, got {scale!r}", hint)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise PlanError(f"seed must be an integer, got {seed!r}")
        self.shape, self.scale, self.seed = shape, float(scale), seed
        self.num_nodes = int(shape.num_nodes * self.scale + 0.5)
        self.num_draws = int(shape.num_draws * self.scale + 0.5)
        if self.num_nodes < shape.min_nodes:
            smallest = shape.min_nodes / shape.num_nodes
            raise PlanError(
                f"scale {scale!r} gives {self.num_nodes} nodes, fewer than {shape.min_nodes}", f"use a scale of at least {smallest:.1e}"
            )
        self.name = f"{shape.name}-{self.scale:g}"
        self.notice: str | None = shape.notice
        self.edges_are_cheap = True
        self.metadata: Mapping[str, Any] = {
            "num_classes": shape.num_classes,
            "num_tasks": 1,
            "task_type": "multiclass classification",
            "eval_metric": "acc",
            "scale": self.scale,
            "seed": self.seed,
        }
        self.link_splits: LinkSplits = {}
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = LazyMapping([HOMOGENEOUS_NODE_TYPE], self._splits_of)
        self.schema = GraphSchema.homogeneous(
            self.num_nodes,
            self.num_draws * (1 + shape.both_directions),
            {"x": ArraySpec("float32", (shape.num_features,)), "y": ArraySpec("int64")},
        )

    def __repr__(self) -> str:
        sizes = f"{self.num_nodes:,} nodes, {self.schema.num_edges:,} edges"
        return f"GeneratedSource({self.name!r}, seed={self.seed})  # {sizes}; {self.notice}"

    def fingerprint(self) -> str:
        """A digest of what decides the content: generator, sizes and seed."""
        content = [self.shape.name, GENERATOR_VERSION, self.num_nodes, self.num_draws, self.seed]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @cached_property
    def labels(self) -> NDArray[np.uint8]:
        """The class of every node, or its field after these, uint8 ``[num_nodes]``."""
        labels = np.empty(self.num_nodes, np.uint8)
        fill_labels(self._key(_LABELS), self._law, self._community_class, self.shape.class_bounds(), labels)
        return labels

    def edge_chunks(self, edge_type: EdgeType = HOMOGENEOUS_EDGE_TYPE) -> Iterator[NDArray[np.int64]]:
        """Yields int64 ``[2, k]``; where both directions are stored, an edge, its inverse, the next edge, its inverse, and so on."""
        _check(edge_type, HOMOGENEOUS_EDGE_TYPE, "edge type")
        return self._ahead(self.num_draws, _EDGE_ROWS, self._edges_from)

    @override
    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        _check(edge_type, HOMOGENEOUS_EDGE_TYPE, "edge type")
        each = 1 + self.shape.both_directions
        start = first // each
        edges = self._edges_from(start, -(-last // each) - start)
        return edges[:, first - start * each : last - start * each]

    def _edges_from(self, start: int, count: int) -> NDArray[np.int64]:
        out = np.empty((2, count), np.int64)
        fill_edges(self._key(_EDGES), start, self._law, self.labels, *self._communities_by_class, out)
        return with_inverses(out[0], out[1]) if self.shape.both_directions else out[::-1]

    def _ahead(self, total: int, step: int, make: Callable[[int, int], NDArray[T]]) -> Iterator[NDArray[T]]:
        """Yields the chunks of an array, which are generated ahead in as many threads as there are processors."""
        _ = self.labels, self._law, self._communities_by_class, self._centroids  # what the threads share is made once
        threads = available_cpus()
        pieces = ((start, min(step, total - start)) for start in range(0, total, step))
        return overlap(pieces, lambda piece: make(*piece), num_threads=threads, depth=threads + 1)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """The edges carry nothing.

        Raises:
            PlanError: Always.
        """
        raise PlanError(f"the edges of {self.name} carry no array {name!r}")

    @override
    def edge_array_rows(self, edge_type: EdgeType, name: str, first: int, last: int) -> NDArray[Any]:
        raise PlanError(f"the edges of {self.name} carry no array {name!r}")

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of "x" (float32 ``[k, num_features]``) or "y" (int64 ``[k]``, -1 for nodes without a label).

        Raises:
            PlanError: There is no such array.
        """
        make = self._maker(node_type, name)
        return self._ahead(self.num_nodes, _FEATURE_ROWS if name == "x" else _EDGE_ROWS, make)

    @override
    def node_array_rows(self, node_type: NodeType, name: str, first: int, last: int) -> NDArray[Any]:
        return self._maker(node_type, name)(first, last - first)

    def _maker(self, node_type: NodeType, name: str) -> Callable[[int, int], NDArray[Any]]:
        _check(node_type, HOMOGENEOUS_NODE_TYPE, "node type")
        if name not in ("x", "y"):
            raise PlanError(f"the nodes of {self.name} carry 'x' and 'y', not {name!r}")
        return self._features_from if name == "x" else self._labels_from

    def _features_from(self, start: int, count: int) -> NDArray[np.float32]:
        out = np.empty((count, self.shape.num_features), np.float32)
        fill_features(self._key(_NOISE), start, self.labels, self._centroids, out)
        return out

    def _labels_from(self, start: int, count: int) -> NDArray[np.int64]:
        classes = self.labels[start : start + count].astype(np.int64)
        if self._num_labelled == self.num_nodes:
            return classes
        first, last = np.searchsorted(self._labelled, [start, start + count])
        labels, some = np.full(count, -1, np.int64), self._labelled[first:last] - start
        labels[some] = classes[some]
        return labels

    @property
    def _num_labelled(self) -> int:
        """Nodes in splits."""
        return self.num_nodes if not self.shape.num_fields else sum(self._split_sizes.values())

    @property
    def _split_sizes(self) -> dict[str, int]:
        return {name: count * self.num_nodes // self.shape.num_nodes for name, count in self.shape.splits.items()}

    @cached_property
    def _labelled(self) -> NDArray[np.int64]:
        """The nodes that are in splits, ascending."""
        return np.sort(np.concatenate(list(self.splits[HOMOGENEOUS_NODE_TYPE].values())))

    def _splits_of(self, node_type: NodeType) -> dict[str, NDArray[np.int64]]:
        """Random train, valid and test nodes in OGB's proportions, each ascending: of all nodes, or of those that have a class."""
        if not self.shape.num_fields:
            order = _shuffled(self._key(_SPLIT), self.num_nodes)
        else:
            some = np.flatnonzero(self.labels < self.shape.num_classes)
            order = some[_shuffled(self._key(_SPLIT), len(some))]
        (train, valid, _), stop = self._split_sizes.values(), self._num_labelled
        parts = {"train": order[:train], "valid": order[train : train + valid], "test": order[train + valid : stop]}
        return {name: np.sort(ids) for name, ids in parts.items()}

    def _key(self, purpose: int) -> np.uint64:
        key: np.uint64 = np.uint64(fold(fold(fold(0, GENERATOR_VERSION), self.seed & (1 << 64) - 1), purpose))
        return key

    @cached_property
    def _centroids(self) -> NDArray[np.int64]:
        # Sums of two uniform 16-bit numbers less their mean, in units of 2**-FEATURE_BITS.
        count = self.shape.num_classes + self.shape.num_fields
        hashes = np.empty(count * self.shape.num_features, np.uint64)
        fill_hashes(self._key(_CENTROIDS), hashes)
        total = (hashes & np.uint64(0xFFFF)) + (hashes >> np.uint64(48))
        centroids: NDArray[np.int64] = (total.astype(np.int64) - 65535) >> _CENTROID_SHIFT
        return centroids.reshape(count, self.shape.num_features)

    @property
    def _community_size(self) -> int:
        # Large enough that most edges of a community join different pairs, small enough that every class has communities.
        size = _SMALLEST_COMMUNITY
        while size < _LARGEST_COMMUNITY and size * self.shape.num_communities <= self.num_nodes:
            size *= 2
        return size

    @cached_property
    def _community_class(self) -> NDArray[np.int64]:
        # Classes get shares of the communities by size (quantiles, not draws: also a small graph has about all of them). Those of nodes
        # with labels come first where there are others.
        count = max(self.num_nodes // self._community_size, 1)
        quantiles = (2 * np.arange(count, dtype=np.int64) + 1) * (1 << 31) // count
        by_rank = np.searchsorted(self.shape.class_bounds(), quantiles, side="right") - 1
        classes = np.empty(count, np.int64)
        classes[_shuffled(self._key(_COMMUNITIES), count)] = by_rank
        return classes if not self.shape.num_fields else classes[np.argsort(classes >= self.shape.num_classes, kind="stable")]

    @cached_property
    def _communities_by_class(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The communities sorted by class, and where each class starts among them."""
        communities = np.argsort(self._community_class, kind="stable")
        count = self.shape.num_classes + self.shape.num_fields
        return communities, np.searchsorted(self._community_class[communities], np.arange(count + 1))

    @cached_property
    def _law(self) -> NDArray[np.int64]:
        shape, size = self.shape, self._community_size
        region = int((self._community_class < shape.num_classes).sum()) * size if shape.focus else 1
        spread = _coprime(self.num_nodes, _SILVER) if shape.scattered else 1
        head = int((1 << 64) * shape.head)
        law = np.empty(LAW_SIZE, np.int64)
        law[[POWER, HEAD, HEAD_RAISED]] = shape.power, head, head**shape.power >> 64 * (shape.power - 1)
        law[[LOCAL, SIMILAR, TYPICAL, FOCUS]] = shape.local, shape.similar, shape.typical, shape.focus
        law[[REGION, REGION_STRIDE, STRIDE]] = region, _coprime(region, _GOLDEN), _coprime(self.num_nodes, _GOLDEN)
        law[[SPREAD, GATHER]] = spread, pow(spread, -1, self.num_nodes)
        law[COMMUNITY_SIZE] = size
        return law


@overload
def products_like(scale: float = 0.01, *, seed: int = 0, out: None = None) -> GeneratedSource: ...


@overload
def products_like(
    scale: float = 0.01, *, seed: int = 0, out: str | Path, options: BuildOptions | None = None, events: EventSink = ignore_events
) -> Store: ...


@checks_calls()
def products_like(
    scale: float = 0.01,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    options: BuildOptions | None = None,
    events: EventSink = ignore_events,
) -> GeneratedSource | Store:
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
        PlanError: See ``GeneratedSource``.
        StoreError: The store cannot be built.
    """
    return _made(PRODUCTS, scale, seed, out, options, events)


@overload
def papers_like(scale: float = 0.001, *, seed: int = 0, undirected: bool = False, out: None = None) -> GeneratedSource: ...


@overload
def papers_like(
    scale: float = 0.001,
    *,
    seed: int = 0,
    undirected: bool = False,
    out: str | Path,
    options: BuildOptions | None = None,
    events: EventSink = ignore_events,
) -> Store: ...


@checks_calls()
def papers_like(
    scale: float = 0.001,
    *,
    seed: int = 0,
    undirected: bool = False,
    out: str | Path | None = None,
    options: BuildOptions | None = None,
    events: EventSink = ignore_events,
) -> GeneratedSource | Store:
    """A generated graph with OGBN-Papers100M's shape, to be given to ``GraphLoader`` or ``gnnkit.partition``, or as a store.

    Edges go from the citing paper to the cited one. 1.4 % of the nodes have a label and are in a split, all of them in a twentieth of the
    graph that is denser than the rest; the label of the others is -1. Ids say nothing about who is near to whom. docs/datasets.md has how
    much of the graph batches touch, beside what is published of the real one.

    Args:
        scale: Size relative to OGBN-Papers100M: 1 is 111 059 956 nodes, 1 615 685 872 directed edges, 57 GB of features; at most 9.
        seed: Another seed is another graph of the same kind.
        undirected: Stores each edge in both directions, one after the other: batches touch far more of the graph then.
        out: Folder to build a store in; None only describes the graph.
        options: How to build the store; None is one part.
        events: Receives the progress of the build.

    Returns:
        A source that generates the graph whenever it is read (``write_ogb_layout`` writes it as files), or with ``out`` the store.

    Raises:
        PlanError: See ``GeneratedSource``.
        StoreError: The store cannot be built.
    """
    shape = replace(PAPERS, name=f"{PAPERS.name}-undirected", both_directions=True) if undirected else PAPERS
    return _made(shape, scale, seed, out, options, events)


def _made(
    shape: GraphShape, scale: float, seed: int, out: str | Path | None, options: BuildOptions | None, events: EventSink
) -> GeneratedSource | Store:
    source = GeneratedSource(shape, scale, seed)
    if out is None:
        return source
    return build_store(source, user_path(out), BuildOptions() if options is None else options, events)


def _shuffled(key: np.uint64, count: int) -> NDArray[np.int64]:
    hashes = np.empty(count, np.uint64)
    fill_hashes(key, hashes)
    return np.argsort(hashes, kind="stable").astype(np.int64)


# Multiples of the golden section are spread most evenly, and of the silver one next; in millionths.
_GOLDEN, _SILVER = 618_034, 414_214


def _coprime(count: int, section: int) -> int:
    """A number coprime to ``count``, near a share of it."""
    stride = max(1, count * section // 1_000_000)
    while math.gcd(stride, count) != 1:
        stride += 1
    return stride


def _check(got: object, expected: object, what: str) -> None:
    if got != expected:
        raise PlanError(f"unknown {what} {got!r}", f"a homogeneous graph has only {expected!r}")
