"""Joining all servers of a folder on this host: who is there, who is missing, and whether they belong together."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable
from pathlib import Path

from gnnkit.cluster.serving.connection import Connection, NotThere, Welcome
from gnnkit.cluster.serving.credentials import token_for
from gnnkit.cluster.serving.spec import UNIX_PREFIX
from gnnkit.cluster.serving.tokens import TOKEN_NAME
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, StoreError
from gnnkit.events import EventSink, Stage

# Servers that are not there are looked for so often.
_LOOK_S = 0.1
_SOCKET = re.compile(r"server-([0-9]{1,6})\.sock")
_DIGITS = 16


class UnixJoin:
    """Connections to the servers of a folder, as far as they are there. ``advance`` until ``is_complete``.

    Args:
        folder: The servers' folder.
        name: What the client calls itself.
        fingerprint: Of the store that they are to serve; None: of any, but all of the same.

    Attributes:
        connections: The servers that have welcomed this client, by rank.
        num_servers: How many there are; None while nobody has said so.

    Raises:
        PlanError: There can be no servers in this folder.
    """

    def __init__(self, folder: Path, name: str, fingerprint: str | None = None) -> None:
        self._folder, self._name, self._fingerprint = folder, name, fingerprint
        self._format: int | None = None
        self._pending: dict[int, Connection] = {}
        self._reasons: dict[int, str] = {}
        self.connections: dict[int, Connection] = {}
        self.num_servers: int | None = None
        self._had_token = False
        if not folder.parent.is_dir() or (folder.exists() and not folder.is_dir()):
            raise PlanError(f"there is no folder {str(folder)!r}", "give the address that the servers' handle or `gnnkit serve` shows")

    @property
    def address(self) -> str:
        """The folder as an address."""
        return f"{UNIX_PREFIX}{self._folder}"

    @property
    def is_complete(self) -> bool:
        """Whether every server has welcomed this client."""
        return self.num_servers is not None and len(self.connections) == self.num_servers

    @property
    def were_stopped(self) -> bool:
        """Whether servers that were here have ended for good: they take their token along, and those that die leave it to the next ones."""
        return self.num_servers is not None and self._had_token and not (self._folder / TOKEN_NAME).exists()

    def advance(self) -> list[Connection]:
        """Connects to servers that have come, without waiting; those that have welcomed this client since the last call.

        Raises:
            PlanError: A server refuses this client, or is of other servers than the rest.
            StoreError: A server has another store.
        """
        for rank in self._missing():
            if rank not in self._pending:
                self._connect(rank)
        welcomed = []
        for rank, connection in list(self._pending.items()):
            try:
                welcome = connection.advance()
            except NotThere as error:
                self._reasons[rank] = str(error)
                self._pending.pop(rank).close()
                continue
            except GnnkitError:
                self._pending.pop(rank).close()
                raise
            if welcome is not None:
                self._check(welcome)  # raises before anything is booked
                self.connections[rank] = self._pending.pop(rank)
                welcomed.append(connection)
        return welcomed

    def drop(self, rank: int) -> None:
        """Forgets a server that has gone, so that ``advance`` looks for it again."""
        self.connections.pop(rank).close()
        self._reasons[rank] = "it is gone"

    def filenos(self) -> list[int]:
        """What to wait on until a server says welcome."""
        return [connection.fileno() for connection in self._pending.values()]

    def whereabouts(self) -> str:
        """Which servers are missing, and why."""
        missing = self._missing()
        if self.num_servers is None and not missing:
            there = "there is no folder" if not self._folder.is_dir() else "no server has made a socket in"
            return f"{there} {self._folder}"
        said = []
        for rank in missing:
            pending = self._pending.get(rank)
            said.append(
                f"server {rank} " + ("does not answer" if pending is not None else f"is not there ({self._reasons.get(rank, 'not yet')})")
            )
        count = "" if self.num_servers is None else f" of {self.num_servers}"
        return f"{len(said)}{count} missing: {'; '.join(said)}"

    def _missing(self) -> list[int]:
        if self.num_servers is not None:
            known = list(range(self.num_servers))
        else:
            try:
                found = [_SOCKET.fullmatch(name) for name in os.listdir(self._folder)]
            except OSError:
                return []
            known = sorted(int(match[1]) for match in found if match is not None)
        return [rank for rank in known if rank not in self.connections]

    def _connect(self, rank: int) -> None:
        token = token_for(self.address)
        if token is None:
            self._reasons[rank] = "there is no token in its folder"
            return
        try:
            self._pending[rank] = Connection(self._folder, rank, token, self._name)
        except NotThere as error:
            self._reasons[rank] = str(error)

    def _check(self, welcome: Welcome) -> None:
        """Refuses servers that do not belong together, or hold another graph."""
        place = f"server {welcome.rank} at {self._folder}"
        if self.num_servers not in (None, welcome.num_servers):
            raise PlanError(
                f"{place} is one of {welcome.num_servers} servers, and another there is one of {self.num_servers}", "end the others"
            )
        if self._fingerprint not in (None, welcome.fingerprint):
            wanted = str(self._fingerprint)[:_DIGITS]
            raise StoreError(
                f"{place} has the store {welcome.fingerprint[:_DIGITS]}, and {wanted} is wanted",
                "join the servers of that store, or open theirs",
            )
        if self._format not in (None, welcome.format):
            raise StoreError(
                f"{place} has a store of format {welcome.format}, and another server there one of {self._format}", "update gnnkit"
            )
        self.num_servers, self._fingerprint, self._format = welcome.num_servers, welcome.fingerprint, welcome.format
        self._had_token = self._had_token or (self._folder / TOKEN_NAME).exists()

    def close(self) -> None:
        """Leaves all of them."""
        for connection in (*self._pending.values(), *self.connections.values()):
            connection.close()
        self._pending.clear()
        self.connections.clear()


def join_folder(
    folder: Path, name: str, timeout_s: float, events: EventSink, fingerprint: str | None = None, check: Callable[[], None] = lambda: None
) -> UnixJoin:
    """Waits until every server of a folder has welcomed this client.

    Args:
        folder: The servers' folder.
        name: What the client calls itself.
        timeout_s: Seconds to wait.
        events: Receives the stage "start", with who is missing.
        fingerprint: See ``UnixJoin``.
        check: Raises once it is clear that they will not come.

    Raises:
        StartTimeout: Not all of them were there in time; names the missing ones.
        PlanError: See ``UnixJoin``.
        StoreError: See ``UnixJoin.advance``.
    """
    servers, deadline, told = UnixJoin(folder, name, fingerprint), time.monotonic() + timeout_s, ""
    patient = time.monotonic() + 1.0
    try:
        with Stage(events, "start", label=f"servers at {folder}", unit="servers") as stage:
            while True:
                check()
                servers.advance()
                if len(servers.connections) > stage.done:
                    stage.update(len(servers.connections), servers.num_servers)
                if servers.is_complete:
                    return servers
                now, text = time.monotonic(), servers.whereabouts()
                if now >= deadline:
                    raise StartTimeout(
                        f"not all servers at {servers.address} were there within {timeout_s:g} s; {text}",
                        "start them with gnnkit.serve() or `gnnkit serve`, or raise join_timeout_s",
                    )
                if text != told and now >= patient:
                    told = text
                    stage.message(f"waiting for servers; {text}")
                poller = select.poll()
                for fd in servers.filenos():
                    poller.register(fd, select.POLLIN)
                poller.poll(min(_LOOK_S, deadline - now) * 1000)
    except BaseException:
        servers.close()
        raise
