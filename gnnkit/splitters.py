"""Splits into training, validation and test: exact numbers, the same for the same seed on every machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.bounds import LARGEST, is_whole, shown
from gnnkit.errors import PlanError, near_matches
from gnnkit.kernels.keys import order_key, stream_key
from gnnkit.kernels.stream import permutation
from gnnkit.runtime.batches import edges_in_order
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType
from gnnkit.storage.arrays import node_values
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    import torch


_TRAIN = "the training set is what valid= and test= leave"

__all__ = [
    "Split",
    "cut",
    "split_links",
    "split_nodes",
    "split_sizes",
]


def _view_of(value: Any) -> _PyGView | _StoreView | None:
    """A view of a PyG ``Data`` or ``HeteroData``, a ``Store`` or the path of one; None for what is no graph.

    Raises:
        PlanError: It is a loader.
        StoreError: There is no store at the path, or it is damaged.
    """
    if hasattr(value, "for_split"):
        raise PlanError(f"a {type(value).__name__} is given, and not a graph", "give its graph: the data, or loader.store")
    if isinstance(value, (str, Path)) or hasattr(value, "node_bounds"):
        return _StoreView(value if isinstance(value, Store) else Store.open(value))
    return _PyGView(value) if hasattr(value, "stores") else None


def _one_of(given: Any, types: Iterable[Any], what: str) -> Any:
    """The type that is meant; None means the only one.

    Raises:
        PlanError: There is no such type, or several.
    """
    known = list(types)
    if given is None and len(known) == 1:
        return known[0]
    if given is None:
        raise PlanError(f"the graph has several {what} types, and {what}_type does not say which one is meant", f"known: {known}")
    if given not in known:
        raise PlanError(f"there is no {what} type {given!r}{near_matches(str(given), list(map(str, known)))}", f"known: {known}")
    return given


class _PyGView:
    """A ``Data`` or ``HeteroData``."""

    def __init__(self, data: Any) -> None:
        typed = hasattr(data, "node_types")
        self.node_types = data.node_types if typed else [HOMOGENEOUS_NODE_TYPE]
        self.edge_types = data.edge_types if typed else [HOMOGENEOUS_EDGE_TYPE]
        self._data, self._typed = data, typed

    def _of(self, owner: Any) -> Any:
        return self._data[owner] if self._typed else self._data

    def count(self, owner: NodeType | EdgeType) -> int:
        return int(self._of(owner).num_edges if isinstance(owner, tuple) else self._of(owner).num_nodes)

    def node_array(self, node_type: NodeType, name: str) -> NDArray[Any]:
        values = self._of(node_type)
        if name not in values:
            raise PlanError(f"{node_type!r} nodes have no array {name!r}", f"they have {sorted(values.keys())}")
        return _array(values[name])

    def edge_ends(self, edge_type: EdgeType) -> NDArray[Any]:
        if "edge_index" not in self._of(edge_type):
            raise PlanError(f"the edges of {edge_type} are no edge_index", "give the graph with edge_index")
        return _array(self._of(edge_type).edge_index).astype(np.int64, copy=False)


class _StoreView:
    """A store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.node_types, self.edge_types = store.schema.node_types, store.schema.edge_types

    def count(self, owner: NodeType | EdgeType) -> int:
        return self._store.schema.counts[owner]

    def node_array(self, node_type: NodeType, name: str) -> NDArray[Any]:
        known = self.node_types[node_type].arrays
        if name not in known:
            raise PlanError(f"{node_type!r} nodes have no array {name!r}", f"they have {list(known)}")
        return node_values(self._store.require().arrays(), node_type, name)

    def edge_ends(self, edge_type: EdgeType) -> NDArray[Any]:
        return edges_in_order(self._store.require().arrays(), edge_type)


class Split(NamedTuple):
    """Three sets of ids that have none in common.

    Attributes:
        train: int64 ``[n - num_valid - num_test]``, ascending, as the others are.
        valid: int64 ``[num_valid]``.
        test: int64 ``[num_test]``.
    """

    train: torch.Tensor
    valid: torch.Tensor
    test: torch.Tensor

    def __repr__(self) -> str:
        return f"Split({', '.join(f'{name}={len(ids):,} ids' for name, ids in self._asdict().items())})"


@checks_calls(train=_TRAIN)
def split_nodes(
    nodes: Any,
    *,
    valid: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    node_type: NodeType | None = None,
    stratify: Any = None,
) -> Split:
    """Splits nodes, for example ``input_nodes=split.train``. To split anchors: ``split_nodes(edge_index[0].unique())``.

    The split depends on the set of ids, the numbers and the seed: not on the order of the ids, nor on ranks or parts.

    Args:
        nodes: How many nodes there are; or ids ``[n]``, each once, or a mask; or a graph, all nodes of which are split: a PyG ``Data`` or
            ``HeteroData``, a ``Store``, or the path of one.
        valid: Validation nodes: a whole number of them, or a share of all in ``[0, 1)``, of which the nearest whole number is taken.
        test: Test nodes, likewise.
        seed: Random seed.
        node_type: The nodes' type, of a graph that has several.
        stratify: Classes ``[n]`` of the nodes, which all three sets then have in the same proportions, as near as whole numbers come; or,
            for a graph, the name of the node array that holds them.

    Raises:
        PlanError: A number is out of range, ids are no ids or come twice, or there is no such type or array.
        StoreError: The store is damaged, or classes are in parts that are not here.
    """
    graph = _view_of(nodes)
    if graph is not None:
        owner = _one_of(node_type, graph.node_types, "node")
        ids = np.arange(graph.count(owner))
        classes = graph.node_array(owner, stratify) if isinstance(stratify, str) else stratify
    else:
        if node_type is not None:
            raise PlanError(f"node_type={node_type!r} is given with ids", "it says which nodes of a graph are meant: leave it out")
        ids, classes = _ids_of(nodes), stratify
    groups = None if classes is None else _classes_of(classes, len(ids))
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if len(ids) > 1 and (ids[1:] == ids[:-1]).any():
        raise PlanError(f"the ids hold {int(ids[1:][ids[1:] == ids[:-1]][0])} more than once", "give each once: ids.unique()")
    return cut(ids, _draw(len(ids), seed, "split/nodes"), valid, test, None if groups is None else groups[order])


@checks_calls(train=_TRAIN)
def split_links(
    links: Any, *, valid: float = 0.1, test: float = 0.1, seed: int = 0, edge_type: EdgeType | None = None, undirected: bool = False
) -> Split:
    """Splits edges; what comes out are their ids: ``edge_index[:, split.train]``.

    Args:
        links: ``edge_index`` ``[2, e]``; or a graph, as for ``split_nodes``, whose edges of one type are split.
        valid: Validation edges: a whole number of them, or a share, as for ``split_nodes``.
        test: Test edges, likewise.
        seed: Random seed.
        edge_type: The edges' type, of a graph that has several.
        undirected: Whether all edges between the same two nodes, in both directions, go to the same set: ``valid`` and ``test`` are
            then numbers of such pairs.

    Raises:
        PlanError: A number is out of range, there is no such type, or ``undirected`` is given for edges between two node types or a store
            without edge ids.
        StoreError: The store is damaged, or edges are in parts that are not here.
    """
    graph = _view_of(links)
    if graph is None:
        if edge_type is not None:
            raise PlanError(
                f"edge_type={edge_type!r} is given with an edge_index", "it says which edges of a graph are meant: leave it out"
            )
        ends = _ends_of(links)
        num_edges = ends.shape[1]
    else:
        chosen = _one_of(edge_type if edge_type is None else tuple(edge_type), graph.edge_types, "edge")
        if undirected and chosen[0] != chosen[2]:
            raise PlanError(f"undirected=True, and {chosen} leads from one node type to another", "leave it out: no two edges are reverses")
        ends, num_edges = graph.edge_ends(chosen) if undirected else np.empty((2, 0), np.int64), graph.count(chosen)
    if not undirected:
        return cut(np.arange(num_edges), _draw(num_edges, seed, "split/links"), valid, test)
    pairs = np.unique(np.sort(ends, axis=0), axis=1, return_inverse=True)[1].reshape(-1)
    num_pairs = int(pairs.max()) + 1 if len(pairs) else 0
    parts = cut(np.arange(num_pairs), _draw(num_pairs, seed, "split/links"), valid, test)
    where = np.empty(num_pairs, np.int8)
    for number, part in enumerate(parts):
        where[part.numpy()] = number
    return _to_split(*(np.flatnonzero(where[pairs] == number) for number in range(3)))


def cut(ids: NDArray[Any], order: NDArray[np.int64], valid: float, test: float, classes: NDArray[np.int64] | None = None) -> Split:
    """Cuts ids that have been put in some order: training first, then validation, then test.

    Args:
        ids: Integers ``[n]``.
        order: int64 ``[n]``: their positions, in that order.
        valid: See ``split_nodes``.
        test: See ``split_nodes``.
        classes: int64 ``[n]``, counted from 0; each is cut by itself. None is one class.

    Raises:
        PlanError: A number is out of range, or both together are.
    """
    num_valid, num_test = split_sizes(len(ids), valid, test)
    classes = np.zeros(len(ids), np.int64) if classes is None else classes
    sizes = np.bincount(classes, minlength=1)
    held = apportion(num_valid + num_test, sizes)
    tested = apportion(num_test, held)
    grouped = order[np.argsort(classes[order], kind="stable")]
    place = np.arange(len(ids)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    of = classes[grouped]
    is_test = place >= (sizes - tested)[of]
    is_valid = ~is_test & (place >= (sizes - held)[of])
    return _to_split(*(np.sort(ids[grouped[chosen]]) for chosen in (~is_test & ~is_valid, is_valid, is_test)))


def split_sizes(count: int, valid: float, test: float) -> tuple[int, int]:
    """Returns how many of ``count`` are for validation and how many for test.

    Raises:
        PlanError: A number is negative, no number, a share of 1 or more, or both are more than there is.
    """
    sizes = []
    for name, value in (("valid", valid), ("test", test)):
        if is_whole(value):
            sizes.append(int(value))
        elif isinstance(value, (float, np.floating)) and 0 <= value < 1:
            sizes.append(int(count * float(value) + 0.5))
        else:
            raise PlanError(f"{name} must be a share of at least 0 and below 1, or a whole number, got {value!r}", "for example 0.1")
    if isinstance(valid, float) and isinstance(test, float) and valid + test >= 1:
        raise PlanError(f"valid={valid} and test={test} together leave nothing for training", "together they must be below 1")
    if sum(sizes) > count:
        raise PlanError(f"valid={valid} and test={test} are {sizes[0]} and {sizes[1]}, and there are only {count}")
    return sizes[0], sizes[1]


def apportion(total: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divides ``total`` in proportion to ``sizes``, no part more than its size: the largest remainders get what is left.

    Hamilton's method. ``total`` is at most the sum of the sizes; of equal remainders the first ones win.
    """
    whole = max(int(sizes.sum()), 1)
    shares = np.array([total * int(size) // whole for size in sizes], np.int64)
    rests = np.array([total * int(size) % whole for size in sizes], np.int64)
    shares[np.argsort(-rests, kind="stable")[: total - int(shares.sum())]] += 1
    return shares


def _draw(count: int, seed: int, what: str) -> NDArray[np.int64]:
    if not is_whole(seed, 0, (1 << 64) - 1):
        raise PlanError(f"seed must be a whole number between 0 and 2**64 - 1, got {shown(seed)}")
    return permutation(order_key(stream_key(int(seed), what), 0), count)


def _to_split(*parts: NDArray[np.int64]) -> Split:
    import torch

    return Split(*(torch.from_numpy(np.ascontiguousarray(part, np.int64)) for part in parts))


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _numbers(value: Any, what: str) -> NDArray[Any]:
    found = _array(value)
    if found.dtype.kind not in "iu" and found.size:
        raise PlanError(f"{what} must hold whole numbers, got {found.dtype}", "for example ids.long()")
    return found


def _ids_of(nodes: Any) -> NDArray[np.int64]:
    if is_whole(nodes, -LARGEST):
        if nodes < 0:
            raise PlanError(f"nodes={nodes} is no number of nodes")
        return np.arange(int(nodes))
    found = _array(nodes)
    if found.ndim != 1:
        raise PlanError(f"nodes must be a number, ids, a mask or a graph, got a {type(nodes).__name__} of shape {found.shape}")
    if found.dtype == np.bool_:
        return np.flatnonzero(found)
    ids = _numbers(found, "nodes").astype(np.int64)
    if len(ids) and ids.min() < 0:
        raise PlanError(f"nodes holds the id {int(ids.min())}", "ids are at least 0")
    return ids


def _ends_of(links: Any) -> NDArray[np.int64]:
    if getattr(links, "is_sparse", False):
        raise PlanError("links is a sparse tensor", "give its edge_index [2, e]")
    found = _numbers(links, "links")
    if found.ndim != 2 or found.shape[0] != 2:
        raise PlanError(f"links must be an edge_index of shape [2, e] or a graph, got shape {tuple(found.shape)}")
    return found.astype(np.int64)


def _classes_of(classes: Any, count: int) -> NDArray[np.int64]:
    found = _array(classes)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.shape != (count,):
        raise PlanError(f"stratify must have one class for each of {count} nodes, got shape {found.shape}", "for example data.y")
    return np.asarray(np.unique(found, return_inverse=True)[1], np.int64).reshape(-1)
