"""Reading ahead in threads: decompression, parsing and the consumer's own work overlap, in bounded memory and in order."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def overlap(items: Iterable[T], work: Callable[[T], R], *, num_threads: int = 2, depth: int = 4) -> Generator[R, None, None]:
    """Yields ``work(item)`` for every item, in order, with items and work running ahead in threads.

    ``items`` is drawn in a thread of its own, so it may block or compute; ``work`` runs on ``num_threads`` threads. At most
    ``depth`` results exist that the consumer has not seen. What ``items`` or ``work`` raise is raised here, in its place.
    Closing the iterator (or dropping it) ends its threads before it returns.
    """
    slots = threading.Semaphore(depth)
    results: queue.SimpleQueue[Future[R] | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="gnnkit-read")

    def feed() -> None:
        try:
            for item in items:
                slots.acquire()
                if stop.is_set():
                    return
                results.put(pool.submit(work, item))
            results.put(None)
        except BaseException as error:  # handed over whole: the consumer raises it
            results.put(error)
        finally:
            # A generator that is left half-way closes its files here, in the thread that ran it.
            getattr(items, "close", _nothing)()

    feeder = threading.Thread(target=feed, name="gnnkit-feed", daemon=True)
    try:
        feeder.start()  # which waits for it, so that an interrupt may come here too
        while (result := results.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            yield result.result()
            slots.release()
    finally:
        stop.set()
        slots.release()
        with contextlib.suppress(RuntimeError):  # it was about to start
            feeder.join()
        pool.shutdown(cancel_futures=True)


def read_ahead(items: Iterable[T], *, depth: int = 4) -> Generator[T, None, None]:
    """Yields ``items``, drawn ahead in a thread; otherwise as ``overlap``."""
    return overlap(items, _same, num_threads=1, depth=depth)


def _nothing() -> None:
    return None


def _same(item: T) -> T:
    return item
