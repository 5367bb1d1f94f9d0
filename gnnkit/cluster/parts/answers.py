"""Answers from the parts of this host to other hosts: edges, facts about edges, and rows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.network.requests import answer_to_value, expand_from_args, picks_to_value, question_from_args, rows_from_args
from gnnkit.cluster.network.service import Stream
from gnnkit.cluster.network.wire import Kind
from gnnkit.errors import SamplingError
from gnnkit.host import available_cpus
from gnnkit.sampling.owned import PartOwner
from gnnkit.sampling.owners import Picks
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.arrays import GraphArrays

R = TypeVar("R")
T = TypeVar("T")

# Answers worked out at the same time, at most: this host's own sampling has the other processors.
_MOST_AT_ONCE = 16
# Longest wait for a processor. Turns last milliseconds, and clients have given their requests up by then.
_TURN_S = 600.0
_BUSY_HINT = "look at the load of the host that serves the parts"


class Turns:
    """Turns at the processors, in the order in which they were asked for; a context manager takes one.

    Args:
        count: How many are taken at a time, at most.
        timeout_s: Longest wait for one. A thread that has a turn gives it back in any case, so only its work can be late.
    """

    def __init__(self, count: int, timeout_s: float = _TURN_S) -> None:
        self._free, self._timeout_s, self._lock = count, timeout_s, threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            mine = threading.Event()
            self._waiting.append(mine)
        if not mine.wait(self._timeout_s):  # those before are in a piece of their work
            with self._lock:
                if not mine.is_set():
                    self._waiting.remove(mine)
                    raise SamplingError(f"no processor was free for the request within {self._timeout_s:g} s", _BUSY_HINT)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def pause(self) -> None:
        """Gives the turn to a waiting thread and takes another; for a thread that has one."""
        if self._waiting:
            self.__exit__()
            try:
                self.__enter__()
            except SamplingError:
                with self._lock:
                    self._free -= 1  # the block that has called gives a turn back at its end
                raise


class Answers:
    """Answers requests from the graph as it lies in memory now.

    Args:
        graph: The arrays.
        parts: The parts that may be asked about.
    """

    def __init__(self, graph: GraphArrays, parts: tuple[int, ...]) -> None:
        self._parts, self._lock = parts, threading.Lock()
        self._turns = Turns(max(1, min(_MOST_AT_ONCE, available_cpus() // 2)))
        self.use(graph)

    def use(self, graph: GraphArrays) -> None:
        """Moves over to another copy of the graph."""
        tables = {weighted: GraphTables(graph, weighted) for weighted in (False, True)}
        idle: dict[bool, list[PartOwner]] = {False: [], True: []}
        with self._lock:
            self._tables, self._idle = tables, idle

    def expand(self, **args: Any) -> dict[int, Any]:
        """Answers a request for edges."""
        request = expand_from_args(args)

        def value(picks: Mapping[int, Picks], tables: GraphTables) -> dict[int, Any]:
            num_edges = tables.row_bounds[len(tables.node_types) :, -1].tolist()
            return picks_to_value(picks, tables.relations[:, -1].tolist(), num_edges)

        return self._work(request.weighted, lambda owner: owner.expand(request), value)

    def question(self, **args: Any) -> dict[str, Any]:
        """Answers a question about edges."""
        question = question_from_args(args)
        return self._work(question.what == "weights", lambda owner: owner.answer(question), lambda answer, _: answer_to_value(answer))

    def rows(self, **args: Any) -> Stream:
        """Answers a request for rows, message by message."""
        request = rows_from_args(args)
        # The messages need none of the owner's memory.
        return Stream(self._messages(self._work(False, lambda owner: owner.rows(request), lambda messages, _: messages)), Kind.BLOCK)

    def _messages(self, messages: Iterator[NDArray[np.uint8]]) -> Generator[NDArray[np.uint8], None, None]:
        while True:
            with self._turns:  # not while a message is being sent: a slow reader holds no turn
                rows = next(messages, None)
            if rows is None:
                return
            yield rows

    def _work(self, weighted: bool, work: Callable[[PartOwner], T], value: Callable[[T, GraphTables], R]) -> R:
        """Does ``work`` in a turn and makes a value of what it found, with memory that is used again unless one of them fails."""
        with self._turns:
            with self._lock:
                tables, idle = self._tables[weighted], self._idle[weighted]
                owner = idle.pop() if idle else None
            owner = owner or PartOwner(tables, self._parts, self._turns.pause)
            found = work(owner)
        answer = value(found, tables)
        with self._lock:
            idle.append(owner)  # of no more use once the graph has moved
        return answer
