"""Calls of servers that are answered by number, whichever way they go: over a server's Unix socket, or by way of the network child."""

from __future__ import annotations

import itertools
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gnnkit.cluster.network.codec import decode, send_value
from gnnkit.errors import BatchTimeout, GnnkitError
from gnnkit.runtime.remote import error_from_json, error_to_json
from gnnkit.runtime.waiters import Waiters
from gnnkit.runtime.wire import Handed, Message
from gnnkit.waiting import Deadline


class Calls:
    """The client's end of a conversation whose calls are answered by number; several threads may call at a time, and one reads for all."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._waiters = Waiters(self._lock)
        self._answers: dict[int, Message | None] = {}
        self._ended: GnnkitError | None = None

    def _send(self, kind: str, fds: Handed = (), /, **body: Any) -> None:
        """Sends a message."""
        raise NotImplementedError

    def _poller(self) -> select.poll:
        """Returns a poll object that wakes when something arrives. Called under the lock, before the end."""
        raise NotImplementedError

    def _arrived(self) -> Iterator[Message]:
        """Yields what has arrived; calls ``_end`` once nothing will any more. Called under the lock, before the end."""
        raise NotImplementedError

    def _ask(self, server: int, name: str, args: Any, deadline: Deadline, late: Callable[[], str], **body: Any) -> Any:
        """Makes a call, and waits for its answer.

        Args:
            server: The server that answers.
            name: What is called; see ``gnnkit.cluster.serving.server_api``.
            args: A value of ``gnnkit.cluster.network.codec``.
            deadline: The end of the wait.
            late: Says that it has passed.
            body: What else the message says.

        Raises:
            BatchTimeout: It was not answered in time.
            GnnkitError: What the call ended with, or the conversation.
        """
        number = next(self._numbers)

        def look() -> Message | float:
            self._read()
            if (answer := self._answers[number]) is not None:
                return answer
            if self._ended is not None:
                raise self._ended
            if deadline.has_passed:
                raise BatchTimeout(late())
            return deadline.left_s

        try:
            with self._lock:
                if self._ended is not None:
                    raise self._ended
                self._answers[number] = None
            send_value(self._send, "call", "args", args, number=number, name=name, **body)
            message = self._waiters.until(look, lambda: self._ended is not None or self._answers.get(number) is not None, self._poller)
        finally:
            with self._lock:
                self._answers.pop(number, None)
        if "error" in message.body:
            message.close()
            raise error_from_json(message.body["error"], f"the call {name!r} of server {server}")
        return decode(message.body["value"], message.fds)

    def _read(self) -> None:
        """Sorts the answers that have arrived, and wakes the threads that wait for them."""
        for message in self._arrived() if self._ended is None else ():
            number = message.body.get("number", -1)
            if number in self._answers:
                self._answers[number] = message
            else:  # the thread that asked has given up
                message.close()
        self._waiters.ring()

    def _end(self, error: GnnkitError) -> None:
        """Ends every call that is under way or comes, unless they have been ended already."""
        with self._lock:
            self._ended = self._ended or error
            self._waiters.ring()


def send_answer(send: Callable[..., Any], number: int, value: Any) -> None:
    """Answers a call with a value, or with an error, which one that cannot be sent is, too: one client's trouble, not the server's.

    Args:
        send: ``Wire.send`` or the like.
        number: The call's.
        value: The value, or the error.
    """
    if not isinstance(value, BaseException):
        try:
            send_value(send, "answer", "value", value, number=number)
            return
        except (GnnkitError, OSError, MemoryError) as error:
            value = error
    send("answer", number=number, error=error_to_json(value))
