"""The graph's copies in huge pages among servers of one host: made by one of them, used by all that have the same parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnnkit.runtime.wire import Message

Parts = tuple[int, ...]


@dataclass
class _Copy:
    """A copy, or the attempt to make one.

    Attributes:
        copier: The server that makes it; None where none does.
        fd: Its memory; None before it is there.
        description: What came with it.
        told: Servers that have it.
        is_refused: Whether there will be none.
    """

    copier: int | None = None
    fd: int | None = None
    description: Mapping[str, Any] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    is_refused: bool = False


class GraphCopies:
    """Hands copies on. Only for the holder of its fleet's lock; the memory itself is not mapped here."""

    def __init__(self) -> None:
        self._copies: dict[Parts, _Copy] = {}

    def spread(self, servers: Mapping[int, Mapping[str, Any]], send: Callable[..., None]) -> None:
        """Tells servers of copies, and has one made where there is none.

        Args:
            servers: What each server that is there last said of itself.
            send: Sends a message to a server.
        """
        for rank, details in sorted(servers.items()):
            if details["parts"] is None or not any(worker["state"] == "ready" for worker in details["workers"]):
                continue
            copy = self._copies.setdefault(tuple(details["parts"]), _Copy())
            if copy.fd is not None and rank not in copy.told:
                copy.told.add(rank)
                send(rank, "graph", (copy.fd,), description=dict(copy.description))
            elif copy.fd is None and copy.copier is None and not copy.is_refused:
                copy.copier = rank
                send(rank, "copy")

    def take(self, rank: int, message: Message) -> None:
        """A server has had a copy made, or says that there will be none."""
        copy = next((copy for copy in self._copies.values() if copy.copier == rank), None)
        if copy is None:
            message.close()
            return
        copy.copier = None
        if message.fds:
            copy.fd, copy.description = message.fds[0], message.body["description"]
            copy.told.add(rank)
        else:
            copy.is_refused = True

    def lost(self, rank: int) -> None:
        """A server has ended, perhaps with the copy that it was making."""
        for copy in self._copies.values():
            copy.told.discard(rank)
            if copy.copier == rank:
                copy.copier = None

    def close(self) -> None:
        """Lets them go."""
        for copy in self._copies.values():
            if copy.fd is not None:
                os.close(copy.fd)
        self._copies.clear()
