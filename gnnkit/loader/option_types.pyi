"""The options of constructors and verbs as type checkers see them; written by ``tools/write_options.py``, not by hand."""

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from gnnkit.arguments import Array, Dates, EdgesOption
from gnnkit.backends import BackendName
from gnnkit.backends.base import Backend
from gnnkit.backends.devices import Device
from gnnkit.cluster.hosts import PlacementOption
from gnnkit.datasets.table_types import TableKeywords
from gnnkit.loader.inputs import NegativesOption
from gnnkit.loader.options import PadOption, WeightsOption, WindowOption
from gnnkit.plan import ExcludeEdges, Remainder, SubgraphType, TemporalComparison, TemporalStrategy
from gnnkit.plan.sampling import FanOuts
from gnnkit.samplers import Sampler
from gnnkit.schema import EdgeDir
from gnnkit.storage.layout import ByColumn, FeatureDtypes, Given, Order, Partitioner

class BesideKeywords(TypedDict, total=False):
    """The keywords of a loader that samples on another backend."""

    num_neighbors: FanOuts | None
    """Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours, 0 none."""
    batch_size: int
    """Seeds per batch and rank."""
    shuffle: bool | Literal["parts"] | None
    """Whether an epoch visits the seeds in a fresh order; None shuffles the split "train" only. With "parts" each batch has seeds of
    one part of the store, and goes to a host that holds it."""
    device: Device | None
    """The device that batches are copied to; None leaves them in memory."""
    transform: Callable[[Any], Any] | None
    """Called on each batch: before it is copied to ``device``, and on the device where features are cached there."""
    seed: int
    """Random seed; the same seed gives the same batches everywhere."""
    pad: PadOption
    """"bucket" pads batches to at most four shapes, with masks, so that what is compiled fits them all. Or sizes of shapes: ``[(nodes,
    edges), ...]``, for typed graphs ``[{type: size}, ...]``. None pads nothing."""
    is_edge_index: bool
    """Gives ``edge_index`` as PyG's ``EdgeIndex``, with its sort order known where edges are sorted."""
    sampler: Sampler | None
    """Another way of sampling instead: ``gnnkit.Labor(...)``, ``gnnkit.PPR(...)``, ``gnnkit.HGT(...)``, ``gnnkit.LayerWise(...)``,
    ``gnnkit.Clusters(...)``, ``gnnkit.Saint(...)`` or ``gnnkit.Walks(...)``."""
    replace: bool
    """Draws neighbours with replacement."""
    disjoint: bool
    """Gives every seed a neighbourhood of its own; ``batch`` says whose each node is."""
    subgraph_type: SubgraphType
    """"directional" batches hold the edges that were drawn, "bidirectional" also their reverses, "induced" every edge among the batch's
    nodes."""
    temporal_strategy: TemporalStrategy
    """With ``time_attr``: "uniform" draws among the neighbours that are early enough, "last" takes the latest of them."""
    time_window: WindowOption
    """With ``time_attr``: how much older than its seed a neighbour may be, in the unit of the times: a number, or ``[n]`` of them, one
    for each input (or for each place of a mask). None is any age."""
    temporal_comparison: TemporalComparison
    """With ``time_attr``: whether neighbours of the seed's own time are early enough ("<=") or not ("<")."""
    seed_weights: WeightsOption
    """Numbers ``[n]``, one for each input (or for each place of a mask): an epoch draws n inputs in proportion to them, with
    replacement; "balanced" makes all classes of the labels ``y`` equally likely. None visits each input once."""
    drop_last: bool
    """Leaves out a last batch of fewer seeds."""
    remainder: Remainder | None
    """Handling of batches that are left over when they are dealt to ranks: "drop" (None: when shuffled), "pad" (None: otherwise) or
    "uneven"."""
    rank: int | None
    """This trainer's rank; None asks the process group, then torchrun's environment, each time an epoch begins."""
    world_size: int | None
    """Number of trainers; goes with ``rank``."""
    prefetch: int
    """Batches kept ready beyond those being sampled."""
    max_nodes: int | None
    """The most nodes of a batch, over all types; an epoch stops with an error at a larger one. None sets no bound."""
    memory_budget: int | str | None
    """Bytes, or a size such as "2GB", for a copy of the graph in huge pages, or the hottest part of a store with order="hotness"; None
    is a quarter of what is free, divided by the processes of this machine that use the store; 0 makes no copy."""
    feature_cache: int | str
    """Bytes, or a size such as "2GB", of features ``x`` that are kept on ``device``, those of the nodes that batches touch most;
    batches are the same, and come without them. 0 keeps none."""
    placement: PlacementOption
    """Which host holds which parts: "replicate" (each all of them), "features" (each its share of the features, and all else),
    "partition" (each its share), ``{host: parts}``, or "auto". "auto" is the first of these that fits a quarter of the smallest host's
    memory, else "partition". One host holds everything."""
    start_timeout_s: float
    """Seconds that starting may take; while kernels are compiled, each of them."""
    batch_timeout_s: float
    """Seconds that one wait for a batch may take. A thread or process that is seen to be sampling it is waited for, with a warning at
    half of the time."""

class LoaderKeywords(BesideKeywords, total=False):
    """The keywords of any loader."""

    backend: Backend | BackendName
    """The place of sampling: an object such as ``InProcess(num_threads=4)``, its name, or "auto"."""

class LinkKeywords(LoaderKeywords, total=False):
    """The keywords of a loader of links."""

    edge_label: Array | None
    """Numbers ``[n, ...]`` that go with the links; None: a split's own, where it has some."""
    edge_label_time: Dates | None
    """Whole numbers ``[n]``, with ``time_attr``: nothing later is sampled around a link's ends."""
    neg_sampling: NegativesOption
    """The negatives of links. "binary": pairs of nodes, drawn over the whole graph, with the label 0; "triplet": targets for each
    link's source; "official": a split's own negatives; "auto": those where it has some, else None; None: nothing. Also PyG's
    ``NegativeSampling`` or ``{"mode": ..., "amount": ...}``."""
    neg_amount: float
    """Drawn negatives for each link; a fraction is possible with "binary"."""
    neg_strict: bool
    """Whether drawn negatives are never edges of the links' type."""
    exclude_edges: ExcludeEdges | None
    """"self" leaves a batch's links out of what is sampled, "reverse" also the edges that lead back."""

class ConstructorKeywords(LinkKeywords, total=False):
    """The keywords of a constructor."""

    split_index: int | None
    """Which one of several splits, where masks are ``[n, splits]``: 0 is their first column, of "train" and, with ``for_split``, of
    "valid" and "test"."""
    input_time: Dates | None
    """Whole numbers ``[n]``, with ``time_attr``: nothing later is sampled around a node; None is each node's own time."""
    edge_label_index: EdgesOption
    """Makes batches start from links: ``[2, n]`` ids, a split's name, ``(edge type, either of these)``, or an edge type for all its
    edges."""

class BuildKeywords(ConstructorKeywords, total=False):
    """The keywords of a constructor that builds a store."""

    num_parts: int | None
    """Parts to cut the graph into, at least 1; None is one for each host."""
    partition: Partitioner | Given | ByColumn
    """The way in which nodes are assigned to parts; "column:NAME" takes the values of an array of nodes, "given" the parts of a
    ``PartedSource``."""
    edge_dir: EdgeDir
    """"in" compresses edges by target (sampling walks against the edges, as in PyG), "out" by source."""
    weight: str | None
    """Name of the one-dimensional edge array to prepare for weighted sampling, or None."""
    time_attr: str | None
    """Name of the arrays of integers to prepare for temporal sampling, or None: each node's edges are then stored in the order of their
    times, which are the edge's own or those of the node at its far end (see ``gnnkit.storage.edge_values``)."""
    feature_dtype: FeatureDtypes | None
    """Stores floating-point arrays of two dimensions ("x", "edge_attr") in this type; None keeps the source's. "quint8", "quint4x2" and
    "quint2x4" keep 8, 4 or 2 bits of each number, affine between its column's least and largest; batches give float32. ``{type:
    dtype}`` says it of some types, ``{type: {"dtype": ..., "whole": [columns]}}`` keeps columns of them as float32."""
    cache_ratio: float
    """Share of all nodes whose features each part replicates from other parts, hottest first."""
    order: Order
    """The order of a part's nodes in its files: "dataset", or "hotness", those that batches touch most first, so that they share pages
    of a store that does not fit in memory. Batches are the same."""

class TablesKeywords(BuildKeywords, TableKeywords, total=False):
    """The keywords of a constructor of tables."""
