"""Sampling around the inputs of a batch: hop by hop, by budgets, by personalised PageRank; and how large batches become."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.bounds import LARGEST, check_choice, check_flag, check_text, is_real, is_whole, keep_whole_number, shown
from gnnkit.errors import PlanError
from gnnkit.plan.inputs import Inputs
from gnnkit.plan.records import OMITTED, Record, column, of_kind
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, EdgeDir, EdgeType, GraphSchema, NodeType, is_label_edge_type, near_edge_types

FanOuts: TypeAlias = Sequence[int] | Mapping[EdgeType, Sequence[int]]
# Room is made for as many edges as may be drawn: beyond this there would be none.
_MOST_DRAWN = (1 << 31) - 1


def _fan_out(value: Any, where: str) -> tuple[int, ...]:
    hint = "a fan-out is a whole number below 2**31; -1 takes all neighbours, 0 none"
    return numbers_by_hop(value, f"num_neighbors{where}", -1, _MOST_DRAWN, hint, "[15, 10, 5]")


def numbers_by_hop(value: Any, what: str, least: int, most: int, hint: str, example: str) -> tuple[int, ...]:
    """A list of whole numbers, one for each hop: of an option, a plan or a request.

    Args:
        value: The list.
        what: What it is called.
        least: The smallest number that may be in it.
        most: The largest.
        hint: What numbers mean.
        example: A list as it may be.

    Raises:
        PlanError: It is none.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)) or getattr(value, "ndim", 1) == 0:
        raise PlanError(f"{what} must be a list with one number per hop, got {shown(value)}", f"for example {example}")
    for number in value:
        if not is_whole(number, least, most):
            raise PlanError(f"{what} holds {shown(number)}", hint)
    return tuple(map(int, value))


def node_counts(value: Any, what: str) -> tuple[int, ...]:
    """A list of numbers of nodes, one for each hop.

    Raises:
        PlanError: It is none, or empty.
    """
    hint = "it must be a whole number of nodes, of 64 bits; 0 takes none"
    if not (counts := numbers_by_hop(value, what, 0, LARGEST, hint, "[512, 512]")):
        raise PlanError(f"{what} must be a list with one number per hop, got {shown(value)}", "for example [512, 512]")
    return counts


def check_fan_outs(num_neighbors: FanOuts) -> None:
    """Checks what can be checked without a schema.

    Raises:
        PlanError: A fan-out is empty or no list, hop counts differ, or a number is below -1 or no whole number.
    """
    if not isinstance(num_neighbors, Mapping):
        if not _fan_out(num_neighbors, ""):
            raise PlanError("num_neighbors is empty", "give one number per hop, for example [15, 10, 5]")
        return
    fan_outs = {edge_type: _fan_out(value, f"[{edge_type}]") for edge_type, value in num_neighbors.items()}
    if len({len(fan_out) for fan_out in fan_outs.values()}) != 1 or not all(fan_outs.values()):
        raise PlanError(f"num_neighbors has different numbers of hops: { {str(t): len(f) for t, f in fan_outs.items()} }", "pad with 0")


def resolve_fan_outs(num_neighbors: FanOuts, schema: GraphSchema) -> dict[EdgeType, tuple[int, ...]]:
    """``{edge type: fan-out per hop}`` for every edge type.

    Args:
        num_neighbors: One list for all edge types, or a list for each.
        schema: The graph's schema.

    Raises:
        PlanError: A type is unknown or missing, hop counts differ, or a number is below -1 or no whole number.
    """
    check_fan_outs(num_neighbors)
    if not isinstance(num_neighbors, Mapping):
        fan_out = _fan_out(num_neighbors, "")
        # Labels are for supervision: messages pass along them only where a user says so of their type.
        return {t: (0,) * len(fan_out) if is_label_edge_type(t) else fan_out for t in schema.edge_types}
    if schema.is_homogeneous and set(num_neighbors) != {HOMOGENEOUS_EDGE_TYPE}:
        raise PlanError("num_neighbors is a dict, but the graph is homogeneous", "give a list, for example [15, 10, 5]")
    names = [str(edge_type) for edge_type in schema.edge_types]
    for edge_type in num_neighbors:
        if edge_type not in schema.edge_types:
            raise PlanError(
                f"num_neighbors names the unknown edge type {edge_type!r}{near_edge_types(edge_type, schema.edge_types)}", f"known: {names}"
            )
    missing = [edge_type for edge_type in schema.edge_types if edge_type not in num_neighbors]
    if missing:
        raise PlanError(f"num_neighbors says nothing about the edge types {missing}", "give [0, ...] to leave a type out")
    return {edge_type: _fan_out(value, f"[{edge_type}]") for edge_type, value in num_neighbors.items()}


def whole_fan_outs(num_neighbors: FanOuts, schema: GraphSchema) -> dict[EdgeType, tuple[int, ...]]:
    """As ``resolve_fan_outs``, but types that a dict leaves out are not walked along."""
    if isinstance(num_neighbors, Mapping):
        check_fan_outs(num_neighbors)
        nothing = (0,) * len(next(iter(num_neighbors.values())))
        num_neighbors = {**dict.fromkeys(schema.edge_types, nothing), **num_neighbors}
    return resolve_fan_outs(num_neighbors, schema)


# Ids in batches are int64, an edge index has two; seeds carry their place among the inputs.
_ID_BYTES, _EDGE_BYTES = 8, 16
# Each array begins at a cache line.
_ALIGNMENT = 64


@dataclass(frozen=True)
class EdgeUse:
    """The direction of a graph's edges, and what of them is used.

    Attributes:
        edge_dir: The direction in which they are sampled.
        weight: Name of the edge array that draws follow; None draws all alike.
        time_attr: Name of the array that keeps later neighbours out; None where time plays no part.
        with_edge: Whether batches carry edge ids.
    """

    edge_dir: EdgeDir = "in"
    weight: str | None = None
    time_attr: str | None = None
    with_edge: bool = False

    @classmethod
    def of(cls, said: Any) -> EdgeUse:
        """That of a plan's way of sampling, or of the options of a build."""
        return cls(said.edge_dir, said.weight, said.time_attr, said.with_edge)

    def check_plain(self, sampler: str, *, weighs: bool = False) -> None:
        """Refuses times, and weights, for a way of sampling that follows neither, or weights alone.

        Raises:
            PlanError: One is given.
        """
        for name in ("time_attr",) if weighs else ("weight", "time_attr"):
            if (value := getattr(self, name)) is not None:
                raise PlanError(f"{name}={value!r}, but {sampler} does not follow it", f"leave {name} out, or sample with num_neighbors")


@dataclass(frozen=True)
class BatchSize:
    """A batch, or the mean of several.

    Attributes:
        nodes: ``{node type: nodes}``, seeds included.
        edges: ``{edge type: edges}``.
        source: Where the numbers come from, in words.
        drawn: ``{node type: nodes that draw neighbours}``; empty where all may.
        away: ``{node type: nodes of parts on other hosts}`` and ``{edge type: edges that they own}``; empty where these have an even share.
        drawn_away: ``{node type: those of ``away`` that draw neighbours}``, likewise.
        kept: ``{node type: nodes of parts on other hosts whose features are replicated here}``; empty for none.
    """

    nodes: Mapping[NodeType, float]
    edges: Mapping[EdgeType, float]
    source: str
    drawn: Mapping[NodeType, float] = field(default_factory=dict)
    away: Mapping[NodeType | EdgeType, float] = field(default_factory=dict)
    drawn_away: Mapping[NodeType, float] = field(default_factory=dict)
    kept: Mapping[NodeType, float] = field(default_factory=dict)

    @property
    def num_nodes(self) -> float:
        """Nodes of all types."""
        return sum(self.nodes.values())

    @property
    def num_edges(self) -> float:
        """Edges of all types."""
        return sum(self.edges.values())

    def nbytes(self, schema: GraphSchema, batch_size: int, with_edge: bool) -> int:
        """Bytes of its arrays, at most: each one is counted with the gap to the next."""
        total, arrays = _ID_BYTES * batch_size, 1
        for node_type, count in self.nodes.items():
            specs = schema.node_types[node_type].arrays.values()
            total += math.ceil(count) * (_ID_BYTES + sum(spec.row_nbytes for spec in specs))
            arrays += 1 + len(specs)
        for edge_type, count in self.edges.items():
            edge_specs = schema.edge_types[edge_type].arrays.values()
            total += math.ceil(count) * (_EDGE_BYTES + _ID_BYTES * with_edge + sum(spec.row_nbytes for spec in edge_specs))
            arrays += 2 + len(edge_specs)
        return total + arrays * _ALIGNMENT

    def row_bytes(self, schema: GraphSchema) -> float:
        """Bytes of what is gathered for its nodes and edges, ids left out."""
        nodes = sum(n * sum(s.row_nbytes for s in schema.node_types[t].arrays.values()) for t, n in self.nodes.items())
        return nodes + sum(n * sum(s.row_nbytes for s in schema.edge_types[t].arrays.values()) for t, n in self.edges.items())


def most(
    schema: GraphSchema, fan_outs: Mapping[EdgeType, Sequence[int]], seed_type: NodeType, batch_size: int, edge_dir: EdgeDir
) -> BatchSize:
    """Nodes and edges of a batch on a graph of which only the sizes are known.

    Every node draws its full fan-out, and draws fall on all nodes alike: of all ways to draw independently that gives the most different
    nodes. Graphs with hubs, or nodes of few edges, have fewer. It is a mean: single batches may have somewhat more.

    Raises:
        PlanError: A fan-out is -1: all neighbours can be any number.
    """
    if any(count < 0 for fan in fan_outs.values() for count in fan):
        raise PlanError("fan-outs of -1 cannot be bounded on paper", "give the store: its batches are then sampled and counted")
    hops = max(map(len, fan_outs.values()), default=0)
    nodes = dict.fromkeys(schema.node_types, 0.0) | {seed_type: float(min(batch_size, schema.node_types[seed_type].num_nodes))}
    edges, frontier = dict.fromkeys(schema.edge_types, 0.0), {seed_type: nodes[seed_type]}
    for hop in range(hops):
        drawn: dict[NodeType, float] = {}
        for edge_type, fan in fan_outs.items():
            neighbor, owner = (edge_type[0], edge_type[2]) if edge_dir == "in" else (edge_type[2], edge_type[0])
            count = min(frontier.get(owner, 0.0) * fan[hop], float(schema.edge_types[edge_type].num_edges))
            edges[edge_type] += count
            drawn[neighbor] = drawn.get(neighbor, 0.0) + count
        frontier = {}
        for node_type, count in drawn.items():
            total = schema.node_types[node_type].num_nodes
            # Of the nodes that are not in the batch yet, the share that so many draws hit.
            found = (total - nodes[node_type]) * -math.expm1(-count / total) if total else 0.0
            frontier[node_type] = found
            nodes[node_type] += found
    used = {t: n for t, n in edges.items() if n or any(fan_outs.get(t, ()))}
    return BatchSize(nodes, used, "at most on average, from sizes and fan-outs")


class Sampling(Record):
    """A way of sampling: a frozen dataclass of its own kind, equal to others with the same values. Naming its kind makes plans read it.

    A plan whose way of sampling is defined outside of gnnkit names its module, too, which is imported where the plan is read.

    Attributes:
        edge_dir: The direction in which the store is compressed and sampled.
        with_edge: Whether batches carry ``e_id``.
        weight: Name of the edge array that draws follow; None for uniform draws.
        time_attr: Name of the array that keeps later neighbours out; None where time plays no part.
        rows: The class of what an epoch orders in the place of the inputs, as "module:class", made with plan and graph; empty where not.
        seeder: The class that finds the seeds of a batch of such, made with inputs and sampling; empty where it is theirs.
        finder: The function that fills in what follows from the graph when a plan is made; empty where nothing does.
        unit: What it orders, as a plural noun.
        draws_inputs: Whether an epoch draws what it orders, whatever ``shuffle`` is: ``rows`` are then ``DrawnRows``.
    """

    rows: ClassVar[str] = ""
    seeder: ClassVar[str] = ""
    finder: ClassVar[str] = ""
    draws_inputs: ClassVar[bool] = False
    unit: ClassVar[str] = "seeds"

    edge_dir: EdgeDir
    with_edge: bool
    weight: str | None = None
    time_attr: str | None = None

    def __init_subclass__(cls) -> None:
        other = _KINDS.setdefault(cls.kind, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise PlanError(
                f"{cls.__qualname__} of {cls.__module__} has the kind {cls.kind!r} of {other.__qualname__} of {other.__module__}",
                "kind is the word for it in plans: give it one of its own",
            )
        _KINDS[cls.kind] = cls  # as it is now: a cell may define it again

    def to_json(self) -> Any:
        """The JSON of a ``Record``, with the module of a kind that is not gnnkit's own; ``sampling_from_json`` reverses it."""
        module = type(self).__module__
        return super().to_json() | ({} if _is_own(module) else {"module": module})

    @property
    def num_hops(self) -> int:
        """Hops that ``num_sampled_nodes`` and ``num_sampled_edges`` count."""
        raise NotImplementedError

    @property
    def walker(self) -> str:
        """The class that chooses nodes and edges, as "module:class": processes import it, with its kernels, where they sample so."""
        raise NotImplementedError

    @property
    def modules(self) -> list[str]:
        """The modules that define it, but for gnnkit's own."""
        places = (self.walker, self.rows, self.seeder, self.finder)
        named = [type(self).__module__, *(place.partition(":")[0] for place in places if place)]
        return [module for module in dict.fromkeys(named) if not _is_own(module)]

    @property
    def batch_size(self) -> int | None:
        """Number of a batch's clusters, or whatever an epoch orders, where the way of sampling says it; None where the loader does."""
        return None

    def check_inputs(self, inputs: Inputs) -> None:
        """Refuses inputs that batches cannot be sampled around so.

        Raises:
            PlanError: They are such.
        """

    def __post_init__(self) -> None:
        check_choice("edge_dir", self.edge_dir, EdgeDir)
        check_flag("with_edge", self.with_edge)
        for name, value in (("weight", self.weight), ("time_attr", self.time_attr)):
            if value is not None:
                check_text(name, value)


_KINDS: dict[str, type[Sampling]] = {}


SubgraphType: TypeAlias = Literal["directional", "bidirectional", "induced"]
TemporalStrategy: TypeAlias = Literal["uniform", "last"]
TemporalComparison: TypeAlias = Literal["<=", "<"]


@dataclass(frozen=True)
class LaborDraws(Record):
    """Neighbours that are drawn by numbers of their own, the same in every process: LABOR, see ``gnnkit.Labor``.

    Attributes:
        layer_dependency: Whether a node has the same number in all hops.
        batch_dependency: Batches for which it keeps it, at least 1.
    """

    takes_defaults = True

    layer_dependency: bool = False
    batch_dependency: int = 1

    def __post_init__(self) -> None:
        check_flag("layer_dependency", self.layer_dependency)
        keep_whole_number(self, "batch_dependency", 1, _MOST_DRAWN)


@dataclass(frozen=True)
class NeighborSampling(Sampling):
    """Sampling of neighbourhoods, hop by hop.

    Attributes:
        num_neighbors: ``{edge type: fan-out per hop}``; -1 takes all neighbours, 0 none. Every list has the same length.
        replace: Whether a neighbour may be drawn more than once.
        edge_dir: The direction in which the store is compressed and sampled.
        weight: Name of the edge array that neighbours are drawn in proportion to, or None for uniform draws.
        with_edge: Whether batches carry ``e_id``.
        disjoint: Whether every seed has a neighbourhood of its own, in which no other seed's nodes take part.
        subgraph_type: Which edges batches hold: "directional" those that were drawn, "bidirectional" also their reverses, "induced" every
            edge among the batch's nodes.
        time_attr: Name of the node or edge array that keeps later neighbours out of a seed's neighbourhood; implies ``disjoint``.
        temporal_strategy: With ``time_attr``: "uniform" draws among the neighbours that are early enough, "last" takes the latest of them.
        time_window: With ``time_attr``: how much older than its seed a neighbour may be, in the unit of the times; None is any age.
        temporal_comparison: With ``time_attr``: whether neighbours of the seed's own time are early enough ("<=") or not ("<").
        labor: How neighbours are drawn that a batch's nodes share; None where every node draws on its own.
    """

    kind = "neighbors"
    takes_defaults = True

    num_neighbors: Mapping[EdgeType, tuple[int, ...]] = field(metadata=column("num_neighbors"))
    replace: bool = False
    edge_dir: EdgeDir = "in"
    weight: str | None = None
    with_edge: bool = False
    disjoint: bool = False
    subgraph_type: SubgraphType = "directional"
    time_attr: str | None = None
    temporal_strategy: TemporalStrategy = "uniform"
    time_window: int | None = field(default=None, metadata=OMITTED)
    temporal_comparison: TemporalComparison = field(default="<=", metadata=OMITTED)
    labor: LaborDraws | None = field(default=None, metadata=OMITTED)

    def __post_init__(self) -> None:
        check_choice("subgraph_type", self.subgraph_type, SubgraphType)
        check_choice("temporal_strategy", self.temporal_strategy, TemporalStrategy)
        check_choice("temporal_comparison", self.temporal_comparison, TemporalComparison)
        fan_outs = {edge_type: _fan_out(fan_out, f"[{edge_type}]") for edge_type, fan_out in self.num_neighbors.items()}
        object.__setattr__(self, "num_neighbors", fan_outs)
        super().__post_init__()
        for name in ("replace", "disjoint"):
            check_flag(name, getattr(self, name))
        self._check_window()
        if self.labor is not None and (self.replace or self.has_roots or self.subgraph_type != "directional"):
            raise PlanError(
                "LABOR takes each neighbour once, for all seeds together, and shows what was drawn",
                "leave replace, disjoint, time_attr and subgraph_type out",
            )
        if self.time_attr is not None and self.subgraph_type == "induced":
            raise PlanError(
                f"time_attr={self.time_attr!r} with subgraph_type='induced': edges that were not drawn may be of the future",
                "leave one of them out, or use subgraph_type='bidirectional'",
            )
        if self.temporal_strategy == "last":
            self._check_last()

    def _check_window(self) -> None:
        """Checks the options that are about times."""
        if self.time_window is not None:
            keep_whole_number(self, "time_window", hint="in the unit of the times")
        if self.time_window == 0 and self.temporal_comparison == "<":
            raise PlanError("time_window=0 with temporal_comparison='<' leaves no time at all", "use a larger window, or '<='")
        for name, usual in (("time_window", None), ("temporal_comparison", "<="), ("temporal_strategy", "uniform")):
            if self.time_attr is None and getattr(self, name) != usual:
                raise PlanError(f"{name}={getattr(self, name)!r} needs times", "name the array that holds them: time_attr='time'")

    def _check_last(self) -> None:
        """The latest neighbours are not drawn: nothing can say how."""
        if self.replace:
            raise PlanError(
                "temporal_strategy='last' with replace=True: it takes each of the latest neighbours once", "leave one of them out"
            )
        if self.weight is not None:
            raise PlanError(
                f"temporal_strategy='last' with weight={self.weight!r}: it takes the latest neighbours, whatever they weigh",
                "use temporal_strategy='uniform', which follows weights, or leave weight out",
            )

    @property
    def num_hops(self) -> int:
        """Length of every fan-out list."""
        return max((len(fan_out) for fan_out in self.num_neighbors.values()), default=0)

    @property
    def walker(self) -> str:
        """The class that draws, see ``Sampling.walker``."""
        return "gnnkit.sampling.walkers.rooted:RootedWalker" if self.has_roots else "gnnkit.sampling.kinds:NeighborWalker"

    @property
    def has_roots(self) -> bool:
        """Whether each seed has a neighbourhood of its own."""
        return self.disjoint or self.time_attr is not None


@dataclass(frozen=True)
class HGTSampling(Sampling):
    """Sampling of nodes by budgets, see ``gnnkit.sampling.walkers.hgt``.

    Attributes:
        num_samples: ``{node type: nodes to draw in each iteration}``; every list has the same length, a type that is missing gets none.
        edge_dir: The direction in which the store is compressed and sampled.
        with_edge: Whether batches carry ``e_id``.
    """

    kind = "hgt"
    walker = "gnnkit.sampling.walkers.hgt:HGTWalker"

    num_samples: Mapping[NodeType, tuple[int, ...]]
    edge_dir: EdgeDir = "in"
    with_edge: bool = False

    def __post_init__(self) -> None:
        _keep_node_counts(self, "num_samples")
        super().__post_init__()

    @property
    def num_hops(self) -> int:
        """Iterations."""
        return max(map(len, self.num_samples.values()), default=0)


@dataclass(frozen=True)
class LayerWiseSampling(Sampling):
    """Sampling of nodes layer by layer, see ``gnnkit.sampling.walkers.layers``.

    Attributes:
        num_nodes: ``{node type: nodes to choose in each hop}``; every list has the same length, a type that is missing gets none.
        edge_dir: The direction in which the store is compressed and sampled.
        weight: Name of the edge array that the adjacency holds, or None where every edge counts alike.
        with_edge: Whether batches carry ``e_id``.
    """

    kind = "layer_wise"
    walker = "gnnkit.sampling.walkers.layers:LayerWalker"

    num_nodes: Mapping[NodeType, tuple[int, ...]]
    edge_dir: EdgeDir = "in"
    weight: str | None = None
    with_edge: bool = False

    def __post_init__(self) -> None:
        _keep_node_counts(self, "num_nodes")
        super().__post_init__()

    @property
    def num_hops(self) -> int:
        """Hops."""
        return max(map(len, self.num_nodes.values()), default=0)


def _keep_node_counts(sampling: HGTSampling | LayerWiseSampling, name: str) -> None:
    given = getattr(sampling, name).items()
    object.__setattr__(sampling, name, {node_type: node_counts(counts, f"{name}[{node_type!r}]") for node_type, counts in given})


_INDUCED = "gnnkit.sampling.walkers.shape:InducedWalker"


@dataclass(frozen=True)
class ClusterNumbers:
    """The numbers of clusters, in a plan and in what users give."""

    num_clusters: int
    clusters_per_batch: int = 1

    def __post_init__(self) -> None:
        hint = "gnnkit.Clusters(1500, clusters_per_batch=20) is usual for graphs of millions of nodes"
        keep_whole_number(self, "num_clusters", 1, _MOST_DRAWN, hint)
        keep_whole_number(self, "clusters_per_batch", 1, self.num_clusters, hint)


@dataclass(frozen=True, eq=False)
class ClustersSampling(ClusterNumbers, Sampling):
    """Sampling of whole clusters of nodes, see ``gnnkit.Clusters``; equal where the JSON is.

    Attributes:
        num_clusters: Clusters of the graph.
        clusters_per_batch: How many make a batch.
        partition: The partitioner that is to cut the graph; None where it is cut.
        clusters: ``[num_nodes]``, the cluster of each node by the dataset's ids; None until ``partition`` has cut it.
        edge_dir: The direction in which the store is compressed and sampled.
        with_edge: Whether batches carry ``e_id``.
    """

    kind = "clusters"
    takes_defaults = True
    walker = _INDUCED
    rows = "gnnkit.runtime.subgraphs:ClusterRows"
    finder = "gnnkit.loader.subgraphs:with_clusters"
    unit = "clusters"
    num_hops = 0

    partition: str | None = None
    clusters: NDArray[np.int32] | None = None
    edge_dir: EdgeDir = "in"
    with_edge: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Sampling.__post_init__(self)
        own = self.clusters
        if own is None:
            return
        if own.ndim != 1 or own.dtype.kind not in "iu":
            raise PlanError(f"clusters of nodes must be whole numbers [num_nodes], got {own.dtype} {list(own.shape)}")
        if own.size and not 0 <= own.min() <= own.max() < self.num_clusters:
            wrong = int(own.min() if own.min() < 0 else own.max())
            raise PlanError(f"a node has the cluster {wrong}, and num_clusters={self.num_clusters}", "clusters count from 0")
        object.__setattr__(self, "clusters", own.astype(np.int32))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClustersSampling) and bool(self.to_json() == other.to_json())

    @property
    def batch_size(self) -> int:
        """Clusters of a batch."""
        return self.clusters_per_batch


SaintRoots: TypeAlias = Literal["nodes", "edges", "walks"]


@dataclass(frozen=True)
class SaintNumbers:
    """The numbers of GraphSAINT, in a plan and in what users give."""

    roots: SaintRoots = "walks"
    walk_length: int = 2
    num_steps: int | None = None
    sample_coverage: int = 0

    def __post_init__(self) -> None:
        check_choice("roots", self.roots, SaintRoots)
        keep_whole_number(self, "walk_length", 1, hint="2 to 4 are usual")
        if self.num_steps is not None:
            keep_whole_number(self, "num_steps", 1, _MOST_DRAWN, "None is as many as it takes to visit as many nodes as the graph has")
        keep_whole_number(self, "sample_coverage", 0, hint="50 is usual, 0 gives batches without norms")

    @property
    def length(self) -> int:
        """Steps of each root."""
        return {"nodes": 0, "edges": 1, "walks": self.walk_length}[self.roots]


@dataclass(frozen=True)
class SaintSampling(SaintNumbers, Sampling):
    """Sampling of the nodes that drawn roots walk over, see ``gnnkit.Saint``.

    Attributes:
        roots: What is drawn.
        walk_length: Steps of a walk.
        num_steps: Batches of an epoch; None is as many as it takes to visit as many nodes as the graph has.
        sample_coverage: Nodes that are sampled for the norms, in multiples of the graph's; 0 for batches without norms.
        edge_dir: The direction in which the store is compressed and sampled.
        with_edge: Whether batches carry ``e_id``.
    """

    kind = "saint"
    takes_defaults = True
    walker = _INDUCED
    rows = "gnnkit.runtime.subgraphs:SaintRows"
    seeder = "gnnkit.sampling.seeders.saint:SaintSeeder"
    finder = "gnnkit.loader.subgraphs:checked_saint"
    draws_inputs = True
    unit = "roots"
    num_hops = 0

    edge_dir: EdgeDir = "in"
    with_edge: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Sampling.__post_init__(self)


# The relation of a typed graph's edges from seeds to the nodes that they keep.
PPR_RELATION = "ppr"


@dataclass(frozen=True)
class PPRChannel(Record):
    """A walk of its own along some of the edge types.

    Attributes:
        edge_types: The types that it follows, sorted.
        ratio: Its share of a seed's nodes.
        target: How many of them that is.
    """

    edge_types: tuple[EdgeType, ...]
    ratio: float
    target: int


@dataclass(frozen=True)
class PPRNumbers:
    """The numbers of personalised PageRank, in a plan and in what users give."""

    alpha: float = 0.5
    eps: float = 1e-4
    max_ppr_nodes: int = 50
    enable_residual_topup: bool = True
    num_neighbors_per_hop: int = 1000
    max_fetch_iterations: int | None = None

    def __post_init__(self) -> None:
        for name, most in (("alpha", 1.0), ("eps", math.inf)):
            value = getattr(self, name)
            if not is_real(value) or not 0 < value < most:
                limit = "between 0 and 1, both excluded" if name == "alpha" else "above 0"
                usual = PPRNumbers.__dataclass_fields__[name].default
                raise PlanError(f"{name} must be a number {limit}, got {shown(value)}", f"{usual} is a usual choice")
        for name, least in (("max_ppr_nodes", 0), ("num_neighbors_per_hop", 1), ("max_fetch_iterations", 1)):
            value = getattr(self, name)
            if (name, value) in (("num_neighbors_per_hop", -1), ("max_fetch_iterations", None)):
                continue
            if not is_whole(value, least):
                raise PlanError(f"{name} must be a whole number of at least {least}, and of 64 bits, got {shown(value)}")
        for name in ("enable_residual_topup", "include_sampled_edges"):
            check_flag(name, getattr(self, name))


@dataclass(frozen=True)
class PPRSampling(PPRNumbers, Sampling):
    """Sampling of nodes by personalised PageRank, see ``gnnkit.sampling.walkers.ppr``.

    Attributes:
        alpha: The probability of going back to the seed, in each step.
        eps: What is left over at a node, relative to its degree and ``alpha``, below which it is not followed any more.
        max_ppr_nodes: Nodes of each type that a seed keeps, at most.
        enable_residual_topup: Whether nodes that were reached and not followed fill what is left of ``max_ppr_nodes``.
        num_neighbors_per_hop: Edges of each type that a node is followed along, at most; -1 for all of them.
        max_fetch_iterations: Rounds in which a seed's walk asks for neighbours, at most; None for any number.
        edge_types: The types that are walked along, sorted.
        channels: Walks that are kept apart; empty for a single one along ``edge_types``.
        include_sampled_edges: Whether batches also hold the walked edges between their nodes.
        edge_dir: The direction in which the store is compressed and sampled.
        with_edge: Whether batches carry ``e_id``, of walked edges.
    """

    kind = "ppr"
    walker = "gnnkit.sampling.walkers.ppr:PPRWalker"
    takes_defaults = True

    edge_types: tuple[EdgeType, ...] = field(kw_only=True)
    channels: tuple[PPRChannel, ...] = ()
    include_sampled_edges: bool = False
    edge_dir: EdgeDir = "in"
    with_edge: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Sampling.__post_init__(self)
        for channel in self.channels:
            if not is_whole(channel.target) or not is_real(channel.ratio) or not 0 <= channel.ratio <= 1:
                raise PlanError(f"a channel has the ratio {shown(channel.ratio)} and {shown(channel.target)} nodes")

    @property
    def num_hops(self) -> int:
        """A batch's nodes are all one edge away from their seeds."""
        return 1


@dataclass(frozen=True)
class WalkNumbers:
    """The numbers of random walks, in a plan and in what users give."""

    length: int
    per_node: int = 1
    p: float = 1.0
    q: float = 1.0
    num_negatives: int = 0

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("per_node", 1), ("num_negatives", 0)):
            keep_whole_number(self, name, least, _MOST_DRAWN)
        for name in ("p", "q"):
            if not is_real(value := getattr(self, name)) or not 1 / _MOST_BIAS <= value <= _MOST_BIAS:
                limit = f"between {1 / _MOST_BIAS:g} and {_MOST_BIAS:g}"
                raise PlanError(f"{name} must be a number {limit}, got {shown(value)}", "1 is no bias; 0.25, 0.5, 2 and 4 are usual")
            object.__setattr__(self, name, float(value))

    @property
    def is_biased(self) -> bool:
        """Whether a step depends on the one before."""
        return self.p != 1.0 or self.q != 1.0


# Biases are compared as integers of 30 bits.
_MOST_BIAS = 1e6


@dataclass(frozen=True)
class WalkSampling(WalkNumbers, Sampling):
    """Random walks, see ``gnnkit.sampling.walkers.walks``.

    Attributes:
        length: Steps.
        per_node: Walks from each seed.
        p: The larger, the less likely a walk goes straight back.
        q: The larger, the less likely it goes to where the node before has no edge to.
        num_negatives: Negative walks for each walk.
        metapath: The types that steps go along, in turn.
        edge_dir: The direction in which the store is compressed and sampled.
        weight: Name of the edge array that draws follow, or None for uniform draws.
        with_edge: Changes nothing: batches have no edges.
    """

    kind = "walks"
    walker = "gnnkit.sampling.walkers.walks:RandomWalker"

    metapath: tuple[EdgeType, ...] = field(kw_only=True)
    edge_dir: EdgeDir = "in"
    weight: str | None = None
    with_edge: bool = False

    num_hops = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Sampling.__post_init__(self)
        near, far = self._ends
        if not self.metapath:
            raise PlanError("metapath has no edge type", "give one for each step; they are followed in turn")
        for edge_type, after in zip(self.metapath, (*self.metapath[1:], self.metapath[0]), strict=True):
            is_last = edge_type is self.metapath[-1]
            if edge_type[far] != after[near] and not (is_last and self.length <= len(self.metapath)):
                raise PlanError(
                    f"with edge_dir={self.edge_dir!r} a step along {edge_type} leads to {edge_type[far]!r} nodes, "
                    f"and the next one, along {after}, from {after[near]!r} nodes",
                    f"edge_dir={'in' if self.edge_dir == 'out' else 'out'!r} walks along edges the other way; "
                    "walks that are longer than the metapath begin it again, where it must end",
                )
        if self.is_biased and (len(set(self.metapath)) > 1 or self.start != self.metapath[0][far]):
            raise PlanError(
                f"p={self.p:g} and q={self.q:g} ask for edges between the nodes of a walk, and those of metapath are of several types",
                "leave p and q out, or walk along one edge type between nodes of one type",
            )

    @property
    def _ends(self) -> tuple[int, int]:
        """The places in an edge type of the types that a step along it starts from and leads to."""
        return (2, 0) if self.edge_dir == "in" else (0, 2)

    @property
    def start(self) -> NodeType:
        """The type of the nodes that walks start from."""
        return self.metapath[0][self._ends[0]]

    @override
    def check_inputs(self, inputs: Inputs) -> None:
        if inputs.kind != "nodes" or inputs.input_type != self.start:
            what = f"{inputs.input_type!r} nodes" if inputs.kind == "nodes" else inputs.kind
            raise PlanError(f"walks start from {self.start!r} nodes, and the inputs are {what}", "give input_nodes of that type")


def named(place: str) -> Any:
    """The class or function at "module:name", as forms of sampling name theirs: its module is imported where it is used."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


# What __module__ is of what a notebook or script itself defines.
_NOTEBOOK = "__main__"


def check_module(sampling: Sampling) -> None:
    """Refuses to write down a way of sampling that no other process could import.

    Raises:
        PlanError: The notebook or script itself defines it.
    """
    if type(sampling).__module__ == _NOTEBOOK:
        raise _of_notebook(sampling.kind)


def _of_notebook(kind: str) -> PlanError:
    return PlanError(
        f"the sampler {kind!r} is defined in the notebook or script itself, which other processes cannot import",
        f"move its classes into a file beside it, {kind}.py for example, and import them; InProcess() samples as it is",
    )


def sampling_from_json(value: Mapping[str, Any]) -> Sampling:
    """Reverses the ``to_json`` of any sampling; the module that defines another package's is imported.

    Raises:
        PlanError: Its kind is unknown, or its module cannot be imported.
    """
    if "module" not in value:
        return of_kind(_KINDS, value, "the plan samples in the unknown way")
    kind, module = value["kind"], value["module"]
    if kind not in _KINDS or _KINDS[kind].__module__ != module:
        _import(kind, module)
    return of_kind(_KINDS, {name: own for name, own in value.items() if name != "module"}, f"{module} has no sampler of the kind")


def _import(kind: Any, module: Any) -> None:
    """Imports the module of a kind; what it finds is on this process's own path, a plan brings no code."""
    if module == _NOTEBOOK:
        raise _of_notebook(kind)
    names = module.split(".") if isinstance(module, str) else ()
    if not all(map(str.isidentifier, names)) or not names or _is_own(module) or names[0] in sys.stdlib_module_names:
        raise PlanError(f"the plan's sampler {shown(kind)} is said to be of {shown(module)}, which is no module with samplers")
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a module raises
        raise PlanError(
            f"the plan's sampler {shown(kind)} is of the module {module}, which cannot be imported here: {type(error).__name__}: {error}",
            "install it here, or put its file into the folder of the script or one that PYTHONPATH names",
        ) from error
