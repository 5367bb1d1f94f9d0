"""The way of a sampling process to parts of other hosts: their owners, the connections to them, and samplers that ask them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import gnnkit.sampling.owned  # noqa: F401 - workers ask for what their own host holds in the same way: ``warm`` compiles its kernels
from gnnkit.cluster.membership import LeaseRenewal
from gnnkit.cluster.network.client import ServiceClient, is_stale, only_value, remote_error
from gnnkit.cluster.network.requests import Requests, answer_from_value, picks_from_value, to_args
from gnnkit.cluster.network.wire import Broken, Failed, NetworkWire, OutOfTime, Request, TokenRefused
from gnnkit.errors import HostUnreachable, SamplingError
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.process_status import start_ticks
from gnnkit.runtime.worker import OtherHosts
from gnnkit.sampling.graph_access import NodeScratch
from gnnkit.sampling.kinds import BatchSampler, warm
from gnnkit.sampling.owners import Answer, BadRequest, Expansion, Picks, Question, RowsRequest
from gnnkit.sampling.remote import PartMap, hot_rows, spread_sampler
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.store import Store
from gnnkit.waiting import Deadline

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The most that glibc takes; larger arrays are mapped and unmapped as before.
_LARGEST = 32 << 20


def keep_freed_memory() -> None:
    """Has freed memory used again instead of given back: touching fresh pages cost a third of the time that a message takes."""
    with contextlib.suppress(AttributeError):  # another C library than glibc
        libc: Any = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


T = TypeVar("T")


@dataclass(frozen=True)
class Peer:
    """Another host.

    Attributes:
        address: Where its part service listens, ``"10.0.0.2:4711"``.
        parts: Its parts.
        server: The number of the server that answers there; None for a part service.
    """

    address: str
    parts: tuple[int, ...]
    server: int | None = None


class RemoteOwners:
    """``gnnkit.sampling.owners.PartOwners`` over the network; shared by the sampling threads of a process.

    Args:
        peers: The other hosts.
        token: What their services expect.
        fingerprint: The store's.
        num_rows: Nodes of every type and edges of every type, as in ``GraphTables.row_bounds``: they decide the width of ids.
        timeout_s: Most seconds that one request may take.
        at_once: Requests under way at a time, at most.
        ca: See ``gnnkit.cluster.network.wire.connect``.
    """

    def __init__(
        self,
        peers: Mapping[int, Peer],
        token: str,
        fingerprint: str,
        num_rows: list[int],
        *,
        timeout_s: float,
        at_once: int,
        ca: str | None = None,
    ) -> None:
        self._peers, self._fingerprint, self._timeout_s = dict(peers), fingerprint, timeout_s
        self._clients = {host: ServiceClient(peer.address, token, ca) for host, peer in peers.items()}
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self._received = self._sent = 0  # bytes of all messages so far, without the transport's own
        self._threads = ThreadPoolExecutor(at_once, "gnnkit-part-calls")

    def close(self) -> None:
        """Ends the connections; calls under way come to their end first."""
        self._threads.shutdown()
        for client in self._clients.values():
            client.close()

    def expand(self, requests: Mapping[int, Expansion]) -> Callable[[], Mapping[int, Mapping[int, Picks]]]:
        """Asks hosts for neighbours; the result waits for all of them."""
        return self._ask_all(Requests.expand, requests, picks_from_value)

    def answer(self, questions: Mapping[int, Question]) -> Callable[[], Mapping[int, Answer]]:
        """Asks hosts about edges; the result waits for all of them."""
        return self._ask_all(Requests.question, questions, answer_from_value)

    def _ask_all(
        self, request: Requests, asked: Mapping[int, Expansion | Question], read: Callable[[Any], T]
    ) -> Callable[[], Mapping[int, T]]:
        calls = {host: self._begin_ask(host, ready, read) for host, ready in self._ready(request, asked).items()}
        return lambda: _wait(calls)

    def rows(self, requests: Mapping[int, RowsRequest], take: Callable[[int, int, int], None]) -> Callable[[], None]:
        """Asks hosts for rows, which ``take`` receives; the result waits for all of them."""
        ready = self._ready(Requests.rows, requests)
        calls = {host: self._begin_rows(host, ready[host], request, take) for host, request in requests.items()}

        def wait() -> None:
            _wait(calls)

        return wait

    def _ready(self, request: Requests, asked: Mapping[int, Expansion | Question | RowsRequest]) -> dict[int, Request]:
        """Makes all requests before the first call: calls under way would not be waited for where making one fails."""
        return {host: request.ready(to_args(own, self._num_rows), self._fingerprint, self._timeout_s) for host, own in asked.items()}

    def _begin_ask(self, host: int, request: Request, read: Callable[[Any], T]) -> Future[T]:
        """Begins a request that is answered with one value.

        Args:
            host: Who is asked.
            request: What.
            read: Reads the value.
        """

        def ask(wire: NetworkWire, deadline: Deadline) -> T:
            return read(only_value(value for value, _ in self._counted(wire.ask(request, deadline), request)))

        return self._begin(host, ask)

    def _begin_rows(self, host: int, request: Request, rows: RowsRequest, take: Callable[[int, int, int], None]) -> Future[None]:
        """Begins a request for rows."""
        sizes = [rows.nbytes(message) for message in rows.messages]

        def ask(wire: NetworkWire, deadline: Deadline) -> None:
            for number, (block, _) in enumerate(self._counted(wire.ask(request, deadline, sizes), request)):
                take(host, number, address_of(block))

        return self._begin(host, ask)

    def _counted(self, answer: Iterator[tuple[Any, int]], request: Request) -> Iterator[tuple[Any, int]]:
        with self._lock:
            self._sent += request.nbytes
        for value, nbytes in answer:
            with self._lock:
                self._received += nbytes
            yield value, nbytes

    def report(self) -> dict[str, Any]:
        """The bytes that were received and sent so far, which are sent with each batch."""
        return {"traffic": [self._received, self._sent]}

    def _begin(self, host: int, ask: Callable[[NetworkWire, Deadline], T]) -> Future[T]:
        """Begins a call: ``ask`` is given a connection and a deadline, perhaps more than once."""
        return self._threads.submit(self._call, host, ask, self._deadline())

    def _deadline(self) -> Deadline:
        """Until when a call may take that begins now."""
        return Deadline(self._timeout_s)

    def _call(self, host: int, ask: Callable[[NetworkWire, Deadline], T], deadline: Deadline) -> T:
        """One call; made again as far as ``_may_ask_again`` says."""
        again = partial(self._may_ask_again, host)
        try:
            return self._clients[host].use(lambda wire: ask(wire, deadline), deadline, again)
        except BaseException as error:
            explained = self._explain(host, error)
            if explained is error:
                raise
            raise explained from error

    def _may_ask_again(self, host: int, deadline: Deadline, is_new: bool) -> bool:
        """Whether a call whose connection broke is made again; ``is_new``: the connection was made for it."""
        return is_stale(deadline, is_new)

    def _where(self, host: int) -> str:
        peer = self._peers[host]
        if peer.server is not None:
            return f"server {peer.server} ({peer.address})"
        parts = f"part{'s' if len(peer.parts) > 1 else ''} {', '.join(map(str, peer.parts))}"
        return f"the part service of host {host} ({peer.address}, {parts})"

    def _explain(self, host: int, error: BaseException) -> BaseException:
        """The error to raise for what a call ended with."""
        where, again = self._where(host), "when that host's processes run again, iterate again"
        if isinstance(error, TokenRefused):
            return SamplingError(f"{where} refused the token", "start every host with the same token")
        if isinstance(error, OutOfTime):
            return HostUnreachable(f"{where} did not answer within {self._timeout_s:g} s", again)
        if isinstance(error, Failed):
            return remote_error(where, error.body)
        if isinstance(error, BadRequest):
            return SamplingError(f"{where} sent an answer that cannot be read: {error}", "all hosts must run the same gnnkit")
        if isinstance(error, Broken):
            return HostUnreachable(f"{where} cannot be reached: {error}", again)
        return error


def _wait(calls: Mapping[int, Future[T]]) -> dict[int, T]:
    """Waits for all calls, also where one has failed: none of them may write into memory of a batch that has been given up."""
    failed = [error for call in calls.values() if (error := call.exception()) is not None]
    if failed:
        raise failed[0]
    return {host: call.result() for host, call in calls.items()}


# Sampling threads of a process, at least: most of the time they wait for other hosts.
LEAST_THREADS = 4
# Of the time that is left for starting, for waiting for other hosts.
_SHARE = 0.8


class Spreading(RemoteOwners, OtherHosts):
    """The owners of parts on other hosts, which a process says that it needs; shared by its sampling threads.

    Args:
        hosts: What the setup message says, see ``gnnkit.cluster.parts``.
        store: The store, with this host's parts open.
        threads: Sampling threads that the user asked for.

    Attributes:
        threads: Sampling threads to run.

    Raises:
        PlanError: A part is on no host, or another host has another token.
        StoreError: Another host has another store.
        StartTimeout: Another host's service was not there in time.
    """

    def __init__(self, hosts: Mapping[str, Any], store: Store, threads: int) -> None:
        keep_freed_memory()
        peers = {int(host): Peer(str(peer["address"]), tuple(peer["parts"]), peer.get("server")) for host, peer in hosts["peers"].items()}
        graph, here = store.arrays(), int(hosts["self"])
        self.threads = max(threads, LEAST_THREADS)
        token, ca, at_once = hosts["token"], hosts.get("ca"), self.threads * max(1, len(peers))
        super().__init__(peers, token, store.fingerprint, num_rows(graph), timeout_s=float(hosts["timeout_s"]), at_once=at_once, ca=ca)
        elsewhere = {host: peer.parts for host, peer in peers.items()}
        self._part_map = PartMap.of(graph.num_parts, here, store.local_parts, elsewhere, hot_rows(store))
        warm()  # the kernels that only this module has imported
        addresses = {host: peer.address for host, peer in peers.items()}
        self._renewal = LeaseRenewal(here, addresses, token, store.fingerprint, ca=ca)
        # The starter of this process has been waiting since then, and is to hear which host is missing.
        left_s = float(hosts["start_timeout_s"]) - _age_s()
        self._renewal.begin(max(1.0, _SHARE * left_s))

    def leave(self) -> None:
        """Tells the other hosts that this process needs them no more."""
        self._renewal.leave()

    def sampler(self, tables: GraphTables, plan: LoaderPlan, scratch: NodeScratch, *, walks_only: bool) -> BatchSampler:
        """A sampler for one thread, on the thread's memory per node."""
        hosts = self._part_map, self
        return spread_sampler(tables, plan.inputs, plan.sampling, *hosts, scratch, walks_only=walks_only, cached=plan.cached)


def num_rows(graph: GraphArrays) -> list[int]:
    """Nodes of every type and edges of every type, in the order of ``GraphTables.row_bounds``."""
    bounds = [graph.node_bounds[t] for t in graph.schema.node_types] + [graph.edge_bounds[t] for t in graph.schema.edge_types]
    return [int(ends[-1]) for ends in bounds]


def _age_s() -> float:
    """Seconds since this process was started."""
    ticks = start_ticks(os.getpid())
    return 0.0 if ticks is None else time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
