"""The kernels behind ``products_like``: integer arithmetic only, so that every machine generates the same graph.

Node ``v``, edge ``e`` and feature ``(v, j)`` are functions of the seed and of their own number alone: chunks may be cut
anywhere and generated in any order. All draws come from the SplitMix64 generator of ``gnnkit.kernels.stream``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.native import multiply_high
from gnnkit.kernels.stream import bounded, draw_u64, fold_u64

# Where the cubic law of popularity starts, as a share of 2**64: without it the largest hub would grow with the graph.
_HEAD = (1 << 64) // 40
_REST = (1 << 64) - _HEAD
_HEAD_CUBED = (_HEAD * _HEAD * _HEAD) >> 128
# Features are multiples of 2**-7 (0.0078125) below 8 in magnitude: exact in float16 and short as text.
FEATURE_BITS = 7
# Shares of edges, in 1/256: to the same community, to another community of the source's class; the rest goes anywhere.
_LOCAL_SHARE = 112
_SIMILAR_SHARE = 104
# Share of nodes, in 1/256, that have their community's class; the others draw any class by its size.
_TYPICAL_SHARE = 170


@helper
def _popular(draw: np.uint64, count: int) -> int:
    """Maps a draw to a rank in ``[0, count)`` with probability about ``rank ** (-2 / 3)``, cut off at the head."""
    root = uint64(_HEAD) + multiply_high(draw, uint64(_REST))
    cube = multiply_high(multiply_high(root, root), root)
    rank: int = np.int64(multiply_high(cube - min(cube, uint64(_HEAD_CUBED)), uint64(count)))
    return rank


@helper
def _member(draw: np.uint64, community: int, size: int, num_communities: int, num_nodes: int) -> int:
    """A node of a community, with probability about ``rank ** (-1 / 2)``; the last one also holds what the division left over."""
    first = community * size
    count = num_nodes - first if community == num_communities - 1 else size
    rank: int = np.int64(multiply_high(multiply_high(draw, draw), uint64(count)))
    return first + rank


@kernel("void(uint64, int64, int64, int64[::1], int64[::1], uint8[::1])")
def fill_labels(
    key: np.uint64,
    start: int,
    community_size: int,
    community_class: NDArray[np.int64],
    class_bounds: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Labels of the nodes from ``start`` on: mostly the class of the node's community.

    Args:
        key: Key of the labels' draws.
        start: The first node.
        community_size: Nodes per community.
        community_class: ``[num_communities]``.
        class_bounds: ``[num_classes + 1]``, cumulative sizes of the classes from 0 to ``2**32``.
        out: ``[count]``, filled.
    """
    last = community_class.size - 1
    for i in range(out.size):
        node = start + i
        node_key = fold_u64(key, uint64(node))
        if draw_u64(node_key, 0) >> uint64(56) < uint64(_TYPICAL_SHARE):
            out[i] = community_class[min(node // community_size, last)]
        else:
            draw = np.int64(draw_u64(node_key, 1) >> uint64(32))
            out[i] = np.searchsorted(class_bounds, draw, side="right") - 1


@kernel("void(uint64, int64, int64, int64, uint8[::1], int64[::1], int64[::1], int64[:, ::1])")
def fill_edges(
    key: np.uint64,
    start: int,
    community_size: int,
    stride: int,
    labels: NDArray[np.uint8],
    communities: NDArray[np.int64],
    class_start: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Undirected edges from ``start`` on, each followed by its inverse; none is a self loop.

    Args:
        key: Key of the edges' draws.
        start: The first undirected edge.
        community_size: Nodes per community.
        stride: Coprime to the number of nodes: spreads the ranks of popularity over all ids.
        labels: ``[num_nodes]``.
        communities: ``[num_communities]``, sorted by class.
        class_start: ``[num_classes + 1]``, where each class starts in ``communities``.
        out: ``[2, 2 * count]``, filled.
    """
    num_nodes, num_communities = labels.size, communities.size
    for i in range(out.shape[1] // 2):
        edge_key = fold_u64(key, uint64(start + i))
        source = _popular(draw_u64(edge_key, 0), num_nodes) * stride % num_nodes
        kind = draw_u64(edge_key, 1) >> uint64(56)
        low, high = class_start[labels[source]], class_start[labels[source] + 1]
        if kind < uint64(_LOCAL_SHARE):
            community = min(source // community_size, num_communities - 1)
            target = _member(draw_u64(edge_key, 2), community, community_size, num_communities, num_nodes)
        elif kind < uint64(_LOCAL_SHARE + _SIMILAR_SHARE) and high > low:
            community = communities[low + bounded(draw_u64(edge_key, 3), high - low)]
            target = _member(draw_u64(edge_key, 2), community, community_size, num_communities, num_nodes)
            if labels[target] != labels[source]:
                target = _member(draw_u64(edge_key, 4), community, community_size, num_communities, num_nodes)
        else:
            target = _popular(draw_u64(edge_key, 2), num_nodes) * stride % num_nodes
        if target == source:
            target = source - 1 if source > 0 else 1
        out[0, 2 * i], out[1, 2 * i] = source, target
        out[0, 2 * i + 1], out[1, 2 * i + 1] = target, source


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
