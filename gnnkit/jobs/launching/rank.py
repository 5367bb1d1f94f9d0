"""The work of a rank's process: it receives its function and its place, trains, reports its progress, and hands over its result."""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gnnkit.cluster.serving.spec import remember_token
from gnnkit.host import set_variables, without_collections
from gnnkit.jobs.context import LogLines
from gnnkit.jobs.environment import JobPlace
from gnnkit.jobs.launching.packing import pack_result, unpack_code
from gnnkit.jobs.running import Train, run_training
from gnnkit.loader.planned import open_store
from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.wire import PARENT_WAIT_S, Message, Wire, from_memory
from gnnkit.sampling.collate import load_batch_classes
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.graph_loader import GraphLoader
    from gnnkit.jobs.context import Logged, TrainContext
    from gnnkit.runtime.graph_memory import GraphHandle

logger = logging.getLogger(__name__)

# How often it tells how far it is, at most.
_TELL_S = 0.25


class RankTeller(ABC):
    """One rank's training, of which it tells the launching process: that it is in its function, how far it is, and its first error."""

    def __init__(self) -> None:
        self._loader: GraphLoader | None = None
        self._logged: Logged | None = None
        self._told: Mapping[str, Any] = {}
        self._tell_lock = threading.Lock()
        self._is_training = self._has_failed = False

    @abstractmethod
    def _say(self, kind: str, **body: Any) -> None:
        """Sends a message, and waits for nothing."""

    @abstractmethod
    def _say_error(self, error: BaseException) -> None:
        """Sends an error, and returns once it has arrived."""

    def _watched(self, train: Train) -> Train:
        """A train function whose beginning and whose error are told."""

        def call(loader: GraphLoader, ctx: TrainContext) -> Any:
            self._loader, self._is_training = loader, True
            self._say("ready", device=str(ctx.device))
            try:
                return train(loader, ctx)
            except BaseException as error:
                # At once: the others find out what has become of this one when it goes, and then it is they who complain.
                self._tell_error(error)
                raise

        return call

    def _tell_error(self, error: BaseException) -> None:
        """Logs and tells the first error; those that follow from it are left out."""
        if not self._has_failed:
            self._has_failed = True
            logger.error("the function has failed", exc_info=error)
            self._tell_progress()
            self._say_error(error)

    def _report(self, logged: Logged) -> None:
        self._logged = logged

    def _tell_progress(self) -> None:
        """Tells the epoch, the batches of it that the rank has had and has in all, and what it logged last, where that is news."""
        loader, logged = self._loader, self._logged
        if loader is None:
            return
        epoch, step, numbers = loader.epoch, loader.stats().batches, {}
        if logged is not None:
            numbers = logged.numbers
            step = max(step, logged.step) if epoch == logged.epoch else step
        told = {"epoch": epoch, "step": step, "num_steps": len(loader), "numbers": numbers}
        with self._tell_lock:
            if told != self._told:
                self._told = told
                self._say("steps", **told)


class RankWork(RankTeller):
    """One rank, from its first message to its end.

    Args:
        wire: The connection to the process that has called ``launch``.
        watch: Shows that this one is alive.
    """

    def __init__(self, wire: Wire, watch: ParentWatch) -> None:
        super().__init__()
        self._wire = wire
        self._heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lines = LogLines(_show)
        self._graph: GraphHandle | None = None

    def run(self) -> None:
        """Trains once; never returns: the parent ends this process when all ranks are done."""
        threading.Thread(target=self._listen, name="gnnkit-rank", daemon=True).start()
        try:
            data = pack_result(self._train())
        except BaseException as error:
            self._tell_error(error)
            os._exit(1)
        self._lines.flush()
        self._tell_progress()
        self._wire.tell("result", [data])
        # Rank 0 has the store that the others meet at, and no rank leaves before all are done.
        threading.Event().wait()

    def _listen(self) -> NoReturn:
        """A thread: takes messages, and tells now and then how far training is."""
        while True:
            message = self._wire.hear(_TELL_S)
            if message is not None and message.kind == "stop":
                os._exit(0)
            if message is not None:
                self._heard.put(message)
            self._tell_progress()

    def _train(self) -> Any:
        setup = self._heard.get(timeout=PARENT_WAIT_S)
        assert setup.kind == "setup"
        body = setup.body
        place = JobPlace(**body["place"])
        set_variables({**place.variables(), **body["variables"]})
        with without_collections():
            train, transform, extra, config = unpack_code(from_memory(setup.fds[0]))  # brings torch, mostly
        store = _store(place, setup.fds[1:], body["timeout_s"])
        if self._heard.empty():  # the graph is being stored meanwhile
            with without_collections():
                load_batch_classes()
        plan = self._heard.get(timeout=PARENT_WAIT_S)
        assert plan.kind == "plan"
        for address, token in plan.body["tokens"].items():
            remember_token(address, token)
        if extra is not None:
            self._graph = carry_extra(plan.body["store"], extra)

        return run_training(
            Path(plan.body["path"]),
            self._watched(train),
            place,
            directory=Path(body["directory"]),
            report=self._report,
            device=body["device"],
            store=store,
            transform=transform,
            config=config,
        )

    def _say(self, kind: str, **body: Any) -> None:
        self._wire.send(kind, **body)

    def _say_error(self, error: BaseException) -> None:
        self._wire.tell("raised" if self._is_training else "failed", error=error_to_json(error), at=time.monotonic())

    def _report(self, logged: Logged) -> None:
        super()._report(logged)
        self._lines(logged)


def _show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _store(place: JobPlace, fds: Sequence[int], timeout_s: float) -> Any:
    """The key-value store that the ranks meet at; rank 0 was handed its listener, so that no rank connects before it listens."""
    if place.world_size == 1:
        return None
    from gnnkit.cluster.hosts import meeting_store  # torch

    listener = socket.socket(fileno=fds[0]) if fds else None
    return meeting_store(place.master_addr, place.master_port, place.rank, place.world_size, timedelta(seconds=timeout_s), listener)


def carry_extra(store: str, extra: Any) -> GraphHandle:
    """A graph that was in memory has attributes that no store holds; loaders of this process get them with it."""
    handle = open_store(Store.open(store))
    handle.extra, handle.type_extra, handle.name = extra
    return handle
