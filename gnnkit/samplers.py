"""Ways of sampling that ``num_neighbors`` has no word for: objects that a loader is given as ``sampler``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias, runtime_checkable

from typing_extensions import override

from gnnkit.arguments import check_fields, checks_calls
from gnnkit.bounds import is_real
from gnnkit.errors import PlanError, near_matches
from gnnkit.plan import (
    ClustersSampling,
    HGTSampling,
    LaborDraws,
    LayerWiseSampling,
    NeighborSampling,
    PPRChannel,
    PPRSampling,
    SaintSampling,
    Sampling,
    WalkSampling,
)
from gnnkit.plan.sampling import (
    PPR_RELATION,
    ClusterNumbers,
    EdgeUse,
    FanOuts,
    PPRNumbers,
    SaintNumbers,
    WalkNumbers,
    check_fan_outs,
    node_counts,
    resolve_fan_outs,
)
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, GraphSchema, NodeType, is_edge_type, is_label_edge_type
from gnnkit.user_arrays import to_array

NodeCounts: TypeAlias = Sequence[int] | Mapping[NodeType, Sequence[int]]
ChannelRatios: TypeAlias = Mapping[EdgeType | tuple[EdgeType, ...], float]


@runtime_checkable
class Sampler(Protocol):
    """A user's choice of a way of sampling; a plan holds its form for a graph."""

    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> Sampling:
        """The plan's form.

        Args:
            schema: The graph's schema.
            edges: The direction in which it is sampled, and the edge ids, weights and times that are used.

        Raises:
            PlanError: The graph or an option does not go with this way of sampling.
        """


@checks_calls()
@dataclass(frozen=True)
class HGT(Sampler):
    """A fixed number of nodes of each type in each iteration, as the Heterogeneous Graph Transformer samples them (PyG's ``HGTLoader``).

    Nodes are drawn from the neighbours of those that were drawn before, in proportion to the square of what these share out among their
    neighbours; batches then hold the edges among all of them. See
    ``docs/development/sampling.md``.

    Attributes:
        num_samples: How many in each iteration, for every node type or ``{node type: list}``; a type that is missing gets none.

    Raises:
        PlanError: There are no iterations, their numbers differ, or a number is negative or no whole number.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> sampler = gnnkit.HGT(num_samples=[64, 64])
        >>> with gnnkit.GraphLoader.from_pyg(data, input_nodes="train", sampler=sampler) as loader:
        ...     print(loader.peek().batch_size)
        140
    """

    num_samples: NodeCounts

    def __post_init__(self) -> None:
        _check(self.num_samples, "num_samples")

    @override
    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> HGTSampling:
        edges.check_plain("HGT sampling")
        return HGTSampling(_by_type(self.num_samples, "num_samples", schema), edges.edge_dir, edges.with_edge)


@checks_calls()
@dataclass(frozen=True)
class Labor(Sampler):
    """Neighbours drawn by numbers of their own, so that a batch's nodes take the same ones: LABOR-0 (Balin and Çatalyürek, NeurIPS 2023).

    A node takes exactly as many neighbours as with ``num_neighbors``, each as likely, but nodes that have neighbours in common take
    common ones: batches have fewer nodes, and fewer features to move. Weights are followed as ``weight=`` says. See
    ``docs/development/sampling.md``.

    Attributes:
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours, 0 none.
        layer_dependency: Whether a node has the same number in all hops: still fewer nodes, and hops that depend on each other.
        batch_dependency: Batches, counted over all ranks, for which a node keeps its number, each from another batch on: batches that
            follow each other share more nodes, for caches.

    Raises:
        PlanError: A value is not as described.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> sampler = gnnkit.Labor([5, 5])
        >>> with gnnkit.GraphLoader.from_pyg(data, input_nodes="train", sampler=sampler) as loader:
        ...     print(loader.peek().batch_size)
        140
    """

    num_neighbors: FanOuts
    layer_dependency: bool = False
    batch_dependency: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        check_fan_outs(self.num_neighbors)
        self._draws()

    @classmethod
    def of(cls, planned: NeighborSampling) -> Labor:
        """Returns the words that lead to a plan's form."""
        assert planned.labor is not None, "drawn otherwise"
        return cls(planned.num_neighbors, planned.labor.layer_dependency, planned.labor.batch_dependency)

    def _draws(self) -> LaborDraws:
        return LaborDraws(self.layer_dependency, self.batch_dependency)

    @override
    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> NeighborSampling:
        if edges.time_attr is not None:
            raise PlanError(
                f"time_attr={edges.time_attr!r}, but seeds with times of their own share no neighbours", "sample with num_neighbors"
            )
        return NeighborSampling(resolve_fan_outs(self.num_neighbors, schema), labor=self._draws(), **vars(edges))


@checks_calls()
@dataclass(frozen=True)
class LayerWise(Sampler):
    """A fixed number of nodes for all nodes of the hop before together, with importance weights (LADIES).

    A node is chosen with a probability in proportion to the squares of its entries in the normalised adjacency, and batches carry
    ``edge_weight`` with which sums over the sampled neighbours are, on average, means over all of them. See
    ``docs/development/sampling.md``.

    Attributes:
        num_nodes: How many in each hop, for every node type or ``{node type: list}``; a type that is missing gets none.

    Raises:
        PlanError: There are no hops, their numbers differ, or a number is negative or no whole number.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> sampler = gnnkit.LayerWise(num_nodes=[64, 64])
        >>> with gnnkit.GraphLoader.from_pyg(data, input_nodes="train", sampler=sampler) as loader:
        ...     print(loader.peek().batch_size)
        140
    """

    num_nodes: NodeCounts

    def __post_init__(self) -> None:
        _check(self.num_nodes, "num_nodes")

    @override
    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> LayerWiseSampling:
        edges.check_plain("layer-wise sampling", weighs=True)
        return LayerWiseSampling(_by_type(self.num_nodes, "num_nodes", schema), edges.edge_dir, edges.weight, edges.with_edge)


@checks_calls()
@dataclass(frozen=True)
class PPR(PPRNumbers, Sampler):
    """The nodes with the largest personalised PageRank of each seed, found by forward push (GiGL's ``PPRSamplerOptions``).

    Instead of edges of the graph, batches hold an edge from each seed to each node that it keeps, with the score in ``edge_attr``: in a
    typed graph as ``(type of the seeds, "ppr", type of the nodes)``. See ``docs/development/sampling.md``.

    Attributes:
        alpha: The probability of going back to the seed in each step, in (0, 1); NetworkX calls ``1 - alpha`` its ``alpha``.
        eps: Above 0. A node is followed as long as what it has not passed on is at least ``alpha * eps`` times its number of edges: the
            smaller, the more exact, and the slower in the same proportion.
        max_ppr_nodes: Nodes of each type that a seed keeps, at most.
        enable_residual_topup: Whether nodes that were reached and not followed fill what is left of ``max_ppr_nodes``.
        num_neighbors_per_hop: Edges of each type along which a node is followed, at most; above that they are drawn. -1 is all of them.
        max_fetch_iterations: Rounds of following nodes, at most; None is as many as it takes.
        typed_channel_ratios: ``{edge type or tuple of edge types: share of max_ppr_nodes}``: walks that are kept apart, each along its own
            types, with columns of its own in ``edge_attr``. Shares are in (0, 1] and sum to 1. Channels may overlap and be the same: an
            edge type and a tuple of it alone are two keys.
        include_sampled_edges: Whether batches also hold the walked edges of the graph between their nodes; typed graphs only.
        edge_types: The types that are walked along; None is all that hold no labels.

    Raises:
        PlanError: A value is not as described.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> sampler = gnnkit.PPR(alpha=0.25, max_ppr_nodes=20)
        >>> with gnnkit.GraphLoader.from_pyg(data, input_nodes="train", sampler=sampler) as loader:
        ...     print(loader.peek().batch_size)
        140
    """

    typed_channel_ratios: ChannelRatios | None = None
    include_sampled_edges: bool = False
    edge_types: Sequence[EdgeType] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        super().__post_init__()
        if self.typed_channel_ratios is not None:
            _check_ratios(self.typed_channel_ratios)
        _check_edge_types("edge_types", self.edge_types, "None is all without labels")

    @override
    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> PPRSampling:
        edges.check_plain("PPR")
        if schema.is_homogeneous:
            for name in ("typed_channel_ratios", "include_sampled_edges"):
                if getattr(self, name):
                    raise PlanError(f"{name} is given, but the graph is homogeneous: its batches have one edge type", f"leave {name} out")
        walked = self._walked(schema)
        if self.include_sampled_edges and (named := [t for t in walked if t[1] in (PPR_RELATION, f"rev_{PPR_RELATION}")]):
            raise PlanError(f"include_sampled_edges would show the edges {named} under the name of PPR's own", "rename the relation")
        return PPRSampling(
            **_fields(PPRNumbers, self),
            edge_types=walked,
            channels=self._channels(walked),
            include_sampled_edges=self.include_sampled_edges,
            edge_dir=edges.edge_dir,
            with_edge=edges.with_edge,
        )

    @classmethod
    def of(cls, planned: PPRSampling) -> PPR:
        """Returns the words that lead to a plan's form."""
        return cls(
            **_fields(PPRNumbers, planned),
            typed_channel_ratios=channel_ratios((channel.edge_types, channel.ratio) for channel in planned.channels),
            include_sampled_edges=planned.include_sampled_edges,
            edge_types=planned.edge_types,
        )

    def _walked(self, schema: GraphSchema) -> tuple[EdgeType, ...]:
        """The types that are walked along, sorted."""
        passing = [t for t in schema.edge_types if not is_label_edge_type(t)]
        given = passing if self.edge_types is None else list(self.edge_types)
        if unknown := [t for t in given if t not in passing]:
            raise PlanError(f"edge_types names the non-traversable edge types {unknown}", f"known, and without labels: {passing}")
        if not given:
            raise PlanError(
                "there is no edge type to walk along", f"the graph has {list(schema.edge_types)}; labels are never walked along"
            )
        return tuple(t for t in passing if t in given)

    def _channels(self, walked: tuple[EdgeType, ...]) -> tuple[PPRChannel, ...]:
        """The walks that are kept apart, in the order in which they were given."""
        if self.typed_channel_ratios is None:
            return ()
        groups = [key if isinstance(key[0], tuple) else (key,) for key in self.typed_channel_ratios]
        if unknown := sorted({t for group in groups for t in group if t not in walked}):
            raise PlanError(f"typed_channel_ratios names the non-traversable edge types {unknown}", f"walked along: {list(walked)}")
        ratios = [float(ratio) for ratio in self.typed_channel_ratios.values()]
        targets = _largest_remainders(ratios, int(self.max_ppr_nodes))
        types = [tuple(t for t in walked if t in group) for group in groups]
        return tuple(map(PPRChannel, types, ratios, targets))


def channel_ratios(channels: Iterable[tuple[Sequence[Sequence[str]], float]]) -> ChannelRatios | None:
    """Returns channels in the form that a user gives, in their order.

    Args:
        channels: The edge types and the share of each; two may have the same types, and get a key each.
    """
    found: dict[Any, float] = {}
    for edge_types, share in channels:
        key = tuple(map(tuple, edge_types))
        while key in found:
            key = (*key, key[0])
        found[key] = share
    return found or None


def _check_edge_types(name: str, value: Any, hint: str) -> None:
    """Refuses what is neither None nor a list of edge types."""
    if value is not None and not (isinstance(value, Sequence) and all(map(is_edge_type, value))):
        raise PlanError(f"{name} must be a list of edge types (source, relation, target), got {value!r}", hint)


def _check_ratios(ratios: Any) -> None:
    """Checks shares of channels.

    Raises:
        PlanError: They are none.
    """
    if not isinstance(ratios, Mapping) or not ratios:
        raise PlanError(
            f"typed_channel_ratios must be a dict with a share for each channel, got {ratios!r}", "for example {edge_type: 1.0}"
        )
    for key, ratio in ratios.items():
        if not is_edge_type(key) and not (isinstance(key, tuple) and key and all(map(is_edge_type, key))):
            raise PlanError(
                f"typed_channel_ratios names {key!r}", "a channel is a canonical edge type (source, relation, target), or a tuple of these"
            )
        if not is_real(ratio) or not 0 < ratio <= 1:
            raise PlanError(f"typed_channel_ratios[{key!r}] is {ratio!r}", "shares are numbers above 0 and at most 1")
    total = math.fsum(ratios.values())
    if not math.isclose(total, 1.0, rel_tol=1e-9):
        raise PlanError(f"typed_channel_ratios must sum to 1.0, got {total!r}", "divide each share by their sum")


def _largest_remainders(ratios: Sequence[float], total: int) -> list[int]:
    """Whole shares of ``total`` by the method of largest remainders (Hamilton's); the first ones of equal remainders are rounded up."""
    shares = [math.floor(ratio * total) for ratio in ratios]
    order = sorted(range(len(ratios)), key=lambda c: shares[c] - ratios[c] * total)
    for c in order[: total - sum(shares)]:
        shares[c] += 1
    return shares


@checks_calls()
@dataclass(frozen=True)
class Clusters(ClusterNumbers, Sampler):
    """Whole clusters of a graph that is cut into many, with every edge among their nodes (Cluster-GCN: Chiang et al., KDD 2019).

    A batch holds some clusters, drawn anew for each epoch where it is shuffled: first their input nodes, ``batch_size`` of them, then all
    others. Each input node is in one batch of an epoch. The clusters are found when the loader is made, and are in its plan. Homogeneous
    graphs only. See ``docs/development/sampling.md``.

    Attributes:
        num_clusters: Clusters to cut the graph into.
        clusters_per_batch: How many make a batch; it stands in the place of the loader's ``batch_size``.
        partition: What cuts it: a partitioner, as of ``gnnkit.partition``: "metis", "ldg", "contiguous", "random", or "column:NAME" for an
            array of nodes that the graph has; or the cluster of each node, whole numbers ``[num_nodes]``.

    Raises:
        PlanError: A value is not as described.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> sampler = gnnkit.Clusters(50, clusters_per_batch=10)
        >>> with gnnkit.GraphLoader.from_pyg(data, input_nodes="train", sampler=sampler, progress=False) as loader:
        ...     print(len(loader), sum(batch.batch_size for batch in loader))
        5 140
    """

    partition: Any = "ldg"

    @classmethod
    def of(cls, planned: ClustersSampling) -> Clusters:
        """Returns the words that lead to a plan's form."""
        cut = planned.partition if planned.clusters is None else planned.clusters
        return cls(planned.num_clusters, planned.clusters_per_batch, cut)

    @override
    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> ClustersSampling:
        _check_whole_subgraphs("Clusters", schema, edges)
        method, clusters = (self.partition, None) if isinstance(self.partition, str) else (None, to_array(self.partition, "partition"))
        if clusters is not None and clusters.shape != (schema.num_nodes,):
            raise PlanError(
                f"partition must be a partitioner or the clusters [{schema.num_nodes}] of all nodes, got shape {list(clusters.shape)}",
                "partition='ldg', or 'metis' where pymetis is installed",
            )
        return ClustersSampling(self.num_clusters, self.clusters_per_batch, method, clusters, edges.edge_dir, edges.with_edge)


@checks_calls()
@dataclass(frozen=True)
class Saint(SaintNumbers, Sampler):
    """The nodes that some drawn roots walk over, with every edge among them (GraphSAINT: Zeng et al., ICLR 2020).

    A batch has ``batch_size`` roots, of the whole graph: first come the input nodes among what they have met, which ``batch_size`` of the
    batch counts, then the others. With ``sample_coverage`` batches have ``node_norm`` and ``edge_norm``, by which a loss and sums over
    neighbours are weighed so that they are on average those of the whole graph. Homogeneous graphs only. See
    ``docs/development/sampling.md``.

    Attributes:
        roots: "nodes" are drawn in proportion to their number of edges; "edges" are the two ends of an edge; "walks" are drawn evenly and
            go ``walk_length`` steps.
        walk_length: Steps of a walk.
        num_steps: Batches of an epoch, of all ranks; None is as many as it takes to visit as many nodes as the graph has.
        sample_coverage: How often a node is sampled, on average, before the first epoch, so that the norms are known; needs edge ids
            (``with_edge=True``). 0 gives none.

    Raises:
        PlanError: A value is not as described.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> sampler = gnnkit.Saint("walks", walk_length=2, num_steps=4)
        >>> with gnnkit.GraphLoader.from_pyg(data, sampler=sampler, batch_size=64, progress=False) as loader:
        ...     print(len(loader), next(iter(loader)).num_nodes > 64)
        4 True
    """

    @override
    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> SaintSampling:
        _check_whole_subgraphs("Saint", schema, edges)
        return SaintSampling(**_fields(SaintNumbers, self), edge_dir=edges.edge_dir, with_edge=edges.with_edge)


def _check_whole_subgraphs(name: str, schema: GraphSchema, edges: EdgeUse) -> None:
    if not schema.is_homogeneous:
        raise PlanError(
            f"{name}(...) samples homogeneous graphs, and this one has the node types {list(schema.node_types)}",
            "data.to_homogeneous() makes it one; HGT(...), LayerWise(...) and num_neighbors sample typed graphs",
        )
    edges.check_plain(f"{name}(...)")


@checks_calls()
@dataclass(frozen=True)
class Walks(WalkNumbers, Sampler):
    """Random walks from each seed: node2vec's (Grover and Leskovec, KDD 2016), or along a metapath (metapath2vec).

    Batches hold ``walks`` and ``neg_walks`` in the place of edges, with the numbers of nodes in the batch; -1 follows where a walk has come
    to a node that no edge leads on from. Weights are followed as ``weight=`` says. See ``docs/development/sampling.md``.

    Attributes:
        length: Steps of a walk.
        per_node: Walks from each seed.
        p: The larger, the less likely a walk goes straight back to the node before: in proportion to ``1 / p``.
        q: The larger, the less likely it goes on to a node that the one before has no edge to: in proportion to ``1 / q``.
        num_negatives: Negative walks for each walk: from the same seed, to nodes that are drawn from all alike.
        metapath: The edge types that steps go along, in turn, and from the first again; None in a graph of one type. With ``edge_dir="in"``
            a step leads from an edge's target to its source.

    Raises:
        PlanError: A value is not as described.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> sampler = gnnkit.Walks(20, per_node=2, p=0.5, q=2.0)
        >>> with gnnkit.GraphLoader.from_pyg(data, sampler=sampler, batch_size=32) as loader:
        ...     print(loader.peek().walks.shape)
        torch.Size([64, 21])
    """

    metapath: Sequence[EdgeType] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        super().__post_init__()
        _check_edge_types("metapath", self.metapath, "None is for a graph of one type")

    @override
    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> WalkSampling:
        edges.check_plain("Walks(...)", weighs=True)
        if self.metapath is None and not schema.is_homogeneous:
            raise PlanError("metapath is missing: the graph has several types", f"name edge types, of {list(schema.edge_types)}")
        metapath = [HOMOGENEOUS_EDGE_TYPE] if self.metapath is None else self.metapath
        if unknown := [edge_type for edge_type in metapath if edge_type not in schema.edge_types]:
            raise PlanError(f"metapath names the unknown edge types {unknown}", f"known: {list(schema.edge_types)}")
        used: dict[str, Any] = {"edge_dir": edges.edge_dir, "weight": edges.weight, "with_edge": edges.with_edge}
        return WalkSampling(**_fields(WalkNumbers, self), metapath=tuple(metapath), **used)


@dataclass(frozen=True)
class AsPlanned(Sampler):
    """A way of sampling that a plan holds already.

    Attributes:
        planned: The plan's form.
    """

    planned: Sampling

    @override
    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> Sampling:
        return self.planned


# What leads from a plan's form to the user's, which checks it against a graph again; forms that are not here stay as they are.
_OPTIONS: Mapping[type[Sampling], Callable[[Any], Sampler]] = {
    ClustersSampling: Clusters.of,
    HGTSampling: lambda planned: HGT(planned.num_samples),
    LayerWiseSampling: lambda planned: LayerWise(planned.num_nodes),
    NeighborSampling: lambda planned: AsPlanned(planned) if planned.labor is None else Labor.of(planned),
    PPRSampling: PPR.of,
    SaintSampling: lambda planned: Saint(**_fields(SaintNumbers, planned)),
    WalkSampling: lambda planned: Walks(**_fields(WalkNumbers, planned), metapath=planned.metapath),
}


def to_options(sampling: Sampling) -> Sampler:
    """Returns the user's form of a plan's way of sampling; the plan's own where it has none."""
    return _OPTIONS.get(type(sampling), AsPlanned)(sampling)


def _fields(record: type, options: Any) -> dict[str, Any]:
    """The fields of a dataclass, of an object that has them among others."""
    return {field.name: getattr(options, field.name) for field in fields(record)}


def _check(counts: NodeCounts, what: str) -> None:
    if not isinstance(counts, Mapping):
        node_counts(counts, what)
        return
    hops = {node_type: len(node_counts(numbers, f"{what}[{node_type!r}]")) for node_type, numbers in counts.items()}
    if not hops:
        raise PlanError(f"{what} is empty", "name a node type, or give one list for all: [512, 512]")
    if len(set(hops.values())) > 1:
        raise PlanError(f"{what} has different numbers of hops: {hops}", "pad with 0")


def _by_type(counts: NodeCounts, what: str, schema: GraphSchema) -> dict[NodeType, tuple[int, ...]]:
    if not isinstance(counts, Mapping):
        return dict.fromkeys(schema.node_types, node_counts(counts, what))
    if schema.is_homogeneous and set(counts) != {HOMOGENEOUS_NODE_TYPE}:
        raise PlanError(f"{what} is a dict, but the graph is homogeneous", "give a list, for example [512, 512]")
    types = list(schema.node_types)
    for node_type in counts:
        if node_type not in schema.node_types:
            raise PlanError(f"{what} names the unknown node type {node_type!r}{near_matches(str(node_type), types)}", f"known: {types}")
    return {node_type: node_counts(numbers, what) for node_type, numbers in counts.items()}
