"""Messages between hosts: values of ``gnnkit.cluster.network.codec`` over a TCP connection that the gate has let in.

A message is a head of 16 bytes (its kind, the bytes of its text, the bytes of its block), the text of a JSON tree, and the block of
memory that the tree's arrays lie in; a ``BLOCK`` is a block alone, without a text. Blocks are sent from where they lie and received where
they are to be. One request is under way on a connection at a time: a ``CALL`` is answered by any number of ``VALUE`` or ``BLOCK`` and an
``END``, by one ``LAST``, or by an ``ERROR``. While it is worked on, a ``BEAT`` goes out once a second: a client that receives nothing at
all for ``CONNECTION_SILENCE_S`` knows that the service is gone.

Nothing that arrives is unpickled, and no memory is allocated before it is known that so much may come.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.hosts import split_address
from gnnkit.cluster.network.codec import PROTOCOL_VERSION, from_pieces, to_pieces
from gnnkit.cluster.network.gate import REFUSAL, WELCOME, first_line, keep_alive, second_line
from gnnkit.errors import GnnkitError, PlanError, SamplingError
from gnnkit.host import available_memory
from gnnkit.runtime.beats import BEAT_S, CONNECTION_SILENCE_S
from gnnkit.sampling.owners import BadRequest
from gnnkit.waiting import Deadline

_CONNECT_S = 2.5
# A client that has begun a request goes on with it, and one that has asked reads the answer, or it is sent away.
_STALLED_S = 60.0
# What an answer may take of this process's memory without a look at how much is free, which takes longer than receiving it.
_SMALL_BYTES = 1 << 26
# A request that is refused is taken in and thrown away up to here, so that its sender hears why.
_MOST_DISCARDED = 1 << 30
# The most pieces of memory that the system sends at once.
_MOST_PIECES = 512
# The longest text of an error.
_MOST_SAID = 2000
# A flood of strangers takes the place of one in five that are let in: so many attempts, and hardly any is lost.
_MOST_ATTEMPTS = 8
_HEAD = struct.Struct("<B3xIQ")
_MOST_NAME = 64


class Kind(IntEnum):
    """The kinds of messages."""

    CALL, VALUE, LAST, END, ERROR, BEAT, BLOCK = range(1, 8)


class Head(NamedTuple):
    """The head of a message.

    Attributes:
        kind: Its kind.
        text_nbytes: Bytes of its text.
        block_nbytes: Bytes of its block.
    """

    kind: int
    text_nbytes: int
    block_nbytes: int

    @property
    def nbytes(self) -> int:
        """Bytes that follow."""
        return self.text_nbytes + self.block_nbytes


class Broken(Exception):
    """The connection broke or could not be made, or who is there cannot answer yet; asking again may help."""


class _SentAway(Broken):
    """The service has ended the connection before it said anything."""


class OutOfTime(Exception):
    """The request was not answered until its deadline."""


class TokenRefused(Exception):
    """The service expects another token."""


class Failed(Exception):
    """The request ended with an error in the service.

    Attributes:
        body: What it said of the error; see ``error_body``.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(str(body.get("message")))
        self.body = body


class Gone(Exception):
    """The client of a service has gone, or does not speak this language."""


class NotYet(GnnkitError):
    """The service cannot answer such a request yet; the client tries again. Travels as such."""


def error_body(error: BaseException) -> dict[str, Any]:
    """An error as it travels to the client: without a traceback, which is this host's own."""
    own = error if isinstance(error, GnnkitError) else SamplingError(f"{type(error).__name__}: {error}")
    return {"type": type(own).__name__, "message": own.message[:_MOST_SAID], "hint": own.hint}


@dataclass(frozen=True)
class Request:
    """A request, ready to be sent.

    Attributes:
        text: Its text.
        pieces: Its block.
        nbytes: Bytes of both.
    """

    text: bytes
    pieces: list[memoryview]
    nbytes: int

    @classmethod
    def of(cls, name: str, args: Mapping[str, Any], fingerprint: str | None = None) -> Request:
        """The request for a call by name; ``fingerprint`` is that of the store that it is about.

        Raises:
            PlanError: There is something in it that cannot be sent.
        """
        head = {"version": PROTOCOL_VERSION} | ({} if fingerprint is None else {"fingerprint": fingerprint})
        text, pieces = to_pieces({"name": name, "args": {**head, **args}})
        return cls(text, pieces, len(text) + sum(map(len, pieces)))


class NetworkWire:
    """One end of the connection.

    Args:
        end: The connection; taken over.

    Attributes:
        is_gone: Whether the other side is known to have gone.
        unsent: Bytes of the answer that is being sent, and since when, by the system's monotonic clock; None while there is none.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end, self.is_gone = end, False
        self.unsent: tuple[int, float] | None = None
        self._sending = threading.Lock()
        self._said = time.monotonic()
        self._head = memoryview(bytearray(_HEAD.size))
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._poller: select.poll | None = None

    def close(self) -> None:
        """Ends the connection."""
        self.hang_up()  # also for a thread that is in a call of it
        self._end.close()

    # The client's side ----------------------------------------------------------------------------------------------------

    def ask(self, request: Request, deadline: Deadline, sizes: Sequence[int] | None = None) -> Iterator[tuple[Any, int]]:
        """Has a request answered.

        Args:
            request: The request.
            deadline: Until when.
            sizes: Bytes of the blocks that the answer is to be, one after the other: nothing else is taken. None: it is of values.

        Yields:
            A value of the answer, and its bytes; or a block, uint8 in memory that the next one overwrites, and its bytes.

        Raises:
            Broken: The connection is of no more use.
            OutOfTime: Likewise.
            Failed: The service has answered with an error; the connection can be used again.
            BadRequest: The answer cannot be read.
        """
        try:
            self._end.settimeout(max(0.001, deadline.within(CONNECTION_SILENCE_S)))
            self._send(Kind.CALL, request.text, request.pieces)
            yield from self._answer(deadline, sizes)
        except TimeoutError as error:
            if deadline.has_passed:
                raise OutOfTime("the deadline has passed") from error
            raise Broken(f"nothing was heard for {CONNECTION_SILENCE_S:g} s") from error
        except (OSError, EOFError) as error:
            raise Broken(_why(error)) from error

    def _answer(self, deadline: Deadline, sizes: Sequence[int] | None) -> Iterator[tuple[Any, int]]:
        number, kind = 0, Kind.BEAT
        while kind not in (Kind.LAST, Kind.END):
            head = self._receive_head(deadline)
            kind = _kind(head)
            if kind == Kind.ERROR:
                raise _failure(self._value(head, self._memory(head), deadline))
            if kind not in (Kind.VALUE, Kind.LAST, Kind.BLOCK):
                continue
            if sizes is None and kind != Kind.BLOCK:
                yield self._value(head, self._memory(head), deadline), head.nbytes
            elif sizes and number < len(sizes) and (kind, head.block_nbytes) == (Kind.BLOCK, sizes[number]):
                yield self._block(head.block_nbytes, deadline), head.nbytes
            else:
                raise BadRequest(f"message {number} is not what was asked for")
            number += 1
        if sizes is not None and number != len(sizes):
            raise BadRequest(f"{number} messages instead of {len(sizes)}")

    def _block(self, nbytes: int, deadline: Deadline) -> NDArray[np.uint8]:
        if len(self._buffer) < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        block = self._buffer[:nbytes]
        self._receive_into(block.data, deadline)
        return block

    def _memory(self, head: Head) -> NDArray[np.uint8]:
        """Memory for a message of the service's, which is trusted with little of it."""
        if head.nbytes > _SMALL_BYTES and head.nbytes > available_memory() // 2:
            raise BadRequest(f"a message of {head.nbytes} bytes is too large for this host")
        return _allocated(head.block_nbytes)

    # The service's side ---------------------------------------------------------------------------------------------------

    def next_head(self) -> Head:
        """Waits for the head of the next request, as long as it takes.

        Raises:
            Gone: There will be none.
        """
        with _gone():
            self._end.settimeout(None)
            head = self._receive_head(None)
            if head.kind != Kind.CALL:
                raise EOFError(f"a message of kind {head.kind} is no request")
            self._end.settimeout(_STALLED_S)
        return head

    def request(self, head: Head) -> tuple[str, dict[str, Any]]:
        """Receives the rest of a request: the name of what is asked for, and its arguments.

        Raises:
            BadRequest: It cannot be read; the connection can be used again.
            Gone: The client has stopped in the middle.
        """
        with _gone():
            try:
                block = _allocated(head.block_nbytes)
            except BadRequest:
                self.discard(head)
                raise
            value = self._value(head, block, None)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not isinstance(value.get("args"), dict):
            raise BadRequest("the request cannot be read")
        return value["name"], value["args"]

    def discard(self, head: Head) -> None:
        """Receives the rest of a request that is refused, and keeps nothing of it.

        Raises:
            Gone: See ``request``; or it is so large that the connection is ended.
        """
        scratch, left = memoryview(bytearray(1 << 16)), head.nbytes
        with _gone():
            if left > _MOST_DISCARDED:
                raise EOFError
            while left:
                part = scratch[: min(left, len(scratch))]
                self._receive_into(part, None)
                left -= len(part)

    def answer(self, kind: Kind, value: Any = None) -> None:
        """Sends an answer, or a value of it; of ``END`` there is none.

        Args:
            kind: What it is.
            value: The value; uint8 ``[n]`` of a ``BLOCK``.

        Raises:
            PlanError: The value cannot be sent.
            Gone: The client has gone, or does not read.
        """
        text, pieces = (b"", [value.data] if kind == Kind.BLOCK else []) if kind in (Kind.BLOCK, Kind.END) else to_pieces(value)
        self.unsent = len(text) + sum(map(len, pieces)), time.monotonic()
        try:
            self._send(kind, text, pieces)
        except OSError as error:
            raise Gone from error
        finally:
            self.unsent = None

    def hang_up(self) -> None:
        """Ends the connection; the thread that works with it closes it then. From any thread."""
        self.is_gone = True
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def beat(self) -> None:
        """Says that the service is there, unless it has just said something; notices that the client has gone. From any thread."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            events = self._events()
            if events & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
                self.is_gone = True
            # A client that reads nothing needs no sign of life, and would keep this thread from the others.
            elif events & select.POLLOUT and time.monotonic() - self._said > BEAT_S / 2:
                self._send_all([memoryview(_HEAD.pack(Kind.BEAT, 0, 0))])
        except (OSError, ValueError):  # a connection that another thread has closed has no descriptor
            self.is_gone = True
        finally:
            self._sending.release()

    def _events(self) -> int:
        if self._poller is None:
            self._poller = select.poll()
            self._poller.register(self._end.fileno(), select.POLLOUT | select.POLLRDHUP)
        return next((events for _, events in self._poller.poll(0)), 0)

    # Both -----------------------------------------------------------------------------------------------------------------

    def _send(self, kind: Kind, text: bytes, pieces: list[memoryview]) -> None:
        head = _HEAD.pack(kind, len(text), sum(map(len, pieces)))
        with self._sending:
            self._send_all([memoryview(head + text), *pieces])

    def _send_all(self, pieces: list[memoryview]) -> None:
        self._said = time.monotonic()
        if isinstance(self._end, ssl.SSLSocket):
            for piece in pieces:
                self._end.sendall(piece)
            return
        first = 0
        while first < len(pieces):
            sent = self._end.sendmsg(pieces[first : first + _MOST_PIECES], (), socket.MSG_NOSIGNAL)
            while first < len(pieces) and sent >= len(pieces[first]):
                sent -= len(pieces[first])
                first += 1
            if sent:
                pieces[first] = pieces[first][sent:]

    def _receive_head(self, deadline: Deadline | None) -> Head:
        self._receive_into(self._head, deadline)
        return Head(*_HEAD.unpack(self._head))

    def _value(self, head: Head, block: NDArray[np.uint8], deadline: Deadline | None) -> Any:
        """Receives a message's text and block, and reads them.

        Raises:
            BadRequest: They cannot be read.
        """
        text = _allocated(head.text_nbytes)
        self._receive_into(text.data, deadline)
        self._receive_into(block.data, deadline)
        try:
            return from_pieces(text.tobytes(), block)
        except PlanError as error:
            raise BadRequest(error.message) from error

    def _receive_into(self, view: memoryview, deadline: Deadline | None) -> None:
        while view:
            if deadline is not None:
                left_s = deadline.left_s
                if not left_s:
                    raise TimeoutError
                if left_s < CONNECTION_SILENCE_S:
                    self._end.settimeout(max(0.001, left_s))
            count = self._end.recv_into(view)
            if not count:
                raise EOFError("the other side has ended the connection")
            view = view[count:]


def _allocated(nbytes: int) -> NDArray[np.uint8]:
    """Memory for what comes; the system gives it page by page, as it is written.

    Raises:
        BadRequest: There is none.
    """
    try:
        return np.empty(nbytes, np.uint8)
    except MemoryError as error:
        raise BadRequest(f"there is no memory for a message of {nbytes} bytes") from error


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    """Turns the end of a connection into ``Gone``, so that errors of the work that is asked for are none of them."""
    try:
        yield
    except (OSError, EOFError) as error:
        raise Gone from error


def _kind(head: Head) -> Kind:
    """The kind of a message to a client.

    Raises:
        BadRequest: There is none like it.
    """
    if head.kind in (Kind.BEAT, Kind.END) and not head.nbytes:
        return Kind(head.kind)
    if head.kind in (Kind.VALUE, Kind.LAST, Kind.ERROR) or (head.kind == Kind.BLOCK and not head.text_nbytes):
        return Kind(head.kind)
    raise BadRequest(f"a message of kind {head.kind} and {head.nbytes} bytes")


def _failure(body: Any) -> Exception:
    if not isinstance(body, dict):
        return BadRequest("an error that cannot be read")
    return Broken(str(body.get("message"))) if body.get("type") == NotYet.__name__ else Failed(body)


def _why(error: BaseException) -> str:
    """An error of a connection, in the system's words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def connect(address: str, token: str, ca: str | None, deadline: Deadline) -> NetworkWire:
    """Connects to a service of another host, and shows it the token; again where it was sent away unheard, for others that came.

    Args:
        address: ``"10.0.0.2:4711"``.
        token: What the service's gate expects.
        ca: PEM of the certificates that the service's is checked against; None: the connection is not encrypted.
        deadline: Until when.

    Raises:
        TokenRefused: The service expects another token.
        Broken: No service listens there, or one that speaks another protocol.
        OutOfTime: The deadline has passed.
    """
    for attempt in range(_MOST_ATTEMPTS):
        try:
            return _connect(address, token, ca, deadline)
        except _SentAway:
            if attempt == _MOST_ATTEMPTS - 1 or deadline.has_passed:
                raise
    raise AssertionError("the last attempt has an outcome")


def _connect(address: str, token: str, ca: str | None, deadline: Deadline) -> NetworkWire:
    host, port = split_address(address)
    end: socket.socket | None = None
    try:
        end = socket.create_connection((host, port), max(0.001, deadline.within(_CONNECT_S)))
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(end)
        end.settimeout(max(0.001, deadline.within(CONNECTION_SILENCE_S)))
        # Services count what a process has under way by its name.
        first, second = first_line(token), second_line(token, f"{socket.gethostname()[:_MOST_NAME]}, process {os.getpid()}")
        if ca is None:
            end.sendall(first + second)
            _expect_welcome(end)
        else:
            end.sendall(first)
            _expect_welcome(end)
            end = _trusting(ca).wrap_socket(end, server_hostname=host)
            end.sendall(second)
        _expect_welcome(end)
        return NetworkWire(end)
    except BaseException as error:
        if end is not None:
            end.close()
        if isinstance(error, TimeoutError) and deadline.has_passed:
            raise OutOfTime("the deadline has passed") from error
        if isinstance(error, TimeoutError):
            raise Broken("nothing answers there") from error
        if end is not None and isinstance(error, (ConnectionResetError, BrokenPipeError, EOFError)):
            raise _SentAway(_why(error)) from error
        if isinstance(error, (OSError, EOFError)):
            raise Broken(_why(error)) from error
        raise


def _expect_welcome(end: socket.socket) -> None:
    said = b""
    while len(said) < len(WELCOME):
        more = end.recv(len(WELCOME) - len(said))
        if not more:
            raise EOFError("it has ended the connection")
        said += more
    if said == REFUSAL:
        raise TokenRefused
    if said != WELCOME:
        raise EOFError("who listens there speaks another language")


def _trusting(ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca)
    # A certificate that is named is trusted, whatever its issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_TRUSTED_FIRST
    return context
