"""The loop of a process that runs graphlearn-torch, and what it sets up."""

from __future__ import annotations

import itertools
import json
import logging
import multiprocessing
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
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
from gnnkit.errors import BatchTimeout, StartTimeout, WorkerDied
from gnnkit.plan import LoaderPlan, NeighborSampling
from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.remote import error_from_json, error_to_json
from gnnkit.runtime.runs import with_tail
from gnnkit.runtime.supervisor import describe_end
from gnnkit.runtime.wire import Wire
from gnnkit.runtime.worker import OtherHosts, WorkerChannel, WorkerGraph, WorkerLoop
from gnnkit.sampling.graph_access import NodeScratch
from gnnkit.sampling.kinds import BatchSampler, Sampled
from gnnkit.sampling.subgraph import BatchLayout, SampleRequest
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

    def submit(self, lane: int, job: NDArray[np.int64]) -> None:
        """Puts a job into the queue of one worker."""
        batches.enqueue(self._loader._mp_producer, lane, job)

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
        self._lock = threading.RLock()  # of a call that is answered at once, the thread that asks also takes the answer
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

    def submit(self, lane: int, job: NDArray[np.int64]) -> None:
        """Asks the server of a lane to queue a job for its worker."""
        server, worker = divmod(lane, self._workers)
        with self._lock:
            self._open[server] += 1
        future = self._request(server, batches.submit, self._loader._producer_id_list[server], worker, job)
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


class GltLoop(OtherHosts):
    """A sampling process whose batches graphlearn-torch samples, or one of graphlearn-torch's servers. The sampling threads wait for them.

    Args:
        wire: The connection to the loader.
        watch: The process's watchman.

    Attributes:
        threads: Sampling threads to run: two for each batch that a worker may sample at the same time, so that it never waits for one.
    """

    def __init__(self, wire: Wire, watch: ParentWatch) -> None:
        self._wire, self._watch = wire, watch
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._answers: dict[int, Future[dict[str, torch.Tensor]]] = {}
        self._is_ready = self._is_ending = False

    def run(self) -> None:
        """Works until the loader goes away or says stop."""
        try:
            body = self._body = self._wire.next().body
            self._options = EngineOptions(LoaderPlan.from_json(body["plan"]), Glt(**body["options"]))
            threading.Thread(target=self._watch_workers, name="gnnkit-watch-workers", daemon=True).start()
            self._stores = {name: listen(body["address"], port) for name, port in body["open"].items()}
            self._wire.send("event", ports={name: port for name, (_, port) in self._stores.items()})
            WorkerLoop(self._wire, self._watch, self._connect).run()
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

    def _connect(self, setup: Mapping[str, Any], graph: GraphHandle, store: Store | None, threads: int) -> OtherHosts | None:
        """Finds the other processes, for the loop of a sampling process; None where this one serves."""
        place, role = GltPlace(**setup["place"]), self._body["role"]
        if store is not None:
            store.checked()
        if role == "server":
            serve(graph.arrays, place, self._options)
            self._is_ready = True
            return None
        engine: type[ClientEngine | WorkerEngine] = ClientEngine if role == "client" else WorkerEngine
        self._engine = engine(graph.arrays, place, self._options)
        self._graph, self._reader, self._is_ready = graph, MessageReader(self._options.plan, graph.arrays), True
        self._loads, each = [0] * self._body["lanes"], 2 * self._options.backend.worker_concurrency
        self.threads, self._limit_s = each * len(self._loads), each * self._options.plan.runtime.batch_timeout_s
        threading.Thread(target=self._pump, name="gnnkit-pump", daemon=True).start()
        return self

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
                    self._fail(kind(with_tail(what, Path(self._body["log"])), self._body["advice"]))
                    os._exit(1)

    def session(self, graph: WorkerGraph, plan: LoaderPlan) -> GltChannel:
        """The session of the loader."""
        return GltChannel(graph, plan, self.sampled)

    def sampled(self, request: SampleRequest) -> tuple[BatchLayout, list[NDArray[Any]]]:
        """Has the worker that has least to do sample a batch, and waits for it; see ``MessageReader.lay_out``.

        Raises:
            BatchTimeout: It has not come in the time of all that the worker may have to sample before.
            SamplingError: Sampling it raised.
        """
        seeds = np.ascontiguousarray(self._graph.to_store_ids(self._reader.input_type, request.arrays["node"]))
        answer: Future[dict[str, torch.Tensor]] = Future()
        with self._lock:
            number, lane = next(self._numbers), min(range(len(self._loads)), key=self._loads.__getitem__)
            self._loads[lane] += 1
            self._answers[number] = answer
        try:
            self._engine.submit(lane, job(number, seeds))
            message = answer.result(self._limit_s)
        except FutureTimeout as error:
            raise BatchTimeout(f"graphlearn-torch has not sampled a batch within {self._limit_s:g} s", "raise batch_timeout_s") from error
        finally:
            with self._lock:
                self._loads[lane] -= 1
                self._answers.pop(number, None)
        if ERROR in message:
            raise error_from_json(json.loads(message[ERROR].numpy().tobytes()), "sampling with graphlearn-torch")
        return self._reader.lay_out({key: value.numpy() for key, value in message.items()}, seeds, request.input_id)

    def _pump(self) -> None:
        """Takes messages and hands them over; the only thread that does."""
        try:
            while True:
                self._hand_over(self._engine.receive())
        except BaseException as error:  # the loader raises it
            logger.exception("the process ends")
            self._fail(error)
            os._exit(1)

    def _hand_over(self, message: dict[str, torch.Tensor] | None) -> None:
        """Hands a message to the thread that waits for it, in a function of its own: its memory is the channel's."""
        if message is not None:
            with self._lock:
                answer = self._answers.pop(int(message[TAG]), None)
            if answer is not None:
                answer.set_result(message)


class GltChannel(WorkerChannel, BatchSampler):
    """A ``WorkerChannel`` whose batches graphlearn-torch samples, for all threads.

    Args:
        graph: The graph.
        plan: The loader's plan.
        sampled: Returns a batch's layout and arrays.
    """

    def __init__(
        self, graph: WorkerGraph, plan: LoaderPlan, sampled: Callable[[SampleRequest], tuple[BatchLayout, list[NDArray[Any]]]]
    ) -> None:
        super().__init__(graph, plan)
        self._sampled = sampled

    def sampler(self, thread: int, scratches: dict[int, NodeScratch]) -> BatchSampler:
        """Itself."""
        return self

    def sample(self, request: SampleRequest) -> BatchLayout:
        """Samples a batch and lays it out."""
        return self._sampled(request)[0]

    def sample_all(self, requests: Sequence[SampleRequest], acquire: Callable[[int], NDArray[np.uint8]]) -> list[Sampled]:
        """Samples batches, one after the other: those that wait in the channel would keep it from those before them."""
        return [self._written(request, acquire) for request in requests]

    def _written(self, request: SampleRequest, acquire: Callable[[int], NDArray[np.uint8]]) -> Sampled:
        began_s = time.monotonic()
        layout, arrays = self._sampled(request)
        sampled_s, block = time.monotonic(), acquire(layout.nbytes)
        write(layout, arrays, block)
        return Sampled(layout, block, sampled_s - began_s, time.monotonic() - sampled_s, began_s)
