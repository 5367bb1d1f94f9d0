"""Noticing that another rank is gone, at once where its process died, and within half a minute where its host did.

The connections of the process group tell: a process that dies closes them, and the kernel finds out by itself about a host that answers no
more, once it has been told to ask. A rank that computes, or waits in an operation of the group, would learn of it much later, or never.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnnkit.runtime.waker import Waker

# Seconds of silence until the kernel asks whether the other side is still there, between questions, and how many of them.
_IDLE_S, _INTERVAL_S, _QUESTIONS = 8, 4, 4
# What was sent and is not acknowledged within so many seconds ends the connection too.
_UNANSWERED_S = 24
# How long the rank may take to end by itself, from the error that its own operation raises.
_GRACE_S = 10.0
_MEETING = "the host that ranks meet at"
_LOST = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


@dataclass(frozen=True)
class Connection:
    """A connection of this process.

    Attributes:
        fd: Its descriptor.
        here: Address and port of this side.
        there: Address and port of the other.
    """

    fd: int
    here: tuple[str, int]
    there: tuple[str, int]


def connections() -> list[Connection]:
    """The TCP connections that this process has now."""
    import psutil

    found: list[Any] = psutil.Process().net_connections("tcp")
    alive = (psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT)
    return [Connection(c.fd, _end(c.laddr), _end(c.raddr)) for c in found if c.fd >= 0 and c.raddr and c.status in alive]


def _end(address: Any) -> tuple[str, int]:
    """Address and port; an IPv4 address that an IPv6 socket uses is one."""
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def keep_asking(found: Sequence[Connection]) -> None:
    """Has the kernel break connections whose other side no longer answers."""
    for connection in found:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as same:  # may be closed meanwhile
            same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (
                ("TCP_KEEPIDLE", _IDLE_S),
                ("TCP_KEEPINTVL", _INTERVAL_S),
                ("TCP_KEEPCNT", _QUESTIONS),
                ("TCP_USER_TIMEOUT", _UNANSWERED_S * 1000),
            ):
                if hasattr(socket, name):
                    same.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class PeerWatch:
    """Watches connections to other ranks from a thread, and ends this process when one is gone and nothing else does.

    Args:
        rank: This rank, for messages.
        watched: Connections, and what is on their other side: "rank 1".
        meeting: Connections to the store that ranks have met at.
        agent: Whether that is torchrun's: where its host is gone, the torchrun of this host has nobody left to restart ranks with, and
            would wait for a quarter of an hour; it is ended.
    """

    def __init__(self, rank: int, watched: Sequence[tuple[Connection, str]], meeting: Sequence[Connection], agent: bool) -> None:
        self._rank, self._agent = rank, agent
        self._sockets: dict[int, tuple[socket.socket, str]] = {}
        self._poll = select.poll()
        for connection, name in [*watched, *((connection, _MEETING) for connection in meeting)]:
            with contextlib.suppress(OSError):
                same = socket.socket(fileno=os.dup(connection.fd))
                self._sockets[same.fileno()] = same, name if name == _MEETING else f"{name} ({connection.there[0]})"
                self._poll.register(same, getattr(select, "POLLRDHUP", 0))
        self._hosts = {connection.there[0] for connection in meeting}
        self._waker = Waker()
        self._closing, self._found, self._met = threading.Event(), threading.Event(), threading.Event()
        self._lenient, self._lost = False, list[str]()
        self._thread = threading.Thread(target=self._watch, name="gnnkit-peers", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> str:
        """Who is gone, in the order in which it was noticed; empty while nobody is.

        A rank that ends because another one is gone may be noticed before that one, and the host where ranks meet is that of one of them.
        """
        return " and ".join(self._lost) or (_MEETING if self._met.is_set() else "")

    def wait_for_loss(self, limit_s: float) -> str:
        """Who is gone, if somebody is or becomes so within ``limit_s`` seconds; else empty."""
        self._found.wait(limit_s)
        return self.lost

    def end_agent(self) -> None:
        """Ends the torchrun that has started this process, if the host that ranks have met at is gone."""
        shares_host = any(f"({host})" in self.lost for host in self._hosts) or self.lost == _MEETING
        if not (self._agent and self.lost and shares_host and self._met.wait(_GRACE_S)):
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which torchrun now sends to its ranks: this one ends with its own error
        with contextlib.suppress(OSError):
            os.kill(os.getppid(), signal.SIGTERM)

    def be_lenient(self) -> None:
        """From now on, a rank that goes is only noted: it may have finished."""
        self._lenient = True

    def close(self) -> None:
        """Ends the watch; the connections are the process group's alone again."""
        self._closing.set()
        self._waker.wake()
        self._thread.join()
        for same, _ in self._sockets.values():
            same.close()

    def _watch(self) -> None:
        end_s = float("inf")
        while not self._closing.is_set() and (self._lenient or time.monotonic() < end_s):
            left_s = end_s - time.monotonic()
            ready = self._waker.wait(self._poll, None if left_s == float("inf") else max(0.0, left_s))
            lost = [fd for fd, events in ready.items() if events & _LOST]
            for fd in lost:
                self._poll.unregister(fd)
                self._note(self._sockets[fd][1])
            if lost:
                self._found.set()
                end_s = min(end_s, time.monotonic() + _GRACE_S)
        if not self._closing.is_set():
            # Whatever the rank waits for, in native code as a rule, cannot be interrupted; its children end with it.
            sys.stderr.write(f"error: rank {self._rank} ends: {gone(self.lost)}\n")
            sys.stderr.flush()
            self.end_agent()
            os._exit(1)

    def _note(self, name: str) -> None:
        if name == _MEETING:
            self._met.set()
        elif name not in self._lost:
            self._lost.append(name)


def gone(names: str) -> str:
    """What to say of ranks that are gone."""
    if " and " in names:
        return f"{names} of this job are gone: their processes have ended, or their hosts no longer answer"
    return f"{names} of this job is gone: its process has ended, or its host no longer answers"
