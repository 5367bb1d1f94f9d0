"""A client's sampler pool: threads that have the servers' sampling processes work for it at the same time."""

from __future__ import annotations

import threading
from multiprocessing.pool import ThreadPool

_lock = threading.Lock()
_pool: ThreadPool | None = None
_num_samplers = 0


def get_sampler_pool() -> tuple[ThreadPool | None, int]:
    """The pool that ``initialize`` made for a client, and its size; ``(None, size)`` where it made none.

    DGL's pool is one of processes that sample for a trainer. Here servers' processes do, and the pool is what asks several of them at
    a time: ``pool.map(loader.sample, lists_of_ids)``, ``pool.apply_async(loader.sample, (ids,))``. It has as many threads as
    ``GNNKIT_NUM_SAMPLERS`` says that a server has processes; none is made where that is 0 or not set, nor in standalone mode.
    """
    with _lock:
        return _pool, _num_samplers


def open_pool(num_samplers: int) -> None:
    """Makes the pool; one that is there is closed."""
    global _pool, _num_samplers
    close_pool()
    with _lock:
        _num_samplers = num_samplers
        _pool = ThreadPool(num_samplers) if num_samplers else None


def close_pool() -> None:
    """Ends the pool: what it has begun is finished, what waits is dropped."""
    global _pool, _num_samplers
    with _lock:
        pool, _pool, _num_samplers = _pool, None, 0
    if pool is not None:
        pool.terminate()
        pool.join()
