"""What loaders of other hosts ask a server: to be known, and for the structure of one batch after another.

========== ==========================================================================================================================
register   action ``{client, key, plan, timeout_s}`` -> ``{channel}``: makes a loader known, by the name of its client and a key of its
           own there. Doing so again does nothing; doing so with another plan is an error
release    action ``{client, key}`` -> ``{}``: the loader is gone
walk       get ``{client, key, epoch, batch, timeout_s}``, with an array ``seeds`` for a batch outside the epoch: see ``wire_protocol``
========== ==========================================================================================================================

A client that has not been heard of for ``wire_channels.SILENCE_S`` loses everything that it has registered; it registers again, as it does
with a server that has been started again. Seeds are worked out here, from the plan.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from numpy.typing import NDArray

from gnnkit.cluster.leases import CLIENT_PREFIX
from gnnkit.cluster.parts.service import Action, Answers, Get, Stream, as_flight
from gnnkit.cluster.serving.remote_session import RemoteSession, Walk
from gnnkit.cluster.serving.remote_sessions import RemoteSessions
from gnnkit.cluster.serving.walk_protocol import PATIENCE, WALK_SCHEMA, walk_to_batch
from gnnkit.errors import BatchTimeout, GnnkitError, StartTimeout
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.sampling.owners import BadRequest
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.cluster.serving.loop import ServerLoop

# Between two signs of life of a server that is sampling, and between two looks for clients that have gone.
_BEAT_S = 1.0
_MOST_S = 3600.0


class RemoteSessionActions:
    """The verbs of one server; from any thread.

    Args:
        answers: Knows what a request must say.
        store: The store.
        loop: The server.
        on_main: Runs something in the server's main thread, and waits.

    Attributes:
        actions: What answers actions.
        gets: What answers requests.
    """

    def __init__(self, answers: Answers, store: Store, loop: ServerLoop, on_main: Callable[[Callable[[], Any]], Any]) -> None:
        self._answers, self._loop, self._on_main = answers, loop, on_main
        reference = store.reference
        self._graph = GraphHandle(store.arrays(), store.splits, reference, link_splits=store.link_splits)
        self._channels: RemoteSessions | None = None
        self._closed = threading.Event()
        self.actions: dict[str, Action] = {"register": self._register, "release": self._release}
        self.gets: dict[str, Get] = {"walk": self._walk}

    def close(self) -> None:
        """Stops looking after clients."""
        self._closed.set()

    def heard(self, what: str, name: str, host: int) -> None:
        """Somebody says "here" or "bye"; only clients of the wire count."""
        if name.startswith(CLIENT_PREFIX):
            self._tell(lambda channels: channels.heard(what, name))

    def _tell(self, fn: Callable[[RemoteSessions], None]) -> None:
        """Has something done in the main thread, unless there is nobody yet to do it for."""
        self._loop.call(lambda: None if self._loop.pool is None else fn(self._known()))

    def _known(self) -> RemoteSessions:
        """The channels; in the main thread."""
        if self._channels is None:
            if self._loop.pool is None:
                raise flight.FlightUnavailableError("the server is not there yet")
            self._channels = RemoteSessions(self._loop, self._loop.pool, self._graph)
            threading.Thread(target=self._look_after, name="gnnkit-wire-clients", daemon=True).start()
        return self._channels

    def _look_after(self) -> None:
        while not self._closed.wait(_BEAT_S):
            self._tell(lambda channels: channels.tidy())

    def _register(self, body: dict[str, Any]) -> dict[str, Any]:
        self._answers.check(body)
        client, key, timeout_s = _names(body)
        plan = body.get("plan")
        if not isinstance(plan, dict):
            raise BadRequest("there is no plan")
        opened: Future[int] = self._on_main(lambda: self._known().register(client, key, plan))
        try:
            return {"channel": opened.result(timeout_s)}
        except TimeoutError as error:
            raise StartTimeout(f"no sampling process was ready within {timeout_s:g} s", "look at the server's log") from error

    def _release(self, body: dict[str, Any]) -> dict[str, Any]:
        self._answers.check(body)
        client, key, _ = _names({"timeout_s": 0, **body})
        self._tell(lambda channels: channels.release(client, key))
        return {}

    def _walk(self, head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Stream:
        self._answers.check(head)
        client, key, timeout_s = _names(head)
        epoch, batch = head.get("epoch"), head.get("batch")
        if not isinstance(epoch, int) or not isinstance(batch, int) or epoch < 0 or batch < 0:
            raise BadRequest(f"there is no batch {batch!r} of epoch {epoch!r}")
        seeds = arrays.get("seeds")
        walk = Walk(epoch, batch, None if seeds is None else seeds.astype(np.int64))
        channel: RemoteSession = self._on_main(lambda: self._known().begin(client, key, walk))
        return Stream(WALK_SCHEMA, self._answer(channel, walk, timeout_s))

    def _answer(self, channel: RemoteSession, walk: Walk, timeout_s: float) -> Iterator[pa.RecordBatch]:
        """Says once a second that it is being sampled, and then sends it; a client that has gone ends this."""
        deadline = time.monotonic() + timeout_s
        try:
            while not walk.done.wait(min(_BEAT_S, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise as_flight(BatchTimeout(f"no sampling process has sampled the batch within {timeout_s:g} s"))
                yield PATIENCE
            if isinstance(walk.answer, GnnkitError):
                raise as_flight(walk.answer)
            assert walk.answer is not None, "only this takes it away"
            yield walk_to_batch(*walk.answer)
        finally:
            self._tell(lambda channels: channels.end(channel, walk))


def _names(head: Mapping[str, Any]) -> tuple[str, str, float]:
    """The client, the loader's key, and the seconds that the answer may take."""
    client, key, timeout_s = head.get("client"), head.get("key"), head.get("timeout_s")
    if not isinstance(client, str) or not client.startswith(CLIENT_PREFIX) or not isinstance(key, str) or len(client) + len(key) > 200:
        raise BadRequest("the request names no loader")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise BadRequest(f"timeout_s is {timeout_s!r}")
    return client, key, max(0.0, min(_MOST_S, float(timeout_s)))
