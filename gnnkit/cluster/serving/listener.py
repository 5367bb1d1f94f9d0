"""A server's Unix socket: who comes in, and who does not.

The token is compared before anything else that a visitor says is looked at, and no descriptor of his is taken. Whoever says nothing for
a while, or something else, is sent away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.errors import GnnkitError, PlanError
from gnnkit.runtime.registry import checked_folder
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.wire import Wire

logger = logging.getLogger(__name__)

# Changes with the meaning of the messages between a server and its clients.
DOOR_VERSION = 1
# A visitor has so long to say who he is, and so much room for it.
_PATIENCE_S, _MOST_SAID = 5.0, 4096
# The most visitors that are waited for; the one who has been there longest makes room for another.
_MOST_VISITORS = 64
_BACKLOG = 128
# Where no descriptor is left, nobody is let in for so long.
_DEAF_S = 0.2


def socket_name(rank: int) -> str:
    """The name of a server's socket in its folder."""
    return f"server-{rank}.sock"


def own_folder(folder: str) -> Path:
    """Makes a folder for sockets that a user has named, or takes the one that is there.

    Raises:
        PlanError: It cannot be made or written, or is not this user's alone.
    """
    path = Path(folder).expanduser().absolute()
    try:
        path = checked_folder(path)
    except OSError as error:
        raise PlanError(f"the folder {folder!r} cannot be used for sockets: {error.strerror or error}", "give another one") from error
    if path.stat().st_mode & 0o077:
        raise PlanError(f"the folder {folder!r} is open to other users", f"chmod 700 {path}")
    return path


def take_place(folder: Path, rank: int) -> int | None:
    """Takes a server's place in a folder: its socket is for whoever has it to make and to remove.

    Returns:
        A descriptor that holds the place until it is closed; None where another process has it.

    Raises:
        OSError: The folder cannot be written.
    """
    fd = os.open(folder / f"server-{rank}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def remove_sockets(folder: Path, ranks: Iterable[int]) -> None:
    """Removes what servers that were killed have left; those that live, whoever has started them, keep theirs."""
    for rank in ranks:
        with contextlib.suppress(OSError):
            fd = take_place(folder, rank)
            if fd is not None:
                (folder / socket_name(rank)).unlink(missing_ok=True)
                os.close(fd)


@dataclass(frozen=True)
class PendingConnection:
    """Somebody who has connected and not said who he is.

    Attributes:
        end: The connection.
        until: ``time.monotonic()`` when he is sent away.
    """

    end: socket.socket
    until: float


class ClientListener:
    """Listens at ``<folder>/server-<rank>.sock``.

    Args:
        folder: A folder of this user's own.
        rank: The server's number.
        token: What visitors have to know.
        enter: Called with the connection of a visitor who may come in, and with what he has said.

    Raises:
        PlanError: Another process serves there, or the socket cannot be made.
    """

    def __init__(self, folder: Path, rank: int, token: str, enter: Callable[[Wire, Mapping[str, Any]], None]) -> None:
        self._rank, self._token, self._enter = rank, token.encode(), enter
        self._visitors: dict[int, PendingConnection] = {}
        self._deaf_until = 0.0
        self.path = folder / socket_name(rank)
        try:
            place = take_place(folder, rank)
            if place is None:
                raise PlanError(f"another process is server {rank} at {folder}", "give another folder or rank, or end it")
            self._lock_fd = place
            # Through a descriptor of its folder: the path itself may be longer than an address can be.
            self._folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            self._listener = self._listen()
        except OSError as error:
            raise PlanError(f"server {rank} cannot listen at {self.path}: {error.strerror or error}", "give another folder") from error

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            listener.bind(f"/proc/self/fd/{self._folder_fd}/{self.path.name}")
            self.path.chmod(0o600)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def filenos(self) -> list[int]:
        """What to wait on until somebody comes or speaks."""
        listening = [] if time.monotonic() < self._deaf_until else [self._listener.fileno()]
        return [*listening, *self._visitors]

    @property
    def wait_s(self) -> float | None:
        """Seconds until somebody has to be sent away or may come again; None while there is nobody."""
        moments = [visitor.until for visitor in self._visitors.values()]
        moments += [self._deaf_until] if time.monotonic() < self._deaf_until else []
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def attend(self, ready: set[int]) -> None:
        """Lets people in, and sends people away.

        Args:
            ready: Descriptors of ``filenos`` on which something has happened.
        """
        for fd in ready & set(self._visitors):
            self._hear(self._visitors.pop(fd).end)
        now = time.monotonic()
        for fd in [fd for fd, visitor in self._visitors.items() if visitor.until <= now]:
            self._visitors.pop(fd).end.close()
        if self._listener.fileno() in ready:
            self._accept()

    def _accept(self) -> None:
        for _ in range(_MOST_VISITORS):
            try:
                end, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning("nobody can be let in: %s", error)
                    self._deaf_until = time.monotonic() + _DEAF_S
                return
            end.setblocking(False)
            _, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
            if uid != os.geteuid():
                logger.warning("a process of user %d was sent away", uid)
                end.close()
                continue
            if len(self._visitors) >= _MOST_VISITORS:
                self._visitors.pop(next(iter(self._visitors))).end.close()
            self._visitors[end.fileno()] = PendingConnection(end, time.monotonic() + _PATIENCE_S)

    def _hear(self, end: socket.socket) -> None:
        """What a visitor says first decides."""
        try:
            said = end.recv(_MOST_SAID)  # without room for descriptors, which the system then closes
        except BlockingIOError:  # nothing but a wink
            self._visitors[end.fileno()] = PendingConnection(end, time.monotonic() + _PATIENCE_S)
            return
        except OSError:
            end.close()
            return
        body = _understood(said)
        if body is None:
            end.close()
            return
        wire = Wire(end)
        try:
            # Half of a surrogate pair is text to JSON.
            if not hmac.compare_digest(str(body.get("token", "")).encode("utf-8", "surrogatepass"), self._token):
                raise PlanError(
                    f"server {self._rank} refused the token", "give the servers' token: it is in the file 'token' in their folder"
                )
            if body.get("version") != DOOR_VERSION:
                raise PlanError(
                    f"server {self._rank} speaks version {DOOR_VERSION} to its clients, and this one {body.get('version')!r}",
                    "install the same version of gnnkit on both sides",
                )
        except GnnkitError as error:
            logger.warning("a client was refused: %s", error.message)
            wire.send("refused", error=error_to_json(error))
            wire.close()
            return
        self._enter(wire, body)

    def close(self) -> None:
        """Lets nobody in any more."""
        for visitor in self._visitors.values():
            visitor.end.close()
        self._visitors.clear()
        self._listener.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._lock_fd)
        os.close(self._folder_fd)


def _understood(said: bytes) -> dict[str, Any] | None:
    """What a visitor has said, if it is what it has to be."""
    try:
        body = json.loads(said)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) and body.get("kind") == "join" else None
