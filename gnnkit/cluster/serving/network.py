"""The network side of a server: listens, announces itself, waits for the others, says who is there, and hands calls on."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.hosts import Hosts, join_address, place
from gnnkit.cluster.membership import CLIENT_PREFIX, LeaseRequests, LeaseTable, Membership, ServerMember, hosts_of
from gnnkit.cluster.network.client import ServiceClient, Unreachable
from gnnkit.cluster.network.requests import CALLS, LEASES, LOADERS, MEMBERS, PARTS, Answerers, Requests
from gnnkit.cluster.network.service import NetworkService, Stream, limit_of, settle, waited
from gnnkit.cluster.network.wire import NotYet
from gnnkit.cluster.parts.answers import Answers
from gnnkit.cluster.serving.remote_loaders import RemoteLoaders
from gnnkit.cluster.serving.spec import ServerSpec, meeting_address, own_address
from gnnkit.cluster.worker.owners import keep_freed_memory
from gnnkit.errors import BatchTimeout, GnnkitError, StartTimeout
from gnnkit.files import open_regular
from gnnkit.host import total_memory
from gnnkit.plan import Placement
from gnnkit.runtime.beats import ANNOUNCEMENT_BEAT_S, LEASE_SILENCE_S
from gnnkit.runtime.graph_memory import SharedGraph
from gnnkit.sampling.kinds import warm
from gnnkit.sampling.owners import BadRequest
from gnnkit.storage.layout import FORMAT_VERSION, MANIFEST_NAME
from gnnkit.storage.manifest import Manifest, outline_files, read_manifest
from gnnkit.storage.store import Store
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.cluster.serving.loop import ServerLoop
    from gnnkit.cluster.serving.pool import ServedPool

logger = logging.getLogger(__name__)

# Between two announcements of a server that has not found the others yet.
_IMPATIENT_S = 0.2
# One announcement may take no longer: the next one is due.
_CALL_S = 2.5
# For one answer of another host's part service, where it is not known how long a batch may take.
_ANSWER_S = 60.0


class Network:
    """The network side of one server.

    Args:
        spec: What the server is.
        rank: Its number.
        meeting: Where the servers meet.
        listen: Its own address where it was given, or it had one before; None: see ``own_address``.
        loop: The server.
    """

    def __init__(self, spec: ServerSpec, rank: int, meeting: str, listen: str | None, loop: ServerLoop) -> None:
        self._spec, self._rank, self._meeting_place, self._listen_at, self._loop = spec, rank, meeting, listen, loop
        assert spec.token is not None, "a server is told the token"
        self._token, self._path = spec.token, Path(spec.store)
        self._stopped = threading.Event()
        self._service: NetworkService | None = None
        self._membership: Membership | None = None
        self._loaders: RemoteLoaders | None = None
        self._meeting: ServiceClient | None = None
        self._parts: tuple[int, ...] | None = None
        self._told: SharedGraph | None = None
        self._trouble: str | None = None
        self._leases, self._arrivals, self._clients = LeaseTable[str, int](), deque[str](), set[str]()
        # Listens; the server is told when it can start its workers.
        threading.Thread(target=self._run, name="gnnkit-network", daemon=True).start()

    def stop(self) -> None:
        """Ends it: no call is answered any more."""
        self._stopped.set()
        if self._service is not None:
            self._service.close()

    def details(self) -> dict[str, Any]:
        """Facts for people and for ``status``: no token."""
        membership = self._membership
        if membership is None:
            return {"address": None, "missing": [], "servers": []}
        return {
            "address": membership.own.address,
            "missing": membership.missing(),
            "servers": [{"rank": m.rank, "address": m.address, "state": m.state} for m in membership.members().values()],
            "parts": None if self._parts is None else list(self._parts),
            "refused": list(membership.refused.values()),
            "trouble": self._trouble,
            "encrypted": self._spec.tls is not None,
        }

    # The thread ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            keep_freed_memory()
            manifest = read_manifest(self._path)
            membership = self._listen(manifest)
            warm()
            self._wait_for_all(membership)
            if self._stopped.is_set():
                return
            self._open_parts(membership, manifest)
        except BaseException as error:  # the starter raises it
            failure = error
            if not self._stopped.is_set():
                self._loop.call(lambda: self._loop.fail(failure))
            return
        self._go_on(membership)

    def _listen(self, manifest: Manifest) -> Membership:
        """Takes the address; from now on the server is asked, and says that it is not there yet."""
        spec, rank = self._spec, self._rank
        ip, port = own_address(rank, self._meeting_place, self._listen_at, spec.interface)
        self._files = {MANIFEST_NAME, *outline_files(manifest)}
        self._answerers = Answerers(manifest.fingerprint, PARTS, LEASES, MEMBERS, LOADERS)
        self._answerers.add(self, CALLS)
        service = self._service = NetworkService(ip, port, self._token, self._answerers, spec.tls)
        address = join_address(ip, service.port)
        own = ServerMember(
            rank,
            spec.num_servers,
            address,
            os.getpid(),
            secrets.randbits(48),  # tells this start from others
            manifest.fingerprint,
            FORMAT_VERSION,
            str(self._path),
            total_memory(),
        )
        membership = self._membership = Membership(own)
        if rank:
            self._meeting = ServiceClient(meeting_address(self._meeting_place), self._token, self._ca)
        self._answerers.add(self, MEMBERS)
        logger.info("server %d listens at %s", rank, address)
        self._loop.call(lambda: self._loop.tell("listening", address=address))
        return membership

    @property
    def _ca(self) -> str | None:
        """The file that other servers' certificates are checked against: the one that holds this server's."""
        return None if self._spec.tls is None else self._spec.tls[0]

    def _wait_for_all(self, membership: Membership) -> None:
        """Announces this server until every other one has done so.

        Raises:
            StartTimeout: They were not there in time; says which.
            GnnkitError: This server does not belong to them.
        """
        limit_s = self._spec.join_timeout_s
        deadline = Deadline(limit_s)
        while not self._stopped.is_set():
            self._announce(membership)
            missing = membership.missing()
            if not missing:
                return
            if deadline.has_passed:
                ranks = f"server{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {membership.own.num_servers}"
                reasons = [*membership.refused.values(), *([self._trouble] if self._trouble else [])]
                raise StartTimeout(
                    f"{ranks} did not come to {self._meeting_place} within {limit_s:g} s{''.join(f'; {reason}' for reason in reasons)}",
                    "start every server, with the same address to meet at and the same token",
                )
            self._stopped.wait(_IMPATIENT_S)

    def _announce(self, membership: Membership) -> None:
        """Tells the server where all meet that this one is there, and learns of the others.

        Raises:
            GnnkitError: It will not have this one.
        """
        if self._meeting is None:
            return
        try:
            membership.take(self._meeting.ask(Requests.announce, _CALL_S, server=membership.own.to_json()))
            self._trouble = None
        except Unreachable as error:
            self._trouble = str(error)

    def _open_parts(self, membership: Membership, manifest: Manifest) -> None:
        """Opens what belongs to this host, and has the workers started."""
        members = membership.members()
        hosts = hosts_of(members)
        index = hosts.index(membership.own.host)
        known = next((member.placement for member in members.values() if member.placement is not None), None)
        word = self._spec.placement if known is None else known
        here = Hosts(count=len(hosts), index=index, memory=min(member.memory for member in members.values()))
        placement = place(word, manifest, self._path, here)
        store = Store.open(self._path) if placement is None else Store.open(self._path, **placement.held(index))
        graph = store.arrays()
        self._parts = parts = store.local_parts
        self._answers = Answers(graph, parts)
        self._answerers.add(self._answers, PARTS)
        self._answerers.add(LeaseRequests(self._heard), LEASES)
        membership.become(placement=placement)
        setup_message = None if placement is None or placement.is_replicated else self._greeting(members, hosts, index, placement)
        holders = [list(parts if placement is None else placement.hosts[hosts.index(members[rank].host)]) for rank in sorted(members)]
        self._loop.call(lambda: self._loop.start_workers(store, setup_message, holders))

    def _greeting(self, members: Mapping[int, ServerMember], hosts: list[str], index: int, placement: Placement) -> dict[str, Any]:
        """Returns the facts that workers need about other hosts; see ``gnnkit.cluster.parts``. Servers of a host share those of another."""
        peers = {}
        for host, parts in placement.sources(index).items():
            there = [rank for rank in sorted(members) if members[rank].host == hosts[host]]
            rank = there[self._rank % len(there)]
            peers[str(host)] = {"address": members[rank].address, "parts": list(parts), "server": rank}
        return {
            "self": index,
            "held": placement.held(index),
            "peers": peers,
            "token": self._token,
            "timeout_s": _ANSWER_S,
            "start_timeout_s": self._spec.start_timeout_s,
            "ca": self._ca,
        }

    def _heard(self, what: Requests, name: str, host: int) -> None:
        """A process of another host is there, or leaves. Clients call themselves by their id and something more."""
        if not name.startswith(CLIENT_PREFIX):
            return
        if what == Requests.here:
            self._leases.here(name, host)
            self._arrivals.append(_client_of(name))
        else:
            self._leases.bye(name)
            self._forget(name)

    def _forget(self, name: str) -> None:
        """A process of a client says goodbye, or has not been heard of for long: what it had here goes."""
        if self._loaders is not None:
            self._loaders.left(name)

    def _count_clients(self) -> None:
        """Tells the server which clients have come and gone, those included that have done both since the last look."""
        for name in self._leases.forget_silent():
            logger.info("%s has not been heard of for %g s", name, LEASE_SILENCE_S)
            self._forget(name)
        arrived = {self._arrivals.popleft() for _ in range(len(self._arrivals))}
        there = {_client_of(name) for name in self._leases.there()}
        for client in (arrived | there) - self._clients:
            self._loop.call(partial(self._loop.came, client))
        for client in (arrived | self._clients) - there:
            self._loop.call(partial(self._loop.left, client))
        self._clients = there

    def _go_on(self, membership: Membership) -> None:
        """Says every while that this server is there, and how it is; moves over to the graph's copy once there is one."""
        told = 0.0
        while not self._stopped.wait(_IMPATIENT_S):
            state = self._loop.state
            changed = state != membership.own.state
            if changed:
                membership.become(state=state)
            self._count_clients()
            pool = self._loop.pool
            shared = None if pool is None else pool.workers.sharing.shared
            if shared is not None and shared is not self._told:
                self._told = shared
                self._answers.use(shared.graph)
            if not changed and time.monotonic() - told < ANNOUNCEMENT_BEAT_S:
                continue
            told = time.monotonic()
            try:
                self._announce(membership)
            except GnnkitError as error:  # another server is where all meet now; clients go on with what this one has
                self._trouble = error.message
                logger.warning("server %d was refused where all meet: %s", self._rank, error.message)

    # Requests ---------------------------------------------------------------------------------------------------------------

    def open_loaders(self, pool: ServedPool, store: Store) -> None:
        """Has loaders of other hosts sampled for, now that there are workers."""
        self._loaders = RemoteLoaders(self._loop, pool, store, self._heard)
        self._answerers.add(self._loaders, LOADERS)

    def announce(self, server: Any) -> dict[str, Any]:
        """Another server says that it is there; answered like ``membership``.

        Raises:
            GnnkitError: See ``Membership.announce``.
        """
        assert self._membership is not None
        self._membership.announce(ServerMember.of_json(server))
        return self._membership.to_json()

    def membership(self) -> dict[str, Any]:
        """The servers that are there; see ``Membership.to_json``."""
        assert self._membership is not None
        return self._membership.to_json()

    def file(self, name: Any) -> NDArray[np.uint8]:
        """The bytes of a file that belongs to the store's outline.

        Raises:
            BadRequest: It is none of them.
        """
        if name not in self._files:
            raise BadRequest(f"there is no public file {name!r}")
        with open(open_regular(self._path / name, self._path), "rb") as file:
            return np.fromfile(file, np.uint8)

    def call(self, client: Any, name: Any, args: Any, timeout_s: Any) -> Stream:
        """Has the server answer a call, as over its Unix socket; see ``ServerLoop.answer``."""
        done, limit_s = Future[Any](), limit_of(timeout_s)
        reply = partial(settle, done)

        def ask() -> None:
            try:
                if name != Requests.status.name and self._loop.pool is None:
                    raise NotYet("the server is not there yet")
                self._loop.answer(str(client), str(name), args, reply)
            except Exception as error:
                reply(error)

        def answer() -> Generator[Any, None, None]:
            yield from waited(done, limit_s, BatchTimeout(f"{name!r} was not answered within {limit_s:g} s", "look at the server's log"))
            yield done.result()

        self._loop.call(ask)
        return Stream(answer())


def _client_of(name: str) -> str:
    """The client that a pending does something for."""
    return name.removeprefix(CLIENT_PREFIX).partition("/")[0]
