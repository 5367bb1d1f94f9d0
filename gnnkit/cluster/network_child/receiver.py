"""The receiving end of the network: a network child that is a sampling process, and fetches batches into the trainer's ring.

It is a sampling process like others (``gnnkit.cluster.worker``), but has an outline of the store instead of parts, and no graph. Of each
batch it asks one server for the structure, and the owners of its nodes and edges for their rows, all over the network. The rest of a
batch is made as anywhere else, so it is the same. Its ``done`` messages carry ``traffic``, the bytes that it has received and sent so far.

Of several servers that have a part, one is asked for its rows: trainers and parts are spread over them.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.hosts import split_address
from gnnkit.cluster.membership import JoinedServers
from gnnkit.cluster.network.requests import Requests, UnknownLoader
from gnnkit.cluster.network.wire import Broken, Failed, OutOfTime
from gnnkit.cluster.serving.spec import threads_for
from gnnkit.cluster.worker.owners import Peer, RemoteOwners, keep_freed_memory, num_rows
from gnnkit.errors import BatchTimeout, GnnkitError, HostUnreachable, LoaderClosed, PlanError, SamplingError, WorkerDied
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.remote import layout_from_json
from gnnkit.runtime.worker import OtherHosts, WorkerChannel
from gnnkit.sampling.graph_access import NodeScratch
from gnnkit.sampling.kinds import BatchSampler, warm
from gnnkit.sampling.owners import BadRequest
from gnnkit.sampling.remote import PartMap, receiving_sampler
from gnnkit.sampling.structure import Structure, WalkedRequest
from gnnkit.sampling.subgraph import SampleRequest
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.store import Store
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.runtime.worker import WorkerGraph

logger = logging.getLogger(__name__)
T = TypeVar("T")

# A server that accepts no connection within this time does not answer.
_PROBE_S = 1.0
# Between two attempts at a server that is being started again.
_GAP_S = 0.2
# The trainer waits this much longer than this process, so that the error says which server it is.
_MARGIN, _MOST_MARGIN_S = 0.1, 1.0
_RELEASE_S = 2.0
_MOST_S = 3600.0
# Of a server that is gone.
_REFUSES = "nothing listens there"


def probe(address: str, timeout_s: float) -> str:
    """Looks whether a service listens at an address; says what it has found."""
    try:
        socket.create_connection(split_address(address), timeout_s).close()
    except ConnectionRefusedError:
        return _REFUSES
    except OSError:
        return "it does not answer at all: it is stopped, or the network between is broken"
    return "it listens, and has not answered"


class RemoteServers(RemoteOwners, OtherHosts):
    """The servers of a run as the sampling threads of a network child use them. The loop of the process says goodbye to them.

    Every thread makes one batch at a time, and ``begin_batch`` says when it begins: all that it asks then shares one deadline. A server
    that refuses connections is gone; one that says nothing at all may be behind a broken network, and is waited for.

    Args:
        joined: The servers.
        store: The store's outline.
        client: What this process is known by.
        token: What they expect.
        ca: See ``RemoteOwners``.
        again: Whether a server that is gone is waited for.

    Attributes:
        threads: Sampling threads to run.

    Raises:
        PlanError: A part is on no server.
    """

    def __init__(self, joined: JoinedServers, store: Store, client: str, token: str, ca: str | None, *, again: bool) -> None:
        keep_freed_memory()
        graph = store.arrays()
        servers = {s.rank: Peer(s.address, joined.parts_of(s.rank, graph.num_parts), s.rank) for s in joined.servers}
        self.threads = threads_for(len(servers))
        at_once = self.threads * (1 + len(servers))
        super().__init__(servers, token, store.fingerprint, num_rows(graph), timeout_s=_MOST_S, at_once=at_once, ca=ca)
        self._part_map = spread_parts(client.partition("/")[0], graph.num_parts, {rank: peer.parts for rank, peer in servers.items()})
        self._client, self._again = client, again
        self._batch = threading.local()
        self._registered: set[tuple[int, str]] = set()
        self._released: set[str] = set()
        self._walking = dict.fromkeys(servers, 0)
        self._closed = threading.Event()
        warm()  # the kernels that only this module has imported

    def session(self, graph: WorkerGraph, plan: LoaderPlan) -> ReceivingChannel:
        """The session of a loader whose batches servers walk."""
        return ReceivingChannel(graph, plan, self)

    def sampler(self, tables: GraphTables, plan: LoaderPlan, scratch: NodeScratch, *, walks_only: bool) -> BatchSampler:
        """A sampler for one thread."""
        return receiving_sampler(tables, plan.sampling, self._part_map, self, plan.cached)

    def begin_batch(self, timeout_s: float) -> None:
        """The calling thread begins a batch, for which the trainer waits so long."""
        self._batch.deadline = Deadline(timeout_s - min(_MOST_MARGIN_S, _MARGIN * timeout_s))

    def walk(self, key: str, plan: Mapping[str, Any], epoch: int, batch: int, seeds: NDArray[np.int64] | None) -> Structure:
        """Has the server that has least to do walk a batch.

        Args:
            key: The loader's key.
            plan: Its plan as JSON.
            epoch: First half of the batch's key.
            batch: Second half.
            seeds: int64 ``[k]`` dataset ids of a batch outside the epoch, or None.

        Raises:
            WorkerDied: The server is gone.
            BatchTimeout: It has not answered in time.
            LoaderClosed: The loader has left meanwhile.
            GnnkitError: It refuses, or could not do it.
        """
        with self._lock:
            rank = min(self._walking, key=self._walking.__getitem__)
            self._walking[rank] += 1
            walking = self._walking.pop(rank)
            self._walking[rank] = walking  # behind those with as much to do
        try:
            while True:
                try:
                    self._register(rank, key, plan)
                    return self._do(rank, Requests.walk, key, walk_from_value, epoch=epoch, batch=batch, seeds=seeds)
                except UnknownLoader:
                    logger.info("server %d knows nothing of loader %s any more; it is told again", rank, key)
                    with self._lock:
                        self._registered.discard((rank, key))
                except (HostUnreachable, WorkerDied) as error:
                    self._wait_after(error)
        finally:
            with self._lock:
                self._walking[rank] -= 1

    def _wait_after(self, error: GnnkitError) -> None:
        """Waits a moment, where what a server lacks may come back: a sampling process, or another server that it needs."""
        one_refuses = any(probe(peer.address, _GAP_S) == _REFUSES for peer in self._peers.values())
        if not self._again and (isinstance(error, WorkerDied) or one_refuses):
            raise error
        if self._closed.wait(_GAP_S) or self._deadline().has_passed:
            if isinstance(error, HostUnreachable):
                raise BatchTimeout(error.message, error.hint) from error
            raise error

    def _register(self, rank: int, key: str, plan: Mapping[str, Any]) -> None:
        if (rank, key) not in self._registered and key not in self._released:
            self._do(rank, Requests.add_loader, key, lambda answer: None, plan=plan)
            with self._lock:
                self._registered.add((rank, key))
        if key in self._released:  # its batches under way must not make it known again
            self.release(key)
            raise LoaderClosed("the loader has left")

    def _do(self, rank: int, request: Requests, key: str, read: Callable[[Any], T], **args: Any) -> T:
        """Has a server do something for a loader, until the thread's deadline; ``read`` reads the answer."""
        ready = request.ready({"client": self._client, "key": key, **args}, self._fingerprint, self._deadline().left_s)
        return self._begin_ask(rank, ready, read).result()

    def release(self, key: str) -> None:
        """Tells the servers that a loader has left, as far as they can be told; they find out by themselves otherwise."""
        with self._lock:
            self._released.add(key)
            ranks = [rank for rank, known in self._registered if known == key]
            self._registered -= {(rank, key) for rank in ranks}

        def tell() -> None:
            self._batch.deadline = Deadline(_RELEASE_S)
            for rank in ranks:
                try:
                    self._do(rank, Requests.remove_loader, key, lambda answer: None)
                except Exception:
                    logger.info("server %d could not be told that loader %s has left", rank, key, exc_info=True)

        if ranks:
            threading.Thread(target=tell, name="gnnkit-release", daemon=True).start()

    # What becomes of a call ---------------------------------------------------------------------------------------------------

    def _deadline(self) -> Deadline:
        deadline: Deadline = self._batch.deadline
        return deadline

    def _may_ask_again(self, host: int, deadline: Deadline, is_new: bool) -> bool:
        """Until the deadline; but a server that refuses connections is gone, unless it is to be waited for.

        Raises:
            WorkerDied: It is gone.
        """
        found = probe(self._peers[host].address, max(0.05, deadline.within(_PROBE_S)))
        if found == _REFUSES and (not self._again or deadline.has_passed):
            raise WorkerDied(
                f"{self._where(host)} is gone: nothing listens there",
                "when it runs again, iterate again; with max_restarts=... of the backend the loader waits for it by itself",
            )
        return not deadline.has_passed and not self._closed.wait(_GAP_S)

    def close(self) -> None:
        """Ends the connections; no server is asked again."""
        self._closed.set()
        super().close()

    def _explain(self, host: int, error: BaseException) -> BaseException:
        if isinstance(error, Failed) and error.body.get("type") == UnknownLoader.__name__:
            return UnknownLoader(self._where(host))
        if isinstance(error, (Broken, OutOfTime)):
            why = probe(self._peers[host].address, _GAP_S)
            return BatchTimeout(
                f"{self._where(host)} has not done its share of a batch in time: {why} ({error})",
                "raise batch_timeout_s, or look at the server and the network; then iterate again",
            )
        return super()._explain(host, error)


class ReceivingChannel(WorkerChannel):
    """A ``WorkerChannel`` whose batches servers walk.

    Args:
        graph: The graph's outline.
        plan: The loader's plan.
        servers: The servers.
    """

    def __init__(self, graph: WorkerGraph, plan: LoaderPlan, servers: RemoteServers) -> None:
        super().__init__(graph, plan)
        # The rows are asked for here: what the trainer has of them is nothing to the servers.
        self._servers, self._key, self._sent = servers, secrets.token_hex(6), replace(plan, cached={}).to_json()

    def request(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampleRequest:
        """Returns the request of a batch: its structure, which a server has walked already."""
        self._servers.begin_batch(self._plan.runtime.batch_timeout_s)
        started = time.perf_counter()
        structure = self._servers.walk(self._key, self._sent, epoch, batch_index, seeds)
        return WalkedRequest.of(structure, time.perf_counter() - started)

    def close(self) -> None:
        """Tells the servers that the loader has left."""
        self._servers.release(self._key)


def walk_from_value(value: Any) -> Structure:
    """A server's answer to a walk, which is the layout as a text and the block; nothing is copied.

    Raises:
        BadRequest: It is none of its.
    """
    try:
        layout, block = value
        if not isinstance(block, np.ndarray) or block.dtype != np.uint8 or block.ndim != 1:
            raise BadRequest("this is no answer to a walk")
        return Structure(layout_from_json(json.loads(layout)), block)
    except (SamplingError, TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the answer cannot be read: {error}") from error


def spread_parts(client: str, num_parts: int, holders: Mapping[int, tuple[int, ...]]) -> PartMap:
    """Which server a client asks for the rows of each part.

    Args:
        client: The client; others ask other servers.
        num_parts: Parts of the graph.
        holders: ``{server: its parts}``.

    Raises:
        PlanError: A part is on no server.
    """
    start, chosen = zlib.crc32(client.encode()), []
    for part in range(num_parts):
        having = [rank for rank in sorted(holders) if part in holders[rank]]
        if not having:
            raise PlanError(f"no server has part {part} of {num_parts}", "give the parts of every host in placement")
        chosen.append(having[(start + part) % len(having)])
    return PartMap(max(holders) + 1, np.array(chosen, np.int64))
