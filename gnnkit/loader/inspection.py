"""Looks at batches: digests of them, checks for leakage in time, and the neighbourhood of one of their seeds.

XXH3 (128 bits, https://xxhash.com) finds what differs by chance or mistake as surely as a cryptographic digest does, 20 times as fast;
batches with the same one can still be made on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.bounds import check_choice, whole_number
from gnnkit.errors import PlanError
from gnnkit.loader.building import unpad
from gnnkit.plan import LABEL_KINDS, InputAnchors, InputLinks, LoaderPlan, NeighborSampling, PPRSampling, TemporalComparison
from gnnkit.plan.sampling import PPR_RELATION
from gnnkit.sampling.subgraph import shown_name
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType, edge_type_name

if TYPE_CHECKING:
    import torch

    from gnnkit.loader.pipeline import Pipeline


class ValueDigest(NamedTuple):
    """The kind and the digest of one attribute of a batch.

    Attributes:
        kind: A tensor's dtype and shape, as in ``"torch.float32 [12, 5]"``; the type's name of anything else.
        digest: 32 hexadecimal digits (XXH3) of the tensor's bytes, or of the ``repr``.
    """

    kind: str
    digest: str


def batches_digest(batches: Iterable[Any]) -> str:
    """The digest of batches in their order: names, dtypes, shapes and bytes of every tensor, and every other attribute's ``repr``.

    Args:
        batches: ``Data`` or ``HeteroData``, for example a loader, whose next epoch is iterated then.

    Returns:
        32 hexadecimal digits (XXH3).
    """
    digest = xxhash.xxh3_128()
    for batch in batches:
        digest.update(f"{type(batch).__name__}\n".encode())
        for key, name, value in _attributes(batch):
            kind, content = _content(value)
            digest.update(f"{key!r} {name} {kind} ".encode())
            digest.update(content)
    return digest.hexdigest()


def value_digests(batch: Any) -> dict[str, ValueDigest]:
    """A digest of each attribute of a batch.

    Args:
        batch: ``Data`` or ``HeteroData``.

    Returns:
        ``{"x": ...}``, or ``{"paper.x": ..., "paper__cites__paper.edge_index": ...}`` for typed graphs.
    """
    found = {}
    for key, name, value in _attributes(batch):
        kind, content = _content(value)
        owner = "" if key is None else (edge_type_name(key) if isinstance(key, tuple) else str(key)) + "."
        found[owner + name] = ValueDigest(kind, xxhash.xxh3_128_hexdigest(content))
    return found


def _attributes(batch: Any) -> Iterator[tuple[Any, str, Any]]:
    """Node type, edge type or None; name; and value of every attribute, padding left out."""
    for store in unpad(batch).stores:
        for name, value in store.items():
            yield store._key, name, value


def _content(value: Any) -> tuple[str, Any]:
    """Returns the kind of a value, and its bytes."""
    import torch

    if not isinstance(value, torch.Tensor):
        return type(value).__name__, f"{value!r}\n".encode()
    # As plain bytes, because NumPy has no bfloat16; one dimension, because a tensor without any cannot change its dtype.
    return f"{value.dtype} {list(value.shape)}", value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


_MOST_SHOWN = 10


class LaterEdge(NamedTuple):
    """An edge of a batch that is too late for its seed.

    Attributes:
        batch: Number of the batch among those that were checked.
        edge_type: Its type.
        edge: Its place in the batch's edges of the type.
        time: Its time.
        seed_time: The time of the seed around which it was sampled.
    """

    batch: int
    edge_type: EdgeType
    edge: int
    time: int
    seed_time: int


@dataclass(frozen=True)
class LeakageCheck:
    """The result of a check.

    Attributes:
        num_edges: Edges with times that were compared with their seed's.
        num_later: Those of them that are too late.
        later: The first of these, ten at most.
        compared: ``{edge type: whose times its edges have}``: "edges", or the type of the nodes that they come from; None where they have
            none and were not compared.
    """

    num_edges: int = 0
    num_later: int = 0
    later: tuple[LaterEdge, ...] = ()
    compared: Mapping[EdgeType, str | None] = field(default_factory=dict)

    def __str__(self) -> str:
        told = "; ".join(
            f"{t} {'not compared: no times' if whose is None else f'by times of {whose}'}" for t, whose in self.compared.items()
        )
        if not self.num_later:
            return f"none of {self.num_edges:,} edges is later than its seed ({told})"
        first = self.later[0]
        return (
            f"{self.num_later:,} of {self.num_edges:,} edges are later than their seed, first edge {first.edge} of {first.edge_type}"
            f" in batch {first.batch}: time {first.time}, seed {first.seed_time} ({told})"
        )

    def __add__(self, other: LeakageCheck) -> LeakageCheck:
        shown, compared = (self.later + other.later)[:_MOST_SHOWN], {**self.compared, **other.compared}
        return LeakageCheck(self.num_edges + other.num_edges, self.num_later + other.num_later, shown, compared)


@checks_calls()
def check_leakage(batch: Any, time_attr: str = "time", *, temporal_comparison: TemporalComparison = "<=") -> LeakageCheck:
    """Compares every edge of a temporal batch with the time of the seed in whose neighbourhood it is.

    It reads what the batch shows, ``seed_time`` or ``edge_label_time``, ``batch`` and the arrays of times, and knows nothing of how it was
    sampled. An edge's time is its own, or else that of the neighbour that it comes from; edges without times are not compared.

    Args:
        batch: A batch of a loader with ``time_attr=``, or PyG's of such a loader with disjoint neighbourhoods.
        time_attr: Name of the array of times.
        temporal_comparison: Whether the seed's own time is early enough ("<=") or not ("<").

    Raises:
        PlanError: The batch does not say what must be compared, or shows edges that were not drawn.
    """
    check_choice("temporal_comparison", temporal_comparison, TemporalComparison)
    if not hasattr(batch, "stores"):
        raise PlanError(f"a {type(batch).__name__} is no batch", "give one of a loader's, or check the loader: loader.check_leakage()")
    return _check(batch, time_attr, temporal_comparison == "<", None, 0)


def check_loader(pipeline: Pipeline, batches: int) -> LeakageCheck:
    """Checks the first batches of a loader's next epoch, which they do not advance; see ``GraphLoader.check_leakage``."""
    sampling = pipeline.plan.sampling
    batches = whole_number("batches", batches, 1)
    if not isinstance(sampling, NeighborSampling) or sampling.time_attr is None:
        raise PlanError("the loader does not follow times, so there is nothing to compare", "name the array of times: time_attr='time'")
    if sampling.subgraph_type != "directional":
        raise _undrawn()
    edge_types = pipeline.schema.edge_types
    has_own = sampling.time_attr in edge_types[HOMOGENEOUS_EDGE_TYPE].arrays if pipeline.schema.is_homogeneous else None
    found, strict = LeakageCheck(), sampling.temporal_comparison == "<"
    changes = {"transform": None, "device": None, "feature_cache": 0}
    with pipeline.with_backend(pipeline.backend, changes) as beside:
        beside.set_epoch(pipeline.next_epoch)
        for number, batch in enumerate(islice(beside, batches)):
            found += _check(batch, shown_name(sampling.time_attr), strict, has_own, number)
    return found


def _check(batch: Any, time_attr: str, strict: bool, has_own: bool | None, number: int) -> LeakageCheck:
    """Checks one batch; ``has_own`` says of a homogeneous one whether the times are those of edges, None: its lengths do."""
    if any("edge_index" in store and "num_sampled_edges" not in store for store in batch.stores):
        raise _undrawn()
    seed_times, found = _seed_times(batch), LeakageCheck()
    for edge_type, edges, source, target in _edge_stores(batch):
        if "batch" not in target:
            raise _not_temporal("batch")
        own = edges is not source or _is_of_edges(batch, time_attr, has_own)
        times = edges[time_attr] if own and time_attr in edges else None
        whose = None if times is None else "edges"
        if times is None and time_attr in source:
            times, whose = source[time_attr].reshape(-1)[edges.edge_index[0]], repr(edge_type[0])
        found += LeakageCheck(compared={edge_type: whose})
        if times is not None:
            limits = seed_times[target.batch[edges.edge_index[1]]]
            found += _compared(times.reshape(-1), limits, strict, edge_type, number)
    return found


def _compared(times: torch.Tensor, limits: torch.Tensor, strict: bool, edge_type: EdgeType, number: int) -> LeakageCheck:
    later = (times >= limits if strict else times > limits).nonzero().reshape(-1)
    shown = tuple(LaterEdge(number, edge_type, e, int(times[e]), int(limits[e])) for e in later[:_MOST_SHOWN].tolist())
    return LeakageCheck(len(times), len(later), shown)


def _edge_stores(batch: Any) -> list[tuple[EdgeType, Any, Any, Any]]:
    """Each edge type with where its edges, its neighbours and the nodes that drew them are."""
    if not hasattr(batch, "edge_types"):
        return [(HOMOGENEOUS_EDGE_TYPE, batch, batch, batch)]
    return [(t, batch[t], batch[t[0]], batch[t[2]]) for t in batch.edge_types if "edge_index" in batch[t]]


def _seed_times(batch: Any) -> torch.Tensor:
    """int64 ``[n]``: the time of each seed, for links of each link."""
    for name in ("seed_time", "edge_label_time"):
        for store in batch.stores:
            if name in store:
                return store[name]  # type: ignore[no-any-return]
    raise _not_temporal("seed_time")


def _is_of_edges(batch: Any, time_attr: str, has_own: bool | None) -> bool:
    if has_own is not None or time_attr not in batch:
        return bool(has_own)
    if batch.num_nodes == batch.num_edges:
        raise PlanError(
            f"the batch has as many nodes as edges, and {time_attr!r} may be the times of either", "loader.check_leakage() knows which"
        )
    return bool(len(batch[time_attr]) == batch.num_edges)


def _not_temporal(name: str) -> PlanError:
    return PlanError(f"the batch has no {name}, so it is none of a loader that follows times", "make one with time_attr='time'")


def _undrawn() -> PlanError:
    hint = "check a loader with subgraph_type='directional': it draws the same"
    return PlanError("the batch shows edges that were not drawn, next to those that were drawn", hint)


@dataclass(frozen=True)
class BatchGraph:
    """A batch's nodes and edges.

    Attributes:
        node_types: The node types of the batch.
        first: The number of each type's first node.
        node_type: int64 ``[n]``, positions in ``node_types``.
        n_id: int64 ``[n]``, dataset ids.
        edge_types: The edge types of the batch.
        edge_type: int64 ``[e]``, positions in ``edge_types``.
        edges: int64 ``[2, e]``, numbers of nodes, as in the batch's ``edge_index``.
        stores: ``{node type or edge type: the batch's attributes of it}``.
    """

    node_types: tuple[NodeType, ...]
    first: Mapping[NodeType, int]
    node_type: NDArray[np.int64]
    n_id: NDArray[np.int64]
    edge_types: tuple[EdgeType, ...]
    edge_type: NDArray[np.int64]
    edges: NDArray[np.int64]
    stores: Mapping[Any, Any]

    @classmethod
    def of(cls, batch: Any) -> BatchGraph:
        """Reads a ``Data`` or ``HeteroData``.

        Raises:
            PlanError: It lacks what every batch of a loader has.
        """
        types = (*batch.node_types, *batch.edge_types) if hasattr(batch, "node_types") else ()
        stores: dict[Any, Any] = {t: batch[t] for t in types} or {HOMOGENEOUS_NODE_TYPE: batch, HOMOGENEOUS_EDGE_TYPE: batch}
        node_types = tuple(t for t in stores if isinstance(t, str))
        # Links may have a type of their own in a batch, which holds labels and no edges.
        edge_types = tuple(t for t in stores if isinstance(t, tuple) and "edge_index" in stores[t])
        ids = [numbers(stores[t], "n_id") for t in node_types]
        ends = [0, *np.cumsum([len(part) for part in ids]).tolist()]
        first = dict(zip(node_types, ends, strict=False))
        edges = [numbers(stores[t], "edge_index") + np.array([[first[t[0]]], [first[t[2]]]], np.int64) for t in edge_types]
        return cls(
            node_types,
            first,
            np.repeat(np.arange(len(ids)), [len(part) for part in ids]),
            np.concatenate([*ids, np.empty(0, np.int64)]),
            edge_types,
            np.repeat(np.arange(len(edges)), [part.shape[1] for part in edges]),
            np.concatenate([*edges, np.empty((2, 0), np.int64)], axis=1),
            stores,
        )


def numbers(store: Any, name: str) -> NDArray[Any]:
    """A tensor of a batch as an array of this process's memory.

    Raises:
        PlanError: The batch has none.
    """
    value: Any = getattr(store, name, None)
    if not hasattr(value, "detach"):
        raise PlanError(f"the batch has no tensor {name!r}", "give a batch of this loader, as it is before a transform that takes it away")
    array: NDArray[Any] = value.detach().cpu().numpy()
    return array


class Pair(NamedTuple):
    """Two roots that belong together.

    Attributes:
        source: The first one's number in the neighbourhood.
        target: The second one's.
        kind: "link", "positive label" or "negative label".
    """

    source: int
    target: int
    kind: str


@dataclass(frozen=True)
class Neighborhood:
    """A seed's neighbourhood: roots first, then the others in the order of their hops.

    A seed is one root; a link has two, its ends, and an anchor is followed by its labels.

    Attributes:
        node_types: Names of node types.
        node_type: int64 ``[n]``, positions in ``node_types``.
        n_id: int64 ``[n]``, dataset ids.
        hop: int64 ``[n]``, the fewest edges to a root; 0 for roots.
        parent: int64 ``[n]``, the node one hop nearer through which it was met first; -1 for roots.
        edge_types: Names of edge types.
        edge_type: int64 ``[e]``, positions in ``edge_types``.
        edges: int64 ``[2, e]``, numbers of nodes, from the neighbour to the node that it was sampled for, as in the batch. Those of
            personalised PageRank lead the other way: from a root to a node that it keeps.
        pairs: Roots that belong together.
        remarks: What was left out, for people.
    """

    node_types: tuple[NodeType, ...]
    node_type: NDArray[np.int64]
    n_id: NDArray[np.int64]
    hop: NDArray[np.int64]
    parent: NDArray[np.int64]
    edge_types: tuple[EdgeType, ...]
    edge_type: NDArray[np.int64]
    edges: NDArray[np.int64]
    pairs: tuple[Pair, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def num_roots(self) -> int:
        """The number of nodes that it starts from."""
        return int((self.hop == 0).sum())


def neighborhood(loader: Pipeline, seed: Any = None, batch: Any = None) -> Neighborhood:
    """Finds the neighbourhood of one seed.

    Args:
        loader: The loader.
        seed: Its id in the dataset, for links the ids of both ends; None takes the first one of the batch.
        batch: A batch of the loader; None samples around ``seed``, or peeks at the next batch if there is none.

    Raises:
        PlanError: The seed is none of the batch's, or the batch is not one of such a loader.
    """
    plan = loader.plan
    wanted = None if seed is None else _ids_of(seed, plan)
    if batch is None:
        batch = loader.peek() if wanted is None else loader.sample(wanted[:, None] if isinstance(plan.inputs, InputLinks) else wanted)
    graph = BatchGraph.of(batch)
    roots, pairs, remarks = _roots(graph, batch, plan, wanted)
    by_ppr = isinstance(plan.sampling, PPRSampling)
    found = _kept_by_ppr(graph, roots) if by_ppr else _reached(graph, roots, plan.sampling.num_hops)
    return _cut_out(graph, roots, found, pairs, remarks)


def _ids_of(seed: Any, plan: LoaderPlan) -> NDArray[np.int64]:
    ids = np.asarray(seed.detach().cpu().numpy() if hasattr(seed, "detach") else seed).reshape(-1)
    expected = 2 if isinstance(plan.inputs, InputLinks) else 1
    if len(ids) != expected or ids.dtype.kind not in "iu":
        what = "the ids of the source and the target of a link" if expected == 2 else "the id of one node"
        raise PlanError(f"seed must be {what}, got {seed!r}")
    return ids.astype(np.int64)


def _roots(
    graph: BatchGraph, batch: Any, plan: LoaderPlan, wanted: NDArray[np.int64] | None
) -> tuple[list[int], list[tuple[int, int, str]], list[str]]:
    """Numbers of the roots and of the pairs among them, and what was left out."""
    inputs = plan.inputs
    if isinstance(inputs, InputLinks):
        source, target = _link(graph, inputs, wanted)
        return [source, target], [(source, target, "link")], []
    node_type = inputs.node_type
    first = graph.first[node_type]
    count = int(graph.stores[node_type]["batch_size"]) if "batch_size" in graph.stores[node_type] else 0
    place = 0 if wanted is None else _position(graph.n_id[first : first + count] == wanted[0])
    if place is None or place >= count:
        named = "at all" if wanted is None else f"{wanted[0]}"
        raise PlanError(f"the batch has no seed {named}", "seeds are the first batch_size of n_id")
    pairs, remarks = _labels(graph, batch, inputs, place) if isinstance(inputs, InputAnchors) else ([], [])
    return [first + place, *(target for _, target, _ in pairs)], pairs, remarks


def _position(found: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(found)) if found.any() else None


def _link(graph: BatchGraph, inputs: InputLinks, wanted: NDArray[np.int64] | None) -> tuple[int, int]:
    """Numbers of the ends of a link."""
    link_type = inputs.edge_type
    owners = [graph.stores[link_type], *(graph.stores[end] for end in (link_type[0], link_type[2]))]
    if "edge_label_index" in owners[0]:
        count = len(numbers(owners[0], "input_id"))
        ends = numbers(owners[0], "edge_label_index")[:, :count]
    else:
        name = "dst_pos_index" if "dst_pos_index" in owners[2] else "dst_index"
        ends = np.stack([numbers(owners[1], "src_index"), numbers(owners[2], name)])
    ends = ends + np.array([[graph.first[link_type[0]]], [graph.first[link_type[2]]]], np.int64)
    ids = graph.n_id[ends]
    place = (0 if ids.shape[1] else None) if wanted is None else _position((ids == wanted[:, None]).all(axis=0))
    if place is None:
        raise PlanError("the batch has no link" + ("" if wanted is None else f" from {wanted[0]} to {wanted[1]}"))
    return int(ends[0, place]), int(ends[1, place])


# Labels of a kind that are roots beside their anchor.
_MAX_LABELS = 2


def _labels(graph: BatchGraph, batch: Any, inputs: InputAnchors, anchor: int) -> tuple[list[tuple[int, int, str]], list[str]]:
    """An anchor's labels, as pairs with it, and how many more there are."""
    pairs, remarks = [], []
    root = graph.first[inputs.node_type] + anchor
    for kind in LABEL_KINDS:
        shown = getattr(batch, f"y_{kind}", {})
        found: list[int] = []
        for labels in inputs.labels:
            own = shown if len(inputs.labels) == 1 else shown.get(labels.edge_type, {})
            numbered = own.get(anchor, ()) if isinstance(own, dict) else own[1][own[0] == anchor]
            found += [graph.first[labels.edge_type[2]] + int(label) for label in numbered]
        pairs += [(root, label, f"{kind} label") for label in found[:_MAX_LABELS]]
        if len(found) > _MAX_LABELS:
            remarks.append(f"{_MAX_LABELS} of {len(found)} {kind} labels")
    return pairs, remarks


# Each node's hop, -1 where it is none of this seed's; its parent, -1 likewise; and which edges are this seed's.
_Found = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


def _reached(graph: BatchGraph, roots: list[int], num_hops: int) -> _Found:
    """Finds nodes by a breadth-first search against the edges."""
    hop, parent = np.full((2, len(graph.n_id)), -1)
    hop[roots] = 0
    neighbor, center = graph.edges
    for depth in range(1, num_hops + 1):
        found = (hop[center] == depth - 1) & (hop[neighbor] < 0)
        # Of several edges the first one decides; assignment keeps the last.
        parent[neighbor[found][::-1]] = center[found][::-1]
        hop[neighbor[found]] = depth
    # Outermost nodes may have been expanded for another seed: those edges are not this one's.
    inside = (hop[neighbor] >= 0) & (hop[center] >= 0) & (hop[center] < num_hops)
    return hop, parent, inside


def _kept_by_ppr(graph: BatchGraph, roots: list[int]) -> _Found:
    """The same for personalised PageRank, whose edges lead from a seed to what it keeps and carry 1 / (1 + hops)."""
    hop, parent = np.full((2, len(graph.n_id)), -1)
    inside = np.ones(graph.edges.shape[1], np.bool_)
    for number, edge_type in enumerate(graph.edge_types):
        if edge_type[1] != PPR_RELATION and edge_type != HOMOGENEOUS_EDGE_TYPE:
            continue
        mine = np.flatnonzero(graph.edge_type == number)
        seed, kept = graph.edges[:, mine]
        inside[mine] = np.isin(seed, roots)
        distance = np.rint(1.0 / numbers(graph.stores[edge_type], "edge_attr")[:, 1].astype(np.float64)).astype(np.int64) - 1
        for root in roots:
            own = seed == root
            nearer = (hop[kept[own]] < 0) | (distance[own] < hop[kept[own]])
            hop[kept[own][nearer]] = distance[own][nearer]
            parent[kept[own][nearer]] = root
    hop[roots], parent[roots] = 0, -1
    neighbor, center = graph.edges
    return hop, parent, inside & (hop[neighbor] >= 0) & (hop[center] >= 0)


def _cut_out(graph: BatchGraph, roots: list[int], found: _Found, pairs: list[tuple[int, int, str]], remarks: list[str]) -> Neighborhood:
    """The part of a batch that was found, numbered anew."""
    hop, parent, inside = found
    first = list(dict.fromkeys(roots))
    others = np.flatnonzero(hop > 0)
    chosen = np.concatenate([np.array(first, np.int64), others[np.argsort(hop[others], kind="stable")]])
    number = np.full(len(hop), -1)
    number[chosen] = np.arange(len(chosen))
    return Neighborhood(
        graph.node_types,
        graph.node_type[chosen],
        graph.n_id[chosen],
        hop[chosen],
        np.where(parent[chosen] >= 0, number[parent[chosen]], -1),
        graph.edge_types,
        graph.edge_type[inside],
        number[graph.edges[:, inside]],
        tuple(Pair(int(number[a]), int(number[b]), kind) for a, b, kind in pairs),
        tuple(remarks),
    )
