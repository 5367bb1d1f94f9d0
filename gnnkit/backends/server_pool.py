"""The sampling processes of servers on this host, in the place of processes of one's own; see ``gnnkit.cluster.serving``."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.backends.server_link import LAST_BREATH_S, Member, ServerLink
from gnnkit.cluster.serving.connection import Connection
from gnnkit.cluster.serving.unix_join import UnixJoin, join_folder
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, WorkerDied
from gnnkit.events import EventSink
from gnnkit.runtime.process_status import ProcessStatus, lane_of, look_at
from gnnkit.runtime.supervisor import Death
from gnnkit.runtime.vitals import UNSEEN, Signs
from gnnkit.runtime.wire import Message

if TYPE_CHECKING:
    from gnnkit.backends.own_servers import OwnServers
    from gnnkit.backends.worker_pool import OnStarted

_SLICE_S = 0.05
# Servers that have gone are looked for so often.
_LOOK_S = 0.1
# Whoever waits looks more often than this; a longer time between two looks is none that somebody has waited.
_PAUSE_S = 1.0


class ServerWorkerPool:
    """Processes of servers; see ``WorkerPool``. Process ``w`` of server ``s`` has the number ``s * width + w``.

    Args:
        servers: The connections to the servers, all of which are there.
        newcomer: Called with each process that servers have introduced.
        own: The servers where they are this process's own; None where they were joined.
    """

    def __init__(self, servers: UnixJoin, newcomer: OnStarted, own: OwnServers | None) -> None:
        self._servers, self._newcomer, self._own = servers, newcomer, own
        self._owner = os.getpid()
        self._heard: deque[tuple[int, Message | Death]] = deque()
        self._links: dict[int, ServerLink] = {}
        self._waiting: float | None = None
        self._awaited = 0.0
        self._looked, self._is_revived, self._is_reporting = 0.0, True, True
        self._restarting: set[int] = set()
        self._width = max((c.welcome.workers for c in servers.connections.values() if c.welcome is not None), default=1)
        for connection in servers.connections.values():
            self._link(connection)

    def _link(self, connection: Connection) -> None:
        assert connection.welcome is not None, "the server has said welcome"
        self._links[connection.rank] = ServerLink(connection, connection.welcome, self._width)

    def _members(self) -> Iterator[tuple[int, ServerLink, Member]]:
        for server, link in dict(self._links).items():  # copies: others look at the pids while servers come and go
            for worker, member in dict(link.members).items():
                yield server * self._width + worker, link, member

    def _find(self, rank: int) -> tuple[ServerLink, int] | None:
        server, worker = divmod(rank, self._width)
        link = self._links.get(server)
        return None if link is None or worker not in link.members else (link, worker)

    # What they are ----------------------------------------------------------------------------------------------------------

    @property
    def expected(self) -> int:
        """How many there are once all processes of the servers that are there have come."""
        return sum(link.expected for link in self._links.values())

    @property
    def pids(self) -> Mapping[int, int]:
        """Pids by number."""
        return {rank: member.pid for rank, _, member in self._members()}

    @property
    def ready(self) -> Set[int]:
        """All of them: servers introduce nobody who is not ready."""
        return {rank for rank, _, member in self._members() if member.ended is None}

    @property
    def is_starting(self) -> bool:
        """Whether nobody is there, and somebody is awaited."""
        return self._waiting is not None and not self._has_members

    @property
    def is_reporting(self) -> bool:
        """Whether servers of this process's own have yet to say that they are ready: they do so after all else of their start."""
        self._is_reporting = self._is_reporting and self._own is not None and self._own.fleet.state == "joining"
        return self._is_reporting

    @property
    def _has_members(self) -> bool:
        return any(link.members for link in self._links.values())

    @property
    def logs(self) -> str:
        """The folder of the servers' logs."""
        return next((str(link.welcome.log.parent) for link in list(self._links.values())), "")

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph's copy, which servers of one host share; as of the last epoch's start."""
        return max((link.graph_bytes for link in list(self._links.values())), default=0)

    @property
    def can_idle(self) -> bool:
        """Whether loaders that are not used may give their places up."""
        return True

    def lane(self, rank: int, thread: int | None) -> str:
        """See ``WorkerPool.lane``."""
        server, worker = divmod(rank, self._width)
        return lane_of(f"server {server}, process {worker}", thread)

    def statuses(self) -> Iterator[ProcessStatus]:
        """See ``WorkerPool.statuses``."""
        for server, link in sorted(dict(self._links).items()):
            yield look_at(f"server {server}", link.welcome.pid, link.welcome.log)
            yield from link.statuses()

    def describe(self, rank: int) -> str | None:
        """Who a process is, and what the system says it and its server are doing."""
        found = self._find(rank)
        return None if found is None else found[0].describe(found[1])

    def signs(self, rank: int) -> Signs:
        """What a process last showed of itself."""
        found = self._find(rank)
        return UNSEEN if found is None else found[0].signs(found[1])

    def details(self) -> Mapping[str, Any]:
        """Who the servers are."""
        links, count = dict(self._links), self._servers.num_servers
        there = "" if len(links) == count else f"{len(links)} of "
        where = "of its own" if self._own is not None else f"at {self._servers.address}"
        text = f"{there}{count} server{'' if count == 1 else 's'} {where}"
        return {"servers": text, "server_pids": {rank: link.welcome.pid for rank, link in links.items()}}

    # What they say ----------------------------------------------------------------------------------------------------------

    def send(self, rank: int, kind: str, fds: tuple[int, ...] = (), /, **body: object) -> None:
        """Sends a message to a process; one that is gone gets nothing."""
        found = self._find(rank)
        if found is not None:
            found[0].members[found[1]].wire.send(kind, fds, **body)

    def listen(self) -> Iterator[tuple[int, Message | Death]]:
        """Yields what has arrived since the last call, and deaths after all that the dead had sent."""
        self._advance()
        for event in [] if self._own is None else self._own.fleet.take_events():
            facts = asdict(event)
            yield 0, Message("event", {"what": facts.pop("kind"), **facts})
        while self._heard:
            yield self._heard.popleft()

    def _advance(self) -> None:
        for server, link in list(self._links.items()):
            link.hear()
            for rank, _, member in [item for item in self._members() if item[1] is link]:
                self._heard.extend((rank, message) for message in member.hear())
            if link.is_gone:
                self._lose(server, link)
                continue
            self._heard.extend((server * self._width + worker, death) for worker, death in link.deaths())
            for worker in link.newcomers():
                self._waiting = None
                self._newcomer(server * self._width + worker)

    def _lose(self, server: int, link: ServerLink) -> None:
        if server in self._restarting:
            self._restarting.discard(server)
            self._heard.extend((server * self._width + worker, Message("retired", {})) for worker in link.members)
            self._drop(server, link)
            return
        if self._awaits_cause(server, link):
            return
        known = None if self._own is None else self._own.error_of(server)
        ranks = [server * self._width + worker for worker in link.members] or [server * self._width]
        self._is_revived = False
        self._heard.append((ranks[0], link.end_of_server(known, frozenset(ranks[1:]))))
        self._drop(server, link)

    def _awaits_cause(self, server: int, link: ServerLink) -> bool:
        """Whether a server of this process's own has gone, and its exit status is about to be known."""
        if self._own is None or not link.is_gone or server in self._restarting:
            return False
        return self._own.error_of(server) is None and (link.ended_s or 0.0) < LAST_BREATH_S

    def _drop(self, server: int, link: ServerLink) -> None:
        link.close()
        del self._links[server]
        self._servers.drop(server)

    def poller(self) -> select.poll:
        """What to wait on until something arrives or a process ends."""
        poller = select.poll()
        wires: list[Any] = [member.wire for _, _, member in self._members() if member.ended is None]
        wires += [link.connection for link in self._links.values() if link.ended_s is None]
        for wire in wires:
            poller.register(wire.fileno(), select.POLLIN | (0 if wire.flush() else select.POLLOUT))
        for fd in self._servers.filenos():
            poller.register(fd, select.POLLIN)
        return poller

    def settle(self) -> None:
        """Waits for processes that have begun to end, so that the next ``listen`` finds all who died together."""
        deadline = time.monotonic() + LAST_BREATH_S
        while time.monotonic() < deadline and any(link.is_ending or self._awaits_cause(rank, link) for rank, link in self._links.items()):
            self.poller().poll(_SLICE_S * 1000)
            self._advance()

    # Coming back ------------------------------------------------------------------------------------------------------------

    def start_missing(self) -> None:
        """Connects to servers that have come back, and asks those that are there for processes that are not."""
        for link in self._links.values():
            if len(link.members) < link.workers:
                link.ask()
        now = time.monotonic()
        if self._servers.is_complete or now - self._looked < _LOOK_S:
            return
        self._looked = now
        if self._own is not None and not self._is_revived and not any(link.is_ending for link in self._links.values()):
            self._is_revived = True
            self._own.revive()
        for connection in self._servers.advance():
            self._link(connection)

    def restart(self) -> None:
        """Has the servers end and come again, and with them their processes.

        Raises:
            PlanError: They are not this process's own.
        """
        if self._own is None:
            raise PlanError(
                f"the servers at {self._servers.address} are not this process's to restart", "restart them where they were started"
            )
        self._restarting = set(self._links)
        self._own.restart()

    def attend(self, *, ask: bool) -> None:
        """Nothing: servers look after the graph's copy themselves."""

    def overdue(self, timeout_s: float) -> tuple[int, GnnkitError] | None:
        """The error where no server has come back in the time that somebody has been waiting."""
        now, before = time.monotonic(), self._awaited
        self._awaited = now
        if self._has_members:
            self._waiting = None
            return None
        if self._waiting is None or now - before > _PAUSE_S:
            self._waiting = now
        error = self._end_of_own()
        if error is None and self._own is None and self._servers.were_stopped:
            error = WorkerDied(
                f"the servers at {self._servers.address} were stopped", "start servers again, and make the loader with their address"
            )
        if error is None and now - self._waiting > timeout_s:
            who = self._servers.whereabouts() if not self._servers.is_complete else "they have no sampling process"
            error = StartTimeout(f"no server came back within {timeout_s:g} s; {who}", "start them again, or raise start_timeout_s")
        if error is None:
            return None
        self._waiting, self._is_revived = None, False
        return 0, error

    def _end_of_own(self) -> GnnkitError | None:
        """Why servers of this process's own do not come back although they were started again."""
        if self._own is None or not self._is_revived:
            return None
        errors = (self._own.error_of(rank) for rank in self._own.ranks if rank not in self._links)
        return next((error for error in errors if error is not None), None)

    def check(self) -> None:
        """Asks the servers what they are doing, for ``graph_bytes``."""
        for link in self._links.values():
            link.connection.ask_status()

    def stop(self) -> None:
        """Leaves the servers, and stops them where they are this process's own; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        while self._heard:
            what = self._heard.popleft()[1]
            if isinstance(what, Message):
                what.close()
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._servers.close()
        if self._own is not None:
            self._own.stop()


def hire_joined_servers(folder: Path, timeout_s: float, fingerprint: str, events: EventSink, newcomer: OnStarted) -> ServerWorkerPool:
    """Joins the servers of a folder; see ``PoolOptions.hire``.

    Args:
        folder: Their folder.
        timeout_s: Seconds to wait for all of them.
        fingerprint: Of the store that they are to serve.
        events: See ``PoolOptions.hire``.
        newcomer: See ``PoolOptions.hire``.
    """
    return ServerWorkerPool(join_folder(folder, "trainer", timeout_s, events, fingerprint), newcomer, None)
