"""The work of a server's process: it holds the graph, keeps its workers, and accepts clients."""

from __future__ import annotations

import logging
import os
import select
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.cluster.serving.listener import ClientListener, ClientSessions
from gnnkit.cluster.serving.pool import ServedPool
from gnnkit.errors import StoreError
from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.wire import Message, Waker, Wire
from gnnkit.storage.layout import FORMAT_VERSION
from gnnkit.storage.manifest import read_manifest
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.cluster.serving.network import Network
    from gnnkit.cluster.serving.server_api import ServerApi

logger = logging.getLogger(__name__)

# Longest time between two looks at workers that are starting.
_LOOK_S = 0.5


class ServerLoop:
    """Obeys the process that has started the server, and serves clients; see ``gnnkit.cluster.serving`` for the messages.

    Args:
        wire: The connection to the process that has started it.
        watch: This process's watchman.

    Attributes:
        pool: The workers; None until it is known which parts they sample.
        clients: Clients that are there, by what they call themselves.
        visits: How many different clients there have been.
    """

    def __init__(self, wire: Wire, watch: ParentWatch) -> None:
        self._wire = wire
        self.pool: ServedPool | None = None
        self._api: ServerApi | None = None
        self.clients: set[str] = set()
        self._ever: set[str] = set()
        self._sessions = ClientSessions(self, self._welcome)
        self._listener: ClientListener | None = None
        self._network: Network | None = None
        self._calls: deque[Callable[[], Any]] = deque()
        self._waker = Waker()
        self._told: dict[str, Any] = {}
        self._owes_copy = self._ended = False
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Serves until its starter goes away or says stop.

        Raises:
            GnnkitError: It cannot serve; its starter was told.
        """
        try:
            self._begin(self._wire.next())
            while not self._ended:
                self._turn()
        except EOFError:
            pass
        except BaseException as error:
            self._failure = error
        if self._failure is not None:
            self._wire.tell("failed", error=error_to_json(self._failure))
            self._sessions.fail(self._failure)
        self._close()
        if self._failure is not None:
            raise self._failure

    def _begin(self, setup: Message) -> None:
        self._setup = body = setup.body
        manifest = read_manifest(Path(body["store"]["path"]))
        if manifest.fingerprint != body["store"]["fingerprint"]:
            raise StoreError(f"the store {body['store']['path']!r} was replaced while its servers started", "start them again")
        self._num_parts = manifest.num_parts
        if body["network"] is not None:
            from gnnkit.cluster.serving.network import Network  # heavy

            self._network = Network(body, self)
            self._network.begin()
            return
        self._open_pool(None, None, None)
        self._listener = ClientListener(Path(body["folder"]), body["rank"], body["token"], self._sessions.enter)
        self.tell("listening", address=str(self._listener.path))

    def start_workers(self, store: Store | None, hosts: dict[str, Any] | None, holders: list[list[int]] | None) -> None:
        """Starts the sampling processes; where that cannot be, the server ends.

        Args:
            store: The store as this host has it; None: all of it.
            hosts: The message about their other hosts, see ``gnnkit.cluster.parts``; None: every part is here.
            holders: The parts of every server, in the order of ranks; None: each has all.
        """
        try:
            self._open_pool(store, hosts, holders)
        except Exception as error:
            self.fail(error)

    def _open_pool(self, store: Store | None, hosts: dict[str, Any] | None, holders: list[list[int]] | None) -> None:
        setup = self._setup
        store = store or Store.open(setup["store"]["path"])
        self.pool = pool = ServedPool(setup, store, hosts, self._forward)
        self._store, self._holders = store, holders
        self._sessions.workers_are_there()
        pool.workers.start_missing()
        self.tell("vitals", (pool.workers.vitals.block.fd,), workers=setup["workers"])

    @property
    def api(self) -> ServerApi | None:
        """The object that answers clients' calls, made for the first of them; None until it is known which parts are here."""
        if self._api is None and self.pool is not None:
            from gnnkit.cluster.serving.server_api import ServerApi  # heavy

            setup = self._setup
            place = self._store, setup["rank"], setup["num_servers"], self.pool, self.call, self._holders
            self._api = ServerApi(*place, ends_with_clients=setup["ends_with_clients"])
        return self._api

    def answer(self, client: str, name: str, args: Any, reply: Callable[[Any], None]) -> None:
        """Answers a client's call, whichever way it has come; in the main thread.

        Args:
            client: Who calls.
            name: What: "status" at any time, all else that ``gnnkit.cluster.serving.server_api`` knows once ``pool`` is there.
            args: Its arguments by name.
            reply: Called once with the answer or an error, now or later, in the main thread; never after ``left(client)``.
        """
        if name == "status":
            reply(self.details())
            return
        api = self.api
        assert api is not None, "clients are let in, or their calls are, once there is a pool"
        api.call(client, name, args, reply)

    # For other threads ----------------------------------------------------------------------------------------------------

    def call(self, fn: Callable[[], Any]) -> None:
        """Has ``fn`` run in the main thread; may be called from any."""
        self._calls.append(fn)
        self._waker.wake()

    # For the main thread ----------------------------------------------------------------------------------------------------

    def tell(self, kind: str, fds: tuple[int, ...] = (), /, **body: Any) -> None:
        """Sends a message to the process that has started the server."""
        self._wire.send(kind, fds, **body)

    def fail(self, error: BaseException) -> None:
        """Ends the server because of an error."""
        self._failure, self._ended = error, True

    def came(self, client: str) -> None:
        """A client is there, by whichever way."""
        self.clients.add(client)
        self._ever.add(client)

    def left(self, client: str) -> None:
        """A client has gone."""
        self.clients.discard(client)
        if self._api is not None:
            self._api.left(client)

    @property
    def state(self) -> str:
        """Says "joining" until every worker is there for the first time; then "ready", or "degraded" where one is not."""
        return "joining" if self.pool is None else self.pool.state

    def details(self) -> dict[str, Any]:
        """Returns the server's state, as JSON values without the token."""
        pool, setup = self.pool, self._setup
        return {
            "rank": setup["rank"],
            "num_servers": setup["num_servers"],
            "pid": os.getpid(),
            "state": self.state,
            "store": {**setup["store"], "format": FORMAT_VERSION},
            "parts": None if pool is None else list(pool.parts),
            "workers": [] if pool is None else pool.details(),
            "threads": setup["threads"],
            "restarts": 0 if pool is None else pool.restarts,
            "graph_bytes": 0 if pool is None else pool.workers.sharing.nbytes,
            "clients": len(self.clients),
            "visits": len(self._ever),
            "network": None if self._network is None else self._network.details(),
        }

    def _welcome(self) -> dict[str, Any]:
        details = self.details()
        return {**details, "workers": self._setup["workers"], "log": self._setup["log"]}

    def _turn(self) -> None:
        """Waits for something to happen, and does what is to be done."""
        ready = self._wait()
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:  # one request's trouble is not the server's
                logger.exception("something that was asked for failed")
        self._obey()
        if self._listener is not None:
            self._listener.attend(ready)
        self._sessions.attend(ready)
        if self.pool is not None:
            self.pool.pump(revive=False)
            self._report_copy()
        details = self.details()
        if details != self._told:
            self._told = details
            self.tell("state", **details)

    def _wait(self) -> set[int]:
        poller = select.poll() if self.pool is None else self.pool.workers.poller()
        self._wire.register(poller)
        for fd, owes in self._sessions.filenos().items():
            poller.register(fd, select.POLLIN | (select.POLLOUT if owes else 0))
        for fd in [] if self._listener is None else self._listener.filenos():
            poller.register(fd, select.POLLIN)
        waits = [None if self._listener is None else self._listener.wait_s]
        waits += [_LOOK_S] if self.pool is not None and self.pool.workers.starting else []
        known = [wait_s for wait_s in waits if wait_s is not None]
        return set(self._waker.wait(poller, min(known) if known else None))

    # The starter ----------------------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        while not self._ended and (message := self._wire.receive()) is not None:
            if message.kind == "stop":
                self._ended = True
            elif message.kind == "revive":
                if self.pool is not None:
                    self.pool.workers.start_missing()
            elif message.kind == "copy":
                self._owes_copy = True
            else:
                assert message.kind == "graph"
                self._use_graph(message.fds[0], message.body["description"])

    def _use_graph(self, fd: int, description: dict[str, Any]) -> None:
        assert self.pool is not None, "the copy is of the parts that the workers sample"
        try:
            self.pool.workers.sharing.use(fd, description)
        except OSError as error:  # no address space left: sampling stays on the file mapping
            logger.warning("the copy of the graph cannot be mapped: %s", error)

    def _report_copy(self) -> None:
        """Says what became of the copy, once that is known."""
        if not self._owes_copy or self.pool is None or not self.pool.workers.ready:
            return
        if not self.pool.copy():
            self._owes_copy = False
            self.tell("graph", description=None)
        elif (shared := self.pool.workers.sharing.shared) is not None:
            self._owes_copy = False
            self.tell("graph", (shared.block.fd,), description=dict(shared.description))

    def _forward(self, message: Message) -> None:
        self.tell("event", **message.body)

    def _close(self) -> None:
        if self._network is not None:
            self._network.stop()
        if self._api is not None:
            self._api.close()
        if self._listener is not None:
            self._listener.close()
        self._sessions.close()
        if self.pool is not None:
            self.pool.workers.stop()
