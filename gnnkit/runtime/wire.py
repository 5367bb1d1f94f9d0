"""Messages between processes of this host: JSON over Unix sockets, memory by descriptor; and what ends a wait for them."""

from __future__ import annotations

import array
import contextlib
import errno
import io
import json
import os
import select
import socket
import stat
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gnnkit.errors import PlanError, on_error
from gnnkit.host import available_memory, needed_by_processes
from gnnkit.waiting import is_ready

# Memory of a message up to here is read without asking how much is free, which takes longer than reading it.
_SMALL_BYTES = 1 << 26
# Descriptors, or the content of memory, that go with a message.
Handed: TypeAlias = Sequence["int | bytes | memoryview"]


class Waker:
    """Ends a thread's wait for file descriptors, from any thread.

    Attributes:
        fd: An event's descriptor, closed with this object.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "fd"):  # there was a descriptor left
            os.close(self.fd)

    def wake(self) -> None:
        """Ends the wait that there is, or else the next one."""
        os.eventfd_write(self.fd, 1)

    def hush(self) -> None:
        """Takes it back: the next wait is not ended."""
        with contextlib.suppress(BlockingIOError):  # it was not woken
            os.eventfd_read(self.fd)

    def wait(self, poller: select.poll, timeout_s: float | None = None) -> dict[int, int]:
        """Waits until something happens to what a poller watches, or ``wake`` is called.

        Args:
            poller: What else is waited for.
            timeout_s: Most seconds to wait; None waits for as long as it takes.

        Returns:
            ``{file descriptor: what has happened to it}``.
        """
        poller.register(self.fd, select.POLLIN)
        ready = dict(poller.poll(None if timeout_s is None else timeout_s * 1000))
        if ready.pop(self.fd, None) is not None:
            self.hush()
        return ready


# The longest wait of a background process for the one that it works for: that reads or says nothing for so long while it is stopped or in
# one long step; its end is noticed at once.
PARENT_WAIT_S = 3600.0
# A datagram that is larger does not fit every system's socket buffer; its text then travels in memory of its own.
_MOST_INLINE = 32 << 10
_MOST_FDS = 8
# What one ``recvmsg`` takes: bytes of text and of descriptors, and its flags.
_MOST_RECEIVED = _MOST_INLINE, socket.CMSG_SPACE(4 * _MOST_FDS), int(socket.MSG_CMSG_CLOEXEC)
_IS_CUT = int(socket.MSG_CTRUNC)  # the enum's operators are slow
# Made once, and not for each message.
_encode, _decode = json.JSONEncoder(separators=(",", ":")).encode, json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class Message:
    """A message that has arrived.

    Attributes:
        kind: Its kind, a word.
        body: JSON values.
        fds: Descriptors that came with it; the receiver owns them.
    """

    kind: str
    body: Mapping[str, Any]
    fds: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Closes the descriptors that were not taken out of the message."""
        while self.fds:
            os.close(self.fds.pop())


class Wire:
    """One end of the pair.

    Args:
        end: A connected SOCK_SEQPACKET socket; taken over.

    ``send`` may be called from several threads; ``receive`` from one at a time.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)
        self._lock = threading.Lock()
        self._unsent: deque[tuple[bytes, list[int]]] = deque()

    @classmethod
    def pair(cls) -> tuple[Wire, socket.socket]:
        """This process's end, and the socket for a child.

        Raises:
            PlanError: The system does not allow such sockets.
        """
        with needed_by_processes("Unix sockets of the kind SOCK_SEQPACKET"):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    def fileno(self) -> int:
        """The descriptor, -1 once closed."""
        return self._end.fileno()

    def send(self, kind: str, fds: Handed = (), /, **body: Any) -> bool:
        """Sends a message, or keeps it for ``flush`` while the other side does not read; a side that is gone gets nothing.

        Args:
            kind: Its kind, a word.
            fds: Descriptors to go with it, duplicated: the caller keeps its own; or what memory is to hold that goes with it.
            **body: JSON values.

        Returns:
            Whether nothing is kept.
        """
        text = _encode({"kind": kind, **body}).encode()
        handed = [os.dup(own) if isinstance(own, int) else in_memory(own) for own in fds]
        if len(text) > _MOST_INLINE:
            handed.insert(0, in_memory(text))
            text = b""
        with self._lock:
            self._unsent.append((text, handed))
            return self._flush()

    def register(self, poller: select.poll) -> None:
        """Has a poll object wake when something arrives, the end of the connection included, or more can be sent of what was kept."""
        fd = self._end.fileno()
        if fd >= 0:
            poller.register(fd, select.POLLIN | (select.POLLOUT if self._unsent and not self.flush() else 0))

    def flush(self) -> bool:
        """Sends what was kept; whether nothing is left."""
        if not self._unsent:
            return True
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        while self._unsent:
            text, fds = self._unsent[0]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                self._end.sendmsg([text or b"\0"], ancillary, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except OSError:  # the other side is gone, or this one was closed; the next ``receive`` finds out
                pass
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)
        return True

    def send_all(self, timeout_s: float) -> bool:
        """Waits until everything is sent; whether it is."""
        while not self.flush():  # a wire that another thread has closed has thrown away what was unsent
            if not self.wait(timeout_s, select.POLLOUT):
                return False
        return True

    def receive(self) -> Message | None:
        """The next message that has arrived; None while there is none. First sends what was kept.

        Raises:
            EOFError: The other side is gone, and everything that it sent has been received.
            PlanError: The descriptors that came with it do not fit this process's limit, or what has arrived is no message; it is lost.
        """
        if self._unsent:
            self.flush()
        try:
            try:
                text, ancillary, flags, _ = self._end.recvmsg(*_MOST_RECEIVED)
            except ConnectionResetError:
                # The other side has ended without having read everything. The system says so once, before it hands out what that side sent.
                text, ancillary, flags, _ = self._end.recvmsg(*_MOST_RECEIVED)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError("the connection is closed") from error
        if not text:
            raise EOFError("the other side is gone")
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        handed = fds.tolist()
        if flags & _IS_CUT:  # the system has closed what there was no descriptor for
            for fd in handed:
                os.close(fd)
            raise PlanError(
                "this process has no file descriptor left for a batch from a sampling process",
                "raise the limit (ulimit -n 4096), or close files and drop batches that are not used any more",
            )
        try:
            return _understood(text, handed)
        except BaseException:
            for fd in handed:
                os.close(fd)
            raise

    def next(self) -> Message:
        """The next message, for a process that has nothing to do before it has come.

        Raises:
            EOFError: See ``receive``; it is noticed at once.
            PlanError: See ``receive``.
        """
        while (message := self.receive()) is None:
            self.wait(PARENT_WAIT_S)
        return message

    def hear(self, timeout_s: float) -> Message | None:
        """Waits for a message, None where none comes in time; the end of the other side is its "stop"."""
        self.wait(timeout_s)
        with contextlib.suppress(EOFError):
            return self.receive()
        return Message("stop", {})

    def tell(self, kind: str, fds: Handed = (), /, **body: Any) -> None:
        """Sends a message and waits until it is sent; see ``send``."""
        self.send(kind, fds, **body)
        self.send_all(PARENT_WAIT_S)

    def messages(self, most: int) -> Iterator[Message]:
        """Yields what has arrived, at most so many messages, so that other connections have their turn.

        Raises:
            EOFError: See ``receive``.
            PlanError: See ``receive``.
        """
        for _ in range(most):
            if (message := self.receive()) is None:
                return
            yield message

    def wait(self, timeout_s: float, events: int = select.POLLIN) -> bool:
        """Waits for something to receive, the end of the connection included, or for other ``events`` of poll(2)."""
        fd = self._end.fileno()
        return fd < 0 or is_ready(fd, timeout_s, events)  # below 0: another thread has closed it

    def detach(self) -> None:
        """Closes this process's descriptor; the connection stays that of the process that this one was forked from."""
        self._end.close()

    def close(self) -> None:
        """Ends the connection."""
        with self._lock:
            while self._unsent:
                for fd in self._unsent.popleft()[1]:
                    os.close(fd)
            with contextlib.suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)
            self._end.close()


def _understood(text: bytes, fds: list[int]) -> Message:
    """Makes a message of text and descriptors that have arrived.

    Raises:
        PlanError: They are no message.
    """
    try:
        if text == b"\0":
            text = from_memory(fds.pop(0))
        said = text.decode()
        body, end = _decode(said)
        if end < len(said):
            raise ValueError(f"{len(said) - end} characters follow")
        kind = body.pop("kind")
    except (AttributeError, LookupError, OSError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise PlanError(f"what another process says is no message: {type(error).__name__}: {error}") from error
    if not isinstance(kind, str):
        raise PlanError(f"what another process says is no message: its kind is {str(kind)[:100]}")
    return Message(kind, body, fds)


def in_memory(data: bytes | memoryview) -> int:
    """A descriptor of memory that holds ``data``; the caller owns it."""
    with needed_by_processes("memfd_create"):
        fd = os.memfd_create("gnnkit-message", os.MFD_CLOEXEC)
    view, done = memoryview(data).cast("B"), 0
    with on_error(lambda: os.close(fd)):
        while done < len(view):
            done += os.write(fd, view[done:])
    return fd


def from_memory(fd: int) -> bytes:
    """Reads the content of a descriptor of ``in_memory`` and closes it.

    Raises:
        OSError: It is that of a device or a pipe, or holds more than half of the memory that is free: it is none of ``in_memory``.
    """
    with on_error(lambda: os.close(fd)):
        status = os.fstat(fd)
        is_too_large = status.st_size > _SMALL_BYTES and status.st_size > available_memory() // 2
        if is_too_large or not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"a descriptor of {status.st_size} bytes and mode {status.st_mode:o} is no memory of a message")
    with io.FileIO(fd) as file:  # without a buffer: it is read at once
        file.seek(0)
        return file.readall()
