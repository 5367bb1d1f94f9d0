"""The kernels behind ``products_like`` and ``papers_like``: integer arithmetic only, so that every machine generates the same graph.

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
