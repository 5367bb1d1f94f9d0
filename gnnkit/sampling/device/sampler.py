"""Batches that are made on a device: their structure and their rows, and what of the rows the host has."""

# Streams and events of torch.cuda have no type hints.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnkit.plan import LoaderPlan, NeighborSampling
from gnnkit.sampling.device.graph import DeviceGraph, DeviceRows, words_of
from gnnkit.sampling.device.numbers import DeviceNumbers
from gnnkit.sampling.device.walk import DeviceEdges, DeviceWalked, DeviceWalker
from gnnkit.sampling.graph_access import LocalGraphAccess
from gnnkit.sampling.kinds import Sampled, seeder_of
from gnnkit.sampling.subgraph import (
    MISSING,
    SLOT,
    BatchKey,
    BatchLayout,
    EdgeKey,
    LayoutBuilder,
    NodeKey,
    SampleRequest,
    WalkSeeds,
    shown_name,
)
from gnnkit.sampling.tables import GraphTables
from gnnkit.schema import ArraySpec, GraphSchema
from gnnkit.storage.layout import FEATURE_NAME

# What a walk keeps of a pick of its largest hop while it looks for it: 145 bytes were seen with a fan-out of 5, on an H200.
_NBYTES_PER_PICK = 160
_NO_BLOCK: NDArray[np.uint8] = np.empty(0, np.uint8)


class DeviceTensors(dict[BatchKey, Tensor]):
    """The tensors of a batch: what makes them was asked of the device, and need not have happened.

    Args:
        tensors: The tensors.
        there: Happens when they are there; None where there are no streams.
    """

    def __init__(self, tensors: Mapping[BatchKey, Tensor], there: torch.cuda.Event | None) -> None:
        super().__init__(tensors)
        self.there = there


class DevicePlace:
    """The common ground of one stream's samplers: the graph's copy, numbers of nodes, and the device's stream of operations.

    Args:
        graph: The graph's copy.
        plan: What is sampled.
        predicted: Bytes that all of it was predicted to take.
    """

    def __init__(self, graph: DeviceGraph, plan: LoaderPlan, predicted: int) -> None:
        self.graph, self.plan, self.device, self.predicted = graph, plan, graph.device, predicted
        self.lock = threading.Lock()  # of the walk: a batch at a time has numbers
        self._walker: DeviceWalker | None = None
        # One stream for walks and one for rows: a batch is walked while rows of the one before are copied.
        is_cuda = self.device.type == "cuda"
        self._walks, self._rows = (torch.cuda.Stream(self.device) if is_cuda else None for _ in range(2))
        schema = graph.arrays.schema
        self.slots = {t: self._slots(words, schema.node_types[t].num_nodes) for t, words in plan.cached.items()}
        specs = {(t, name): spec for t, nodes in schema.node_types.items() for name, spec in nodes.arrays.items()}
        edge_specs = {(t, name): spec for t, edges in schema.edge_types.items() for name, spec in edges.arrays.items()}
        self.numbers = {
            owner: DeviceNumbers.of(spec.quantization, self.device)
            for owner, spec in (*specs.items(), *edge_specs.items())
            if spec.quantization is not None
        }

    def _slots(self, words: NDArray[np.uint64], num_nodes: int) -> Tensor:
        """int32 ``[nodes]``: the place of each node's features among those that are kept; -1 where they are not."""
        is_kept = np.unpackbits(words.astype("<u8").view(np.uint8), count=num_nodes, bitorder="little").astype(np.bool_)
        return torch.from_numpy(np.where(is_kept, np.cumsum(is_kept) - 1, -1).astype(np.int32)).to(self.device)

    def walker(self, tables: GraphTables) -> DeviceWalker:
        """Chooses nodes and edges; for holders of the lock."""
        if self._walker is None:
            assert isinstance(self.plan.sampling, NeighborSampling), "the backend has looked"
            self._walker = DeviceWalker(self.graph, tables, self.plan.sampling)
        return self._walker

    @property
    def nbytes(self) -> int:
        """Bytes of what lies on the device as long as this is open; batches come beside it."""
        walker = self._walker
        own = [*self.slots.values(), *(() if walker is None else walker.tensors)]
        return self.graph.nbytes + sum(int(tensor.nbytes) for tensor in own)

    @contextlib.contextmanager
    def walking(self) -> Iterator[None]:
        """Has operations go to the stream of walks, for one batch at a time."""
        with self.lock, _on(self._walks):
            yield

    def mark(self) -> torch.cuda.Event | None:
        """An event behind what was asked of the current stream so far; None where there are no streams."""
        if self._rows is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextlib.contextmanager
    def gathering(self, walked: torch.cuda.Event | None) -> Iterator[None]:
        """Has operations go to the stream of rows, behind a walk."""
        with _on(self._rows):
            if walked is not None and self._rows is not None:
                self._rows.wait_event(walked)
            yield

    def read_by_rows(self, tensors: Iterable[Tensor | None]) -> None:
        """Tells the allocator of memory of the stream of walks that the stream of rows reads."""
        for tensor in tensors:
            if self._rows is not None and tensor is not None:
                tensor.record_stream(self._rows)

    def hand_out(self, tensors: Mapping[BatchKey, Tensor]) -> None:
        """Has the calling thread's stream wait for a batch, and tells the allocator that it reads it: it is memory of the streams here."""
        assert isinstance(tensors, DeviceTensors)
        if tensors.there is not None:
            reader = torch.cuda.current_stream(self.device)
            reader.wait_event(tensors.there)
            for tensor in tensors.values():
                tensor.record_stream(reader)

    def close(self) -> None:
        """Gives up the device's memory, but for batches; nothing is sampled any more."""
        if self._rows is not None:
            self._rows.synchronize()  # which reads the graph for batches that were handed out
        if self._walker is not None:
            self._walker.close()
        self.graph, self._walker, self.slots, self.numbers = DeviceGraph(self.graph.arrays, self.device), None, {}, {}


def _on(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def bytes_beside(schema: GraphSchema, sampling: NeighborSampling, plan: LoaderPlan, batches: int) -> tuple[int, int]:
    """Bytes that sampling takes beside the graph: of numbers and places of features, and of batches by the graph's mean degrees.

    Args:
        schema: The graph's schema.
        sampling: The plan's.
        plan: The plan.
        batches: How many of them are there at once.
    """
    numbering = 0 if sampling.has_roots else 4 * sum(nodes.num_nodes + 1 for nodes in schema.node_types.values())
    has_places = [nodes for nodes in schema.node_types.values() if plan.runtime.feature_cache and FEATURE_NAME in nodes.arrays]
    places = 4 * sum(nodes.num_nodes for nodes in has_places)
    row_nbytes = 8 + max((sum(spec.row_nbytes for spec in nodes.arrays.values()) for nodes in schema.node_types.values()), default=0)
    all_nodes = sum(nodes.num_nodes for nodes in schema.node_types.values())
    edges_nbytes = picks = 0.0
    nodes = frontier = float(plan.batching.batch_size)
    for hop in range(sampling.num_hops):
        found = 0.0
        for edge_type, fan_outs in sampling.num_neighbors.items():
            edges, k = schema.edge_types[edge_type], fan_outs[hop]
            degree = edges.num_edges / max(1, schema.node_types[edge_type[2 if sampling.edge_dir == "in" else 0]].num_nodes)
            own = frontier * (degree if k < 0 else k if sampling.replace else min(k, math.ceil(degree)))
            edges_nbytes += own * (24 + sum(spec.row_nbytes for spec in edges.arrays.values()))
            found += own
        picks = max(picks, found)
        frontier = found if sampling.has_roots else min(found, all_nodes)
        nodes += frontier
    nodes = nodes if sampling.has_roots else min(nodes, all_nodes)
    return numbering + places, batches * int(nodes * row_nbytes + edges_nbytes) + int(picks * _NBYTES_PER_PICK)


class DeviceSampler:
    """Samples batches on a device; one object per thread.

    Seeds are found on the host, by the same stage as everywhere: they are all that crosses to the device.

    Args:
        tables: The graph on the host.
        place: What the samplers share.
    """

    def __init__(self, tables: GraphTables, place: DevicePlace) -> None:
        self.tables, self._place = tables, place
        sampling = place.plan.sampling
        self._seeder = seeder_of(place.plan.inputs, sampling)
        self._reach = LocalGraphAccess(tables, sampling.with_edge)

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph; the device has its own already."""
        self.tables = tables
        self._reach.use(tables)

    def sample_all(self, requests: Sequence[SampleRequest], acquire: Callable[[int], NDArray[np.uint8]]) -> list[Sampled]:
        """Samples batches; blocks are for features that the host gathers."""
        return [self._sample(request, acquire) for request in requests]

    def _sample(self, request: SampleRequest, acquire: Callable[[int], NDArray[np.uint8]]) -> Sampled:
        place, started = self._place, time.monotonic()
        seeds = self._seeder.seeds(request, self._reach)
        seeds.variates = request.variates
        with place.walking():
            walked = place.walker(self.tables).walk(seeds, request.key)
            there = place.mark()
        sampled = time.monotonic()
        writer = _DeviceWriter(self.tables, place, self._reach, acquire)
        with place.gathering(there):
            try:
                layout, tensors = writer.written(walked, seeds)
            finally:
                done = place.mark()
                if done is not None and writer.copied:  # blocks, which are written again
                    done.synchronize()
        place.read_by_rows([*walked.nodes, *(own for edges in walked.edges for own in (edges.ends, edges.position)), *(walked.batch or ())])
        return Sampled(layout, _NO_BLOCK, sampled - started, time.monotonic() - sampled, started, DeviceTensors(tensors, done))


class _DeviceWriter:
    """Gathers what one batch carries; the arrays and their order are those of ``RowWriter``."""

    def __init__(
        self, tables: GraphTables, place: DevicePlace, reach: LocalGraphAccess, acquire: Callable[[int], NDArray[np.uint8]]
    ) -> None:
        self._tables, self._place, self._reach, self._acquire = tables, place, reach, acquire
        self._builder = LayoutBuilder()
        self._tensors: dict[BatchKey, Tensor] = {}
        self.copied: list[NDArray[Any]] = []  # what copies to the device read, kept until they have happened

    def written(self, walked: DeviceWalked, seeds: WalkSeeds) -> tuple[BatchLayout, Mapping[BatchKey, Tensor]]:
        """A batch's layout, and its tensors."""
        tables = self._tables
        for t, (node_type, nodes) in enumerate(zip(tables.node_types, walked.nodes, strict=True)):
            ids = self._place.graph.ids(node_type)
            self._add(NodeKey(node_type, "n_id"), "int64", nodes if ids is None else ids[nodes].long())
            for name, spec in tables.graph.schema.node_types[node_type].arrays.items():
                self._add_rows(NodeKey(node_type, shown_name(name)), t, name, spec, nodes)
        for edges in walked.edges:
            self._add_edges(edges)
        for key, array in seeds.arrays.items():
            own = torch.from_numpy(np.array(array)).to(self._place.device, non_blocking=True)
            self._add(key, str(array.dtype), own)
        for node_type, batch in zip(tables.node_types, walked.batch or (), strict=False):
            self._add(NodeKey(node_type, "batch"), "int64", batch)
        layout = BatchLayout(
            tuple(self._builder.fields),
            self._builder.nbytes,
            dict(zip(tables.node_types, walked.num_sampled_nodes, strict=True)),
            {edges.type: edges.num_sampled for edges in walked.edges},
            seeds.input_type,
            seeds.num_seeds,
        )
        return layout, self._tensors

    def _add(self, key: BatchKey, dtype: str, tensor: Tensor) -> None:
        self._builder.add(key, dtype, tuple(tensor.shape))
        self._tensors[key] = tensor

    def _add_edges(self, edges: DeviceEdges) -> None:
        self._add(EdgeKey(edges.type, "edge_index"), "int64", edges.ends)
        if edges.relation is None or edges.position is None:
            return
        edge_type = self._tables.edge_types[edges.relation]
        ids = self._place.graph.ids(edge_type)
        if ids is not None and self._place.plan.sampling.with_edge:
            self._add(EdgeKey(edges.type, "e_id"), "int64", ids[edges.position].long())
        for name, spec in self._tables.graph.schema.edge_types[edge_type].arrays.items():
            rows = self._place.graph.rows(edge_type, name)
            assert rows is not None, "only features of nodes stay on the host"
            numbers = self._place.numbers.get((edge_type, name))
            self._add_numbers(EdgeKey(edges.type, shown_name(name)), spec, rows.take(edges.position), numbers)

    def _add_numbers(self, key: BatchKey, spec: ArraySpec, found: Tensor, numbers: DeviceNumbers | None) -> None:
        if numbers is None:
            self._add(key, spec.dtype, found)
        else:
            self._add(key, "float32", numbers(found))

    def _add_rows(self, key: NodeKey, t: int, name: str, spec: ArraySpec, nodes: Tensor) -> None:
        node_type = key.type
        rows, numbers = self._place.graph.rows(node_type, name), self._place.numbers.get((node_type, name))
        slots = self._place.slots.get(node_type) if name == FEATURE_NAME else None
        if slots is not None:
            self._add_missing(key, t, spec, nodes, slots[nodes])
        else:
            found = self._from_host(t, name, spec, nodes) if rows is None else rows.take(nodes)
            self._add_numbers(key, spec, found, numbers)

    def _add_missing(self, key: NodeKey, t: int, spec: ArraySpec, nodes: Tensor, slot: Tensor) -> None:
        """Features but for those that are kept: see ``gnnkit.sampling.cached``."""
        places = (slot < 0).nonzero()[:, 0]
        self._add(key, spec.dtype, self._from_host(t, FEATURE_NAME, spec, nodes[places]))
        self._add(NodeKey(key.type, SLOT), "int32", slot.clamp(min=0))
        self._add(NodeKey(key.type, MISSING), "int32", places.int())

    def _from_host(self, t: int, name: str, spec: ArraySpec, nodes: Tensor) -> Tensor:
        """DeviceRows that the host gathers, into page-locked memory where the device wants it."""
        ids = nodes.cpu().numpy()
        count = len(ids)
        block = self._acquire(max(1, count * spec.row_nbytes))[: count * spec.row_nbytes]
        gathered = block.view(spec.numpy_dtype).reshape(count, *spec.stored_shape)
        self._reach.rows_into(t, name, ids, gathered)
        self.copied.append(gathered)
        like = words_of(np.empty((0, *spec.stored_shape), spec.numpy_dtype))
        words = torch.from_numpy(block.view(like.dtype).reshape(count, like.shape[1])).to(self._place.device, non_blocking=True)
        if self._place.device.type == "cpu":
            words = words.clone()  # the block is written again
        shown = DeviceRows(words, torch.from_numpy(np.empty(0, spec.numpy_dtype)).dtype, spec.stored_shape, spec.dtype)
        return shown.shown(words)
