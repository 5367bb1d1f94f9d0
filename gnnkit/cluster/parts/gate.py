"""The gate at a service's port: strangers are sent away before the network library reads anything of theirs.

gRPC reads the whole first message of a call, of any size, before the token can be looked at, and has no limit of time for a connection
that says nothing. So the service listens on a Unix socket that has no name any more, and the gate on the port. Whoever connects first
asks for a tunnel, as of an HTTP proxy (``CONNECT``, RFC 9110, section 9.3.6, which gRPC's clients know), and shows that it has the
token. From then on the gate passes bytes on in both directions, and every call is checked again by the service itself.

Strangers hold at most ``MOST_PENDING`` connections with ``MOST_SAID`` bytes each, for at most ``PENDING_S`` seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import selectors
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field

from gnnkit.cluster.admitting import BACKLOG, MOST_PENDING, MOST_SAID, PAUSE_S, PENDING_S, next_connection
from gnnkit.host import allow_open_files

logger = logging.getLogger(__name__)

# Each connection takes three: the peer's, and both ends of the one to the service.
_DESCRIPTORS = 1 << 16
# Bytes that are passed on at a time, and how often for one connection before the others have their turn.
_CHUNK, _TURN = 256 << 10, 8
# A peer that vanishes without a word is noticed after a minute: seconds until the system asks, between two questions, and questions.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
# Between two lines of the log about strangers.
_LOG_S = 60.0

_HEADER = "gnnkit-gate"
_END = b"\r\n\r\n"
_WELCOME, _REFUSAL = b"HTTP/1.1 200 OK" + _END, b"HTTP/1.1 401 Unauthorized" + _END
# What gRPC's error says of a refusal.
_REFUSED_TEXT = "response code 401"


def tunnel_options(token: str) -> list[tuple[str, str]]:
    """Options of a gRPC client that asks the gate for a tunnel."""
    return [("grpc.http_connect_server", "gnnkit"), ("grpc.http_connect_headers", f"{_HEADER}: {_proof(token)}")]


def is_refusal(error: BaseException) -> bool:
    """Whether a call ended because the gate did not know the token."""
    return _REFUSED_TEXT in str(error)


def _proof(token: str) -> str:
    """A text that only those know who know the token. The token itself is no part of it: it travels before encryption begins."""
    return hmac.new(token.encode(), b"gnnkit gate", hashlib.sha256).hexdigest()


@dataclass(eq=False)
class _Pending:
    """A connection that has not shown the token yet, or whose encryption is being agreed on.

    Attributes:
        end: The connection.
        until: ``time.monotonic()`` when it is closed.
        said: What it has said.
    """

    end: socket.socket
    until: float
    said: bytearray = field(default_factory=bytearray)


class _Tunnel:
    """A connection that was let in, and the one to the service.

    Args:
        outer: The peer's connection.
        inner: The connection to the service.

    Attributes:
        ends: Both.
    """

    def __init__(self, outer: socket.socket, inner: socket.socket) -> None:
        self.ends = outer, inner
        self._rest: dict[socket.socket, bytes] = {outer: b"", inner: b""}

    def interest(self, end: socket.socket) -> int:
        """The events to wait for at an end: room for what waits to be sent there, and bytes where nothing waits at the other."""
        other = self.ends[end is self.ends[0]]
        return (0 if self._rest[other] else selectors.EVENT_READ) | (selectors.EVENT_WRITE if self._rest[end] else 0)

    @property
    def has_more(self) -> bool:
        """Whether decrypted bytes are left, of which no event tells."""
        outer, inner = self.ends
        return isinstance(outer, ssl.SSLSocket) and outer.pending() > 0 and not self._rest[inner]

    def carry(self, buffer: memoryview) -> None:
        """Passes on what there is, in both directions.

        Args:
            buffer: Memory to use meanwhile.

        Raises:
            EOFError: One side has ended the connection.
            OSError: The connection is broken.
        """
        for source, target in (self.ends, self.ends[::-1]):
            for _ in range(_TURN):
                rest = self._rest[target]
                if rest:
                    self._rest[target] = rest = rest[_send(target, memoryview(rest)) :]
                if rest or not (count := _receive(source, buffer)):
                    break
                sent = _send(target, buffer[:count])
                self._rest[target] = bytes(buffer[sent:count])

    def close(self) -> None:
        """Ends both connections."""
        for end in self.ends:
            end.close()


def _receive(end: socket.socket, buffer: memoryview) -> int:
    """Bytes read into ``buffer``; 0 where there are none at this moment."""
    try:
        count = end.recv_into(buffer)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return 0
    if not count:
        raise EOFError
    return count


def _send(end: socket.socket, data: memoryview) -> int:
    """Sends what can be sent at this moment; how many bytes that was."""
    sent = 0
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        while sent < len(data):
            sent += end.send(data[sent:])
    return sent


class PortGate:
    """Listens, in a thread of its own, for as long as the process lives.

    Args:
        ip: The address to listen on, and no other.
        port: The port; 0 for any free one.
        token: What peers have to know.
        service: A descriptor of the service's Unix socket, opened with ``O_PATH``.
        tls: PEM of the certificate, with those that it was issued by, and of the key; None: what travels is not encrypted.

    Attributes:
        port: The port.

    Raises:
        OSError: The address cannot be listened on.
        ssl.SSLError: The certificate or the key cannot be used.
    """

    def __init__(self, ip: str, port: int, token: str, service: int, tls: tuple[str, str] | None) -> None:
        self._proof, self._service = _proof(token).encode(), f"/proc/self/fd/{service}"
        self._tls = None if tls is None else _tls_context(*tls)
        self._listener = socket.create_server((ip, port), family=socket.AF_INET6 if ":" in ip else socket.AF_INET, backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._pending: dict[_Pending, None] = {}
        self._unfinished: dict[_Tunnel, None] = {}
        self._buffer = memoryview(bytearray(_CHUNK))
        self._deaf_until: float | None = None
        self._strangers, self._logged = 0, -_LOG_S
        allow_open_files(_DESCRIPTORS)
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._run, name="gnnkit-gate", daemon=True).start()

    def _run(self) -> None:
        while True:
            events = self._selector.select(self._wait_s())
            busy, self._unfinished = self._unfinished, {}
            for key, _ in events:
                if key.data is None:
                    self._accept()
                elif isinstance(key.data, _Pending):
                    self._hear(key.data)
                else:
                    busy[key.data] = None
            for tunnel in busy:
                self._carry(tunnel)
            self._look()

    def _wait_s(self) -> float | None:
        """Seconds until somebody has to be sent away or may come again; None while there is nobody."""
        if self._unfinished:
            return 0.0
        moments = [pending.until for pending in self._pending] + ([] if self._deaf_until is None else [self._deaf_until])
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _look(self) -> None:
        """Sends away whoever has said nothing for too long; listens again."""
        now = time.monotonic()
        for pending in [pending for pending in self._pending if pending.until <= now]:
            self._send_away(pending)
        if self._deaf_until is not None and self._deaf_until <= now:
            self._deaf_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        if self._strangers and now - self._logged >= _LOG_S:
            logger.warning("%d connections without the token were closed", self._strangers)
            self._strangers, self._logged = 0, now

    def _accept(self) -> None:
        for _ in range(MOST_PENDING):
            try:
                end = next_connection(self._listener)
            except OSError:
                self._deaf_until = time.monotonic() + PAUSE_S
                self._selector.unregister(self._listener)
                return
            if end is None:
                return
            if len(self._pending) >= MOST_PENDING:
                self._send_away(next(iter(self._pending)))
            pending = _Pending(end, time.monotonic() + PENDING_S)
            self._pending[pending] = None
            self._selector.register(end, selectors.EVENT_READ, pending)

    def _send_away(self, pending: _Pending) -> None:
        self._strangers += 1
        del self._pending[pending]
        self._selector.unregister(pending.end)
        pending.end.close()

    def _hear(self, pending: _Pending) -> None:
        """Reads what a pending connection says, and decides."""
        if pending not in self._pending:  # sent away since
            return
        try:
            if isinstance(pending.end, ssl.SSLSocket):
                self._agree(pending, pending.end)
                return
            said = pending.end.recv(MOST_SAID - len(pending.said))
            pending.said += said
            if not said or not pending.said.startswith(b"CONNECT "[: len(pending.said)]):
                raise PermissionError
            if pending.said.endswith(_END):
                self._decide(pending)
            elif len(pending.said) >= MOST_SAID:
                raise PermissionError
        except BlockingIOError:
            return
        except OSError:  # of which the errors of TLS are
            self._send_away(pending)

    def _decide(self, pending: _Pending) -> None:
        lines = (line.partition(b":") for line in bytes(pending.said).splitlines()[1:])
        given = next((value.strip() for name, _, value in lines if name.strip().lower() == _HEADER.encode()), b"")
        if not hmac.compare_digest(given, self._proof):
            pending.end.send(_REFUSAL)
            raise PermissionError
        pending.end.send(_WELCOME)
        if self._tls is None:
            self._let_in(pending)
            return
        self._selector.unregister(pending.end)
        pending.end = self._tls.wrap_socket(pending.end, server_side=True, do_handshake_on_connect=False)
        self._selector.register(pending.end, selectors.EVENT_READ, pending)

    def _agree(self, pending: _Pending, end: ssl.SSLSocket) -> None:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            self._selector.modify(end, selectors.EVENT_READ, pending)
        except ssl.SSLWantWriteError:
            self._selector.modify(end, selectors.EVENT_WRITE, pending)
        else:
            self._let_in(pending)

    def _let_in(self, pending: _Pending) -> None:
        outer, inner = pending.end, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            outer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE:
                outer.setsockopt(socket.IPPROTO_TCP, option, value)
            inner.connect(self._service)
        except OSError as error:
            logger.warning("a connection cannot be passed on: %s", error)
            inner.close()
            raise PermissionError from error
        del self._pending[pending]
        tunnel = _Tunnel(outer, inner)
        self._selector.modify(outer, selectors.EVENT_READ, tunnel)
        self._selector.register(inner, selectors.EVENT_READ, tunnel)

    def _carry(self, tunnel: _Tunnel) -> None:
        try:
            tunnel.carry(self._buffer)
        except (EOFError, OSError):
            for end in tunnel.ends:
                self._watch(end, 0, tunnel)
            tunnel.close()
            return
        for end in tunnel.ends:
            self._watch(end, tunnel.interest(end), tunnel)
        if tunnel.has_more:
            self._unfinished[tunnel] = None

    def _watch(self, end: socket.socket, events: int, tunnel: _Tunnel) -> None:
        """Waits for events at an end. For none it is not watched at all: the system tells of a broken connection again and again."""
        known = self._selector.get_map().get(end)
        if known is None and events:
            self._selector.register(end, events, tunnel)
        elif known is not None and not events:
            self._selector.unregister(end)
        elif known is not None and known.events != events:
            self._selector.modify(end, events, tunnel)


def _tls_context(cert: str, key: str) -> ssl.SSLContext:
    """The settings of encrypted connections; PEM texts become files of this process alone, because the library reads nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])  # gRPC's clients insist
    with contextlib.ExitStack() as stack:
        paths = []
        for text in (cert, key):
            fd = os.memfd_create("gnnkit-pem", os.MFD_CLOEXEC)
            stack.callback(os.close, fd)
            os.write(fd, text.encode())
            paths.append(f"/proc/self/fd/{fd}")
        context.load_cert_chain(*paths)
    return context
