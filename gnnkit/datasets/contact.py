"""The waits of a download: the network is waited for in threads, so that the thread that downloads looks up every moment.

A wait that has no end of its own does not do. An interrupt that comes just before it begins, in the main thread, is noticed only when
it is over: after half a minute, where a server stalls.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from gnnkit.waiting import SLICE_S, begin_apart, is_done

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")

# Pieces of a body that may have come and not been taken yet, of 64 KiB at most.
_MOST_PIECES = 16
# A connection that was shut down lets go of its reader at once.
_FAREWELL_S = 1.0


def pause(seconds: float) -> None:
    """Lets time pass."""
    is_done(Future[None](), seconds)


def within(seconds: float, work: Callable[[], R]) -> R:
    """Does ``work`` in a thread and leaves it there if it takes too long: name resolution, for one, knows no time-out.

    Raises:
        TimeoutError: It took longer than ``seconds``.
    """
    outcome = begin_apart(work, "gnnkit-contact", daemon=True)
    if not is_done(outcome, seconds):
        raise TimeoutError
    return outcome.result()


def pieces_of(response: httpx.Response) -> Generator[bytes, None, None]:
    """Yields a body in the pieces in which it comes: a chunk that is waited for would be lost in a cut.

    Close it before the response, if not all of it was taken: it ends the thread that reads.

    Args:
        response: One that streams; its own time-out ends the wait for a server that stalls.

    Raises:
        httpx.TransportError: The connection broke, or the server stalls.
    """
    came: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
    permits: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def read() -> None:
        try:
            for data in response.iter_raw():
                came.put(data)
                if not permits.get():
                    return
            came.put(None)
        except BaseException as error:  # handed over: the caller raises it
            came.put(error)

    for _ in range(_MOST_PIECES - 1):
        permits.put(True)
    reader = threading.Thread(target=read, name="gnnkit-download", daemon=True)
    is_over = False
    try:
        reader.start()  # which waits for it, so that an interrupt may come here too
        while True:
            piece = _take(came)
            is_over = piece is None or isinstance(piece, BaseException)
            if piece is None:
                return
            if isinstance(piece, BaseException):
                raise piece
            yield piece
            permits.put(True)
    finally:
        if not is_over:
            permits.put(False)
            _shut_down(response)
            with contextlib.suppress(RuntimeError):  # it was about to start
                reader.join(_FAREWELL_S)


def _take(results: queue.SimpleQueue[R]) -> R:
    while True:
        with contextlib.suppress(queue.Empty):
            return results.get(timeout=SLICE_S)


def _shut_down(response: httpx.Response) -> None:
    """Ends what the reader waits for. Closing would not: who reads from a descriptor that is closed goes on waiting."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if isinstance(connection, socket.socket):
        with contextlib.suppress(OSError):  # it has ended already
            connection.shutdown(socket.SHUT_RDWR)
