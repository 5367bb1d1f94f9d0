"""``DistServer``: what can be asked of a server, by the names of GiGL and graphlearn-torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from gnnkit.bounds import is_whole, shown, whole_number
from gnnkit.cluster.serving.spec import UNIX_PREFIX, required
from gnnkit.cluster.serving.store_api import StoreApi
from gnnkit.distributed import graph_client
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.dataset_values import meeting_at
from gnnkit.distributed.loader_options import stored
from gnnkit.distributed.process_group import meeting_address
from gnnkit.distributed.sample_message import SampleMessage
from gnnkit.distributed.server_values import (
    FetchABLPInputRequest,
    FetchNodesRequest,
    InitSamplingBackendRequest,
    RegisterBackendRequest,
    book_of,
    config_words,
    cut_of,
    message_of,
    plain_ids,
    rows_of,
    schema_of,
    tensors_of,
    types_of,
)
from gnnkit.distributed.store_views import AnyBook, DatasetSchema, FeatureInfo, Quantizations
from gnnkit.errors import LoaderClosed, PlanError, near_matches
from gnnkit.schema import EdgeDir, EdgeType, NodeType
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.serving import GraphStoreServers


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
        return self._call("node_partition_ids", {"node_type": node_type, "ids": plain_ids(index)}, torch.from_numpy)

    def get_node_partition_book(self, node_type: NodeType | None = None) -> AnyBook:
        """Which part owns which node: a range book, or a tensor with each id's part."""
        return self._call("node_book", {"node_type": node_type}, book_of)

    def get_edge_partition_book(self, edge_type: EdgeType | None = None) -> AnyBook:
        """Which part owns which edge."""
        return self._call("edge_book", {"edge_type": edge_type}, book_of)

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
        return self._call("feature_shape", {"node_type": node_type}, torch.Size)

    def get_edge_index(self, edge_type: EdgeType | None = None, layout: str = "coo") -> tuple[torch.Tensor, torch.Tensor]:
        """int64 ``[e]`` and ``[e]``: sources and targets of the server's edges.

        Raises:
            PlanError: The type is unknown, or the layout is not "coo".
        """
        ends: tuple[torch.Tensor, torch.Tensor] = self._call("edge_index", {"edge_type": edge_type, "layout": layout}, tensors_of)
        return ends

    def get_edge_size(self, edge_type: EdgeType | None = None, layout: str = "coo") -> tuple[int, int]:
        """Number of nodes of the whole graph at the source end and at the target end; errors as ``get_edge_index``."""
        return self._call("edge_size", {"edge_type": edge_type, "layout": layout}, tuple)

    def get_node_ids(self, request: FetchNodesRequest | None = None) -> torch.Tensor:
        """int64 ``[k]``: the server's nodes, or those of a split.

        Raises:
            PlanError: The split is unknown, or the type is given for a homogeneous graph or missing for a typed one.
        """
        wanted = request or FetchNodesRequest()
        args = {"split": wanted.split, "node_type": wanted.node_type, "cut": cut_of(wanted.server_slice)}
        return self._call("node_ids", args, torch.from_numpy)

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
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] = self._call("ablp_input", args, tensors_of)
        return found

    def get_free_ports(self, num_ports: int) -> list[int]:
        """Ports of the server's host that are free at this moment. Nothing of gnnkit needs them."""
        return self._call("free_ports", {"count": num_ports}, list)

    def device_count(self) -> int:
        """CUDA devices of the server's host, and 1 where it has none: what ``func=torch.cuda.device_count`` asks for.

        Servers sample on their CPU, so a script that makes as many workers gets its batches on any host.
        """
        return self._call("device_count", {}, int)

    def get_ids_in_file(self, path: str) -> torch.Tensor:
        """int64 ``[n]``: the ids in a file of the server's host, as ``torch.save`` writes a tensor; nothing in it is run.

        Raises:
            DatasetError: There is no such file, or it holds something else.
        """
        return self._call("ids_in_file", {"path": str(path)}, torch.from_numpy)

    # Sampling ---------------------------------------------------------------------------------------------------------------

    def init_sampling_backend(self, request: InitSamplingBackendRequest) -> int:
        """The number of a sampling backend; the first client that asks makes it, and all that ask for its name share it.

        Raises:
            PlanError: It exists with another configuration, or the configuration does not fit the graph.
            WorkerDied: The server's workers cannot be started; every client that waits for the backend is told.
        """
        args = {"key": request.backend_key, "config": config_words(request.sampling_config, request.sampler_options)}
        return self._call("init_backend", args, int)

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
        return self._call("register", args, int)

    def start_new_epoch_sampling(self, channel_id: int, epoch: int) -> None:
        """Starts an epoch; one that was started before, or an older one, is left as it is. A destroyed channel starts nothing.

        Raises:
            PlanError: The channel is unknown: there never was one, or the server was started anew, or took this client for gone.
        """
        return self._call("start_epoch", {"channel": channel_id, "epoch": epoch}, _nothing)

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
        return self._call("fetch", {"channel": channel_id, "epoch": epoch}, message_of)

    def destroy_sampling_input(self, channel_id: int) -> None:
        """Gives a channel up; it ends with the last client that holds it, and its backend with its last channel."""
        return self._call("destroy", {"channel": channel_id}, _nothing)

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
        return self._call("create", {**args, **_input_words(sampler_input, sampling_config, sampler_options)}, int)

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
        return self._call("give_up", {}, lambda found: bool(found["ends_with_clients"]))

    def shutdown(self) -> None:
        """Gives this client's backends up, with a warning in the log where there are some; other clients keep theirs."""
        return self._call("give_up", {}, _warn_of_backends)

    def _rows(self, node_type: NodeType | None, index: torch.Tensor, name: str) -> torch.Tensor:
        args = {"node_type": node_type, "ids": plain_ids(index), "name": name}
        return self._call("node_rows", args, lambda found: rows_of(found, is_label=name == "y"))

    def _described(self, choose: Callable[[Any], _T]) -> _T:
        return self._call("describe", {}, choose)

    def _call(self, name: str, args: dict[str, Any], convert: Callable[[Any], _T]) -> _T:
        answer: _T = self._ask(name, args, convert)
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


def _nothing(_: Any) -> None:
    """The result of calls that have none."""


def _warn_of_backends(found: Any) -> None:
    if found["backends"]:
        _logger.warning("DistServer.shutdown: %d sampling backends of this client were alive, and are given up", found["backends"])


def _input_words(sampler_input: Any, config: Any, options: Any = None) -> dict[str, Any]:
    return {"config": config_words(config, options), "node_type": sampler_input.input_type, "ids": plain_ids(sampler_input.node)}


def request_server(server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
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
    return getattr(server, method_name(func))(*args, **kwargs)


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


@dataclass
class _Serving:
    """The servers that ``init_server`` has started."""

    servers: GraphStoreServers
    dataset: Any
    face: DistServer | None = None


_lock = threading.Lock()
_serving: _Serving | None = None


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
    try:
        servers = _start(store, num_servers, server_rank, address, is_dynamic or clients, token, options)
        with _lock:
            _serving = _Serving(servers, dataset)
    except BaseException:
        graph_client.leave()
        raise


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
    if serving is None:
        return None
    if serving.face is None:
        dataset = serving.dataset
        serving.face = DistServer(dataset if isinstance(dataset, DistDataset) else DistDataset.from_store(dataset))
    return serving.face


def wait_and_shutdown_server() -> None:
    """Waits until the server has ended, because all of its clients have left or it was told to, and removes what is left of it.

    Whatever happens, the server is gone afterwards, and ``init_server`` may be called again.

    Raises:
        PlanError: This process is a client.
        WorkerDied: The server ended by itself, with the tail of its log.
    """
    global _serving
    current = graph_client.get_context()
    if current is not None and not current.is_server():
        raise PlanError(f"this process is a {current.role.name.lower()}, not a server", "clients call shutdown_client()")
    with _lock:
        serving, _serving = _serving, None
    if serving is None:
        _logger.warning("wait_and_shutdown_server: this process is no server")
        return
    try:
        serving.servers.join()
    finally:
        try:
            serving.servers.stop()
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
