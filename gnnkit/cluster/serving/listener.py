"""A server's Unix socket: its place in a folder, and who is let in."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gnnkit.cluster.network.codec import PROTOCOL_VERSION
from gnnkit.cluster.network.gate import BACKLOG, MOST_SAID, AccessGate, Pending
from gnnkit.errors import GnnkitError, PlanError, on_error
from gnnkit.files import give_up_lock, os_errors, take_lock, user_path
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.runs import checked_folder
from gnnkit.runtime.wire import Wire

logger = logging.getLogger(__name__)


def socket_name(rank: int) -> str:
    """The name of a server's socket in its folder."""
    return f"server-{rank}.sock"


def _lock_name(rank: int) -> str:
    return f"server-{rank}.lock"


def own_folder(folder: str) -> Path:
    """Makes a folder for sockets that a user has named, or takes the one that is there.

    Raises:
        PlanError: It cannot be made or written, or is not this user's alone.
    """
    path = user_path(folder)
    with os_errors(f"the folder {folder!r} cannot be used for sockets", path, "give another one"):
        path = checked_folder(path)
    if path.stat().st_mode & 0o077:
        raise PlanError(f"the folder {folder!r} is open to other users", f"chmod 700 {path}")
    return path


def remove_sockets(folder: Path, ranks: Iterable[int]) -> None:
    """Removes what servers that were killed have left; those that live keep theirs."""
    for rank in ranks:
        with contextlib.suppress(OSError):
            if (lock := take_lock(folder / _lock_name(rank))) is not None:
                (folder / socket_name(rank)).unlink(missing_ok=True)
                give_up_lock(folder / _lock_name(rank), lock)


class ClientListener(AccessGate):
    """Listens at ``<folder>/server-<rank>.sock``.

    Args:
        folder: A folder of this user's own.
        rank: The server's number.
        token: What pending connections have to know.
        enter: Called with the connection of a client that may come in, and with its first message; in the gate's thread.

    Raises:
        PlanError: Another process serves there, or the socket cannot be made.
    """

    def __init__(self, folder: Path, rank: int, token: str, enter: Callable[[Wire, Mapping[str, Any]], None]) -> None:
        self._rank, self._token, self._enter = rank, token.encode(), enter
        self.path = folder / socket_name(rank)
        with os_errors(f"server {rank} cannot listen at {self.path}", self.path, "give another folder"):
            lock = take_lock(folder / _lock_name(rank))  # the lock's owner makes and removes the socket
            if lock is None:
                raise PlanError(f"another process is server {rank} at {folder}", "give another folder or rank, or end it")
            self._lock_fd = lock
            # Through a descriptor of its folder: the path itself may be longer than an address can be.
            self._folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            super().__init__(self._listen())

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        with on_error(listener.close):
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            listener.bind(f"/proc/self/fd/{self._folder_fd}/{self.path.name}")
            self.path.chmod(0o600)
            listener.listen(BACKLOG)
        return listener

    def _may_speak(self, end: socket.socket) -> bool:
        _, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if uid != os.geteuid():
            logger.warning("a process of user %d was sent away", uid)
        return bool(uid == os.geteuid())

    def _hear(self, pending: Pending) -> None:
        """Reads a pending connection's first message, and accepts, refuses or closes the connection by it."""
        try:
            said = pending.end.recv(MOST_SAID)  # without room for descriptors, which the system then closes
        except BlockingIOError:  # nothing but a wink
            return
        except OSError:
            self._send_away(pending)
            return
        body = _understood(said)
        if body is None:
            self._send_away(pending)
            return
        wire = Wire(self._take_out(pending))
        try:
            # Half of a surrogate pair is text to JSON.
            if not hmac.compare_digest(str(body.get("token", "")).encode("utf-8", "surrogatepass"), self._token):
                raise PlanError(
                    f"server {self._rank} refused the token", "give the servers' token: it is in the file 'token' in their folder"
                )
            if body.get("version") != PROTOCOL_VERSION:
                raise PlanError(
                    f"server {self._rank} speaks version {PROTOCOL_VERSION} to its clients, and this one {body.get('version')!r}",
                    "install the same version of gnnkit on both sides",
                )
        except GnnkitError as error:
            logger.warning("a client was refused: %s", error.message)
            wire.send("refused", error=error_to_json(error))
            wire.close()
            return
        self._enter(wire, body)

    def close(self) -> None:
        """Accepts no more clients."""
        super().close()
        with contextlib.suppress(OSError):
            self.path.unlink()
        give_up_lock(self.path.with_name(_lock_name(self._rank)), self._lock_fd)
        os.close(self._folder_fd)


def _understood(said: bytes) -> dict[str, Any] | None:
    """Returns the body of a pending connection's first message; None where it is no request to join."""
    try:
        body = json.loads(said)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) and body.get("kind") == "join" else None
