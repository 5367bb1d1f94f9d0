"""Graphlearn-torch's samplers, and what they sample as batches of gnnkit."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.backends.glt.data import N_ID, Columns
from gnnkit.errors import SamplingError
from gnnkit.plan import InputNodes, LoaderPlan
from gnnkit.runtime.remote import error_to_json
from gnnkit.sampling.subgraph import BatchKey, BatchLayout, EdgeKey, LayoutBuilder, NodeKey
from gnnkit.schema import ArraySpec, EdgeType, NodeType, edge_type_name, reverse_edge_type
from gnnkit.storage.arrays import GraphArrays
from gnnkit.units import format_bytes
from gnnkit.vendor import glt

_TABLE = Path("/proc/sysvipc/shm")
_IPC_RMID = 0


def forget_segments() -> None:
    """Marks every segment that this process has made to be removed with its last user; processes may go on attaching them (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in _TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[4]) == os.getpid():
            libc.shmctl(int(fields[1]), _IPC_RMID, None)


Sampler: Any = glt.attribute("distributed.DistNeighborSampler")
SeedsInput: Any = glt.attribute("sampler.NodeSamplerInput")
Output: Any = glt.attribute("sampler.SamplerOutput")
Channel: Any = glt.attribute("channel.ShmChannel")

# Keys of messages that graphlearn-torch's own do not have: which batch it is, and why there is none.
TAG, ERROR = "#GNNKIT.TAG", "#GNNKIT.ERROR"
# The native queue's own bookkeeping, for each message and each tensor in it.
_MESSAGE_BYTES, _TENSOR_BYTES = 4096, 512
_WAIT_MS = 200


def job(number: int, seeds: NDArray[np.int64]) -> NDArray[np.int64]:
    """A batch to sample, as it is put into a worker's queue: int64 ``[1 + num_seeds]``."""
    return np.concatenate([np.array([number], np.int64), seeds])


class TaggedSeeds(SeedsInput):  # type: ignore[misc]
    """The seeds of one batch, and which one it is.

    Args:
        node: int64 ``[k]``.
        input_type: Their type; None in a homogeneous graph.
        tag: int64 ``[1]``.
    """

    def __init__(self, node: torch.Tensor, input_type: str | None, tag: torch.Tensor) -> None:
        super().__init__(node, input_type)
        self.tag = tag


class SeedList:
    """Stands where graphlearn-torch's workers expect the list of all seeds: what is asked of it are jobs, not places in a list.

    Its workers receive it when they start, which is when their sampler is replaced.

    Args:
        input_type: The seeds' type; None in a homogeneous graph.
        channel_bytes: Size of the channel.
    """

    def __init__(self, input_type: str | None, channel_bytes: int) -> None:
        self.input_type, self.channel_bytes = input_type, channel_bytes

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        TaggedSampler.channel_bytes = self.channel_bytes
        install()

    def __len__(self) -> int:
        return 0

    def __getitem__(self, jobs: torch.Tensor) -> TaggedSeeds:
        """The job ``[1, 1 + k]`` that a worker has taken from its queue."""
        assert len(jobs) == 1, "graphlearn-torch's batch size is 1 job"
        return TaggedSeeds(jobs[0, 1:], self.input_type, jobs[0, :1].clone())

    def share_memory(self) -> SeedList:
        """Itself: there is nothing to share."""
        return self

    def to(self, device: object) -> SeedList:
        """Itself, likewise."""
        return self


class TaggedSampler(Sampler):  # type: ignore[misc]
    """graphlearn-torch's sampler; a batch that fails becomes a message, and every message says which batch it is."""

    channel_bytes = 0

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any) -> None:
        rank = glt.attribute("distributed.get_context")().rank
        # Its workers would all draw alike (GLT-9).
        super().__init__(*args, seed=None if seed is None else (seed * 1000003 + rank) % (1 << 31), **kwargs)
        self.max_input_size: int = 0
        self.sampler._max_sampled_nodes = self._most_nodes

    def wait_all(self) -> None:
        """Does not wait, as its base would after each job: a worker takes the next one while others are under way."""

    async def _send_adapter(self, async_func: Callable[..., Any], inputs: TaggedSeeds) -> None:
        try:
            message = self._checked(await self._colloate_fn(await async_func(inputs)))
        except BaseException as error:  # it would be logged, and the batch missing (GLT-8)
            text = json.dumps(error_to_json(error)).encode()
            message = {ERROR: torch.frombuffer(bytearray(text), dtype=torch.uint8)}
        message[TAG] = inputs.tag
        self.channel.send(message)

    def _checked(self, message: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        # The channel ignores strides, and never recovers from a message that does not fit (GLT-12).
        found = {key: value.cpu().contiguous() for key, value in message.items()}
        nbytes = sum(value.nbytes + _TENSOR_BYTES for value in found.values()) + _MESSAGE_BYTES
        if nbytes > self.channel_bytes:
            raise SamplingError(
                f"a batch of {format_bytes(nbytes)} does not fit the channel of {format_bytes(self.channel_bytes)}",
                "raise channel_size, or lower batch_size or num_neighbors",
            )
        return found

    def _most_nodes(self, num_seeds: int) -> Any:
        """Nodes that a batch may have at most, by type; graphlearn-torch's own bound is no number where a fan-out is -1 (GLT-13)."""
        if self.dist_graph.data_cls == "homo":
            return min(_bound(num_seeds, self.num_neighbors), max(num_seeds, self._num_nodes(None)))
        found: dict[str, int] = dict.fromkeys(self.data.node_pb, num_seeds)
        for edge_type, fan_outs in self.num_neighbors.items():
            for node_type in {edge_type[0], edge_type[2]}:
                found[node_type] += _bound(num_seeds, fan_outs)
        return {node_type: min(bound, max(num_seeds, self._num_nodes(node_type))) for node_type, bound in found.items()}

    def _num_nodes(self, node_type: str | None) -> int:
        book = self.data.node_pb if node_type is None else self.data.node_pb[node_type]
        return len(book) if isinstance(book, torch.Tensor) else int(book.partition_bounds[-1])

    async def _sample_from_nodes(self, inputs: TaggedSeeds) -> Any:
        """As its base's, which fails in a homogeneous graph where no seed has a neighbour (GLT-11)."""
        try:
            return await super()._sample_from_nodes(inputs)
        except RuntimeError:
            seeds = inputs.node.to(self.device)
            if self.dist_graph.data_cls != "homo" or (await self._sample_one_hop(seeds, self.num_neighbors[0], None)).nbr.numel():
                raise
        inducer = self._acquire_inducer()
        batch, none = inducer.init_node(seeds), torch.empty(0, dtype=torch.int64, device=self.device)
        self.inducer_pool.put(inducer)
        edge = none if self.with_edge else None
        return Output(batch, none, none, edge, batch, num_sampled_nodes=[batch.size(0)], num_sampled_edges=[], metadata={})


def _bound(num_seeds: int, fan_outs: list[int]) -> int:
    if min(fan_outs, default=0) < 0:
        return 1 << 62
    bound = width = num_seeds
    for fan_out in fan_outs:
        width *= fan_out
        bound += width
    return bound


class VolatileChannel(Channel):  # type: ignore[misc]
    """graphlearn-torch's channel, whose memory goes with the last process that has it (GLT-12)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        forget_segments()


def install() -> None:
    """Has graphlearn-torch use these classes where it makes samplers and channels."""
    producer: Any = glt.attribute("distributed.dist_sampling_producer")
    producer.DistNeighborSampler = TaggedSampler
    for module in ("dist_loader", "dist_server"):
        loaded: Any = glt.attribute(f"distributed.{module}")
        loaded.ShmChannel = VolatileChannel


# What a client has its servers do, by graphlearn-torch's RPC.


def submit(producer_id: int, worker: int, job: NDArray[np.int64]) -> None:
    """Puts a job into the queue of one of a server's workers."""
    server: Any = glt.attribute("distributed.dist_server").get_server()
    enqueue(server._producer_pool[producer_id], worker, job)


def fetch(producer_id: int) -> dict[str, torch.Tensor] | None:
    """A copy of the next message of a producer; None where there is none yet."""
    server: Any = glt.attribute("distributed.dist_server").get_server()
    message = receive(server._msg_buffer_pool[producer_id])
    return None if message is None else {key: value.clone() for key, value in message.items()}


def enqueue(producer: Any, worker: int, job: NDArray[np.int64]) -> None:
    """Puts a job into the queue of one of a producer's workers."""
    command: Any = glt.attribute("distributed.dist_sampling_producer.MpCommand")
    producer._task_queues[worker].put((command.SAMPLE_ALL, [job]))


def receive(channel: Any) -> dict[str, torch.Tensor] | None:
    """The next message of a channel, in the channel's own memory, which it occupies until it is dropped; None where there is none yet."""
    try:
        message: dict[str, torch.Tensor] = channel.recv(timeout_ms=_WAIT_MS)
    except glt.attribute("channel.QueueTimeoutError"):
        return None
    return message


_Message = Mapping[str, NDArray[Any]]
_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True)
class MessageReader:
    """Reads messages of one loader.

    Attributes:
        plan: The plan.
        graph: The graph, of whatever parts are here; messages name nodes and edges by the store's ids.
    """

    plan: LoaderPlan
    graph: GraphArrays

    @property
    def input_type(self) -> NodeType:
        """The seeds' node type."""
        inputs = self.plan.inputs
        assert isinstance(inputs, InputNodes), "Glt() has refused everything else"
        return inputs.node_type

    def lay_out(self, message: _Message, seeds: NDArray[np.int64], input_id: NDArray[np.int64]) -> tuple[BatchLayout, list[NDArray[Any]]]:
        """The batch's layout, and its arrays in the order of the layout's fields.

        Args:
            message: ``{graphlearn-torch's key: array}``.
            seeds: int64 ``[b]``, the store ids that the batch was sampled from.
            input_id: int64 ``[b]``, their positions in the loader's input nodes.

        Raises:
            SamplingError: The message is of other seeds.
        """
        hops, input_type, places = self.plan.sampling.num_hops, self.input_type, _SeedPlaces.of(seeds)
        builder, arrays = LayoutBuilder(), []

        def add(key: BatchKey, values: NDArray[Any], spec: ArraySpec | None = None) -> None:
            builder.add(key, "int64" if spec is None else spec.dtype, values.shape)
            arrays.append(values)

        node_counts: dict[NodeType, list[int]] = {}
        for node_type in self.graph.schema.node_types:
            is_input = node_type == input_type
            self._add_nodes(message, node_type, places if is_input else None, add)
            counts = _padded(message.get(self._node_name(node_type, "num_sampled_nodes")), hops + 1)
            node_counts[node_type] = [len(seeds) if is_input else counts[0], *counts[1:]]
        edge_counts: dict[EdgeType, list[int]] = {}
        for edge_type in self.graph.schema.edge_types:
            self._add_edges(message, edge_type, places, add)
            edge_counts[self._shown(edge_type)] = _padded(message.get(self._edge_name(edge_type, "num_sampled_edges")), hops)
        add(NodeKey(input_type, "input_id"), input_id)
        layout = BatchLayout(tuple(builder.fields), builder.nbytes, node_counts, edge_counts, input_type, len(seeds))
        return layout, arrays

    def _add_nodes(self, message: _Message, node_type: NodeType, places: _SeedPlaces | None, add: Any) -> None:
        nodes = message.get(self._node_name(node_type, "ids"), _NO_IDS)
        columns = Columns.of_nodes(self.graph, node_type)
        table = message.get(self._node_name(node_type, "nfeats"), np.empty((len(nodes), columns.num_words), np.float32))
        if places is not None:
            places.check(nodes)
            nodes, table = places.spread(nodes), places.spread(table)
        values = columns.unpack(table)
        add(NodeKey(node_type, N_ID), values.pop(N_ID, nodes))
        for name, rows in values.items():
            add(NodeKey(node_type, name), rows, columns.specs[name])

    def _add_edges(self, message: _Message, edge_type: EdgeType, places: _SeedPlaces, add: Any) -> None:
        shown, graph = self._shown(edge_type), self.graph
        # Its rows are the seeds' side, its columns the neighbours'.
        near = message.get(self._edge_name(edge_type, "rows"), _NO_IDS)
        far = message.get(self._edge_name(edge_type, "cols"), _NO_IDS)
        if graph.frontier_type(edge_type) == self.input_type:
            near = places.moved(near)
        if graph.neighbor_type(edge_type) == self.input_type:
            far = places.moved(far)
        add(EdgeKey(shown, "edge_index"), np.stack([far, near]).astype(np.int64, copy=False))
        columns = self.edge_columns(edge_type)
        table = message.get(self._edge_name(edge_type, "efeats"), np.empty((len(near), columns.num_words), np.float32))
        for name, rows in columns.unpack(table).items():
            add(EdgeKey(shown, name), rows, columns.specs[name])

    def edge_columns(self, edge_type: EdgeType) -> Columns:
        """Returns the arrays that a batch carries for each edge of a type."""
        return Columns.of_edges(self.graph, edge_type, with_edge=self.plan.sampling.with_edge)

    @property
    def needs_nodes(self) -> bool:
        """Whether batches hold anything of single nodes beside the store's ids."""
        return any(Columns.of_nodes(self.graph, node_type).specs for node_type in self.graph.schema.node_types)

    @property
    def needs_edges(self) -> bool:
        """Whether batches hold anything of single edges."""
        return any(self.edge_columns(edge_type).specs for edge_type in self.graph.schema.edge_types)

    def _node_name(self, node_type: NodeType, name: str) -> str:
        return name if self.graph.schema.is_homogeneous else f"{node_type}.{name}"

    def _edge_name(self, edge_type: EdgeType, name: str) -> str:
        """The key that a message has for edges of a stored type: it names them by where sampling came from first."""
        if self.graph.schema.is_homogeneous:
            return name
        return f"{edge_type_name(edge_type if self.graph.edge_dir == 'out' else reverse_edge_type(edge_type))}.{name}"

    def _shown(self, edge_type: EdgeType) -> EdgeType:
        """The type under which a batch shows sampled edges: they always point from the neighbour to the seed side."""
        return edge_type if self.graph.edge_dir == "in" or self.graph.schema.is_homogeneous else reverse_edge_type(edge_type)


@dataclass(frozen=True)
class _SeedPlaces:
    """The places of seeds in a batch: graphlearn-torch drops repeated seeds, a batch has a place for each.

    Attributes:
        distinct: int64 ``[d]``, each seed once, in the order of its first place.
        first: int64 ``[d]``, the first place of each.
        of_seed: int64 ``[num_seeds]``, which of the distinct ones a seed is.
    """

    distinct: NDArray[np.int64]
    first: NDArray[np.int64]
    of_seed: NDArray[np.int64]

    @classmethod
    def of(cls, seeds: NDArray[np.int64]) -> _SeedPlaces:
        """Of a batch's seeds."""
        _, first, inverse = np.unique(seeds, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return cls(seeds[first[order]], first[order], rank[inverse.reshape(-1)])

    @property
    def is_plain(self) -> bool:
        """Whether no seed is repeated."""
        return len(self.distinct) == len(self.of_seed)

    def check(self, nodes: NDArray[Any]) -> None:
        """Makes sure that a message's nodes begin with these seeds."""
        if not np.array_equal(nodes[: len(self.distinct)], self.distinct):
            raise SamplingError("graphlearn-torch answered with a batch of other seeds")

    def spread(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows of a message's nodes, with a row for every seed."""
        return rows if self.is_plain else np.concatenate([rows[self.of_seed], rows[len(self.distinct) :]])

    def moved(self, local: NDArray[Any]) -> NDArray[Any]:
        """A message's numbers of nodes as the batch's: a repeated seed is known by its first place."""
        if self.is_plain:
            return local
        count = len(self.distinct)
        extra = len(self.of_seed) - count
        return np.where(local < count, self.first[np.minimum(local, count - 1)], local + extra)


def _padded(counts: NDArray[Any] | None, length: int) -> list[int]:
    """Counts by hop; graphlearn-torch leaves out hops in which it found nothing."""
    found = [] if counts is None else counts.tolist()
    return [*found, *[0] * (length - len(found))]


def write(layout: BatchLayout, arrays: Sequence[NDArray[Any]], block: NDArray[np.uint8]) -> None:
    """Copies arrays to their places in ``block``."""
    for place, values in zip(layout.fields, arrays, strict=True):
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        assert raw.nbytes == place.nbytes, f"{place.key} has {raw.nbytes} bytes, not {place.nbytes}"
        block[place.offset : place.offset + place.nbytes] = raw
