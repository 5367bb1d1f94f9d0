"""Ray's driver, as the process sees it that has asked for a build: started, listened to, ended; and functions that it has nodes call."""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from gnnkit.errors import PlanError, WorkerDied
from gnnkit.events import Event, EventSink, ignore_events
from gnnkit.ray.cluster import RayCluster
from gnnkit.ray.job import driver_environment, driver_options
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import new_run
from gnnkit.runtime.supervisor import Exit, Supervisor
from gnnkit.runtime.wire import Message, Waker, from_memory, in_memory
from gnnkit.waiting import SLICE_S

# That Ray may take to be there.
START_S = 600.0
T = TypeVar("T")
D = TypeVar("D", bound="DriverChild")


class DriverChild:
    """Ray's driver, for a ``with`` block; it ends with the block, and whatever it had running on the cluster.

    Args:
        engine: The cluster.
        advice: What to do when it is gone.
    """

    def __init__(self, engine: RayCluster, advice: str) -> None:
        self._engine, self._advice = engine, advice
        # Messages that have arrived and were not asked for yet.
        self._said = deque[Message]()

    def __enter__(self: D) -> D:
        self._waker = Waker()
        options = driver_options(driver_environment(self._engine), self._advice)
        self._supervisor = Supervisor(options, new_run(None, {"engine": "ray"}, "build"), lambda child: None)
        try:
            self._supervisor.start_missing()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._supervisor.stop()

    def send(self, kind: str, value: bytes) -> None:
        """Has the driver join the cluster, if it has not, and do something with a pickled object."""
        fd = in_memory(value)
        try:
            self._supervisor.send(0, kind, (fd,), engine=self._engine.to_json(), timeout_s=START_S)
        finally:
            os.close(fd)

    def say(self, kind: str) -> None:
        """Tells the driver something."""
        self._supervisor.send(0, kind)

    def hear(self, kind: str, events: EventSink = ignore_events) -> Message:
        """Waits for a message. Ray itself has deadlines for joining, and says when no node is left.

        Args:
            kind: Its kind.
            events: Receives the driver's progress until then.

        Raises:
            GnnkitError: What the driver has failed of.
            WorkerDied: It is gone.
        """
        while True:
            while self._said:
                message = self._said.popleft()
                if message.kind == kind:
                    return message
                if message.kind == "progress":
                    events(Event(**message.body["event"]))
                elif message.kind == "lost":
                    raise error_from_json(message.body["error"], "Ray", WorkerDied)
            self._waker.wait(self._supervisor.poller(), SLICE_S)
            for _, said in self._supervisor.listen():
                if isinstance(said, Exit):
                    raise said.error
                self._said.append(said)


class RayTasks(DriverChild):
    """Functions that nodes of a cluster call; see ``gnnkit.datasets.tables.hosts.HostTasks``."""

    def map(self, function: Callable[..., T], shared: Any, calls: Sequence[tuple[tuple[Any, ...], int]]) -> Iterator[tuple[int, str, T]]:
        """Yields the number of each call, the node that made it, and its result, as they end.

        Raises:
            GnnkitError: What a function raises.
            PlanError: Something cannot be sent.
            WorkerDied: The driver, or every node, is gone.
        """
        if not calls:
            return
        try:
            task = pickle.dumps((function, shared, list(calls)))
        except Exception as error:  # whatever an object raises that will not be pickled
            raise PlanError(f"the tables cannot be sent to other processes: {type(error).__name__}: {error}") from error
        self.send("calls", task)
        for _ in calls:
            message = self.hear("called")
            number, node, value = pickle.loads(from_memory(message.fds.pop()))
            yield number, node, value
