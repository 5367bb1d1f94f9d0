"""Sizing on paper: what a run needs of each node, and what it reads from disks, from sizes, bounds and measured rates."""

from __future__ import annotations

import mmap
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.inprocess import InProcess
from gnnkit.cluster.hosts import fitting_placement, held_nbytes, shares
from gnnkit.cluster.urls.stores import url_manifest
from gnnkit.datasets.ogb import published_graph
from gnnkit.datasets.synthetic import products_like
from gnnkit.errors import PlanError
from gnnkit.files import read_json, user_path
from gnnkit.graph_loader import GraphLoader
from gnnkit.plan import InputLinks, InputNodes, LoaderPlan, NeighborSampling, PlacementWord
from gnnkit.plan.sampling import BatchSize, most, resolve_fan_outs
from gnnkit.runtime.limits import start_memory
from gnnkit.runtime.ring import HEADROOM, LEASED
from gnnkit.schema import NodeType
from gnnkit.splits import find_split
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.disk import probe_disk
from gnnkit.storage.layout import EDGE_FEATURE_NAME, FEATURE_NAME, MANIFEST_NAME, TRAIN, BuildOptions
from gnnkit.storage.manifest import Manifest, planned_manifest, read_manifest
from gnnkit.storage.partition.hotness import expected_frontiers, input_seeds
from gnnkit.storage.store import Store
from gnnkit.units import format_bytes, format_number
from gnnkit.urls import is_url

_STEPS = 60


@dataclass(frozen=True)
class PageReads:
    """The pages of a store and how often a batch is expected to touch each.

    Attributes:
        rate: float64 ``[number of pages that batches touch]``: rows, bounds or edges of the page that a batch reads.
    """

    rate: NDArray[np.float64]

    @classmethod
    def of(
        cls, store: Store, seed_type: NodeType, num_neighbors: Sequence[int], batch_size: int, inputs: InputNodes | None = None
    ) -> PageReads:
        """Works them out from the graph, for epochs over the split "train", or over all nodes where there is none.

        Args:
            store: The store, with all of its parts.
            seed_type: The seeds' type.
            num_neighbors: Fan-outs, the same for all edge types.
            batch_size: Seeds of a batch.
            inputs: What epochs start from instead.

        Raises:
            PlanError: There are no seeds of this type.
            StoreError: A part is not open.
        """
        graph = store.require().arrays()
        splits = store.splits
        name = (find_split(TRAIN, splits.get(seed_type, {}), 0) or TRAIN) if inputs is None else inputs.split
        if inputs is not None and inputs.ids is not None:
            splits, name = {seed_type: {TRAIN: inputs.ids}}, TRAIN
        ids = input_seeds(graph, splits, name).get(seed_type, np.empty(0, np.int64))
        if not len(ids):
            raise PlanError(f"the store {store.path} has no {seed_type!r} nodes to start from")
        seeds, num_batches = {seed_type: ids}, -(-len(ids) // batch_size)
        hops = [
            {t: values / (unit * num_batches) for t, values in frontier.items()}
            for unit, frontier in expected_frontiers(graph, seeds, num_neighbors)
        ]
        rates = [*_of_nodes(graph, hops), *_of_edges(graph, hops, num_neighbors)]
        every = np.concatenate(rates)
        return cls(every[every > 0])

    @property
    def touched(self) -> float:
        """Pages that a batch reads, from memory or from the disk."""
        return float(-np.expm1(-self.rate).sum())

    def missed(self, nbytes: int) -> float:
        """Pages of a batch that come from the disk where memory holds the pages that were read last (Che's approximation of such a cache).

        H. Che, Y. Tung, Z. Wang: Hierarchical Web Caching Systems, IEEE JSAC 20(7), 2002: a page is there if it was read within the last
        ``t`` batches, and ``t`` is such that as many pages are expected to have been read within them as there is room for.

        Args:
            nbytes: Memory for pages.
        """
        room = nbytes / mmap.PAGESIZE
        if room >= len(self.rate):
            return 0.0
        low, high = 0.0, 1.0
        while -np.expm1(-self.rate * high).sum() < room and high < 1e12:
            high *= 2
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if -np.expm1(-self.rate * middle).sum() < room else (low, middle)
        return float((-np.expm1(-self.rate) * np.exp(-self.rate * low)).sum())


Hops = list[dict[NodeType, NDArray[np.float64]]]


def _of_nodes(graph: GraphArrays, hops: Hops) -> Iterator[NDArray[np.float64]]:
    """Rates of the pages of node arrays and ids."""
    for node_type in graph.schema.node_types:
        visits = _reached(sum((hop[node_type] for hop in hops), np.zeros(graph.schema.node_types[node_type].num_nodes)))
        bounds = graph.node_bounds[node_type]
        for part, nodes in enumerate(graph.nodes[node_type]):
            own = visits[bounds[part] : bounds[part + 1]]
            for array in (*nodes.arrays.values(), *([] if nodes.global_id is None else [nodes.global_id])):
                yield _page_rates(array, own)


def _of_edges(graph: GraphArrays, hops: Hops, num_neighbors: Sequence[int]) -> Iterator[NDArray[np.float64]]:
    """Rates of the pages of adjacency."""
    for edge_type in graph.schema.edge_types:
        owner = graph.frontier_type(edge_type)
        bounds = graph.node_bounds[owner]
        for part, edges in enumerate(graph.checked(edge_type).edges[edge_type]):
            degree = np.diff(edges.indptr).astype(np.int64)
            expanded = [_reached(hop[owner][bounds[part] : bounds[part + 1]]) for hop, _ in zip(hops, num_neighbors, strict=False)]
            yield _page_rates(edges.indptr, sum(expanded, np.zeros(len(degree))))
            drawn = [degree if fan_out < 0 else np.minimum(degree, fan_out) for fan_out in num_neighbors]
            for array in (edges.indices, *edges.arrays.values(), *([] if edges.edge_id is None else [edges.edge_id])):
                yield _adjacency_rates(array, edges.indptr, expanded, drawn)


def _adjacency_rates(
    array: NDArray[Any], indptr: NDArray[Any], expanded: list[NDArray[np.float64]], drawn: list[NDArray[np.int64]]
) -> NDArray[np.float64]:
    """Rates of the pages of an array of edges: a node's draws fall on all of its edges alike, and most nodes' edges are in one page.

    Args:
        array: The array.
        indptr: Where each node's edges begin.
        expanded: Of each hop, the chance that a batch draws from a node.
        drawn: Of each hop, how many edges it draws then.
    """
    own = np.flatnonzero(np.diff(indptr))
    if not len(own):
        return np.zeros(0)
    row, offset = array.nbytes // len(array), array.ctypes.data % mmap.PAGESIZE
    begin, end = (offset + indptr[own + k].astype(np.int64) * row for k in (0, 1))
    first, last = begin // mmap.PAGESIZE, (end - 1) // mmap.PAGESIZE
    # A line for each node and page that has some of its edges.
    node = np.repeat(np.arange(len(own)), last - first + 1)
    page = np.arange(len(node)) - np.repeat(np.cumsum(last - first + 1) - (last - first + 1), last - first + 1) + first[node]
    inside = np.minimum(end[node], (page + 1) * mmap.PAGESIZE) - np.maximum(begin[node], page * mmap.PAGESIZE)
    share = inside / (end - begin)[node]
    rates = sum((e[own][node] * (1 - (1 - share) ** d[own][node]) for e, d in zip(expanded, drawn, strict=True)), np.zeros(len(node)))
    return np.bincount(page, rates).astype(np.float64)


def _reached(visits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance that a batch has a node in which so many walks are expected to arrive: it is there once, however many do."""
    return -np.expm1(-visits)


def _page_rates(array: NDArray[Any], rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rates of an array's pages, given those of its first rows, all that are read."""
    if not len(rates) or not array.nbytes:
        return np.zeros(0)
    row = array.nbytes // len(array)
    begin = array.ctypes.data % mmap.PAGESIZE + np.arange(len(rates)) * row
    first, last = begin // mmap.PAGESIZE, (begin + row - 1) // mmap.PAGESIZE
    found = np.bincount(first, rates, int(last[-1]) + 1).astype(np.float64)
    for step in range(1, int((last - first).max()) + 1):
        further = first + step <= last
        found += np.bincount(first[further] + step, rates[further], len(found))
    return found


@dataclass(frozen=True)
class SizedGraph:
    """A graph and its store.

    Attributes:
        manifest: The store's manifest; of one that is not built yet, what is known of it.
        source: Where its sizes come from, in words.
        store: The store's folder; None where there is none yet.
        plan: The plan that named it; None without one.
    """

    manifest: Manifest
    source: str
    store: Path | None = None
    plan: LoaderPlan | None = None

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return self.manifest.file_sizes()

    @property
    def nbytes(self) -> int:
        """Bytes of the whole store, its manifest left out."""
        return sum(self.sizes.values())

    def crossing(self, word: PlacementWord, num_hosts: int, batch: BatchSize, with_edge: bool) -> float:
        """Bytes that machines ask each other for and answer, for a batch: the mean over machines, the text around arrays left out.

        A batch that has its seeds from all over the graph, whichever machine it is for, has everything in it there, too: the parts of the
        others have their share, however the graph is cut.
        """
        if word == "replicate":
            return 0.0
        walks, total, share, schema = word == "partition", 0.0, (num_hosts - 1) / num_hosts, self.manifest.schema
        for t, count in batch.nodes.items():
            arrays, width = schema.node_types[t].arrays, _id_nbytes(schema.node_types[t].num_nodes)
            features = arrays[FEATURE_NAME].row_nbytes if FEATURE_NAME in arrays else 0
            away = batch.away.get(t, share * count)
            found = away - batch.kept.get(t, 0.0)
            total += found * (features + width * bool(features))
            if walks:
                others = sum(spec.row_nbytes for spec in arrays.values()) - features + width * (t in self.manifest.renumbered)
                # Features that are replicated are listed by themselves.
                total += away * (others + width * (bool(others) and not (features and not batch.kept.get(t))))
                relations = sum(t == e[2] for e in schema.edge_types)
                total += batch.drawn_away.get(t, share * batch.drawn.get(t, count)) * (width + _COUNT_NBYTES * relations)
        for e, count in batch.edges.items():
            away = batch.away.get(e, share * count)
            arrays, width = schema.edge_types[e].arrays, _id_nbytes(schema.edge_types[e].num_edges)
            rows = sum(spec.row_nbytes for name, spec in arrays.items() if walks or name == EDGE_FEATURE_NAME) + width * (
                walks and with_edge
            )
            total += away * (rows + width * bool(rows))
            if walks:
                total += away * (_id_nbytes(schema.node_types[e[0]].num_nodes) + width * (bool(arrays) or with_edge))
        return total


# Bytes of the number of edges that a node draws, in an answer.
_COUNT_NBYTES = 4


def _id_nbytes(count: int) -> int:
    """Bytes of an id, of so many, on its way between machines."""
    return 4 if count <= 1 << 31 else 8


def sized_graph(source: str, options: BuildOptions) -> SizedGraph:
    """The graph that a name, the folder of a store or the file of a plan stands for.

    Args:
        source: An OGB dataset's name, which is looked up and not downloaded; a store's folder, or its URL, of which only the manifest is
            read; or a plan's file.
        options: How the store is to be built; for a store that is there, only the number of parts is read.

    Raises:
        DatasetError: The dataset is unknown.
        StoreError: The store cannot be opened.
        PlanError: The plan cannot be read, or the options do not fit the graph.
    """
    if is_url(source):
        return _of_store(source, options, None)
    path = user_path(source)
    if path.is_file():
        plan = LoaderPlan.load(path)
        if plan.store is None:
            raise PlanError(f"the graph of the plan {source!r} was only in memory", "give a store")
        return _of_store(plan.store.path, options, plan)
    if (path / MANIFEST_NAME).is_file() or "/" in source:
        return _of_store(str(path), options, None)
    graph = published_graph(source)
    return SizedGraph(planned_manifest(source, graph.schema, graph.splits, options, {}), "sizes that OGB publishes")


def _of_store(place: str, options: BuildOptions, plan: LoaderPlan | None) -> SizedGraph:
    path = None if is_url(place) else Path(place)
    manifest, source = url_manifest(place) if path is None else read_manifest(path), f"the store {place}"
    if manifest.num_parts != options.num_parts:
        cut = replace(manifest.options, num_parts=options.num_parts, partition=options.partition)
        manifest = planned_manifest(manifest.name, manifest.schema, manifest.splits, cut, manifest.metadata)
        source += ", cut anew"
    return SizedGraph(manifest, source, path, plan)


# Large enough that batches do not cover the graph, small enough to be made in seconds.
_SCALE, _BATCH_SIZE = 0.05, 256
_MEASURED_S, _LEAST_BATCHES = 2.0, 8


@dataclass(frozen=True)
class Rates:
    """The speed of one sampling thread: the edges that it samples and the feature bytes that it copies in a second. Either may limit it.

    Attributes:
        edges_per_s: Edges sampled, with the rows that come with them.
        bytes_per_s: Bytes of the rows that were copied meanwhile.
        source: Where the numbers come from, in words.
    """

    edges_per_s: float
    bytes_per_s: float
    source: str

    def seconds(self, num_edges: float, row_bytes: float) -> float:
        """Returns the seconds that a batch takes one thread: rows wider than those that were measured take longer in proportion."""
        return max(num_edges / self.edges_per_s, row_bytes / self.bytes_per_s)


def measure(num_neighbors: Sequence[int]) -> Rates:
    """Samples a generated graph of OGBN-Products' kind in one thread of this process for two seconds.

    Args:
        num_neighbors: The fan-outs; -1 counts as 15.
    """
    fan_out = [15 if count < 0 else count for count in num_neighbors]
    source = products_like(_SCALE)
    row = sum(spec.row_nbytes for nodes in source.schema.node_types.values() for spec in nodes.arrays.values())
    edges = nodes = batches = 0
    with tempfile.TemporaryDirectory(prefix="gnnkit-capacity-") as folder:
        options: dict[str, Any] = {"num_neighbors": fan_out, "batch_size": _BATCH_SIZE, "backend": InProcess(1), "progress": False}
        with GraphLoader.from_source(source, store_dir=folder, **options) as loader:
            loader.peek()  # kernels are compiled, and the graph is in memory
            start = time.perf_counter()
            for batch in loader:
                edges, nodes, batches = edges + batch.num_edges, nodes + batch.num_nodes, batches + 1
                elapsed = time.perf_counter() - start
                if elapsed > _MEASURED_S and batches >= _LEAST_BATCHES:
                    break
    what = f"measured here: {batches} batches of a generated graph of {source.num_nodes:,} nodes in memory, one thread, {elapsed:.1f} s"
    return Rates(edges / elapsed, nodes * row / elapsed, what)


def from_bench(path: Path) -> Rates:
    """The rates that ``gnnkit bench --json`` recorded for sampling in threads of one process.

    Raises:
        PlanError: The file is no such record.
    """
    try:
        value = read_json(path)
        threads, found = int(value["num_threads"]), value["backends"]["InProcess"]
        edges, nbytes = (statistics.median(map(float, found[name])) / threads for name in ("edges_per_s", "bytes_per_s"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        hint = "write one with gnnkit bench --json > bench.json"
        raise PlanError(f"{str(path)!r} is no record of gnnkit bench: {type(error).__name__}: {error}", hint) from error
    return Rates(edges, nbytes, f"recorded in {path}: {value['graph']} with {format_number(threads, 'thread')}")


_LOOKED_AT = 16
_USUAL_BATCH = 1024
_USUAL_FAN_OUTS = (15, 10, 5)


@dataclass(frozen=True)
class Asked:
    """The sampling that an estimate is made for.

    Attributes:
        num_neighbors: Fan-outs, the same for all edge types.
        batch_size: Seeds of a batch.
        seeds_each: Nodes that one seed stands for: 2 for a link.
        with_edge: Whether batches carry edge ids.
    """

    num_neighbors: tuple[int, ...]
    batch_size: int
    seeds_each: int = 1
    with_edge: bool = False


def asked(graph: SizedGraph, num_neighbors: Sequence[int] | None, batch_size: int | None) -> Asked:
    """Returns the sampling that a user asks about; values that were not given come from the plan, or are usual ones where there is none.

    Raises:
        PlanError: The plan samples in a way that is not counted here.
    """
    links, with_edge = graph.manifest.name.startswith("ogbl-"), False
    if graph.plan is not None:
        sampling = graph.plan.sampling
        links, with_edge = isinstance(graph.plan.inputs, InputLinks), sampling.with_edge
        batch_size = graph.plan.batching.batch_size if batch_size is None else batch_size
        if num_neighbors is None and isinstance(sampling, NeighborSampling):
            fans = set(sampling.num_neighbors.values()) - {(0,) * sampling.num_hops}
            num_neighbors = fans.pop() if len(fans) == 1 else None
        if num_neighbors is None:
            raise PlanError("the plan has no fan-out that is the same for all types", "give one number per hop: --num-neighbors 15,10,5")
    fan_outs = _USUAL_FAN_OUTS if num_neighbors is None else tuple(num_neighbors)
    return Asked(fan_outs, _USUAL_BATCH if batch_size is None else batch_size, 1 + links, with_edge)


def batch_of(graph: SizedGraph, wanted: Asked, num_hosts: int = 1) -> BatchSize:
    """The size of a batch: the mean of some that are sampled, or a bound where there is no store; of so many machines that share it."""
    if graph.store is not None and (graph.plan is not None or wanted.seeds_each == 1):
        return _sampled(graph, graph.store, wanted, num_hosts)
    schema = graph.manifest.schema
    fan_outs = resolve_fan_outs(list(wanted.num_neighbors), schema)
    return most(schema, fan_outs, _seed_type(graph), wanted.seeds_each * wanted.batch_size, "in")


def _seed_type(graph: SizedGraph) -> NodeType:
    """The node type that a plan starts from, or the one with a training split, else the first one."""
    if graph.plan is not None and isinstance(graph.plan.inputs, InputNodes):
        return graph.plan.inputs.node_type
    return next(
        (t for t, splits in graph.manifest.splits.items() if find_split(TRAIN, splits, 0)), next(iter(graph.manifest.schema.node_types))
    )


def _sampled(graph: SizedGraph, path: Path, wanted: Asked, num_hosts: int) -> BatchSize:
    """The mean of batches of all machines, spread over an epoch; of parts of other machines where each has its share of the store's."""
    store = Store.open(path)
    held = shares(store.num_parts, num_hosts).hosts if num_hosts > 1 and store.num_parts == graph.manifest.num_parts else ()
    with _sampling(path, wanted, _seed_type(graph), graph.plan) as loader:
        if not len(loader):
            raise PlanError(f"the store {path} has no full batch of {wanted.batch_size} seeds", "lower the batch size")
        batching = replace(loader.plan.batching, world_size=max(1, len(held)), remainder="uneven")
        each = -(-_LOOKED_AT // batching.world_size)
        found = [
            _counted_batch(loader, schedule.step((2 * i + 1) * len(schedule) // (2 * each)).batch_index, store, held[rank : rank + 1])
            for rank in range(batching.world_size)
            if len(schedule := loader.pipeline.batches.schedule(replace(batching, rank=rank)))
            for i in range(each)
        ]
    source = f"the mean of {len(found)} batches, sampled from the store" + ("" if graph.plan is None else " as the plan says")
    means = {name: {key: sum(each[name][key] for each in found) / len(found) for key in found[0][name]} for name in found[0]}
    return BatchSize(source=source, **means)


def _counted_batch(loader: GraphLoader, index: int, store: Store, held: Sequence[Sequence[int]]) -> dict[str, dict[Any, int]]:
    """Samples a batch of epoch 0; returns its numbers by the names of ``BatchSize``, which has their means.

    Args:
        loader: The loader.
        index: The batch's number.
        store: The store, all of it.
        held: The parts of the machine that the batch is for; empty where parts do not matter.
    """
    loader.load_state_dict({**loader.state_dict(), "next_batch": index})
    batch, schema = loader.peek(), loader.schema
    found: dict[str, dict[Any, int]] = {each.name: {} for each in fields(BatchSize) if each.name != "source"}
    of_type = {key: batch if schema.is_homogeneous else batch[key] for key in (*schema.node_types, *schema.edge_types)}
    is_away: dict[NodeType, NDArray[np.bool_]] = {}
    for t in schema.node_types:
        own = of_type[t]
        found["nodes"][t] = int(own.num_nodes)
        found["drawn"][t] = last = int(own.num_nodes) - (int(own.num_sampled_nodes[-1]) if "num_sampled_nodes" in own else 0)
        for parts in held:
            ids = own.n_id.numpy()
            of_nodes = np.searchsorted(store.node_bounds[t], store.to_store_ids(t, ids), side="right") - 1
            is_away[t] = ~np.isin(of_nodes, parts)
            found["away"][t], found["drawn_away"][t] = int(is_away[t].sum()), int(is_away[t][:last].sum())
            replicated = [store.cache(part)[t].global_id for part in parts if t in store.manifest.cached]
            found["kept"][t] = int(np.isin(ids[is_away[t]], np.concatenate([[], *replicated])).sum())
    for e in schema.edge_types:
        ends, owner = of_type[e].edge_index, 1 if store.edge_dir == "in" else 0
        found["edges"][e] = ends.shape[1]
        if held:
            found["away"][e] = int(is_away[e[2 * owner]][ends[owner].numpy()].sum())
    return found


def _sampling(store: Path, wanted: Asked, seed_type: NodeType, plan: LoaderPlan | None) -> GraphLoader:
    """A loader in this process of a plan's batches, or of those that start from the split "train"."""
    backend = InProcess()
    if plan is None:
        inputs = (seed_type, find_split(TRAIN, Store.open(store).splits.get(seed_type, {}), 0))
        options: dict[str, Any] = {"num_neighbors": list(wanted.num_neighbors), "batch_size": wanted.batch_size, "memory_budget": 0}
        return GraphLoader.from_store(store, input_nodes=inputs, backend=backend, progress=False, **options)
    sampling = plan.sampling
    if isinstance(sampling, NeighborSampling) and set(sampling.num_neighbors.values()) != {wanted.num_neighbors}:
        schema = Store.open(store).schema
        sampling = replace(sampling, num_neighbors=resolve_fan_outs(list(wanted.num_neighbors), schema))
    batching = replace(plan.batching, batch_size=wanted.batch_size, rank=0, world_size=1)
    own = replace(plan, sampling=sampling, batching=batching, backend=backend.to_json(), placement=None)
    with tempfile.TemporaryDirectory(prefix="gnnkit-capacity-") as folder:
        own.save(path := Path(folder, "plan.json"))
        return GraphLoader.from_plan(path, rank=0, world_size=1, progress=False)


# Batches under way: one with each worker's thread, those ahead of the trainer, and those that it holds.
_AHEAD_AND_HELD = 2 + LEASED
_MOST_WORKERS = 16
# What is not shared of a trainer that has imported torch for processors and PyG, and of the process that sampling processes are
# forked from: 374 and 33 MB with Colocated(num_workers=1), torch 2.13 and PyG 2.8.1.
_TRAINER_BYTES, _FORK_SERVER_BYTES = 375_000_000, 35_000_000


@dataclass(frozen=True)
class Cluster:
    """The machines.

    Attributes:
        nodes: Machines with trainers.
        procs_per_node: Trainers on each.
        storage_nodes: Machines with storage servers; 0: trainers' machines hold the graph themselves.
        memory: Bytes of memory of each machine.
        network: Bytes a second of each machine's network; None: not said.
        cpus: Processors of each machine.
        train_rate: Seeds a second that one trainer's model takes; None: not said.
    """

    nodes: int
    procs_per_node: int
    storage_nodes: int
    memory: int
    network: float | None
    cpus: int
    train_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "procs_per_node", "cpus"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.storage_nodes < 0:
            raise PlanError(f"storage_nodes must be at least 0, got {self.storage_nodes}")
        if self.train_rate is not None and not self.train_rate > 0:
            raise PlanError(f"train_rate must be more than 0 seeds/s, got {self.train_rate}", "loader.profile() measures it")

    @property
    def holders(self) -> int:
        """Machines that hold the graph."""
        return self.storage_nodes or self.nodes


@dataclass(frozen=True)
class Estimate:
    """The estimated needs and limits of one run.

    Attributes:
        placement: What each machine that holds the graph has of it, the best that fits.
        crossing: ``{placement: bytes of a batch that cross between machines}``, of all placements that there could be.
        holding: ``{placement: bytes of the store on a machine}``, likewise.
        batch: ``nodes``, ``edges``, ``bytes`` of a batch, and the ``source`` of these numbers.
        disk: Bytes on each machine that holds the graph.
        memory: Bytes by what they are for, on each machine with trainers.
        storage_memory: The same on each storage machine.
        sampled: Seeds a second that one machine samples, whatever the network allows.
        network: Bytes that travel into one machine for each seed that it trains on.
        limits: Seeds a second of one machine with trainers, by what limits them.
        bottleneck: What is least of those, or "memory" where the graph does not fit.
        notes: What else should be known.
        reads: Where the store does not fit in memory: ``touched`` and ``missed``, the pages of a batch and those of them that come from the
            disk, ``room``, the bytes of memory for pages, ``pages_per_s`` and ``depth`` of the probed disk. Empty elsewhere.
    """

    placement: PlacementWord
    crossing: Mapping[PlacementWord, float]
    holding: Mapping[PlacementWord, int]
    batch: Mapping[str, Any]
    disk: int
    memory: Mapping[str, int]
    storage_memory: Mapping[str, int]
    sampled: float
    network: float
    limits: Mapping[str, float]
    bottleneck: str
    notes: tuple[str, ...] = field(default=())
    reads: Mapping[str, float] = field(default_factory=dict)

    @property
    def seeds_per_s(self) -> float:
        """Seeds a second of one machine with trainers."""
        return min(self.limits.values())

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {**asdict(self), "seeds_per_s": self.seeds_per_s, "notes": list(self.notes)}


def estimate(graph: SizedGraph, cluster: Cluster, wanted: Asked, rates: Rates) -> Estimate:
    """Works out what a run needs.

    Args:
        graph: The graph, in as many parts as it will have.
        cluster: The machines.
        wanted: The sampling.
        rates: What one thread does.

    Raises:
        PlanError: There are fewer parts than machines that hold some, or batches cannot be counted.
    """
    manifest, batch, batch_size, with_edge = graph.manifest, batch_of(graph, wanted, cluster.holders), wanted.batch_size, wanted.with_edge
    nbytes, holders = batch.nbytes(manifest.schema, batch_size, with_edge), cluster.holders
    placement: PlacementWord = "replicate" if holders == 1 else "partition"
    if holders > 1 and not cluster.storage_nodes:
        placement = fitting_placement(graph.sizes, manifest.num_parts, holders, cluster.memory)
    if placement != "replicate" and manifest.num_parts < holders:
        raise PlanError(f"{manifest.num_parts} parts for {holders} machines that hold the graph", f"cut it into {holders} or more")
    known = get_args(PlacementWord) if 1 < holders <= manifest.num_parts else (placement,)
    holding = {word: held_nbytes(graph.sizes, word, manifest.num_parts, holders) for word in known}
    crossing = {word: graph.crossing(word, holders, batch, with_edge) for word in known}
    held = holding[placement]
    samplers = max(1, cluster.cpus - 1) if cluster.storage_nodes else cluster.procs_per_node * _workers(cluster)
    fork_servers = 1 if cluster.storage_nodes else cluster.procs_per_node
    processes = start_memory(samplers, 1, manifest.schema) + fork_servers * _FORK_SERVER_BYTES
    # A service of this machine's parts is a process like those that sample.
    processes += start_memory(1, 1, manifest.schema) if placement != "replicate" else 0
    ring = int((samplers / cluster.procs_per_node + _AHEAD_AND_HELD) * cluster.procs_per_node * nbytes * (1 + HEADROOM))
    graph_and_samplers = {"graph": held, "sampling processes": processes}
    memory = {"trainers": cluster.procs_per_node * _TRAINER_BYTES, "batches under way": ring} | (
        {} if cluster.storage_nodes else graph_and_samplers
    )
    storage = graph_and_samplers | {"batches under way": 2 * samplers * nbytes} if cluster.storage_nodes else {}
    own = batch_size / rates.seconds(batch.num_edges, batch.row_bytes(manifest.schema)) * min(samplers, cluster.cpus)
    sampled = own * cluster.storage_nodes / cluster.nodes if cluster.storage_nodes else own
    # All of a batch travels from storage machines.
    travels = (nbytes if cluster.storage_nodes else crossing[placement]) / batch_size
    limits, notes = {"sampling": sampled}, []
    if cluster.network is not None and travels:
        senders = min(1.0, cluster.storage_nodes / cluster.nodes) if cluster.storage_nodes else 1.0
        limits["network"] = cluster.network * senders / travels
    if cluster.train_rate is not None:
        limits["training"] = cluster.train_rate * cluster.procs_per_node
    reads: dict[str, float] = {}
    room = cluster.memory - sum(memory.values()) + held
    if placement == "replicate" and not cluster.storage_nodes and 0 < room < held:
        reads = _reads_of(graph, wanted, room)
        limits |= {"disk": batch_size * reads["pages_per_s"] / reads["missed"]} if reads.get("missed") else {}
    bottleneck = min(limits, key=lambda name: limits[name])
    for where, needs in (("a machine with trainers", memory), ("a storage machine", storage)):
        total = sum(needs.values())
        if total > cluster.memory and not reads:
            bottleneck = "memory"
            what = f"{where} needs {format_bytes(total, 1024)} and has {format_bytes(cluster.memory, 1024)}"
            notes.append(f"{what}: what of the graph does not fit is read from disk whenever it is wanted, and no rate here holds")
    sizes = {"nodes": batch.num_nodes, "edges": batch.num_edges, "bytes": nbytes, "source": batch.source}
    return Estimate(placement, crossing, holding, sizes, held, memory, storage, sampled, travels, limits, bottleneck, tuple(notes), reads)


def _reads_of(graph: SizedGraph, wanted: Asked, room: int) -> dict[str, float]:
    """The values of ``Estimate.reads``; none where there is no store, or its disk cannot be probed."""
    if graph.store is None or wanted.seeds_each != 1:
        return {}
    try:
        rate = probe_disk(graph.store)
    except OSError:  # a file system in memory, or one that cannot read past its cache
        return {}
    inputs = None if graph.plan is None or not isinstance(graph.plan.inputs, InputNodes) else graph.plan.inputs
    pages = PageReads.of(Store.open(graph.store), _seed_type(graph), wanted.num_neighbors, wanted.batch_size, inputs)
    missed = pages.missed(room)
    return {"touched": pages.touched, "missed": missed, "room": room, "pages_per_s": rate.best, "depth": rate.best_depth}


def _workers(cluster: Cluster) -> int:
    """Sampling processes of one trainer, as ``Colocated(num_workers="auto")`` takes them."""
    return max(1, min(_MOST_WORKERS, cluster.cpus // cluster.procs_per_node - 1))
