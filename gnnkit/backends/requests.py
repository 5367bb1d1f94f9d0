"""Batches outside an epoch that somebody waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gnnkit.errors import GnnkitError
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.wire import Message

# In place of a process's number.
NOBODY = -1


@dataclass
class _Request:
    rank: int
    answer: Message | GnnkitError | Literal["again"] | None = None


class Requests:
    """Who was asked for what, and what came back. Only the stream's lock's holder may use it."""

    def __init__(self) -> None:
        self._open: dict[int, _Request] = {}
        self._last = 0

    def begin(self) -> int:
        """A new request, which nobody has been sent; its number."""
        self._last += 1
        self._open[self._last] = _Request(NOBODY)
        return self._last

    def rank_of(self, number: int) -> int:
        """Who is asked; ``NOBODY`` before ``ask``."""
        return self._open[number].rank

    def ask(self, number: int, rank: int) -> None:
        """Books who is asked."""
        self._open[number].rank = rank

    def answer(self, number: int, message: Message) -> None:
        """Books an answer; one that nobody waits for any more is thrown away."""
        if number in self._open:
            self._open[number].answer = message
        else:
            message.close()

    def lost(self, rank: int | None, error: GnnkitError | None) -> None:
        """Books that a process (None: all) will not answer: because of an error, or because somebody else is to be asked."""
        for request in self._open.values():
            if request.rank == (request.rank if rank is None else rank) and request.answer is None:
                request.answer = "again" if error is None else error

    def result(self, number: int) -> Message | Literal["again"] | None:
        """What came back so far; "again" where the request is to be made again.

        Raises:
            GnnkitError: Nothing will.
        """
        request = self._open[number]
        answer = request.answer
        if isinstance(answer, GnnkitError):
            raise fresh(answer)
        if isinstance(answer, Message):
            request.answer = None  # it is the caller's
        return answer

    def end(self, number: int) -> None:
        """Forgets a request, and throws away an answer that nobody took."""
        request = self._open.pop(number, None)
        if request is not None and isinstance(request.answer, Message):
            request.answer.close()
