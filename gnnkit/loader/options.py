"""The options that every constructor of a loader shares, and the hosts of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from gnnkit.arguments import Array, Dates, check_fields, check_known
from gnnkit.backends import BackendName, resolve_backend
from gnnkit.backends.base import Backend
from gnnkit.backends.devices import Device, device_for, resolve_device
from gnnkit.backends.on_device import WhereRoom
from gnnkit.bounds import check_choice, size_in_bytes
from gnnkit.cluster.hosts import ONE_HOST, Hosts, PlacementOption, check_placement, find_hosts, place
from gnnkit.cluster.urls.stores import open_url
from gnnkit.datasets import table_options
from gnnkit.errors import PlanError
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import user_path
from gnnkit.loader.inputs import (
    InputOptions,
    check_reverses,
    resolve_rank,
    warn_where_empty,
    with_seed_weights,
    with_time_window,
)
from gnnkit.loader.served import is_served
from gnnkit.loader.subgraphs import found_on
from gnnkit.plan import (
    BatchForm,
    Batching,
    Held,
    InputNodes,
    Inputs,
    LoaderPlan,
    NeighborSampling,
    Placement,
    Remainder,
    RuntimeOptions,
    Sampling,
    StoreRef,
    SubgraphType,
    TemporalComparison,
    TemporalStrategy,
    to_pad,
)
from gnnkit.plan.sampling import EdgeUse, FanOuts, check_fan_outs, resolve_fan_outs
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.samplers import Clusters, Sampler, to_options
from gnnkit.schema import GraphSchema
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.manifest import Manifest, read_manifest
from gnnkit.storage.store import Store
from gnnkit.urls import is_url
from gnnkit.user_arrays import in_unit, one_window

# Options that speak of sampling hop by hop.
_HOP_OPTIONS = ("num_neighbors", "replace", "disjoint", "subgraph_type", "temporal_strategy", "time_window", "temporal_comparison")
_Part = TypeVar("_Part", Batching, RuntimeOptions, BatchForm)
WeightsOption: TypeAlias = Literal["balanced"] | Array | None
WindowOption: TypeAlias = int | timedelta | Dates | None
PadOption: TypeAlias = Literal["bucket"] | Sequence[tuple[int, int]] | Sequence[Mapping[Any, int]] | None


@dataclass(frozen=True)
class Site:
    """The hosts of a loader, and the placement that the user asked for.

    Attributes:
        word: The user's option for the placement.
        hosts: The hosts of all its ranks.
    """

    word: PlacementOption
    hosts: Hosts

    def placement(self, manifest: Manifest, path: str | Path) -> Placement | None:
        """The placement of a store's parts; see ``place``."""
        return place(self.word, manifest, path, self.hosts)

    def open(self, path: str | Path, events: EventSink = ignore_events, planned: StoreRef | None = None) -> Store:
        """Opens the parts of a store that belong to this host; those of a store at a URL are fetched where they are not here.

        Args:
            path: The store's folder or URL.
            events: Receives the stage "download", in bytes.
            planned: The store that is expected there.

        Raises:
            StoreError: There is no store, or it is damaged, or lacks a part that belongs here.
            PlanError: The placement does not fit the hosts or the parts.
        """
        if is_url(path):
            url = str(path)
            return open_url(url, lambda manifest: self._held(manifest, url), events, planned)
        path = user_path(path)
        return Store.open(path, **self._held(read_manifest(path), path))

    def _held(self, manifest: Manifest, path: str | Path) -> Held:
        placement = self.placement(manifest, path)
        return {"parts": range(manifest.num_parts), "whole_structure": False} if placement is None else placement.held(self.hosts.index)


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The options that a user may give for a loader, beside the source of its graph.

    Attributes:
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours, 0 none.
        sampler: Another way of sampling instead: ``gnnkit.Labor(...)``, ``gnnkit.PPR(...)``, ``gnnkit.HGT(...)``,
            ``gnnkit.LayerWise(...)``, ``gnnkit.Clusters(...)``, ``gnnkit.Saint(...)`` or ``gnnkit.Walks(...)``.
        batch_size: Seeds per batch and rank.
        shuffle: Whether an epoch visits the seeds in a fresh order; None shuffles the split "train" only. With "parts" each batch has
            seeds of one part of the store, and goes to a host that holds it.
        seed_weights: Numbers ``[n]``, one for each input (or for each place of a mask): an epoch draws n inputs in proportion to them, with
            replacement; "balanced" makes all classes of the labels ``y`` equally likely. None visits each input once.
        drop_last: Leaves out a last batch of fewer seeds.
        replace: Draws neighbours with replacement.
        disjoint: Gives every seed a neighbourhood of its own; ``batch`` says whose each node is.
        subgraph_type: "directional" batches hold the edges that were drawn, "bidirectional" also their reverses, "induced" every edge among
            the batch's nodes.
        temporal_strategy: With ``time_attr``: "uniform" draws among the neighbours that are early enough, "last" takes the latest of them.
        time_window: With ``time_attr``: how much older than its seed a neighbour may be, in the unit of the times: a number, or ``[n]`` of
            them, one for each input (or for each place of a mask). None is any age.
        temporal_comparison: With ``time_attr``: whether neighbours of the seed's own time are early enough ("<=") or not ("<").
        seed: Random seed; the same seed gives the same batches everywhere.
        remainder: Handling of batches that are left over when they are dealt to ranks: "drop" (None: when shuffled), "pad" (None:
            otherwise) or "uneven".
        backend: The place of sampling: an object such as ``InProcess(num_threads=4)``, its name, or "auto".
        transform: Called on each batch: before it is copied to ``device``, and on the device where features are cached there.
        device: The device that batches are copied to; None leaves them in memory.
        pad: "bucket" pads batches to at most four shapes, with masks, so that what is compiled fits them all. Or sizes of shapes:
            ``[(nodes, edges), ...]``, for typed graphs ``[{type: size}, ...]``. None pads nothing.
        is_edge_index: Gives ``edge_index`` as PyG's ``EdgeIndex``, with its sort order known where edges are sorted.
        feature_cache: Bytes, or a size such as "2GB", of features ``x`` that are kept on ``device``, those of the nodes that batches touch
            most; batches are the same, and come without them. 0 keeps none.
        rank: This trainer's rank; None asks the process group, then torchrun's environment, each time an epoch begins.
        world_size: Number of trainers; goes with ``rank``.
        prefetch: Batches kept ready beyond those being sampled.
        start_timeout_s: Seconds that starting may take; while kernels are compiled, each of them.
        batch_timeout_s: Seconds that one wait for a batch may take. A thread or process that is seen to be sampling it is waited for,
            with a warning at half of the time.
        max_nodes: The most nodes of a batch, over all types; an epoch stops with an error at a larger one. None sets no bound.
        memory_budget: Bytes, or a size such as "2GB", for a copy of the graph in huge pages, or the hottest part of a store with
            order="hotness"; None is a quarter of what is free, divided by the processes of this machine that use the store; 0 makes no
            copy.
        placement: Which host holds which parts: "replicate" (each all of them), "features" (each its share of the features, and all
            else), "partition" (each its share), ``{host: parts}``, or "auto". "auto" is the first of these that fits a quarter of
            the smallest host's memory, else "partition". One host holds everything.
    """

    num_neighbors: FanOuts | None = None
    sampler: Sampler | None = None
    batch_size: int = 1024
    shuffle: bool | Literal["parts"] | None = None
    seed_weights: WeightsOption = None
    drop_last: bool = False
    replace: bool = False
    disjoint: bool = False
    subgraph_type: SubgraphType = "directional"
    temporal_strategy: TemporalStrategy = "uniform"
    time_window: WindowOption = None
    temporal_comparison: TemporalComparison = "<="
    seed: int = 0
    remainder: Remainder | None = None
    backend: Backend | BackendName = "auto"
    transform: Callable[[Any], Any] | None = None
    device: Device | None = None
    pad: PadOption = None
    is_edge_index: bool = False
    feature_cache: int | str = 0
    rank: int | None = None
    world_size: int | None = None
    prefetch: int = 2
    start_timeout_s: float = 120.0
    batch_timeout_s: float = 120.0
    max_nodes: int | None = None
    memory_budget: int | str | None = None
    placement: PlacementOption = "auto"

    def __post_init__(self) -> None:
        # Whatever can be found out without the graph is, before anything is downloaded, built or started.
        check_fields(self)
        if self.seed_weights is not None and self.shuffle is False:
            raise PlanError(
                "seed_weights draws the inputs of an epoch, and shuffle=False asks for their own order", "leave one of them out"
            )
        self._check_sampling()
        self.batching(InputNodes("", ""), NeighborSampling({}))
        self.runtime()
        self.form()
        device = device_for(resolve_backend(self.backend), self.device)
        resolve_device(device)
        if device is None and self.feature_cache:
            raise PlanError(f"feature_cache={self.feature_cache!r} without a device to keep features on", "device='cuda', or leave it out")
        check_placement(self.placement)

    @classmethod
    def of_plan(cls, plan: LoaderPlan, backend: Backend, transform: Callable[[Any], Any] | None, device: Any) -> LoaderOptions:
        """The options that led to a plan and to the backend that it names."""
        hops, own = plan.sampling, {field.name for field in fields(cls)}
        is_plain = isinstance(hops, NeighborSampling) and hops.labor is None
        how: dict[str, Any] = {name: getattr(hops, name) for name in _HOP_OPTIONS} if is_plain else {"sampler": to_options(hops)}
        parts: tuple[Any, ...] = plan.batching, plan.runtime, plan.form
        how |= {field.name: getattr(part, field.name) for part in parts for field in fields(part) if field.name in own}
        if device is None:
            how["feature_cache"] = 0  # a plan may be opened where there is no device
        return cls(**how, backend=backend, transform=transform, device=device, placement=plan.placement or "auto")

    def changed(self, changes: Mapping[str, Any]) -> LoaderOptions:
        """These options for other inputs: order and remainder start from their defaults again, and one way of sampling ends another.

        Raises:
            PlanError: A name is not an option, or a value is unusable.
        """
        check_names(changes, [field.name for field in fields(self)])
        base: dict[str, Any] = {"shuffle": None, "remainder": None, "seed_weights": None}
        if changes.get("sampler") is not None:
            base |= {name: getattr(LoaderOptions, name) for name in _HOP_OPTIONS}
        elif "num_neighbors" in changes:
            base["sampler"] = None
        if isinstance(changes.get("sampler"), Clusters) or isinstance(self.sampler, Clusters):  # which say how large batches are
            base["batch_size"] = LoaderOptions.batch_size
        return replace(self, **{**base, **changes})

    def _check_sampling(self) -> None:
        """Checks what of sampling can be checked without a graph.

        Raises:
            PlanError: Neither or both of ``num_neighbors`` and ``sampler`` are given, or a value is unusable.
        """
        if self.sampler is None:
            if self.num_neighbors is None:
                raise PlanError("num_neighbors is missing", "give one number per hop, for example num_neighbors=[15, 10, 5]")
            check_fan_outs(self.num_neighbors)
            NeighborSampling({}, disjoint=self.disjoint, subgraph_type=self.subgraph_type)
            check_choice("temporal_strategy", self.temporal_strategy, TemporalStrategy)
            check_choice("temporal_comparison", self.temporal_comparison, TemporalComparison)
            one_window(in_unit(self.time_window, "time_window", "us"))  # in any unit: the graph's is not known yet
            return
        if isinstance(self.sampler, type) or not isinstance(self.sampler, Sampler):
            raise PlanError(
                f"sampler must be a way of sampling such as gnnkit.Labor(...), gnnkit.PPR() or gnnkit.HGT(...), got {self.sampler!r}",
                "num_neighbors=[15, 10, 5] samples hop by hop",
            )
        for name in _HOP_OPTIONS:
            value, usual = getattr(self, name), getattr(LoaderOptions, name)
            if type(value) is not type(usual) or value != usual:  # a tensor cannot be compared
                raise PlanError(f"{name}={value!r} and sampler={type(self.sampler).__name__}(...) do not go together", f"leave {name} out")

    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> Sampling:
        """The way of sampling, on a graph of this schema.

        Raises:
            PlanError: An option does not go with the graph or with another one.
        """
        if self.sampler is not None:
            return self.sampler.sampling(schema, edges)
        assert self.num_neighbors is not None, "checked when the options were made"
        check_reverses(self.subgraph_type, schema)
        hops = {name: getattr(self, name) for name in _HOP_OPTIONS} | {
            "num_neighbors": resolve_fan_outs(self.num_neighbors, schema),
            "replace": bool(self.replace),
            "time_window": one_window(in_unit(self.time_window, "time_window", schema.time_unit(edges.time_attr))),
        }
        return NeighborSampling(**hops, **vars(edges))

    def batching(self, inputs: Inputs, sampling: Sampling) -> Batching:
        """Batch size, order and rank."""
        is_drawn = (inputs.split or "").partition(".")[0] == "train" or inputs.weights is not None or sampling.draws_inputs
        shuffle = is_drawn if self.shuffle is None else self.shuffle
        remainder: Remainder = self.remainder or ("drop" if shuffle else "pad")
        rank, world_size = resolve_rank(self.rank, self.world_size)
        given = {"shuffle": shuffle, "drop_last": bool(self.drop_last), "remainder": remainder, "rank": rank, "world_size": world_size}
        return self._as(Batching, batch_size=sampling.batch_size or self.batch_size, **given)

    def runtime(self) -> RuntimeOptions:
        """Limits."""
        cache = size_in_bytes("feature_cache", self.feature_cache, "0 keeps no features on the device", least=0)
        budget = size_in_bytes("memory_budget", self.memory_budget, "at least 0; None is a quarter of what is free", least=0)
        return self._as(RuntimeOptions, memory_budget=budget, feature_cache=cache or 0)

    def form(self) -> BatchForm:
        """The form of batches."""
        return self._as(BatchForm, is_edge_index=bool(self.is_edge_index), pad=to_pad(self.pad))

    def _as(self, kind: type[_Part], **settled: Any) -> _Part:
        """A record of the plan: its fields are the options of the same names, but for those that are settled here."""
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind) if hasattr(self, field.name)} | settled)

    @cached_property
    def site(self) -> Site:
        """The hosts of all ranks, and what is placed where; waits, the first time, for the other ranks where there are several hosts.

        Raises:
            PlanError: The hosts are not clear.
            StartTimeout: Other ranks did not come in time.
        """
        backend = self.backend_for(None)
        if is_served(backend):
            if self.placement not in ("auto", "replicate"):
                raise PlanError(
                    f"placement={self.placement!r}, but the graph is on servers", "say it to them: gnnkit.serve(store, placement=...)"
                )
            return Site("auto", ONE_HOST)
        addresses = getattr(backend, "hosts", None)
        return Site(self.placement, find_hosts(addresses, resolve_rank(self.rank, self.world_size)[1], self.start_timeout_s))

    def backend_for(self, placement: Placement | None) -> Backend:
        """The backend for a placement of the parts; None places all of them on every host."""
        return resolve_backend(self.backend, is_whole=placement is None or placement.is_replicated)

    def plan(
        self,
        graph: GraphHandle,
        placement: Placement | None,
        edges: EdgeUse,
        inputs_on: Callable[[Sampling], tuple[Inputs, Sampling]],
        events: EventSink,
    ) -> tuple[LoaderPlan, Backend]:
        """The plan of these options on a graph, and the backend that it names.

        Args:
            graph: The opened graph.
            placement: Which host holds which of its parts.
            edges: The direction of its edges, and what of them is used.
            inputs_on: Gives the inputs, and the sampling with what they change of it.
            events: Receives the stage "partition", where the way of sampling cuts the graph.

        Raises:
            PlanError: A value does not fit the graph.
        """
        inputs, sampling = inputs_on(self.sampling(graph.arrays.schema, edges))
        inputs = with_seed_weights(with_time_window(inputs, self.time_window, sampling, graph), self.seed_weights, graph)
        warn_where_empty(inputs, graph)
        sampling = found_on(sampling, inputs, graph, events)
        self._check_drawn(sampling)
        backend = self.backend_for(placement)
        batching, runtime = self.batching(inputs, sampling), self.runtime()
        plan = LoaderPlan(graph.store, inputs, sampling, batching, backend.to_json(), runtime, placement, form=self.form())
        return backend.settled(plan, graph) if isinstance(backend, WhereRoom) else (plan, backend)

    def _check_drawn(self, sampling: Sampling) -> None:
        """Refuses options that the way of sampling decides.

        Raises:
            PlanError: One of them says otherwise.
        """
        kind = type(self.sampler).__name__
        if sampling.batch_size not in (None, self.batch_size) and self.batch_size != LoaderOptions.batch_size:
            raise PlanError(f"batch_size={self.batch_size}, and {kind}(...) says how large batches are", "leave batch_size out")
        if sampling.draws_inputs and self.shuffle is False:
            raise PlanError(f"shuffle=False, and {kind}(...) draws anew for every batch", "leave shuffle out")


# Options of a build that a loader's constructor takes; the others are the loader's own or follow from them.
BUILD_OPTIONS = ("num_parts", "partition", "edge_dir", "weight", "time_attr", "feature_dtype", "cache_ratio", "order")


@dataclass(frozen=True)
class GivenOptions:
    """The options that a user has given to a constructor.

    Attributes:
        loader: About the loader.
        build: About its store: how it is built, or the weights and times of it that are used.
        inputs: About what its batches start from.
        with_edge: Whether batches hold edge ids; None where it is not given.
    """

    loader: LoaderOptions
    build: BuildOptions
    inputs: InputOptions
    with_edge: bool | None


def sort_options(
    values: Mapping[str, Any], input_nodes: Any, with_edge: bool | None, edges: Mapping[str, str | None] | None = None
) -> GivenOptions:
    """Sorts what a user said.

    Args:
        values: Names and values, of options that there are.
        input_nodes: What is said of input nodes.
        with_edge: See ``GivenOptions``.
        edges: The weights and times that are used of a graph as it is; None where it is built, with the options of a build.

    Raises:
        PlanError: A value is unusable.
    """
    loader = LoaderOptions(**{field.name: values[field.name] for field in fields(LoaderOptions) if field.name in values})
    inputs = InputOptions.of(values, input_nodes)
    build: dict[str, Any] = {name: value for name, value in (values if edges is None else edges).items() if name in BUILD_OPTIONS}
    if edges is None and build.get("num_parts") is None:
        build["num_parts"] = loader.site.hosts.count
    return GivenOptions(loader, BuildOptions(**build), inputs, with_edge)


# What people who know another loader type, and what it is here.
_ELSEWHERE = {
    "num_workers": "backend=Colocated(num_workers=4) samples in processes, backend=InProcess(num_threads=4) in threads",
    "num_threads": "it belongs to the backend: backend=InProcess(num_threads=4)",
    "num_servers": "it belongs to the backend: backend=GraphStore(num_servers=2)",
    "max_restarts": "it belongs to the backend: backend=Colocated(max_restarts=3)",
    "worker_options": "say it with backend=Colocated(...) or backend=GraphStore(...)",
    **dict.fromkeys(("fanout", "fanouts"), "it is num_neighbors=[15, 10, 5] here"),
    "num_samples": "it belongs to the sampler: sampler=gnnkit.HGT(...)",
    "walk_length": "it belongs to the sampler: sampler=gnnkit.Walks(20)",
    "depth": "num_neighbors has a number for each hop",
    "pin_memory": "device='cuda' copies batches by page-locked memory, while others are sampled; there is nothing to choose",
    "non_blocking": "device='cuda' copies batches while others are sampled; there is nothing to choose",
    **dict.fromkeys(("to_device", "output_device"), "it is device= here"),
    "persistent_workers": "workers stay from epoch to epoch until loader.close(); there is nothing to choose",
    **dict.fromkeys(("prefetch_factor", "channel_size"), "it is prefetch= here: batches kept ready beyond those being sampled"),
    "timeout": "it is batch_timeout_s= here",
    **dict.fromkeys(("collate_fn", "custom_cls"), "it is transform= here: a function of a batch"),
    "worker_init_fn": "draws depend on seed, epoch and batch alone, so workers need no seeds of their own; leave it out",
    "generator": "it is seed= here: an integer",
    **dict.fromkeys(("random_seed", "ddp_seed"), "it is seed= here"),
    "multiprocessing_context": "workers are processes of their own, neither forked nor spawned from this one; leave it out",
    "batch_sampler": "batch_size, shuffle, drop_last and input_nodes say what batches are made of",
    "filter_per_worker": "rows are gathered where batches are sampled; there is nothing to choose",
    "transform_sampler_output": "transform= gets the whole batch",
    "neighbor_sampler": "samplers are gnnkit's own: num_neighbors=[...], or sampler=gnnkit.PPR(...), HGT(...) or LayerWise(...)",
    "is_sorted": "edges are sorted when the store is built; there is nothing to choose",
    "directed": "it is subgraph_type= here: 'directional', 'bidirectional' or 'induced'",
    "undirected": "from_ogb() and from_tables() have it; torch_geometric.transforms.ToUndirected()(data) adds the reverses of edges",
    **dict.fromkeys(("weight_attr", "edge_weight", "with_weight"), "it is weight= here: the name of an edge array"),
    "time": "it is time_attr= here",
    "neg_sampling_ratio": "neg_sampling='binary' with neg_amount=1.0 says the same",
    **dict.fromkeys(("train_idx", "seeds", "nids"), "it is input_nodes= here"),
    "method": "it is partition= here",
    "use_uva": "feature_cache= keeps the rows that are touched most on the device",
    "use_ddp": "rank and world_size come from the process group or torchrun's environment by themselves",
    "num_epochs": "iterate as often as you like: each iteration is the next epoch",
}
_NOT_BUILT = "it is about a store that is built, and this graph is taken as it is"


def check_names(values: Iterable[str], known: Iterable[str]) -> None:
    """Checks that every option is one that there is.

    Raises:
        PlanError: A name is unknown; says what stands for it here where another loader has it.
    """
    names = list(known)
    of_tables = table_options.ELSEWHERE if "src" in names else {}
    check_known(values, names, {**dict.fromkeys(BUILD_OPTIONS, _NOT_BUILT), **_ELSEWHERE, **of_tables})


Progress = bool | Literal["auto"]
