"""graphlearn-torch's loaders, driven batch by batch: what a driver process does with them.

Its loaders and workers are its own. Jobs are put into the queues that its producers keep for their workers, and messages are taken
from their channel, so that which seeds a batch has, and when an epoch ends, is decided outside.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.backends.glt import sampler as glt_sampler
from gnnkit.backends.glt.setup import EngineOptions, GltPlace, direct_seeds, part_dataset, sampling_config
from gnnkit.errors import WorkerDied
from gnnkit.storage.arrays import GraphArrays
from gnnkit.vendor import glt

_GROUP = "gnnkit"
# Requests for messages that one server has at a time.
_AHEAD = 2
_WAIT_S = 0.2


class Engine(Protocol):
    """Something that samples jobs and answers with messages."""

    lanes: int

    def submit(self, lane: int, jobs: Sequence[NDArray[np.int64]]) -> None:
        """Queues jobs for one of its workers."""
        ...

    def receive(self) -> dict[str, torch.Tensor] | None:
        """The next message; None where there is none after a moment."""
        ...


class WorkerEngine:
    """Workers beside the loader: graphlearn-torch's worker mode.

    Args:
        graph: Every part's arrays.
        place: This process.
        options: The user's.
    """

    def __init__(self, graph: GraphArrays, place: GltPlace, options: EngineOptions) -> None:
        glt_sampler.install()
        self.lanes = options.num_workers
        glt.attribute("distributed.init_worker_group")(place.num_parts, place.part, _GROUP)
        worker_options = glt.attribute("distributed.MpDistSamplingWorkerOptions")(
            channel_size=options.channel_bytes, **_sampler_options(place, options)
        )
        self._loader = glt.attribute("distributed.DistLoader")(
            part_dataset(graph, place.part, options),
            direct_seeds(options, graph),
            sampling_config(options, graph),
            torch.device("cpu"),
            worker_options,
        )

    def submit(self, lane: int, jobs: Sequence[NDArray[np.int64]]) -> None:
        """See ``Engine``."""
        glt_sampler.enqueue(self._loader._mp_producer, lane, list(jobs))

    def receive(self) -> dict[str, torch.Tensor] | None:
        """See ``Engine``."""
        return glt_sampler.receive(self._loader._channel)


def _sampler_options(place: GltPlace, options: EngineOptions) -> dict[str, Any]:
    """Returns the arguments that both kinds of graphlearn-torch's worker options share."""
    return {
        "num_workers": options.num_workers,
        "worker_devices": options.devices,
        "worker_concurrency": options.worker_concurrency,
        "master_addr": place.samplers[0],
        "master_port": place.samplers[1],
        "rpc_timeout": options.rpc_timeout_s,
    }


def serve(graph: GraphArrays, place: GltPlace, options: EngineOptions) -> None:
    """Makes this process one of graphlearn-torch's servers; returns once all servers and clients have met."""
    assert place.group is not None, "servers have a group"
    glt_sampler.install()
    dataset = part_dataset(graph, place.part, options)
    glt.attribute("distributed.init_server")(
        place.num_parts,
        place.part,
        dataset,
        *place.group,
        num_clients=place.num_clients,
        num_rpc_threads=max(16, (_AHEAD + 2) * place.num_clients),
        request_timeout=options.rpc_timeout_s,
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
        self._servers, self._workers = place.num_parts, options.num_workers
        self.lanes = self._servers * self._workers
        self._lock = threading.Lock()
        self._open, self._asked = [0] * self._servers, [0] * self._servers
        self._answers: queue.Queue[dict[str, torch.Tensor] | WorkerDied] = queue.Queue()
        self._request: Any = glt.attribute("distributed.async_request_server")
        glt.attribute("distributed.init_client")(
            self._servers, place.num_clients, place.client, *place.group, client_group_name=f"{_GROUP}_client"
        )
        worker_options = glt.attribute("distributed.RemoteDistSamplingWorkerOptions")(
            server_rank=list(range(self._servers)),
            buffer_size=options.channel_bytes,
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
        """See ``Engine``."""
        server, worker = divmod(lane, self._workers)
        with self._lock:
            self._open[server] += len(jobs)
        future = self._request(server, glt_sampler.submit, self._loader._producer_id_list[server], worker, list(jobs))
        future.add_done_callback(lambda done: self._failed(server, done))
        self._answers.put({})  # has whoever waits for an answer ask for this one

    def receive(self) -> dict[str, torch.Tensor] | None:
        """See ``Engine``.

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
        future = self._request(server, glt_sampler.fetch, self._loader._producer_id_list[server])
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
