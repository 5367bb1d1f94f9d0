"""Membership and leases: the servers that belong to a run, who still needs a service, and who has fallen silent.

A host that has finished early serves the others until they have finished or are gone. A part service cannot see that from requests:
a trainer may make none for minutes. So each sampling process and each part service sends "here" to the services of other hosts
once a second, and "bye" when it ends; one that has not been heard of for a while is gone.

Every server announces itself at the first one's address, again and again. So the list is complete again soon after the first one has
been started again, and a server that comes back under the address that it had takes its place again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from gnnkit.bounds import is_whole
from gnnkit.cluster.hosts import split_address
from gnnkit.cluster.network.client import ServiceClient
from gnnkit.cluster.network.codec import PROTOCOL_VERSION
from gnnkit.cluster.network.requests import Requests
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, StoreError
from gnnkit.plan import Placement
from gnnkit.plan.records import Record
from gnnkit.runtime.beats import BEAT_S, LEASE_SILENCE_S
from gnnkit.sampling.owners import BadRequest
from gnnkit.waiting import Deadline

logger = logging.getLogger(__name__)

# Processes that are clients, or do something for one, call themselves so, then the client's id, "/" and something more.
CLIENT_PREFIX = "client-"

# Saying goodbye must not delay a close; a part service has more time, and says it for all processes of its trainer.
_STOP_TIMEOUT_S, _UNHURRIED_S = 0.15, 2.0
_RETRY_S = 0.1


class LeaseRenewal:
    """This process's presence at the services of other hosts.

    Args:
        host: This host.
        addresses: ``{other host: address of its service}``.
        token: What they expect.
        fingerprint: The store's.
        for_all: Whether this process speaks for everything that its trainer has started, and says goodbye for all of it.
        ca: See ``ServiceClient``.
        name: What it calls itself; None makes a name up.
    """

    def __init__(
        self,
        host: int,
        addresses: Mapping[int, str],
        token: str,
        fingerprint: str,
        *,
        for_all: bool = False,
        ca: str | None = None,
        name: str | None = None,
    ) -> None:
        self._host, hint = host, "start every host with the same token"
        self._services = {
            other: ServiceClient(address, token, ca, fingerprint, where=f"host {other} ({address})", hint=hint)
            for other, address in addresses.items()
        }
        self._name = name or f"{host}-{os.getppid()}-" + ("" if for_all else secrets.token_hex(6))
        self._farewell_s = _UNHURRIED_S if for_all else _STOP_TIMEOUT_S
        self._left = threading.Event()

    def begin(self, timeout_s: float) -> None:
        """Waits until every service is there, and tells them from then on.

        Raises:
            StartTimeout: One was not there in time; names it.
            GnnkitError: One is there, and refuses this process.
        """
        deadline = Deadline(timeout_s)
        for other, service in self._services.items():
            while True:
                try:
                    self._tell(service, Requests.here, 2 * BEAT_S)
                    break
                except GnnkitError:  # it is there, and will not have this process
                    raise
                except Exception as error:
                    if deadline.has_passed:
                        raise StartTimeout(
                            f"host {other} did not answer at {service.address} within {timeout_s:g} s: {error}",
                            "start the same script on every host at about the same time; a firewall may keep them apart",
                        ) from error
                if self._left.wait(_RETRY_S):
                    return
        self.begin_at_once()

    def begin_at_once(self) -> None:
        """Tells every service from now on, whether it is there or not."""
        for other, service in self._services.items():
            threading.Thread(target=self._keep_telling, args=(service,), name=f"gnnkit-here-{other}", daemon=True).start()

    def _tell(self, service: ServiceClient, request: Requests, timeout_s: float) -> None:
        service.ask(request, timeout_s, name=self._name, host=self._host)

    def _keep_telling(self, service: ServiceClient) -> None:
        while not self._left.is_set():
            with contextlib.suppress(Exception):  # it is being started again, or gone: sampling says so where it matters
                self._tell(service, Requests.here, LEASE_SILENCE_S)
            self._left.wait(BEAT_S)
        service.close()

    def leave(self) -> None:
        """Says goodbye, as far as that is quick."""
        self._left.set()
        threads = [threading.Thread(target=self._say_bye, args=(service,), daemon=True) for service in self._services.values()]
        for thread in threads:
            thread.start()
        deadline = Deadline(self._farewell_s)
        for thread in threads:
            thread.join(deadline.left_s)

    def _say_bye(self, service: ServiceClient) -> None:
        with contextlib.suppress(Exception):  # the service is gone, and counts no members
            self._tell(service, Requests.bye, self._farewell_s)
        service.close()


# The longest name of a process.
_MOST_NAME = 64


class LeaseRequests:
    """Answers the requests "here" and "bye" of a service.

    Args:
        heard: Called with the request, a process's name and its host; from any thread.
    """

    def __init__(self, heard: Callable[[Requests, str, int], None]) -> None:
        self._heard = heard

    def here(self, name: Any, host: Any) -> dict[str, Any]:
        """A process of another host needs the service."""
        return self._act(Requests.here, name, host)

    def bye(self, name: Any, host: Any) -> dict[str, Any]:
        """It does not any more."""
        return self._act(Requests.bye, name, host)

    def _act(self, what: Requests, name: Any, host: Any) -> dict[str, Any]:
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or not is_whole(host, 0):
            raise BadRequest("the visit names no process and host")
        self._heard(what, name, host)
        return {}


K = TypeVar("K")
V = TypeVar("V")


class LeaseTable(Generic[K, V]):
    """Those that are there, with what each has said of itself; one that is not heard of for a while is gone. Safe for several threads.

    Args:
        silence_s: Seconds after which one that is not heard of is gone.
    """

    def __init__(self, silence_s: float = LEASE_SILENCE_S) -> None:
        self._silence_s = silence_s
        self._seen: dict[K, tuple[V, float]] = {}
        self._lock = threading.Lock()

    def here(self, name: K, value: V) -> None:
        """One is there."""
        with self._lock:
            self._seen[name] = value, time.monotonic()

    def bye(self, name: K) -> None:
        """One leaves, or, where the name is a text that ends in "-", all those whose names begin so."""
        with self._lock:
            self._seen.pop(name, None)
            if isinstance(name, str) and name.endswith("-"):
                self._seen = {other: seen for other, seen in self._seen.items() if not str(other).startswith(name)}

    def replace(self, values: Mapping[K, V]) -> None:
        """Replaces all members by these."""
        with self._lock:
            self._seen = {name: (value, time.monotonic()) for name, value in values.items()}

    def there(self) -> dict[K, V]:
        """Returns what those have said that were heard of lately."""
        limit = time.monotonic() - self._silence_s
        with self._lock:
            return {name: value for name, (value, at) in self._seen.items() if at >= limit}

    def forget_silent(self) -> list[K]:
        """Drops those that have not been heard of lately, and returns them."""
        limit = time.monotonic() - self._silence_s
        with self._lock:
            silent = [name for name, (_, at) in self._seen.items() if at < limit]
            for name in silent:
                del self._seen[name]
        return silent


# What a server may say of itself.
JOINING, READY, DEGRADED = "joining", "ready", "degraded"


@dataclass(frozen=True)
class ServerMember(Record):
    """A server.

    Attributes:
        rank: Its number.
        num_servers: Servers of the run, as it was told.
        address: Where it listens.
        pid: Its process.
        start: Tells this start of it from others.
        fingerprint: Its store's.
        format: Format version of its store.
        path: Where its store lies.
        memory: Bytes of memory of its host.
        placement: Which host holds which parts, once it knows.
        state: "joining", "ready" or "degraded".
    """

    rank: int
    num_servers: int
    address: str
    pid: int
    start: int
    fingerprint: str
    format: int
    path: str
    memory: int
    placement: Placement | None = None
    state: str = JOINING

    @property
    def host(self) -> str:
        """The address without the port: servers that have it in common are on one host."""
        return split_address(self.address)[0]

    @classmethod
    def of_json(cls, value: Any) -> ServerMember:
        """Reads a member that another process has sent.

        Raises:
            BadRequest: It is no server.
        """
        try:
            member = cls.from_json(value)
            numbers = (member.rank, member.num_servers, member.pid, member.start, member.format, member.memory)
            texts = (member.address, member.fingerprint, member.path)
            split_address(member.address)
        except (TypeError, KeyError, ValueError, PlanError) as error:
            raise BadRequest("the announcement cannot be read") from error
        if not all(isinstance(n, int) and n >= 0 for n in numbers) or not all(isinstance(text, str) for text in texts):
            raise BadRequest("the announcement cannot be read")
        if member.state not in (JOINING, READY, DEGRADED) or member.rank >= member.num_servers:
            raise BadRequest(f"server {member.rank} of {member.num_servers} says that it is {member.state!r}")
        return member


def members_of(answer: Mapping[str, Any]) -> list[ServerMember]:
    """The servers that the answer of a server lists, see ``Membership.to_json``.

    Raises:
        PlanError: It lists none.
    """
    try:
        members = [ServerMember.of_json(value) for value in answer["servers"]]
        if not members or not all(
            isinstance(answer[name], kind) for name, kind in (("num_servers", int), ("fingerprint", str), ("refused", list))
        ):
            raise BadRequest("something is missing")
    except (KeyError, TypeError, BadRequest) as error:
        raise PlanError("a server's list of servers cannot be read", "run the same gnnkit on every machine") from error
    return members


def hosts_of(members: Mapping[int, ServerMember]) -> list[str]:
    """The hosts of a run, in the order of their first servers."""
    return list(dict.fromkeys(members[rank].host for rank in sorted(members)))


@dataclass(frozen=True)
class JoinedServers:
    """Servers that a trainer has joined.

    Attributes:
        servers: All of them, in the order of their ranks.
        placement: Which host holds which parts; None where there is one.
        outline: The folder of the store's outline.
        fingerprint: The store's.
        membership: All of that as the servers have sent it, see ``Membership.to_json``.
    """

    servers: tuple[ServerMember, ...]
    placement: Placement | None
    outline: Path
    fingerprint: str
    membership: Mapping[str, Any]

    @classmethod
    def of(cls, membership: Mapping[str, Any], outline: str | Path) -> JoinedServers:
        """Makes the record from what a server answers, and the outline's folder."""
        servers = tuple(ServerMember.of_json(value) for value in membership["servers"])
        return cls(servers, servers[0].placement, Path(outline), str(membership["fingerprint"]), membership)

    def parts_of(self, rank: int, num_parts: int) -> tuple[int, ...]:
        """The parts of a server's host."""
        if self.placement is None:
            return tuple(range(num_parts))
        hosts = hosts_of({server.rank: server for server in self.servers})
        return self.placement.hosts[hosts.index(self.servers[rank].host)]


@dataclass
class Membership:
    """The servers that are known. Safe to use from several threads.

    Attributes:
        own: This server, as it was when it last changed.
        refused: Why the last one that was turned away was, by rank.
    """

    own: ServerMember
    refused: dict[int, str] = field(default_factory=dict)
    _others: LeaseTable[int, ServerMember] = field(default_factory=LeaseTable)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def become(self, **changes: Any) -> None:
        """Changes what this server says of itself."""
        with self._lock:
            self.own = replace(self.own, **changes)

    def announce(self, member: ServerMember) -> None:
        """A server has said that it is there.

        Raises:
            PlanError: It does not belong to this run: its number is taken, or it was told of another number of servers.
            StoreError: It has another store.
        """
        try:
            self._check(member)
        except (PlanError, StoreError) as error:
            with self._lock:
                self.refused[member.rank] = f"server {member.rank} ({member.address}): {error.message}"
            raise
        with self._lock:
            self.refused.pop(member.rank, None)
        self._others.here(member.rank, member)

    def _check(self, member: ServerMember) -> None:
        own = self.own
        if member.num_servers != own.num_servers:
            raise PlanError(
                f"server {member.rank} ({member.address}) was started as one of {member.num_servers}, server {own.rank} ({own.address}) "
                f"as one of {own.num_servers}",
                "start every server with the same num_servers",
            )
        if member.format != own.format:
            raise StoreError(
                f"servers have stores of different formats: {own.format} ({own.fingerprint}) on server {own.rank}, "
                f"{member.format} ({member.fingerprint}) on server {member.rank}",
                "run the same gnnkit on every machine, and copy the parts of one and the same store there",
            )
        if member.fingerprint != own.fingerprint:
            raise StoreError(
                f"servers have different stores: the fingerprint of server {own.rank}'s is {own.fingerprint}, "
                f"of server {member.rank}'s {member.fingerprint}",
                "copy the parts of one and the same store to every machine",
            )
        other = self.members().get(member.rank)
        if other is not None and other.start != member.start and other.address != member.address:
            raise PlanError(
                f"server {member.rank} is at {other.address} already, and another one says that it is, at {member.address}",
                "give every server a rank of its own",
            )

    def members(self) -> dict[int, ServerMember]:
        """The servers that were heard of lately, this one included, by rank."""
        return {self.own.rank: self.own} | self._others.there()

    def missing(self) -> list[int]:
        """Ranks that were not announced, or not lately."""
        known = self.members()
        return [rank for rank in range(self.own.num_servers) if rank not in known]

    def take(self, answer: Mapping[str, Any]) -> None:
        """Learns the others from the answer of the server where all meet.

        Raises:
            PlanError: It is no answer.
        """
        self._others.replace({member.rank: member for member in members_of(answer) if member.rank != self.own.rank})

    def to_json(self) -> dict[str, Any]:
        """Returns the members as JSON values, as servers and clients receive them."""
        members, own = self.members(), self.own
        return {
            "version": PROTOCOL_VERSION,
            "num_servers": own.num_servers,
            "fingerprint": own.fingerprint,
            "format": own.format,
            "servers": [members[rank].to_json() for rank in sorted(members)],
            "refused": list(self.refused.values()),
        }
