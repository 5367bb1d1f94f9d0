"""Batches around single nodes, as a service asks for them while its users come: latency at a given rate, and how many there are at most.

Run by ``gnnkit.bench.tasks``.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.bench.kinds import make_loader
from gnnkit.loader.digest import batches_digest

# Threads that ask.
CALLERS = 8
_MICRO = 1e6


def serving(options: argparse.Namespace) -> dict[str, Any]:
    """Latency and throughput of ``loader.sample([id])`` in ``CALLERS`` threads.

    Latency is that of an open loop: requests come ``options.rate`` times a second in all, at random times (a Poisson process) and whether
    or not those before have been answered, and each counts from the time at which it came. Throughput is that of a closed loop: each
    thread asks as soon as it is answered. Every answer of the open loop is compared with what one thread alone gets.

    Raises:
        RuntimeError: An answer is another one.
    """
    rng = np.random.default_rng(0)
    with make_loader(options) as loader:
        (nodes,) = loader.schema.node_types.values()
        count = max(CALLERS, int(options.rate * options.seconds))
        ids = rng.integers(nodes.num_nodes, size=count)
        times = np.cumsum(rng.exponential(1 / options.rate, count))

        def ask(number: int) -> Any:
            return loader.sample([int(ids[number % count])], index=number % count)

        _ask_at_most(ask, options.settle)  # the copy of the graph in huge pages is in use after that
        answered, elapsed = _ask_at_most(ask, options.seconds)
        took, alone = ask_at(ask, times)
    p50, p99, longest = (float(value) * _MICRO for value in np.quantile(took, (0.5, 0.99, 1.0)))
    return {
        "p50_us": p50,
        "p99_us": p99,
        "longest_us": longest,
        "alone_p50_us": float(np.median(alone)) * _MICRO,
        "answers": count,
        "answers_per_s": answered / elapsed,
    }


def _ask_at_most(ask: Callable[[int], Any], seconds: float) -> tuple[int, float]:
    """Has every caller ask as soon as it is answered; how many answers there were, and in how many seconds."""
    numbers, begin = itertools.count(), time.perf_counter()

    def call() -> int:
        answered = 0
        while time.perf_counter() - begin < seconds:
            ask(next(numbers))
            answered += 1
        return answered

    return sum(_in_callers(call)), time.perf_counter() - begin


def ask_at(ask: Callable[[int], Any], times: Iterable[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Has callers ask at the given times, and one thread alone afterwards.

    Args:
        ask: Returns the batch that answers a question's number.
        times: When each is due, in seconds from now.

    Returns:
        An answer's seconds since it was due, and the seconds that it takes alone, by number.

    Raises:
        RuntimeError: Alone, an answer is another one.
    """
    due, lock, begin = list(times), threading.Lock(), time.perf_counter()
    numbers = iter(range(len(due)))
    took, digests = np.empty(len(due)), [""] * len(due)

    def call() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            asked = begin + due[number]
            time.sleep(max(0.0, asked - time.perf_counter()))
            answer = ask(number)
            took[number] = time.perf_counter() - asked
            digests[number] = batches_digest([answer])

    _in_callers(call)
    alone = np.empty(len(due))
    for number, digest in enumerate(digests):
        begin = time.perf_counter()
        answer = ask(number)
        alone[number] = time.perf_counter() - begin
        if batches_digest([answer]) != digest:
            raise RuntimeError(f"the answer to question {number} is another one where {CALLERS} threads ask")
    return took, alone


def _in_callers(call: Callable[[], Any]) -> list[Any]:
    """Returns what a function gives in each of the threads that ask."""
    with ThreadPoolExecutor(CALLERS) as pool:
        return [future.result() for future in [pool.submit(call) for _ in range(CALLERS)]]
