"""Calls about a server's store: types, ids, splits, features, labels, owners and edges, all in the dataset's ids."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError, PlanError, near_matches
from gnnkit.runtime.batches import edges_of_part
from gnnkit.schema import NEGATIVE_LABELS, POSITIVE_LABELS, EdgeType, NodeType, is_label_edge_type, near_edge_types, opposite_label_types
from gnnkit.splits import SPLITS, find_split
from gnnkit.storage.arrays import all_dataset_ids, dataset_ids, part_edge_ids
from gnnkit.storage.convert import plain_rows, plain_spec
from gnnkit.storage.store import Store


class Fraction(NamedTuple):
    """A taker's fraction of a piece: from ``start / denominator`` of it up to ``end / denominator``.

    Attributes:
        piece: The piece.
        start: Numerator of its beginning.
        end: Numerator of its end.
        denominator: Number of takers.
    """

    piece: int
    start: int
    end: int
    denominator: int

    def bounds(self, length: int) -> tuple[int, int]:
        """The elements of a piece of ``length`` elements: first, and last + 1."""
        return length * self.start // self.denominator, length * self.end // self.denominator


def fractions(num_pieces: int, num_takers: int, taker: int) -> list[Fraction]:
    """Returns the fractions of pieces that one taker gets, in the order of the pieces.

    Args:
        num_pieces: Pieces, at least 1.
        num_takers: Takers, at least 1.
        taker: The taker, from 0.
    """
    low, high = taker * num_pieces, (taker + 1) * num_pieces
    found = []
    for piece in range(low // num_takers, -(-high // num_takers)):
        start, end = max(low - piece * num_takers, 0), min(high - piece * num_takers, num_takers)
        found.append(Fraction(piece, start, end, num_takers))
    return found


def server_shares(holders: Sequence[Sequence[int]], rank: int) -> list[Fraction]:
    """Returns the fractions of parts that a server answers for: every node is exactly one server's.

    Servers that hold the same parts share them; a part that is held by servers of several such groups is the first one's.

    Args:
        holders: The parts of every server, in the order of ranks.
        rank: The server.
    """
    own = tuple(holders[rank])
    group = [server for server, parts in enumerate(holders) if tuple(parts) == own]
    earlier = {part for parts in holders[: group[0]] for part in parts}
    parts = [part for part in own if part not in earlier]
    if not parts:
        return []
    return [share._replace(piece=parts[share.piece]) for share in fractions(len(parts), len(group), group.index(rank))]


PADDING = -1
_MOST_PORTS = 1024


def padded_neighbors(
    store: Store, edge_type: EdgeType, ids: NDArray[Any], *, from_source: bool, most: int | None = None
) -> NDArray[np.int64]:
    """Neighbours along one edge type, whichever way the store is compressed.

    Args:
        store: The store.
        edge_type: The type.
        ids: Integers ``[k]``, the dataset's ids of nodes at one end.
        from_source: Whether that is the source end.
        most: Neighbours per node, at most: those of the lowest ids.

    Returns:
        int64 ``[k, m]``: dataset ids, ascending, as often as there are edges, and -1 behind them; ``m`` is the longest row's length.

    Raises:
        PlanError: An id is out of range, or ``most`` is less than 1.
        StoreError: A part that has some of the edges is not open here.
    """
    if most is not None and most < 1:
        raise PlanError(f"max_labels_per_anchor_node must be at least 1, got {most}", "None takes all")
    graph = store.arrays()
    here, there = (edge_type[0], edge_type[2]) if from_source else (edge_type[2], edge_type[0])
    # A node that is asked for twice gets its row twice.
    numbers, places = np.unique(np.asarray(store.to_store_ids(here, ids), np.int64), return_inverse=True)
    compressed_here = (graph.edge_dir == "out") == from_source
    rows, others = _along_rows(store, edge_type, numbers, here) if compressed_here else _across_rows(store, edge_type, numbers)
    others = all_dataset_ids(graph, there)[others]
    order = np.lexsort((others, rows))
    rows, others = rows[order], others[order]
    counts = np.bincount(rows, minlength=len(numbers))
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    if most is not None:
        rows, others, within = rows[within < most], others[within < most], within[within < most]
    found = np.full((len(numbers), int(within.max()) + 1 if len(within) else 0), PADDING, np.int64)
    found[rows, within] = others
    return found[places]


def _along_rows(store: Store, edge_type: EdgeType, numbers: NDArray[np.int64], here: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Index in ``numbers`` and store id of the other end, of the edges of nodes that own their edges."""
    graph = store.arrays().checked(edge_type)
    bounds = graph.node_bounds[here]
    rows, others = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    parts = np.searchsorted(bounds[1:], numbers, side="right")
    for part in np.unique(parts).tolist():
        store.require((part,))
        edges, chosen = graph.edges[edge_type][part], np.flatnonzero(parts == part)
        local = numbers[chosen] - bounds[part]
        first, last = np.asarray(edges.indptr[local], np.int64), np.asarray(edges.indptr[local + 1], np.int64)
        counts = last - first
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows.append(np.repeat(chosen, counts))
        others.append(edges.indices[np.repeat(first, counts) + within])
    return np.concatenate(rows), np.concatenate(others)


def _across_rows(store: Store, edge_type: EdgeType, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The same where the other end owns the edges: every edge of the type is looked at."""
    graph = store.require().arrays().checked(edge_type)
    owner = graph.frontier_type(edge_type)
    rows, others = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for part, edges in enumerate(graph.edges[edge_type]):
        places = np.minimum(np.searchsorted(numbers, edges.indices), max(len(numbers) - 1, 0))
        wanted = np.flatnonzero(numbers[places] == edges.indices) if len(numbers) else np.empty(0, np.int64)
        first, degrees = int(graph.node_bounds[owner][part]), np.diff(np.asarray(edges.indptr)).astype(np.int64)
        owners = np.repeat(np.arange(first, first + len(edges.indptr) - 1), degrees)
        rows.append(places[wanted])
        others.append(owners[wanted])
    return np.concatenate(rows), np.concatenate(others)


_FEATURES, _LABELS = "x", "y"


class StoreApi:
    """Answers questions about one server's share of a store, and about its host; from any thread, and changes nothing.

    Each public method is a call that clients may make. Node types are None for a homogeneous graph, and only for one.

    Args:
        store: The store, with the parts open that this server holds.
        rank: The server.
        num_servers: Servers in all.
        holders: The parts of every server, in the order of ranks; None: each holds all of them.
    """

    def __init__(self, store: Store, rank: int = 0, num_servers: int = 1, holders: Sequence[Sequence[int]] | None = None) -> None:
        self._store, self._graph = store, store.arrays()
        every = tuple(range(store.num_parts))
        self._shares: list[Fraction] = server_shares(holders or [every] * num_servers, rank)

    def describe(self) -> dict[str, Any]:
        """Returns the facts about the graph that a client needs, in one answer."""
        store = self._store
        return {
            "schema": store.schema.to_json(),
            "edge_dir": store.edge_dir,
            "weight": store.options.weight,
            "path": str(store.path),
            "fingerprint": store.fingerprint,
            "num_parts": store.num_parts,
            "parts": [share.piece for share in self._shares],
            "splits": {node_type: list(splits) for node_type, splits in store.splits.items()},
        }

    def node_ids(self, split: str | None, node_type: NodeType | None, cut: Sequence[int] | None = None) -> NDArray[np.int64]:
        """int64 ``[k]``: this server's nodes, or those of a split, in the split's order.

        Args:
            split: "train", "valid" (or "val"), "test", or None for all: those of the three splits first, then the others, ascending.
            node_type: Their type.
            cut: Numerators and denominator of a fraction of them; None is all.

        Raises:
            PlanError: There is no such split or type.
        """
        owner = self._node_type(node_type)
        splits = self._store.splits.get(owner, {})
        found = None if split is None else find_split(str(split), splits)
        if split is not None and found is None:
            near = near_matches(str(split), list(splits))
            raise PlanError(f"there is no split {split!r} of {owner!r} nodes{near}", f"splits of the store: {[*splits, None]}")
        ids = self._all_nodes(owner) if found is None else self._of_split(owner, found)
        if cut is None:
            return ids
        first, last = Fraction(0, *map(int, cut)).bounds(len(ids))
        return ids[first:last]

    def node_partition_ids(self, node_type: NodeType | None, ids: NDArray[Any]) -> NDArray[np.int64]:
        """int64 ``[k]``: the parts that own nodes."""
        owner = self._node_type(node_type)
        return self._parts_of(owner, self._store.to_store_ids(owner, ids))

    def node_book(self, node_type: NodeType | None) -> dict[str, NDArray[Any]]:
        """Which part owns which node: the bounds of ranges of ids, or each id's part."""
        owner = self._node_type(node_type)
        table = self._graph.checked(owner).store_id[owner]
        if table is None:
            return {"bounds": self._graph.node_bounds[owner]}
        return {"parts": self._parts_of(owner, table)}

    def edge_book(self, edge_type: EdgeType | None) -> dict[str, NDArray[Any]]:
        """Which part owns which edge; see ``node_book``.

        Raises:
            StoreError: The edges' ids are on another host.
        """
        owner, graph = self._edge_type(edge_type), self._graph
        bounds = graph.edge_bounds[owner]
        if self._store.num_parts == 1 or graph.edges[owner][0].edge_id is None:
            return {"bounds": bounds}
        self._store.require()
        parts = np.empty(int(bounds[-1]), np.int64)
        for part in range(self._store.num_parts):
            parts[part_edge_ids(graph, owner, part)] = part
        return {"parts": parts}

    def node_rows(self, node_type: NodeType | None, ids: NDArray[Any], name: str) -> tuple[NDArray[Any], str]:
        """``[k, *row_shape]`` of an array ("x" or "y") of nodes, and its element type.

        bfloat16 comes as uint16 bit patterns, and what is quantised as float32.

        Raises:
            PlanError: The type has no such array, or an id is out of range.
            StoreError: A node's part is on another host.
        """
        owner = self._node_type(node_type)
        spec = self._store.schema.node_types[owner].arrays.get(name)
        if spec is None:
            what = {_FEATURES: "features", _LABELS: "labels"}.get(name, repr(name))
            raise PlanError(f"{owner!r} nodes have no {what}", f"they have {list(self._store.schema.node_types[owner].arrays)}")
        numbers = self._store.to_store_ids(owner, ids)
        parts, bounds = self._parts_of(owner, numbers), self._graph.node_bounds[owner]
        found = np.empty((len(numbers), *spec.stored_shape), spec.numpy_dtype)
        for part in np.unique(parts).tolist():
            self._store.require((part,))
            chosen = parts == part
            found[chosen] = self._graph.nodes[owner][part].arrays[name][numbers[chosen] - bounds[part]]
        return plain_rows(found, spec), plain_spec(spec).dtype

    def feature_shape(self, node_type: NodeType | None) -> list[int]:
        """Shape of the features of this server's nodes together."""
        owner = self._node_type(node_type)
        spec = self._store.schema.node_types[owner].arrays.get(_FEATURES)
        if spec is None:
            raise PlanError(f"{owner!r} nodes have no features")
        rows = sum(last - first for _, first, last in self._own_rows(owner))
        return [rows, *spec.row_shape]

    def edge_index(self, edge_type: EdgeType | None, layout: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """int64 ``[e]`` and ``[e]``: sources and targets of this server's edges."""
        owner, graph = self._edge_type(edge_type), self._graph
        _check_layout(layout)
        own = [edges_of_part(graph, owner, *rows) for rows in self._own_rows(graph.frontier_type(owner))]
        sources, targets = np.concatenate([np.empty((2, 0), np.int64), *own], axis=1)
        return sources, targets

    def edge_size(self, edge_type: EdgeType | None, layout: str) -> tuple[int, int]:
        """Number of nodes at the source end and at the target end."""
        source, _, target = self._edge_type(edge_type)
        _check_layout(layout)
        nodes = self._store.schema.node_types
        return nodes[source].num_nodes, nodes[target].num_nodes

    def ablp_input(
        self, split: str, node_type: NodeType, supervision: EdgeType, cut: Sequence[int] | None = None, most: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64] | None]:
        """Anchors and the labels of each.

        Args:
            split: See ``node_ids``; a split it must be.
            node_type: The anchors' type.
            supervision: The supervised edge type, as it leads away from the anchors. Its labels are edges of that type, or of the
                reverse one, with "_gigl_positive" or "_gigl_negative" at the end of the relation.
            cut: See ``node_ids``.
            most: Labels per anchor, at most.

        Returns:
            int64 ``[n]``, ``[n, m]`` and ``[n, k]``: anchors, positive labels and negative ones, which are None where there are none.

        Raises:
            PlanError: The split or the type is unknown, or there are no positive labels for it.
            StoreError: Label edges are on another host.
        """
        positive, negative, from_source = self._label_types(supervision)
        anchor_type = positive[0] if from_source else positive[2]
        if node_type != anchor_type:
            raise PlanError(f"anchors of type {node_type!r} have no edges of {supervision}", f"these lead away from {anchor_type!r} nodes")
        anchors = self.node_ids(str(split), node_type, cut)

        def rows(edge_type: EdgeType) -> NDArray[np.int64]:
            return padded_neighbors(self._store, edge_type, anchors, from_source=from_source, most=most)

        return anchors, rows(positive), None if negative is None else rows(negative)

    # Its host ---------------------------------------------------------------------------------------------------------------

    @staticmethod
    def free_ports(count: int) -> list[int]:
        """Ports that are free at this moment, on this server's host.

        Raises:
            PlanError: The number is unusable.
        """
        if not 1 <= count <= _MOST_PORTS:
            raise PlanError(f"the number of ports must be between 1 and {_MOST_PORTS}, got {count}")
        with ExitStack() as stack:
            probes = [stack.enter_context(socket.socket()) for _ in range(count)]
            for probe in probes:
                probe.bind(("127.0.0.1", 0))  # all are bound before the first is let go, so that they differ
            return [int(probe.getsockname()[1]) for probe in probes]

    @staticmethod
    def device_count() -> int:
        """CUDA devices of this server's host; 1 where it has none, because it samples on its CPU all the same."""
        import torch  # heavy, and no other call needs it

        return max(1, torch.cuda.device_count())

    @staticmethod
    def ids_in_file(path: str) -> NDArray[np.int64]:
        """int64 ``[n]``: the ids in a file that ``torch.save`` wrote on this server's host; nothing in it is run.

        Raises:
            DatasetError: There is no such file, or it holds something else.
        """
        from gnnkit.storage.glt_format import read_ids  # imports torch

        file = Path(path)
        if not file.is_file():
            raise DatasetError(
                f"there is no file {str(file)!r} on this server's host, where it is looked for from {str(Path.cwd())!r}",
                "a path of seeds is one of the server's host, of a tensor that torch.save wrote; ids need no file",
            )
        return read_ids(file)

    # Beside -----------------------------------------------------------------------------------------------------------------

    def _label_types(self, supervision: EdgeType) -> tuple[EdgeType, EdgeType | None, bool]:
        """Types of the positive and the negative labels, and whether anchors are their sources."""
        known = self._store.schema.edge_types
        for source, relation, target in (supervision, *opposite_label_types(supervision)):
            positive, negative = ((source, relation + suffix, target) for suffix in (POSITIVE_LABELS, NEGATIVE_LABELS))
            if positive in known:
                return positive, negative if negative in known else None, (source, relation, target) == supervision
        labels = [edge_type for edge_type in known if is_label_edge_type(edge_type)]
        raise PlanError(f"the graph has no positive labels for {supervision}", f"label types: {labels}")

    def _all_nodes(self, node_type: NodeType) -> NDArray[np.int64]:
        splits = self._store.splits.get(node_type, {})
        chosen = [self._of_split(node_type, name) for name in SPLITS if name in splits]
        in_splits = np.concatenate([np.asarray(splits[name]) for name in SPLITS if name in splits] or [np.empty(0, np.int64)])
        rest = []
        for share in self._shares:
            ids = dataset_ids(self._graph, node_type, share.piece)
            ids = ids[~np.isin(ids, in_splits)]
            first, last = share.bounds(len(ids))
            rest.append(ids[first:last])
        found = np.concatenate([np.empty(0, np.int64), *chosen, *rest])
        # A node that is in two splits is still one node.
        return found[np.sort(np.unique(found, return_index=True)[1])]

    def _of_split(self, node_type: NodeType, split: str) -> NDArray[np.int64]:
        ids = np.asarray(self._store.splits[node_type][split], np.int64)
        parts = self._parts_of(node_type, self._store.to_store_ids(node_type, ids))
        found = [np.empty(0, np.int64)]
        for share in self._shares:
            own = ids[parts == share.piece]
            first, last = share.bounds(len(own))
            found.append(own[first:last])
        return np.concatenate(found)

    def _own_rows(self, node_type: NodeType) -> list[tuple[int, int, int]]:
        """Part, first row and last row + 1 of this server's nodes."""
        bounds = self._graph.node_bounds[node_type]
        return [(s.piece, *s.bounds(int(bounds[s.piece + 1] - bounds[s.piece]))) for s in self._shares]

    def _parts_of(self, node_type: NodeType, numbers: NDArray[Any]) -> NDArray[np.int64]:
        return np.searchsorted(self._graph.node_bounds[node_type][1:], numbers, side="right")

    def _node_type(self, node_type: NodeType | None) -> NodeType:
        schema = self._store.schema
        if schema.is_homogeneous:
            if node_type is not None:
                raise PlanError(f"node_type={node_type!r} is given, and the graph is homogeneous", "leave it out")
            return next(iter(schema.node_types))
        known = list(schema.node_types)
        if node_type is None:
            raise PlanError("node_type is missing, and the graph is typed", f"node types: {known}")
        if node_type not in schema.node_types:
            raise PlanError(f"unknown node type {node_type!r}{near_matches(str(node_type), known)}", f"node types: {known}")
        return node_type

    def _edge_type(self, edge_type: EdgeType | None) -> EdgeType:
        known = list(self._store.schema.edge_types)
        if edge_type is None:
            if not self._store.schema.is_homogeneous:
                raise PlanError("edge_type is missing, and the graph is typed", f"edge types: {known}")
            return known[0]
        if edge_type not in known:
            raise PlanError(f"unknown edge type {edge_type}{near_edge_types(edge_type, known)}", f"edge types: {known}")
        return edge_type


def _check_layout(layout: str) -> None:
    if layout != "coo":
        raise PlanError(f"layout must be 'coo', got {layout!r}")
