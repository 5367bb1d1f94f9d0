"""The loop of a process that runs graphlearn-torch, and what it sets up."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.backends.glt import batches
from gnnkit.backends.glt.batches import ERROR, TAG, MessageReader, SeedList, job, write
from gnnkit.backends.glt.data import PartBuilder, unwrapped
from gnnkit.backends.glt.options import Glt
from gnnkit.cluster.hosts import environment_int, meeting_store
from gnnkit.errors import StartTimeout, StoreError, WorkerDied
from gnnkit.plan import LoaderPlan, NeighborSampling
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.graph_memory import GraphHandle, SharedGraph
from gnnkit.runtime.remote import error_to_json, layout_to_json
from gnnkit.runtime.runs import with_tail
from gnnkit.runtime.supervisor import describe_end
from gnnkit.runtime.wire import Message, Wire, from_memory
from gnnkit.runtime.worker import own_memory
from gnnkit.sampling.subgraph import SampleRequest
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.store import Store
from gnnkit.vendor import glt

_JOIN_S = 600.0


@dataclass(frozen=True)
class GltPlace:
    """The place of a process among those that sample together.

    Attributes:
        part: The part that it holds, which is its number among the holders of parts.
        num_parts: Number of parts, and of their holders.
        samplers: Address and port at which sampling workers find each other.
        group: Address and port at which servers and clients do; None without servers.
        client: Which client it is or serves.
        num_clients: Number of clients; 0 without servers.
    """

    part: int
    num_parts: int
    samplers: list[Any]
    group: list[Any] | None
    client: int
    num_clients: int


@dataclass(frozen=True)
class EngineOptions:
    """The plan, and the user's options for graphlearn-torch's engine."""

    plan: LoaderPlan
    backend: Glt

    @property
    def gpu(self) -> int | None:
        """The trainer's GPU; None where sampling runs on the CPU."""
        return None if self.backend.graph_mode == "CPU" else (environment_int("LOCAL_RANK") or 0) % torch.cuda.device_count()


def listen(address: str, port: int) -> tuple[Any, int]:
    """A rendezvous store on one address: torch's own would listen on every interface.

    Args:
        address: The address.
        port: The port; 0 is a free one.

    Returns:
        The store, which ends with its last reference, and the port.

    Raises:
        OSError: The address or the port is not to be had.
    """
    end = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=128)
    port = int(end.getsockname()[1])
    return meeting_store(address, port, 0, None, timedelta(seconds=_JOIN_S), end), port


def part_dataset(graph: GraphArrays, part: int, options: EngineOptions) -> Any:
    """A ``DistDataset`` of graphlearn-torch's with one part's edges and features, in the store's ids."""
    builder = PartBuilder(graph, part, False, options.backend.graph_mode, options.gpu)
    schema, homogeneous = graph.schema, graph.schema.is_homogeneous
    reader, used = MessageReader(options.plan, graph), fan_outs(options.plan, graph)
    nodes = {t: builder.node_table(t) for t in schema.node_types} if reader.needs_nodes else None
    rows = {t: builder.edge_table(t, with_edge=options.plan.sampling.with_edge) for t in used} if reader.needs_edges else None
    return glt.attribute("distributed.DistDataset")(
        graph.num_parts,
        part,
        graph_partition=unwrapped({t: builder.edges(t) for t in used}, homogeneous=homogeneous),
        node_feature_partition=None if nodes is None else unwrapped(nodes, homogeneous=homogeneous),
        edge_feature_partition=None if rows is None else unwrapped(rows, homogeneous=homogeneous),
        # Labels are among the features; of typed graphs it asks for some, whatever they are (GLT-10).
        whole_node_labels=None if homogeneous else {"": torch.empty(0)},
        node_pb=unwrapped({t: builder.book(t) for t in schema.node_types}, homogeneous=homogeneous),
        edge_pb=unwrapped({t: builder.book(t) for t in used}, homogeneous=homogeneous),
        edge_dir=graph.edge_dir,
    )


def fan_outs(plan: LoaderPlan, graph: GraphArrays) -> dict[Any, list[int]]:
    """Fan-outs by edge type; types of which nothing is sampled are left out where others remain."""
    sampling = plan.sampling
    assert isinstance(sampling, NeighborSampling), "Glt() has refused everything else"
    found = {t: list(sampling.num_neighbors.get(t, (0,) * sampling.num_hops)) for t in graph.schema.edge_types}
    return {t: fans for t, fans in found.items() if any(fans)} or found


def sampling_config(options: EngineOptions, graph: GraphArrays) -> Any:
    """Returns the configuration of graphlearn-torch's samplers."""
    fans, batching = fan_outs(options.plan, graph), options.plan.batching
    return glt.attribute("sampler.SamplingConfig")(
        sampling_type=glt.attribute("sampler.SamplingType").NODE,
        num_neighbors=unwrapped(fans, homogeneous=graph.schema.is_homogeneous),
        batch_size=1,  # one job, with as many seeds as it holds
        shuffle=True,  # which has its workers wait for jobs rather than for the start of an epoch
        drop_last=False,
        with_edge=MessageReader(options.plan, graph).needs_edges,
        collect_features=True,
        with_neg=False,
        with_weight=False,
        edge_dir=graph.edge_dir,
        seed=(batching.seed * 31 + batching.rank) % (1 << 31),
    )


def direct_seeds(options: EngineOptions, graph: GraphArrays) -> SeedList:
    """Returns the object that graphlearn-torch receives in place of a list of seeds."""
    input_type = MessageReader(options.plan, graph).input_type
    return SeedList(None if graph.schema.is_homogeneous else input_type, options.backend.channel_bytes)


logger = logging.getLogger(__name__)


_GROUP = "gnnkit"
# Requests for messages that one server has at a time.
_AHEAD = 2
_WAIT_S = 0.2


class WorkerEngine:
    """Workers beside the loader: graphlearn-torch's worker mode.

    Args:
        graph: Every part's arrays.
        place: This process.
        options: The user's.
    """

    def __init__(self, graph: GraphArrays, place: GltPlace, options: EngineOptions) -> None:
        batches.install()
        glt.attribute("distributed.init_worker_group")(place.num_parts, place.part, _GROUP)
        worker_options = glt.attribute("distributed.MpDistSamplingWorkerOptions")(
            channel_size=options.backend.channel_bytes, **_sampler_options(place, options)
        )
        self._loader = glt.attribute("distributed.DistLoader")(
            part_dataset(graph, place.part, options),
            direct_seeds(options, graph),
            sampling_config(options, graph),
            torch.device("cpu"),
            worker_options,
        )

    def submit(self, lane: int, jobs: Sequence[NDArray[np.int64]]) -> None:
        """Puts jobs into the queue of one worker."""
        batches.enqueue(self._loader._mp_producer, lane, list(jobs))

    def receive(self) -> dict[str, torch.Tensor] | None:
        """The next message of the channel."""
        return batches.receive(self._loader._channel)


def _sampler_options(place: GltPlace, options: EngineOptions) -> dict[str, Any]:
    """Returns the arguments that both kinds of graphlearn-torch's worker options share."""
    device = torch.device("cpu") if options.gpu is None else torch.device("cuda", options.gpu)
    return {
        "num_workers": options.backend.num_workers,
        "worker_devices": [device] * options.backend.num_workers,  # those of one trainer share its GPU
        "worker_concurrency": options.backend.worker_concurrency,
        "master_addr": place.samplers[0],
        "master_port": place.samplers[1],
        "rpc_timeout": options.backend.rpc_timeout_s,
    }


def serve(graph: GraphArrays, place: GltPlace, options: EngineOptions) -> None:
    """Makes this process one of graphlearn-torch's servers; returns once all servers and clients have met."""
    assert place.group is not None, "servers have a group"
    batches.install()
    dataset = part_dataset(graph, place.part, options)
    glt.attribute("distributed.init_server")(
        place.num_parts,
        place.part,
        dataset,
        *place.group,
        num_clients=place.num_clients,
        num_rpc_threads=max(16, (_AHEAD + 2) * place.num_clients),
        request_timeout=options.backend.rpc_timeout_s,
        server_group_name=f"{_GROUP}_server",
    )


class ClientEngine:
    """Workers of servers, one per part: graphlearn-torch's server-client mode.

    Args:
        graph: Every part's arrays.
        place: This process.
        options: The user's.
    """

    def __init__(self, graph: GraphArrays, place: GltPlace, options: EngineOptions) -> None:
        assert place.group is not None, "clients have a group"
        self._servers, self._workers = place.num_parts, options.backend.num_workers
        self._lock = threading.Lock()
        self._open, self._asked = [0] * self._servers, [0] * self._servers
        self._answers: queue.Queue[dict[str, torch.Tensor] | WorkerDied] = queue.Queue()
        self._request: Any = glt.attribute("distributed.async_request_server")
        glt.attribute("distributed.init_client")(
            self._servers, place.num_clients, place.client, *place.group, client_group_name=f"{_GROUP}_client"
        )
        worker_options = glt.attribute("distributed.RemoteDistSamplingWorkerOptions")(
            server_rank=list(range(self._servers)),
            buffer_size=options.backend.channel_bytes,
            prefetch_size=1,
            worker_key=f"{_GROUP}-{place.client}",
            **_sampler_options(place, options),
        )
        barrier: Any = glt.attribute("distributed.barrier")
        for client in range(place.num_clients):  # one after another: servers that start them in another order wait for each other
            if client == place.client:
                self._loader = glt.attribute("distributed.DistLoader")(
                    None,
                    [direct_seeds(options, graph)] * self._servers,
                    sampling_config(options, graph),
                    torch.device("cpu"),
                    worker_options,
                )
            barrier()

    def submit(self, lane: int, jobs: Sequence[NDArray[np.int64]]) -> None:
        """Asks the server of a lane to queue jobs for its worker."""
        server, worker = divmod(lane, self._workers)
        with self._lock:
            self._open[server] += len(jobs)
        future = self._request(server, batches.submit, self._loader._producer_id_list[server], worker, list(jobs))
        future.add_done_callback(lambda done: self._failed(server, done))
        self._answers.put({})  # wakes `receive`, which asks for this answer

    def receive(self) -> dict[str, torch.Tensor] | None:
        """The next message of any server; None where there is none after a moment.

        Raises:
            WorkerDied: A server does not answer.
        """
        with self._lock:
            for server in range(self._servers):
                while self._asked[server] < min(_AHEAD, self._open[server]):
                    self._asked[server] += 1
                    self._ask(server)
        try:
            answer = self._answers.get(timeout=_WAIT_S)
        except queue.Empty:
            return None
        if isinstance(answer, WorkerDied):
            raise answer
        return answer or None

    def _ask(self, server: int) -> None:
        future = self._request(server, batches.fetch, self._loader._producer_id_list[server])
        future.add_done_callback(lambda done: self._take(server, done))

    def _take(self, server: int, done: Any) -> None:
        if self._failed(server, done):
            return
        message = done.value()
        with self._lock:
            self._asked[server] -= 1
            self._open[server] -= message is not None
        self._answers.put(message or {})

    def _failed(self, server: int, done: Any) -> bool:
        try:
            done.value()
        except Exception as error:  # whatever torch's RPC raises
            self._answers.put(WorkerDied(f"the server of part {server} does not answer: {error}"))
            return True
        return False


_BEAT_S = 0.1
_END_S = 1.0
# The generation of batches outside an epoch; those of epochs count from 1.
_NOW = 0


class GltLoop:
    """Obeys the loader.

    Args:
        wire: The connection to it.
        watch: The process's watchman.
    """

    def __init__(self, wire: Wire, watch: ParentWatch) -> None:
        self._wire, self._watch = wire, watch
        self._generation = _NOW
        self._lock = threading.Lock()
        self._wanted: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.int64], float]] = {}
        self._is_ready = self._is_ending = False
        self._stores: list[Any] = []

    def run(self) -> None:
        """Works until the loader goes away or says stop."""
        try:
            self._start()
            handlers = {"begin": self._begin, "sample": self._sample, "now": self._sample_now}
            while (message := self._wire.next()).kind != "stop":
                handlers[message.kind](message)
        except EOFError:
            pass
        except BaseException as error:  # the loader raises it
            self._fail(error)
            raise
        finally:
            self._end_workers()

    def _end_workers(self) -> None:
        """Ends graphlearn-torch's workers, which would take seconds to end by themselves."""
        self._is_ending = True
        workers = multiprocessing.active_children()
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join(_END_S)

    def _start(self) -> None:
        setup = self._wire.next()
        body = setup.body
        self._log = Path(body["log"])
        threading.Thread(target=self._watch_workers, name="gnnkit-watch-workers", daemon=True).start()
        ports = {}
        for name, port in body["open"].items():
            store, ports[name] = listen(body["address"], port)
            self._stores.append(store)
        self._wire.send("event", what="opened", ports=ports)
        self._plan = LoaderPlan.from_json(body["plan"])
        handle = self._handle = _open_graph(self._plan, setup)
        self._batches, self._reader = BatchList(self._plan, handle), MessageReader(self._plan, handle.arrays)
        join = self._wire.next().body
        place = GltPlace(**join["place"])
        options = EngineOptions(self._plan, Glt(**body["options"]))
        if body["role"] == "server":
            serve(handle.arrays, place, options)
        else:
            engine: type[ClientEngine | WorkerEngine] = ClientEngine if body["role"] == "client" else WorkerEngine
            self._engine = engine(handle.arrays, place, options)
            threading.Thread(target=self._pump, name="gnnkit-pump", daemon=True).start()
        self._is_ready = True
        self._wire.tell("ready")

    def _fail(self, error: BaseException) -> None:
        self._wire.tell("failed", error=error_to_json(error))

    def _watch_workers(self) -> None:
        """Ends this process when one of graphlearn-torch's workers has ended, which graphlearn-torch does not notice (GLT-8)."""
        known: dict[int, Any] = {}
        ended = threading.Event()  # never set: there is no worker yet to wait for
        while True:
            for child in multiprocessing.active_children():
                known[child.pid or 0] = child
            ended.wait(_BEAT_S) if not known else connection.wait([child.sentinel for child in known.values()], _BEAT_S)
            for pid, child in known.items():
                if child.exitcode is not None and not self._is_ending:
                    kind = WorkerDied if self._is_ready else StartTimeout
                    what = f"the graphlearn-torch worker {pid} of process {os.getpid()} {describe_end(child.exitcode)}"
                    self._fail(kind(with_tail(what, self._log), "iterate the loader again: its processes are started anew"))
                    os._exit(1)

    def _begin(self, message: Message) -> None:
        self._generation = message.body["g"]
        with self._lock:
            self._wanted = {tag: wanted for tag, wanted in self._wanted.items() if tag[0] in (_NOW, self._generation)}

    def _sample(self, message: Message) -> None:
        body, jobs = message.body, []
        for step, batch in body["steps"]:
            request = self._batches.request(body["epoch"], batch)
            jobs.append(self._want((body["g"], step), request))
        self._engine.submit(body["lane"], jobs)

    def _sample_now(self, message: Message) -> None:
        body = message.body
        seeds = np.frombuffer(from_memory(message.fds[0]), np.int64) if message.fds else None
        request = self._batches.request(body["epoch"], body["batch"], seeds)
        self._engine.submit(body["lane"], [self._want((_NOW, body["number"]), request)])

    def _want(self, tag: tuple[int, int], request: SampleRequest) -> NDArray[np.int64]:
        seeds = np.ascontiguousarray(self._handle.to_store_ids(self._reader.input_type, request.arrays["node"]))
        with self._lock:
            self._wanted[tag] = seeds, request.input_id, time.perf_counter()
        return job(tag, seeds)

    def _pump(self) -> None:
        """Takes messages and hands batches over; the only thread that does."""
        try:
            while True:
                message = self._engine.receive()
                if message is not None:
                    self._hand_over(message)
                del message  # its memory is the channel's
        except BaseException as error:  # the loader raises it
            logger.exception("the process ends")
            self._fail(error)
            os._exit(1)

    def _hand_over(self, message: dict[str, torch.Tensor]) -> None:
        generation, step = (int(number) for number in message[TAG])
        name = {"g": generation, "step": step}
        with self._lock:
            wanted = self._wanted.pop((generation, step), None)
        if wanted is None:  # of an epoch that was abandoned
            self._wire.tell("done", **name)
            return
        if ERROR in message:
            self._wire.tell("done", error=json.loads(message[ERROR].numpy().tobytes()), **name)
            return
        seeds, input_id, since = wanted
        try:
            sampled = time.perf_counter()
            layout, arrays = self._reader.lay_out({key: value.numpy() for key, value in message.items()}, seeds, input_id)
            fd, block = own_memory(layout.nbytes)
            try:
                write(layout, arrays, block)
                began_s = time.monotonic() - (time.perf_counter() - since)  # one clock for all processes of a host
                times = {"began_s": began_s, "sample_s": sampled - since, "gather_s": time.perf_counter() - sampled}
                self._wire.tell("done", (fd,), layout=layout_to_json(layout), **times, **name)
            finally:
                os.close(fd)
        except Exception as error:  # of this batch alone; the loader raises it
            self._wire.tell("done", error=error_to_json(error), **name)


def _open_graph(plan: LoaderPlan, setup: Message) -> GraphHandle:
    """The graph that the loader samples: of a store, the parts that this process needs."""
    if plan.store is None:
        return GraphHandle(SharedGraph.attach(setup.fds[0], setup.body["graph"]).graph, {})
    store = Store.open(plan.store.path, setup.body["parts"])
    if store.fingerprint != plan.store.fingerprint:
        raise StoreError(f"the store {str(store.path)!r} was replaced while it was in use", "make the loader again")
    return GraphHandle(store.checked().arrays(), store.splits, plan.store, link_splits=store.link_splits)
