"""Whom a sampling process works for: the process that started it, and those that this one has let in."""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Iterator

from gnnkit.runtime.waker import Waker
from gnnkit.runtime.wire import Message, Wire

logger = logging.getLogger(__name__)

# The process that has started this one.
STARTER = 0
# The most messages taken from one process before the others have their turn.
_TURN = 64


class Clients:
    """The connections. ``send`` may be called from any thread, everything else from the main one.

    What a process does not read is kept for it, and nobody waits: one that is stopped keeps no other from its batches. How much that
    can be is bounded by what it has asked for.

    Args:
        starter: The connection to the process that has started this one.
    """

    def __init__(self, starter: Wire) -> None:
        self._wires: dict[int, Wire] = {STARTER: starter}
        self._waker = Waker()

    def admit(self, number: int, fd: int) -> None:
        """Takes a process in.

        Args:
            number: What it is known by.
            fd: A connected socket to it; taken over.
        """
        self._wires[number] = Wire(socket.socket(fileno=fd))

    def dismiss(self, number: int) -> None:
        """Ends the connection to a process, if there is one."""
        wire = self._wires.pop(number, None)
        if wire is not None:
            wire.close()

    def send(self, number: int, kind: str, fds: tuple[int, ...] = (), /, **body: object) -> None:
        """Sends a message to a process, now or once it reads; one that is gone gets nothing."""
        wire = self._wires.get(number)
        if wire is not None and not wire.send(kind, fds, **body):
            self._waker.wake()

    def listen(self, timeout_s: float) -> Iterator[tuple[int, Message | None]]:
        """Waits until something arrives or a message that was kept can be sent, and yields what has arrived, None from one that is gone."""
        self._wait(timeout_s)
        for number, wire in list(self._wires.items()):
            for _ in range(_TURN):
                if number not in self._wires:  # it was dismissed because of what it said
                    break
                message, gone = self._hear(number, wire)
                if message is None and not gone:
                    break
                yield number, message

    def _wait(self, timeout_s: float) -> None:
        poller = select.poll()
        for wire in self._wires.values():
            poller.register(wire.fileno(), select.POLLIN | (0 if wire.flush() else select.POLLOUT))
        self._waker.wait(poller, max(0.0, timeout_s))

    def _hear(self, number: int, wire: Wire) -> tuple[Message | None, bool]:
        """The next message of a process, and whether it is gone."""
        try:
            return wire.receive(), False
        except EOFError:
            return None, True
        except Exception:
            if number == STARTER:
                raise
            logger.warning("process %d says what nobody understands, and is dismissed", number, exc_info=True)
            return None, True
