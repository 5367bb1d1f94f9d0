"""The gate: the listener at the port of a server or part service, which admits who has shown the token.

A client of ``PortGate`` sends a line with a proof that it has the token, then agrees on encryption where the service has a certificate, and
sends a second line, with another proof and its name: what was overheard before encryption began is of no use behind it. Then the connection
itself is handed on.

Strangers hold at most ``MOST_PENDING`` connections with ``MOST_SAID`` bytes each, for at most ``PENDING_S`` seconds.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import logging
import os
import resource
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from gnnkit.host import allow_open_files
from gnnkit.waiting import Deadline

logger = logging.getLogger(__name__)

# What a peer may send, in bytes, and how long it may take, until it has shown who it is.
MOST_SAID, PENDING_S = 4096, 5.0
# The most of them at a time, of which the one that has been there longest makes room for another; and those that the system keeps.
MOST_PENDING, BACKLOG = 64, 1024
# Before the system is asked again whether it has room for another connection.
_PAUSE_S = 0.2


# Descriptors that are asked for; of these, such as are kept for what is no connection of a client: workers, rings, files.
_DESCRIPTORS, _SPARE_DESCRIPTORS = 1 << 16, 64


def most_connections(wanted: int) -> int:
    """Connections of clients that there are descriptors for, beside those that wait to be let in; ``wanted`` at most."""
    allow_open_files(_DESCRIPTORS)
    free = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))
    return max(1, min(wanted, free - MOST_PENDING - _SPARE_DESCRIPTORS))


# A peer that vanishes without a word is noticed after a minute: seconds until the system asks, between two questions, and questions.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
# Between two lines of the log about strangers.
_LOG_S = 60.0

# What both lines begin with, and the answers to them, which are of one length.
_FIRST, _SECOND, _END = b"gnnkit-gate ", b"gnnkit-wire ", b"\n"
WELCOME, REFUSAL = b"welcome\n", b"refused\n"
# The longest name of a client that is kept.
_MOST_NAME = 100


def first_line(token: str) -> bytes:
    """Says that one has the token; before encryption begins, so the token itself is no part of it."""
    return _FIRST + _proof(token, "gnnkit gate") + _END


def second_line(token: str, name: str) -> bytes:
    """Says it again, and one's name, which work under way is counted by."""
    return _SECOND + _proof(token, "gnnkit wire") + b" " + name.encode("ascii", "replace").replace(b"\n", b" ") + _END


def _proof(token: str, purpose: str) -> bytes:
    """A text that only those know who know the token."""
    return hmac.new(token.encode(), purpose.encode(), hashlib.sha256).hexdigest().encode()


def keep_alive(end: socket.socket) -> None:
    """Has the system notice a peer that vanishes without a word, also while nothing is sent."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        end.setsockopt(socket.IPPROTO_TCP, option, value)


@dataclass(eq=False)
class Pending:
    """A connection that has not shown the token yet, or whose encryption is being agreed on.

    Attributes:
        end: The connection.
        deadline: It is closed then.
        said: What it has said and the gate has not read.
        count: Bytes that it has said.
        is_known: Whether its first line was right.
    """

    end: socket.socket
    deadline: Deadline
    said: bytearray = field(default_factory=bytearray)
    count: int = 0
    is_known: bool = False


class AccessGate:
    """Listens, in a thread of its own, until it is closed; keeps each connection until it has shown who it is, or has taken too long.

    Args:
        listener: A socket that listens; taken over.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._pending: dict[Pending, None] = {}
        self._pause: Deadline | None = None  # in which no connection is let in
        self._strangers, self._next_log = 0, Deadline(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gnnkit-gate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Lets no further connection in."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which ends the thread's wait
        self._thread.join(PENDING_S)

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(self._wait_s()):
                if key.data is None:
                    self._accept()
                elif key.data in self._pending:  # it was not sent away meanwhile
                    self._hear(key.data)
            self._look()
        self._selector.close()
        self._listener.close()
        for pending in self._pending:
            pending.end.close()

    def _wait_s(self) -> float | None:
        """Seconds until a connection has to be sent away or the pause ends; None while there is neither."""
        deadlines = [pending.deadline for pending in self._pending] + ([] if self._pause is None else [self._pause])
        return min((deadline.left_s for deadline in deadlines), default=None)

    def _look(self) -> None:
        """Sends away connections that have said nothing for too long; listens again."""
        for pending in [pending for pending in self._pending if pending.deadline.has_passed]:
            self._send_away(pending)
        if self._pause is not None and self._pause.has_passed:
            self._pause = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        if self._strangers and self._next_log.has_passed:
            logger.warning("%d connections without the token were closed", self._strangers)
            self._strangers, self._next_log = 0, Deadline(_LOG_S)

    def _accept(self) -> None:
        for _ in range(MOST_PENDING):
            try:
                end, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning("no connection can be let in: %s", error)
                    self._pause = Deadline(_PAUSE_S)
                    self._selector.unregister(self._listener)
                return
            end.setblocking(False)
            if not self._may_speak(end):
                end.close()
                continue
            if len(self._pending) >= MOST_PENDING:
                self._make_room()
            pending = Pending(end, Deadline(PENDING_S))
            self._pending[pending] = None
            self._selector.register(end, selectors.EVENT_READ, pending)

    def _make_room(self) -> None:
        """Sends a pending connection away: of those that have shown nothing the oldest, once it was heard, of the others the oldest."""
        for pending in list(self._pending):
            if not pending.is_known:
                self._hear(pending)
            if len(self._pending) < MOST_PENDING:
                return
            if not pending.is_known:
                self._send_away(pending)
                return
        self._send_away(next(iter(self._pending)))

    def _send_away(self, pending: Pending) -> None:
        self._strangers += 1
        self._take_out(pending).close()

    def _take_out(self, pending: Pending) -> socket.socket:
        """Ends the wait of a connection, which is decided about."""
        del self._pending[pending]
        self._selector.unregister(pending.end)
        return pending.end

    def _may_speak(self, end: socket.socket) -> bool:
        """Whether who is at the other end of a new connection is heard at all."""
        return True

    def _hear(self, pending: Pending) -> None:
        """Reads what a pending connection says, and decides."""
        raise NotImplementedError


class PortGate(AccessGate):
    """Listens at a port.

    Args:
        ip: The address to listen on, and no other.
        port: The port; 0 for any free one.
        token: What peers have to know.
        enter: Called with the connection of a client that is let in, which blocks, and with its name.
        tls: PEM of the certificate, with those that it was issued by, and of the key; None: what travels is not encrypted.
        refused: Called with the address of a client that has shown another token; must be quick.

    Attributes:
        port: The port.

    Raises:
        OSError: The address cannot be listened on.
        ssl.SSLError: The certificate or the key cannot be used.
    """

    def __init__(
        self,
        ip: str,
        port: int,
        token: str,
        enter: Callable[[socket.socket, str], None],
        tls: tuple[str, str] | None = None,
        refused: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._first, self._second = first_line(token), second_line(token, "").removesuffix(_END)
        self._enter, self._refused = enter, refused
        self._tls = None if tls is None else _tls_context(*tls)
        listener = socket.create_server((ip, port), family=socket.AF_INET6 if ":" in ip else socket.AF_INET, backlog=BACKLOG)
        self.port = int(listener.getsockname()[1])
        super().__init__(listener)

    def _hear(self, pending: Pending) -> None:
        try:
            if isinstance(pending.end, ssl.SSLSocket) and pending.end.version() is None:
                self._agree(pending, pending.end)
            while self._read(pending):
                self._decide(pending)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:  # of which the errors of TLS are
            self._send_away(pending)

    def _read(self, pending: Pending) -> bool:
        """Reads until there is a line; whether the connection is still one to decide about.

        Raises:
            PermissionError: It says too much, or what was not asked for.
            OSError: There is nothing more at this moment, or the connection is broken.
        """
        if pending not in self._pending:
            return False
        while _END not in pending.said:
            said = pending.end.recv(MOST_SAID - pending.count)
            pending.said += said
            pending.count += len(said)
            wanted = self._second if pending.is_known else self._first
            begin = len(_SECOND if pending.is_known else _FIRST)
            if not said or not pending.said.startswith(wanted[: min(begin, len(pending.said))]):
                raise PermissionError
            if pending.count >= MOST_SAID and _END not in pending.said:
                raise PermissionError
        return True

    def _decide(self, pending: Pending) -> None:
        """Looks at a line.

        Raises:
            PermissionError: It is a wrong one.
            OSError: The connection is broken.
        """
        line, _, rest = bytes(pending.said).partition(_END)
        pending.said = bytearray(rest)
        if pending.is_known:
            if not hmac.compare_digest(line[: len(self._second)], self._second):
                pending.end.send(REFUSAL)
                raise PermissionError
            self._let_in(pending, line[len(self._second) :].decode("ascii", "replace")[:_MOST_NAME] or "without a name")
            return
        if not hmac.compare_digest(line + _END, self._first):
            pending.end.send(REFUSAL)
            self._refused(pending.end.getpeername()[0])
            raise PermissionError
        pending.is_known = True
        pending.end.send(WELCOME)
        if self._tls is not None:
            if rest:  # it has not waited for encryption
                raise PermissionError
            self._selector.unregister(pending.end)
            pending.end = self._tls.wrap_socket(pending.end, server_side=True, do_handshake_on_connect=False)
            self._selector.register(pending.end, selectors.EVENT_READ, pending)
            self._agree(pending, pending.end)

    def _agree(self, pending: Pending, end: ssl.SSLSocket) -> None:
        awaited = selectors.EVENT_READ
        try:
            end.do_handshake()
        except ssl.SSLWantWriteError:
            awaited = selectors.EVENT_WRITE
            raise
        finally:
            self._selector.modify(end, awaited, pending)

    def _let_in(self, pending: Pending, name: str) -> None:
        end = pending.end
        if pending.said:  # it has not waited for the answer
            raise PermissionError
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(end)
        end.send(WELCOME)
        end.setblocking(True)
        self._enter(self._take_out(pending), name)


def _tls_context(cert: str, key: str) -> ssl.SSLContext:
    """The settings of encrypted connections; PEM texts become files of this process alone, because the library reads nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with contextlib.ExitStack() as stack:
        paths = []
        for text in (cert, key):
            fd = os.memfd_create("gnnkit-pem", os.MFD_CLOEXEC)
            stack.callback(os.close, fd)
            os.write(fd, text.encode())
            paths.append(f"/proc/self/fd/{fd}")
        context.load_cert_chain(*paths)
    return context
