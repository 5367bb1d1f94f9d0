"""``DistServer``, what can be asked of a server, and ``RemoteDistDataset``, which asks: by the names of GiGL and graphlearn-torch."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.bounds import is_whole, shown, whole_number
from gnnkit.cluster.network.requests import Requests
from gnnkit.cluster.serving.spec import UNIX_PREFIX, required
from gnnkit.cluster.serving.store_api import Fraction, StoreApi, fractions
from gnnkit.distributed import graph_client, process_group
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.dataset_values import meeting_at
from gnnkit.distributed.loader_options import PPRSamplerOptions, stored
from gnnkit.distributed.process_group import meeting_address
from gnnkit.distributed.resolve import GraphStoreInfo
from gnnkit.distributed.sample_message import MessageFormat, SampleMessage
from gnnkit.distributed.store_views import AnyBook, DatasetSchema, FeatureInfo, Quantizations, range_book
from gnnkit.errors import LoaderClosed, PlanError, near_matches, on_error
from gnnkit.runtime.remote import layout_from_json
from gnnkit.samplers import PPR
from gnnkit.sampling.collate import contents_of
from gnnkit.sampling.subgraph import SampledSubgraph
from gnnkit.schema import EdgeDir, EdgeType, GraphSchema, NodeType
from gnnkit.storage.arrays import as_tensor
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.serving import GraphStoreServers


@dataclass(frozen=True)
class FetchNodesRequest:
    """Asks a server for ids of its nodes.

    Attributes:
        split: "train", "val", "test", or None for all nodes.
        node_type: Their type; None for a homogeneous graph.
        server_slice: The fraction that is wanted; None is all.
    """

    split: str | None = None
    node_type: NodeType | None = None
    server_slice: ServerSlice | None = None


@dataclass(frozen=True)
class FetchABLPInputRequest:
    """Asks a server for anchors and their labels.

    Attributes:
        split: "train", "val" or "test".
        node_type: The anchors' type.
        supervision_edge_type: The type that is supervised, as it leads away from the anchors.
        server_slice: The fraction of the anchors that is wanted; None is all.
        max_labels_per_anchor_node: Labels per anchor, at most; None is all.
    """

    split: str
    node_type: NodeType
    supervision_edge_type: EdgeType
    server_slice: ServerSlice | None = None
    max_labels_per_anchor_node: int | None = None


@dataclass(frozen=True)
class InitSamplingBackendRequest:
    """Asks a server for a sampling backend.

    Attributes:
        backend_key: Its name: trainers that ask for the same one share it.
        worker_options: ``RemoteDistSamplingWorkerOptions``; the server's workers are there already.
        sampler_options: ``KHopNeighborSamplerOptions``, ``PPRSamplerOptions``, or None.
        sampling_config: ``SamplingConfig``, the same for every trainer that uses the name.
    """

    backend_key: str
    worker_options: Any
    sampler_options: Any
    sampling_config: Any


@dataclass(frozen=True)
class RegisterBackendRequest:
    """Registers an input with a sampling backend.

    Attributes:
        backend_id: What ``init_sampling_backend`` gave.
        worker_key: The input's name: trainers that register the same one divide its batches among themselves. Each batch goes to the
            trainer that asks for it first: one that begins an epoch later than the others may get few of them, or none.
        sampler_input: ``NodeSamplerInput``.
        sampling_config: The backend's.
        buffer_capacity: Batches that are sampled ahead, at most.
        buffer_size: Taken and not used: batches take the memory that they take.
    """

    backend_id: int
    worker_key: str
    sampler_input: Any
    sampling_config: Any
    buffer_capacity: int
    buffer_size: int | str | None = None


@dataclass(frozen=True)
class ABLPInputNodes:
    """Anchors and their labels.

    Attributes:
        anchor_nodes: int64 ``[n]``.
        anchor_node_type: Their type.
        labels: By supervised edge type: positive labels int64 ``[n, m]`` and negative ones ``[n, k]`` or None, filled up with -1.
    """

    anchor_nodes: torch.Tensor
    anchor_node_type: NodeType
    labels: Mapping[EdgeType, tuple[torch.Tensor, torch.Tensor | None]]


@dataclass(frozen=True)
class ServerSlice:
    """A trainer's fraction of what a server has.

    Attributes:
        server_rank: The server.
        start_numerator: The fraction begins at ``start_numerator / denominator``,
        end_numerator: and ends before ``end_numerator / denominator``.
        denominator: Number of trainers.

    Raises:
        PlanError: The numbers are no fraction.
    """

    server_rank: int
    start_numerator: int
    end_numerator: int
    denominator: int

    def __post_init__(self) -> None:
        if self.denominator < 1 or not 0 <= self.start_numerator <= self.end_numerator <= self.denominator:
            raise PlanError(
                f"{self.start_numerator}/{self.denominator} to {self.end_numerator}/{self.denominator} is no fraction of a server",
                "numerators go from 0 to the denominator, which is at least 1",
            )

    def slice_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fraction of a tensor ``[n, ...]``: a view, or the tensor itself where it is all of it."""
        start, end = Fraction(self.server_rank, self.start_numerator, self.end_numerator, self.denominator).bounds(len(tensor))
        return tensor if (start, end) == (0, len(tensor)) else tensor[start:end]


def compute_server_assignments(num_servers: int, num_compute_nodes: int, compute_rank: int) -> dict[int, ServerSlice]:
    """Computes one trainer's share of each server; servers of which it gets nothing are left out.

    Over all trainers every element of every server is assigned exactly once, and each trainer asks at most
    ``ceil(num_servers / num_compute_nodes) + 1`` servers. Fractions are even, numbers are where servers have as many seeds as each other.

    Args:
        num_servers: Servers, at least 1.
        num_compute_nodes: Trainers, at least 1.
        compute_rank: The trainer.

    Raises:
        PlanError: A number is too small, or there is no such trainer.
    """
    num_servers = whole_number("num_servers", num_servers, 1)
    num_compute_nodes = whole_number("num_compute_nodes", num_compute_nodes, 1)
    if not is_whole(compute_rank, 0, num_compute_nodes - 1):
        raise PlanError(
            f"there is no compute_rank {shown(compute_rank)} of {num_compute_nodes}", f"ranks go from 0 to {num_compute_nodes - 1}"
        )
    return {share.piece: ServerSlice(*share) for share in fractions(num_servers, num_compute_nodes, compute_rank)}


_CONFIG_WORDS = ("batch_size", "shuffle", "drop_last", "with_edge", "with_weight", "edge_dir", "seed")


def schema_of(found: Mapping[str, Any]) -> DatasetSchema:
    """Types, features and direction, from a server's description of its graph."""
    return DatasetSchema.from_graph(GraphSchema.from_json(found["schema"]), found["edge_dir"])


def types_of(found: Mapping[str, Any]) -> tuple[list[NodeType] | None, list[EdgeType] | None]:
    """Node types and edge types, from the same; None for a homogeneous graph."""
    graph = GraphSchema.from_json(found["schema"])
    return (None, None) if graph.is_homogeneous else (list(graph.node_types), list(graph.edge_types))


def plain_ids(value: Any) -> NDArray[np.int64]:
    """Ids as an array.

    Raises:
        PlanError: They are no whole numbers.
    """
    ids = torch.as_tensor(value)
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        if ids.numel():
            raise PlanError(f"ids must be whole numbers, got {ids.dtype}")
        ids = ids.long()
    return ids.detach().cpu().long().numpy()


def config_words(config: Any, options: Any = None) -> dict[str, Any]:
    """A ``SamplingConfig`` and sampler options in plain words; without ``PPRSamplerOptions`` it is sampled hop by hop.

    Raises:
        PlanError: It asks for something else than neighbourhoods of nodes.
    """
    if getattr(config.sampling_type, "name", None) != "NODE" or config.with_neg:
        raise PlanError(f"sampling_type is {config.sampling_type}, and only neighbourhoods of nodes are sampled so far")
    fan_outs = config.num_neighbors
    plain = {tuple(t): list(fan) for t, fan in fan_outs.items()} if isinstance(fan_outs, Mapping) else list(fan_outs)
    words = {"num_neighbors": plain, **{word: getattr(config, word) for word in _CONFIG_WORDS}}
    if not isinstance(options, PPRSamplerOptions):
        return words
    ratios = options.typed_channel_ratios or {}
    pairs = [[list(key) if isinstance(key[0], tuple) else [key], share] for key, share in ratios.items()]
    return {**words, "ppr": {**{field.name: getattr(options, field.name) for field in fields(PPR)}, "typed_channel_ratios": pairs or None}}


def cut_of(part: ServerSlice | None) -> list[int] | None:
    """A slice's numerators and denominator."""
    return None if part is None else [part.start_numerator, part.end_numerator, part.denominator]


def tensors_of(found: Any) -> Any:
    """A tuple of arrays as tensors; None stays."""
    return tuple(None if array is None else torch.from_numpy(array) for array in found)


def rows_of(found: Any, *, is_label: bool) -> torch.Tensor:
    """Features, or labels, of which those of a single task lose their second dimension."""
    rows, dtype = found
    tensor = as_tensor(rows, dtype)
    return tensor.reshape(-1) if is_label and tensor.dim() == 2 and tensor.shape[1] == 1 else tensor


def book_of(found: Mapping[str, NDArray[Any]]) -> AnyBook:
    """A partition book."""
    if "parts" in found:
        return torch.from_numpy(found["parts"]).long()
    return range_book(found["bounds"], 0)


def message_of(found: Any) -> tuple[SampleMessage | None, bool]:
    """A message, and whether there is none any more."""
    batch, is_over = found
    if batch is None:
        return None, bool(is_over)
    subgraph = SampledSubgraph(batch["epoch"], 0, False, layout_from_json(batch["layout"]), batch["block"])
    frame = batch["frame"]
    edge_types = None if frame["edge_types"] is None else tuple(map(tuple, frame["edge_types"]))
    node_types = None if frame["node_types"] is None else tuple(frame["node_types"])
    messages = _format(node_types, edge_types, frame["edge_dir"], frame["input_type"], by_ppr=frame["by_ppr"])
    return messages.pack(contents_of(subgraph)), False


_format = lru_cache(maxsize=16)(MessageFormat.of)
_logger = logging.getLogger(__name__)


_T = TypeVar("_T")
# (call, its arguments by name, what makes the method's result of the answer): gives that result, or a future of it.
Ask: TypeAlias = Callable[[str, dict[str, Any], Callable[[Any], Any]], Any]


class DistServer:
    """A server's share of a graph, and sampling on its workers.

    A script names a method in ``request_server(rank, DistServer.get_node_ids, request)``, which calls it on the server ``rank``: only
    the name and plain values travel. Node types are None for a homogeneous graph, and only for one. A server that shares its
    parts with others answers for its share of them.

    Args:
        dataset: The dataset of a store: an object made like this answers in this process, and samples nothing.

    Raises:
        PlanError: There is no store behind the dataset.
    """

    def __init__(self, dataset: DistDataset) -> None:
        api = StoreApi(stored(dataset), dataset.partition_idx, dataset.num_partitions)

        def ask(name: str, args: dict[str, Any], convert: Callable[[Any], Any]) -> Any:
            if not hasattr(api, name):
                raise PlanError("a DistServer of a dataset samples nothing", "ask a server: request_server(rank, DistServer.<method>, ...)")
            return convert(getattr(api, name)(**args))

        self.dataset: DistDataset | None = dataset
        self._ask: Ask = ask

    @classmethod
    def over(cls, ask: Ask) -> DistServer:
        """The calls of a server that is elsewhere.

        Args:
            ask: Carries a call there; what it returns is what the methods return.
        """
        server = object.__new__(cls)
        server.dataset, server._ask = None, ask
        return server

    # The graph --------------------------------------------------------------------------------------------------------------

    def get_dataset_meta(self) -> tuple[int, int, list[NodeType] | None, list[EdgeType] | None]:
        """Number of parts, the first of them that the server has a share of, node types and edge types (None if homogeneous)."""
        return self._described(lambda found: (found["num_parts"], (found["parts"] or [0])[0], *types_of(found)))

    def get_dataset_schema(self) -> DatasetSchema:
        """Types, features and direction, in one answer."""
        return self._described(schema_of)

    def get_node_feature_info(self) -> FeatureInfo | dict[NodeType, FeatureInfo] | None:
        """Features of the nodes; see ``DatasetSchema``."""
        return self._described(lambda found: schema_of(found).node_feature_info)

    def get_edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Features of the edges; see ``DatasetSchema``."""
        return self._described(lambda found: schema_of(found).edge_feature_info)

    def get_node_quantization(self) -> Quantizations[NodeType] | None:
        """Returns the scales and offsets of the nodes' quantised arrays; see ``DatasetSchema``."""
        return self._described(lambda found: schema_of(found).node_quantization)

    def get_edge_quantization(self) -> Quantizations[EdgeType] | None:
        """Returns the scales and offsets of the edges' quantised arrays; see ``DatasetSchema``."""
        return self._described(lambda found: schema_of(found).edge_quantization)

    def get_edge_dir(self) -> EdgeDir:
        """The direction in which the graph is compressed and sampled."""
        return self._described(lambda found: schema_of(found).edge_dir)

    def get_node_types(self) -> list[NodeType] | None:
        """Node types; None for a homogeneous graph."""
        return self._described(lambda found: types_of(found)[0])

    def get_edge_types(self) -> list[EdgeType] | None:
        """Edge types; None for a homogeneous graph."""
        return self._described(lambda found: types_of(found)[1])

    def get_edge_weights_registered(self) -> bool:
        """Whether neighbours can be drawn in proportion to weights."""
        return self._described(lambda found: found["weight"] is not None)

    def get_node_partition_id(self, node_type: NodeType | None, index: torch.Tensor) -> torch.Tensor:
        """int64 ``[k]``: the parts that own nodes ``[k]``.

        Raises:
            PlanError: A type is given for a homogeneous graph or missing for a typed one, or an id is out of range.
        """
        return self._call(Requests.node_partition_ids, {"node_type": node_type, "ids": plain_ids(index)}, torch.from_numpy)

    def get_node_partition_book(self, node_type: NodeType | None = None) -> AnyBook:
        """Which part owns which node: a range book, or a tensor with each id's part."""
        return self._call(Requests.node_book, {"node_type": node_type}, book_of)

    def get_edge_partition_book(self, edge_type: EdgeType | None = None) -> AnyBook:
        """Which part owns which edge."""
        return self._call(Requests.edge_book, {"edge_type": edge_type}, book_of)

    def get_node_feature(self, node_type: NodeType | None, index: torch.Tensor) -> torch.Tensor:
        """Features ``[k, *row_shape]`` of nodes ``[k]``.

        Raises:
            PlanError: The type has none, or an id is out of range.
            StoreError: A node's part is on another host than the server.
        """
        return self._rows(node_type, index, "x")

    def get_node_label(self, node_type: NodeType | None, index: torch.Tensor) -> torch.Tensor:
        """Labels ``[k]`` of nodes ``[k]``, or ``[k, K]`` for several tasks; errors as ``get_node_feature``."""
        return self._rows(node_type, index, "y")

    def get_tensor_size(self, node_type: NodeType | None = None) -> torch.Size:
        """Shape of the features of the server's nodes together."""
        return self._call(Requests.feature_shape, {"node_type": node_type}, torch.Size)

    def get_edge_index(self, edge_type: EdgeType | None = None, layout: str = "coo") -> tuple[torch.Tensor, torch.Tensor]:
        """int64 ``[e]`` and ``[e]``: sources and targets of the server's edges.

        Raises:
            PlanError: The type is unknown, or the layout is not "coo".
        """
        ends: tuple[torch.Tensor, torch.Tensor] = self._call(Requests.edge_index, {"edge_type": edge_type, "layout": layout}, tensors_of)
        return ends

    def get_edge_size(self, edge_type: EdgeType | None = None, layout: str = "coo") -> tuple[int, int]:
        """Number of nodes of the whole graph at the source end and at the target end; errors as ``get_edge_index``."""
        return self._call(Requests.edge_size, {"edge_type": edge_type, "layout": layout}, tuple)

    def get_node_ids(self, request: FetchNodesRequest | None = None) -> torch.Tensor:
        """int64 ``[k]``: the server's nodes, or those of a split.

        Raises:
            PlanError: The split is unknown, or the type is given for a homogeneous graph or missing for a typed one.
        """
        wanted = request or FetchNodesRequest()
        args = {"split": wanted.split, "node_type": wanted.node_type, "cut": cut_of(wanted.server_slice)}
        return self._call(Requests.node_ids, args, torch.from_numpy)

    def get_ablp_input(self, request: FetchABLPInputRequest) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Anchors and their labels.

        Label edges are edge types of the store: those of the supervised type, or of its reverse where the store keeps them the other
        way round. Whichever way the store is compressed, the answer is the same.

        Returns:
            Anchors int64 ``[n]`` and positive labels int64 ``[n, m]``, ascending and filled up with -1; negative ones likewise, or None
            where the graph has none.

        Raises:
            PlanError: The split is unknown, or the graph has no labels for the type.
            StoreError: The label edges are on another host than the server.
        """
        args = {
            "split": request.split,
            "node_type": request.node_type,
            "supervision": tuple(request.supervision_edge_type),
            "cut": cut_of(request.server_slice),
            "most": request.max_labels_per_anchor_node,
        }
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] = self._call(Requests.ablp_input, args, tensors_of)
        return found

    def get_free_ports(self, num_ports: int) -> list[int]:
        """Ports of the server's host that are free at this moment. Nothing of gnnkit needs them."""
        return self._call(Requests.free_ports, {"count": num_ports}, list)

    def device_count(self) -> int:
        """CUDA devices of the server's host, and 1 where it has none: what ``func=torch.cuda.device_count`` asks for.

        Servers sample on their CPU, so a script that makes as many workers gets its batches on any host.
        """
        return self._call(Requests.device_count, {}, int)

    def get_ids_in_file(self, path: str) -> torch.Tensor:
        """int64 ``[n]``: the ids in a file of the server's host, as ``torch.save`` writes a tensor; nothing in it is run.

        Raises:
            DatasetError: There is no such file, or it holds something else.
        """
        return self._call(Requests.ids_in_file, {"path": str(path)}, torch.from_numpy)

    # Sampling ---------------------------------------------------------------------------------------------------------------

    def init_sampling_backend(self, request: InitSamplingBackendRequest) -> int:
        """The number of a sampling backend; the first client that asks makes it, and all that ask for its name share it.

        Raises:
            PlanError: It exists with another configuration, or the configuration does not fit the graph.
            WorkerDied: The server's workers cannot be started; every client that waits for the backend is told.
        """
        args = {"key": request.backend_key, "config": config_words(request.sampling_config, request.sampler_options)}
        return self._call(Requests.init_backend, args, int)

    def register_sampling_input(self, request: RegisterBackendRequest) -> int:
        """The number of a channel, which gives an input's batches; who registers the same input under the same name shares it.

        Raises:
            PlanError: There is no such backend, its configuration is another one, or the name stands for another input.
        """
        args = {
            "backend": request.backend_id,
            "worker_key": request.worker_key,
            "capacity": request.buffer_capacity,
            **_input_words(request.sampler_input, request.sampling_config),
        }
        return self._call(Requests.register, args, int)

    def start_new_epoch_sampling(self, channel_id: int, epoch: int) -> None:
        """Starts an epoch; one that was started before, or an older one, is left as it is. A destroyed channel starts nothing.

        Raises:
            PlanError: The channel is unknown: there never was one, or the server was started anew, or took this client for gone.
        """
        return self._call(Requests.start_epoch, {"channel": channel_id, "epoch": epoch}, lambda _: None)

    def fetch_one_sampled_message(self, channel_id: int, epoch: int | None = None) -> tuple[SampleMessage | None, bool]:
        """The next message of a channel and False; None and True once there is none, or the channel has been destroyed.

        Args:
            channel_id: The channel.
            epoch: The epoch that is meant: nothing comes of another one. None takes whatever comes.

        Raises:
            PlanError: An epoch is given, and the channel is unknown: the server was started anew, or took this client for gone.
            SamplingError: Sampling the batch raised; the next one can be fetched all the same.
            WorkerDied: The server has no workers any more.
        """
        return self._call(Requests.fetch, {"channel": channel_id, "epoch": epoch}, message_of)

    def destroy_sampling_input(self, channel_id: int) -> None:
        """Gives a channel up; it ends with the last client that holds it, and its backend with its last channel."""
        return self._call(Requests.destroy, {"channel": channel_id}, lambda _: None)

    def create_sampling_producer(self, sampler_input: Any, sampling_config: Any, worker_options: Any, sampler_options: Any = None) -> int:
        """A backend and an input in one, by graphlearn-torch's name; clients that give the same ``worker_key`` share its batches.

        Args:
            sampler_input: ``NodeSamplerInput``: the same for all who share it.
            sampling_config: ``SamplingConfig``.
            worker_options: ``RemoteDistSamplingWorkerOptions``: ``worker_key`` and ``buffer_capacity`` count.
            sampler_options: ``KHopNeighborSamplerOptions``, ``PPRSamplerOptions``, or None.

        Raises:
            PlanError: As ``init_sampling_backend`` and ``register_sampling_input``.
        """
        args = {"worker_key": worker_options.worker_key, "capacity": worker_options.buffer_capacity}
        return self._call(Requests.create, {**args, **_input_words(sampler_input, sampling_config, sampler_options)}, int)

    def destroy_sampling_producer(self, producer_id: int) -> None:
        """``destroy_sampling_input`` by graphlearn-torch's name."""
        return self.destroy_sampling_input(producer_id)

    # The end ----------------------------------------------------------------------------------------------------------------

    def exit(self) -> bool:
        """Says that this client is done with the server: its backends, channels and unanswered requests are given up.

        Nothing is taken from other clients, nor from this one's loaders, and the server stays. It may end once ``shutdown_client()`` has
        been called as well.

        Returns:
            Whether the server ends by itself when its clients have left, because it was told how many will come.
        """
        return self._call(Requests.give_up, {}, lambda found: bool(found["ends_with_clients"]))

    def shutdown(self) -> None:
        """Gives this client's backends up, with a warning in the log where there are some; other clients keep theirs."""
        return self._call(Requests.give_up, {}, _warn_of_backends)

    def _rows(self, node_type: NodeType | None, index: torch.Tensor, name: str) -> torch.Tensor:
        args = {"node_type": node_type, "ids": plain_ids(index), "name": name}
        return self._call(Requests.node_rows, args, lambda found: rows_of(found, is_label=name == "y"))

    def _described(self, choose: Callable[[Any], _T]) -> _T:
        return self._call(Requests.describe, {}, choose)

    def _call(self, request: Requests, args: dict[str, Any], convert: Callable[[Any], _T]) -> _T:
        answer: _T = self._ask(request.name, args, convert)
        return answer


METHODS = tuple(name for name, value in vars(DistServer).items() if not name.startswith("_") and name != "over" and callable(value))


def method_name(func: Any) -> str:
    """The method of ``DistServer`` that a function or a name stands for.

    Raises:
        PlanError: It is none: code is never sent to a server.
    """
    name = func if isinstance(func, str) else getattr(func, "__name__", repr(func))
    if name not in METHODS:
        raise PlanError(f"DistServer has no method {name!r}{near_matches(name, list(METHODS))}", "only its methods can be asked for")
    return str(name)


def _warn_of_backends(found: Any) -> None:
    if found["backends"]:
        _logger.warning("DistServer.shutdown: %d sampling backends of this client were alive, and are given up", found["backends"])


def _input_words(sampler_input: Any, config: Any, options: Any = None) -> dict[str, Any]:
    return {"config": config_words(config, options), "node_type": sampler_input.input_type, "ids": plain_ids(sampler_input.node)}


def request_server(server_rank: int, func: Callable[..., _T] | str, *args: Any, **kwargs: Any) -> _T:
    """Has a server do one of the things that ``DistServer`` can do, and waits for its answer.

    Args:
        server_rank: Which server.
        func: A method of ``DistServer``, or its name. Only the name travels: what is no method of it is refused.
        *args: Its arguments: numbers, texts, tensors, and records, lists and dicts of them.
        **kwargs: More of them.

    Raises:
        PlanError: This process has joined no servers, there is no such server, or no such method.
        WorkerDied: The server is gone; names its rank.
        GnnkitError: Whatever the server refuses with.
    """
    session = _session(server_rank)
    server = DistServer.over(lambda name, values, convert: convert(session.call(server_rank, name, values)))
    answer: _T = getattr(server, method_name(func))(*args, **kwargs)
    return answer


def async_request_server(server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> torch.futures.Future[Any]:
    """As ``request_server``, without waiting.

    Returns:
        A future of the answer; ``wait()`` gives it, or raises what ``request_server`` raises.

    Raises:
        PlanError: As ``request_server``; what has to do with the server itself comes from the future.
    """
    session = _session(server_rank)
    server = DistServer.over(lambda name, values, convert: session.submit(server_rank, name, values, convert))
    future: torch.futures.Future[Any] = getattr(server, method_name(func))(*args, **kwargs)
    return future


def _session(server_rank: int) -> graph_client.ServersClient:
    session = graph_client.joined()
    if not is_whole(server_rank, 0, session.num_servers - 1):
        raise PlanError(f"there is no server {shown(server_rank)}: there are {session.num_servers}", "servers count from 0")
    return session


class RemoteDistDataset:
    """Has no data: every ``fetch_...`` asks the servers that this process has joined, server 0 where all know the same.

    A homogeneous graph with labels is stored typed; its only node type and its only message-passing type need not be named.

    Args:
        cluster_info: How many servers and trainers there are.
        local_rank: This trainer among those of its host.

    Attributes:
        cluster_info: See above.
        local_rank: See above.

    Raises:
        PlanError: There is no such local rank.
    """

    def __init__(self, cluster_info: GraphStoreInfo, local_rank: int) -> None:
        most = cluster_info.num_processes_per_compute
        if not is_whole(local_rank, 0, most - 1):
            raise PlanError(f"there is no local_rank {local_rank!r}: each host has {most} trainers", f"local ranks go from 0 to {most - 1}")
        self.cluster_info, self.local_rank = cluster_info, local_rank

    @classmethod
    def joined(cls) -> RemoteDistDataset:
        """The graph of the servers that this process has joined.

        Raises:
            PlanError: It has joined none.
        """
        current = graph_client.get_context()
        if current is None or not current.is_client():
            raise PlanError(
                "data is None, which means the servers that this process has joined, and it has joined none",
                "call init_client() or gnnkit.distributed.initialize() first, or give a DistDataset or a RemoteDistDataset",
            )
        return cls(GraphStoreInfo(current.num_servers(), current.num_clients()), 0)

    # What all servers know ----------------------------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> DatasetSchema:
        """Types, features and direction; asked for once."""
        return request_server(0, DistServer.get_dataset_schema)

    def fetch_node_feature_info(self) -> FeatureInfo | dict[NodeType, FeatureInfo] | None:
        """Features of the nodes; see ``DatasetSchema``."""
        return self.schema.node_feature_info

    def fetch_edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Features of the edges; see ``DatasetSchema``."""
        return self.schema.edge_feature_info

    def fetch_node_quantization(self) -> Quantizations[NodeType] | None:
        """Returns the scales and offsets of the nodes' quantised arrays; see ``DatasetSchema``."""
        return self.schema.node_quantization

    def fetch_edge_quantization(self) -> Quantizations[EdgeType] | None:
        """Returns the scales and offsets of the edges' quantised arrays; see ``DatasetSchema``."""
        return self.schema.edge_quantization

    def fetch_edge_dir(self) -> EdgeDir:
        """The direction in which the graph is compressed and sampled."""
        return self.schema.edge_dir

    def fetch_node_types(self) -> list[NodeType] | None:
        """Node types; None for a homogeneous graph."""
        return request_server(0, DistServer.get_node_types)

    def fetch_edge_types(self) -> list[EdgeType] | None:
        """Edge types; None for a homogeneous graph."""
        return self.schema.edge_types

    def fetch_edge_weights_registered(self) -> bool:
        """Whether neighbours can be drawn in proportion to weights."""
        return request_server(0, DistServer.get_edge_weights_registered)

    def fetch_node_partition_book(self, node_type: NodeType | None = None) -> AnyBook:
        """Which part owns which node: a range book, or a tensor with each id's part.

        Raises:
            PlanError: The type is unknown, given for a homogeneous graph, or missing for a typed one.
        """
        return request_server(0, DistServer.get_node_partition_book, self._node_type(node_type))

    def fetch_edge_partition_book(self, edge_type: EdgeType | None = None) -> AnyBook:
        """Which part owns which edge; errors as ``fetch_node_partition_book``."""
        return request_server(0, DistServer.get_edge_partition_book, edge_type or self.schema.default_edge_type)

    # What each server has -----------------------------------------------------------------------------------------------------

    def fetch_node_ids(
        self, rank: int | None = None, world_size: int | None = None, split: str | None = None, node_type: NodeType | None = None
    ) -> dict[int, torch.Tensor]:
        """Ids of nodes by the server that has them.

        Args:
            rank: This trainer, for its contiguous share; see ``compute_server_assignments``. None fetches all of them.
            world_size: Number of trainers; goes with ``rank``.
            split: "train", "val", "test", or None for all nodes.
            node_type: Their type.

        Returns:
            int64 ``[k]`` for every server, empty for those of which the trainer gets nothing.

        Raises:
            PlanError: Only one of ``rank`` and ``world_size`` is given, or the split or the type is unknown.
        """
        owner = self._node_type(node_type)
        slices = self._slices(rank, world_size)
        found = _ask_all("get_node_ids", {s: FetchNodesRequest(split, owner, part) for s, part in slices.items()})
        nothing = torch.empty(0, dtype=torch.int64)
        return {server: found.get(server, nothing) for server in range(self.cluster_info.num_storage_nodes)}

    def fetch_split(self, server: int, split: str, node_type: NodeType | None = None) -> torch.Tensor:
        """int64 ``[k]``: one server's nodes of a split; see ``fetch_node_ids``."""
        return request_server(server, DistServer.get_node_ids, FetchNodesRequest(split, self._node_type(node_type)))

    def fetch_ids_in_file(self, server: int, path: str | os.PathLike[str]) -> torch.Tensor:
        """int64 ``[k]``: the ids in a file of one server's host; see ``DistServer.get_ids_in_file``."""
        return request_server(server, DistServer.get_ids_in_file, os.fspath(path))

    def fetch_ablp_input(
        self,
        split: str,
        rank: int | None = None,
        world_size: int | None = None,
        anchor_node_type: NodeType | None = None,
        supervision_edge_type: EdgeType | None = None,
        *,
        max_labels_per_anchor_node: int | None = None,
    ) -> dict[int, ABLPInputNodes]:
        """Anchors and their labels by the server that has them; see ``DistServer.get_ablp_input``.

        Args:
            split: "train", "val" or "test".
            rank: See ``fetch_node_ids``.
            world_size: See ``fetch_node_ids``.
            anchor_node_type: The anchors' type; goes with ``supervision_edge_type``.
            supervision_edge_type: The supervised type, as it leads away from the anchors.
            max_labels_per_anchor_node: Labels per anchor, at most.

        Raises:
            PlanError: Only one of two arguments that go together is given, or a split or type is unknown.
        """
        if (anchor_node_type is None) != (supervision_edge_type is None):
            raise PlanError(
                f"anchor_node_type={anchor_node_type!r} and supervision_edge_type={supervision_edge_type!r} go together", "give both"
            )
        anchor, supervised = self._node_type(anchor_node_type), supervision_edge_type or self.schema.default_edge_type
        if anchor is None or supervised is None:
            raise PlanError("anchor_node_type and supervision_edge_type are missing", f"edge types: {self.schema.edge_types}")
        slices = self._slices(rank, world_size)
        wanted = {s: FetchABLPInputRequest(split, anchor, supervised, part, max_labels_per_anchor_node) for s, part in slices.items()}
        found = _ask_all("get_ablp_input", wanted)
        has_negatives = any(negative is not None for _, _, negative in found.values())
        rows = torch.empty((0, 0), dtype=torch.int64)
        nothing = (rows.new_empty(0), rows, rows if has_negatives else None)
        answers = {server: found.get(server, nothing) for server in range(self.cluster_info.num_storage_nodes)}
        return {
            server: ABLPInputNodes(anchors, anchor, {supervised: (positive, negative)})
            for server, (anchors, positive, negative) in answers.items()
        }

    def fetch_free_ports_on_storage_cluster(self, num_ports: int) -> list[int]:
        """Free ports of server 0's host, the same on every rank. Nothing of gnnkit needs them.

        Raises:
            PlanError: There is no process group.
        """
        if not process_group.is_initialized():
            raise PlanError("there is no process group of the trainers", "call torch.distributed.init_process_group first")
        import torch.distributed as dist

        ports = request_server(0, DistServer.get_free_ports, num_ports) if dist.get_rank() == 0 else [0] * num_ports
        dist.broadcast_object_list(ports, src=0)
        return list(ports)

    def __repr__(self) -> str:
        info = self.cluster_info
        return f"RemoteDistDataset({info.num_storage_nodes} servers, {info.compute_cluster_world_size} trainers)"

    def _slices(self, rank: int | None, world_size: int | None) -> dict[int, ServerSlice | None]:
        if (rank is None) != (world_size is None):
            raise PlanError(f"rank={rank!r} and world_size={world_size!r} go together", "give both, or none of them for everything")
        if rank is None or world_size is None:
            return dict.fromkeys(range(self.cluster_info.num_storage_nodes))
        return dict(compute_server_assignments(self.cluster_info.num_storage_nodes, world_size, rank))

    def _node_type(self, node_type: NodeType | None) -> NodeType | None:
        return self.schema.default_node_type if node_type is None else node_type


def _ask_all(method: str, requests: dict[int, Any]) -> dict[int, Any]:
    """Answers by server; all are asked before the first is waited for."""
    futures = {server: async_request_server(server, method, request) for server, request in requests.items()}
    return {server: future.wait() for server, future in futures.items()}


_lock = threading.Lock()
# The servers that ``init_server`` has started, and what makes the calls to this process once they are asked for.
_serving: tuple[GraphStoreServers, Callable[[], DistServer]] | None = None


def init_server(  # noqa: PLR0913
    num_servers: int,
    server_rank: int,
    dataset: DistDataset | Store | str | Path,
    master_addr: str,
    master_port: int,
    num_clients: int = 0,
    num_rpc_threads: int = 16,
    request_timeout: float = 180,
    server_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    token: str | None = None,
    **options: Any,
) -> None:
    """Starts server ``server_rank`` in the background, and returns when all servers of the run are there.

    Args:
        num_servers: Servers of the run.
        server_rank: Which one this is.
        dataset: What it serves: a dataset of a store, a store, or a store's folder.
        master_addr: Address of server 0's host.
        master_port: Port on which server 0 listens.
        num_clients: Trainers that are to come: the servers end when as many have come and all have left. 0: they stay.
        num_rpc_threads: Of no use here: servers answer calls as they come.
        request_timeout: Of no use here: it is the clients that wait.
        server_group_name: Name of the servers in ``get_context()``.
        is_dynamic: Any number of trainers may come: the servers end once one has come and none is left. ``num_clients`` does not count.
        token: What clients have to know; None takes the environment's.
        **options: Further options of ``gnnkit.serve``, for example ``workers_per_server``.

    Raises:
        PlanError: An argument is unusable, this process is a server or a client already, there is no token, or the port is taken.
        StartTimeout: Not all servers came in time.
        StoreError: The store is missing or damaged, or another one than the other servers'.
        WorkerDied: The server ended while it started.
    """
    global _serving
    num_servers = whole_number("num_servers", num_servers, 1)
    num_clients = whole_number("num_clients", num_clients)
    clients = 0 if is_dynamic else num_clients
    address = meeting_address(master_addr, master_port)
    graph_client.check_free("init_server")
    store = _store_of(dataset, master_addr, master_port, server_rank, num_servers)
    graph_client.enter(graph_client.server_context(num_servers, server_rank, clients, server_group_name), "init_server")
    with on_error(graph_client.leave):
        servers = _start(store, num_servers, server_rank, address, is_dynamic or clients, token, options)
        with _lock:
            _serving = servers, cache(partial(_calls_of, dataset))


def _start(
    store: Store | Path, num_servers: int, rank: int, address: str, clients: bool | int, token: str | None, options: dict[str, Any]
) -> GraphStoreServers:
    from gnnkit.serving import serve  # processes

    servers = serve(
        store,
        num_servers,
        rank=rank,
        address=address,
        token=token or (None if address.startswith(UNIX_PREFIX) else required(address)),
        stop_with_last_client=clients,
        **options,
    )
    try:
        servers.wait()
    except LoaderClosed:
        # They are in use nowhere yet: they have ended because all clients came and left before this thread looked.
        if not clients or servers.error_of(rank) is not None:
            servers.stop()
            raise
    except BaseException:
        servers.stop()
        raise
    return servers


def get_server() -> DistServer | None:
    """Returns the object with the calls that clients may make to this process; None where ``init_server`` was not called."""
    with _lock:
        serving = _serving
    return None if serving is None else serving[1]()


def _calls_of(dataset: Any) -> DistServer:
    return DistServer(dataset if isinstance(dataset, DistDataset) else DistDataset.from_store(dataset))


def wait_and_shutdown_server() -> None:
    """Waits until the server has ended, because all of its clients have left or it was told to, and removes what is left of it.

    Whatever happens, the server is gone afterwards, and ``init_server`` may be called again.

    Raises:
        PlanError: This process is a client.
        WorkerDied: The server ended by itself, with the tail of its log.
    """
    global _serving
    if (current := graph_client.get_context()) is not None and not current.is_server():
        raise PlanError(f"this process is a {current.role.name.lower()}, not a server", "clients call shutdown_client()")
    with _lock:
        serving, _serving = _serving, None
    if serving is None:
        _logger.warning("wait_and_shutdown_server: this process is no server")
        return
    try:
        serving[0].join()
    finally:
        try:
            serving[0].stop()
        finally:
            graph_client.leave()


def _store_of(dataset: Any, address: str, port: int, rank: int, num_servers: int) -> Store | Path:
    if isinstance(dataset, DistDataset):
        if not address.startswith(UNIX_PREFIX):
            dataset.meet(meeting_at(address, port, rank, num_servers))  # before server 0 listens there for good
        store = stored(dataset)
        if dataset.has_own_split:
            raise PlanError(
                "the dataset has a split of its own, and servers know those of their store",
                "give clients the ids as seeds, or partition the graph with the split in it, for example as train_mask",
            )
        return store
    if isinstance(dataset, Store):
        return dataset
    if isinstance(dataset, (str, Path)):
        return Path(dataset)
    raise PlanError(
        f"dataset must be a DistDataset, a Store or a store's folder, got {dataset!r}",
        "graphlearn-torch's versions order the arguments of init_server differently: give them by name",
    )
