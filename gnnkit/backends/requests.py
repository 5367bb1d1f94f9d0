"""Batches outside an epoch that somebody waits for."""

from __future__ import annotations

from dataclasses import dataclass

from gnnkit.errors import GnnkitError
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.wire import Message


@dataclass
class _Request:
    rank: int
    answer: Message | GnnkitError | None = None


class Requests:
    """Who was asked for what, and what came back. Only the stream's lock's holder may use it."""

    def __init__(self) -> None:
        self._open: dict[int, _Request] = {}
        self._last = 0

    def begin(self, rank: int) -> int:
        """A new request to a process; its number."""
        self._last += 1
        self._open[self._last] = _Request(rank)
        return self._last

    def answer(self, number: int, message: Message) -> None:
        """Books an answer; one that nobody waits for any more is thrown away."""
        if number in self._open:
            self._open[number].answer = message
        else:
            message.close()

    def lost(self, rank: int, error: GnnkitError) -> None:
        """Books that a process will not answer."""
        for request in self._open.values():
            if request.rank == rank and request.answer is None:
                request.answer = error

    def result(self, number: int) -> Message | None:
        """What came back so far.

        Raises:
            GnnkitError: Nothing will.
        """
        answer = self._open[number].answer
        if isinstance(answer, GnnkitError):
            raise fresh(answer)
        return answer

    def end(self, number: int) -> None:
        """Forgets a request."""
        self._open.pop(number, None)
