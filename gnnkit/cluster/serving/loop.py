"""The work of a server's process: it holds the graph, keeps its workers, and does what clients ask."""

from __future__ import annotations

import itertools
import logging
import os
import select
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gnnkit.cluster.network.calls import send_answer
from gnnkit.cluster.network.codec import decode
from gnnkit.cluster.network.requests import Requests
from gnnkit.cluster.serving.listener import ClientListener
from gnnkit.cluster.serving.pool import ServedPool
from gnnkit.cluster.serving.spec import ServerSpec
from gnnkit.errors import GnnkitError, PlanError, StoreError, on_error
from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.wire import Message, Waker, Wire
from gnnkit.storage.layout import FORMAT_VERSION
from gnnkit.storage.manifest import read_manifest
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.cluster.serving.network import Network
    from gnnkit.cluster.serving.server_api import ServerApi

T = TypeVar("T")
logger = logging.getLogger(__name__)

# The most messages taken from one client before the others have their turn.
_TURN = 16


@dataclass(eq=False)
class ClientSession:
    """A connection of a client's.

    Attributes:
        number: What workers know it by.
        client: What the client calls itself; several connections may be of one client.
        wire: The connection.
        enlisted: Whether it wants to know the workers.
        introduced: Pids of workers that it has been introduced to.
    """

    number: int
    client: str
    wire: Wire
    enlisted: bool = False
    introduced: dict[int, int] = field(default_factory=dict)


class ClientSessions:
    """All of them. Only for the server's main thread.

    Args:
        host: The server.
        welcome: What a client is told first.
    """

    def __init__(self, host: ServerLoop, welcome: Callable[[], Mapping[str, Any]]) -> None:
        self._host, self._welcome = host, welcome
        self._numbers = itertools.count(1)
        self._sessions: dict[int, ClientSession] = {}

    def enter(self, wire: Wire, body: Mapping[str, Any]) -> None:
        """Takes a pending in.

        Args:
            wire: The connection.
            body: The client's first message.
        """
        session = ClientSession(next(self._numbers), str(body.get("client")), wire)
        self._sessions[wire.fileno()] = session
        logger.info("client %s (pid %s, %s) has come", session.client, body.get("pid"), body.get("name"))
        wire.send("welcome", **self._welcome())
        self._host.came(session.client)

    def filenos(self) -> dict[int, bool]:
        """``{descriptor: whether something waits to be sent there}``."""
        return {fd: not session.wire.flush() for fd, session in self._sessions.items()}

    def attend(self, ready: set[int]) -> None:
        """Does what clients ask.

        Args:
            ready: Descriptors of ``filenos`` on which something has happened.
        """
        for fd in ready & set(self._sessions):
            session = self._sessions[fd]
            try:
                for message in session.wire.messages(_TURN):
                    self._hear(session, message)
            except EOFError:
                self._leave(session)
            except Exception:
                logger.warning("client %s sent a message that cannot be read, and is disconnected", session.client, exc_info=True)
                self._leave(session)

    def _hear(self, session: ClientSession, message: Message) -> None:
        if message.kind == "call":
            self._call(session, message)
            return
        message.close()
        if message.kind != "enlist":
            raise PlanError(f"there is no message {message.kind!r}")
        session.enlisted, pool = True, self._host.pool
        if pool is not None:  # else the other servers are still awaited
            pool.workers.start_missing()
            for rank in pool.workers.ready:
                self._introduce(session, rank)

    def _leave(self, session: ClientSession) -> None:
        """Gives up everything of a client's connection."""
        self._sessions.pop(session.wire.fileno(), None)
        session.wire.close()
        if self._host.pool is not None:
            self._host.pool.remove_client(session.number)
        logger.info("client %s has left", session.client)
        if all(other.client != session.client for other in self._sessions.values()):
            self._host.left(session.client)

    # What they are told -----------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Tells all clients that the server has to end."""
        for session in self._sessions.values():
            session.wire.send("failed", error=error_to_json(error))

    def on_worker(self, rank: int, error: GnnkitError | None) -> None:
        """Introduces a worker to clients that have enlisted, or tells of its death, and whether the server starts another one by itself."""
        again = self._host.pool is not None and self._host.pool.may_restart
        for session in list(self._sessions.values()):
            if error is None:
                self._introduce(session, rank)
            elif session.enlisted:
                session.introduced.pop(rank, None)
                session.wire.send("lost", worker=rank, error=error_to_json(error), again=again)

    def _introduce(self, session: ClientSession, rank: int) -> None:
        pool = self._host.pool
        if pool is None or not session.enlisted:
            return
        pid = pool.workers.alive[rank].pid
        if session.introduced.get(rank) != pid:
            session.introduced[rank] = pid
            try:
                pool.introduce(rank, session.number, session.wire)
            except OSError as error:  # no descriptor is left for this one
                logger.warning("client %s cannot be introduced to a worker, and is sent away: %s", session.client, error)
                self._leave(session)

    def _call(self, session: ClientSession, message: Message) -> None:
        with on_error(message.close):
            number, name, tree = int(message.body["number"]), str(message.body["name"]), message.body["args"]

        reply = partial(send_answer, session.wire.send, number)
        try:
            self._host.answer(session.client, name, decode(tree, message.fds), reply)
        except Exception as error:
            reply(error)

    def close(self) -> None:
        """Ends all connections."""
        for session in self._sessions.values():
            session.wire.close()
        self._sessions.clear()


# Longest time between two looks at workers that are starting.
_LOOK_S = 0.5
# The main thread is never busy for so long.
_MAIN_S = 30.0


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
        body = setup.body
        spec = self._spec = ServerSpec.from_json(body["spec"])
        self._rank, self._log = int(body["rank"]), str(body["log"])
        if read_manifest(Path(spec.store)).fingerprint != spec.fingerprint:
            raise StoreError(f"the store {spec.store!r} was replaced while its servers started", "start them again")
        if spec.addresses:
            from gnnkit.cluster.serving.network import Network  # heavy

            self._network = Network(spec, self._rank, body["meeting"], body["listen"], self)
            return
        self._open_pool(None, None, None)
        assert spec.token is not None, "a server is told the token"
        self._listener = ClientListener(Path(body["folder"]), self._rank, spec.token, self._let_in)
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
        spec = self._spec
        store = store or Store.open(spec.store)
        self.pool = pool = ServedPool(spec, self._rank, store, hosts, lambda message: self.tell("event", **message.body))
        self._store, self._holders = store, holders
        pool.watchers.append(self._sessions.on_worker)
        if self._network is not None:
            self._network.open_loaders(pool, store)
        pool.workers.start_missing()
        self.tell("vitals", (pool.workers.vitals.block.fd,))

    @property
    def api(self) -> ServerApi | None:
        """The object that answers clients' calls, made for the first of them; None until it is known which parts are here."""
        if self._api is None and self.pool is not None:
            from gnnkit.cluster.serving.server_api import SamplingApi, ServerApi  # heavy
            from gnnkit.cluster.serving.store_api import StoreApi

            sampling = SamplingApi(self._store, self.pool, ends_with_clients=self._spec.stop_with_last_client > 0)
            self._api = ServerApi(StoreApi(self._store, self._rank, self._spec.num_servers, self._holders), sampling, self.call)
        return self._api

    def answer(self, client: str, name: str, args: Any, reply: Callable[[Any], None]) -> None:
        """Answers a client's call, whichever way it has come; in the main thread.

        Args:
            client: Who calls.
            name: What: "status" at any time, all else that ``gnnkit.cluster.serving.server_api`` knows once ``pool`` is there.
            args: Its arguments by name.
            reply: Called once with the answer or an error, now or later, in the main thread; never after ``left(client)``.
        """
        if name == Requests.status.name:
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

    def result_of(self, fn: Callable[[], T]) -> T:
        """Has ``fn`` run in the main thread, and waits for it; from any other."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(fn())
            except BaseException as error:
                done.set_exception(error)

        self.call(run)
        return done.result(_MAIN_S)

    def _let_in(self, wire: Wire, body: Mapping[str, Any]) -> None:
        """A client of this host may come in."""
        self.call(partial(self._sessions.enter, wire, body))

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
        pool, spec = self.pool, self._spec
        return {
            "rank": self._rank,
            "num_servers": spec.num_servers,
            "pid": os.getpid(),
            "state": self.state,
            "store": {"path": spec.store, "fingerprint": spec.fingerprint, "format": FORMAT_VERSION},
            "parts": None if pool is None else list(pool.parts),
            "workers": [] if pool is None else pool.details(),
            "threads": spec.threads_per_worker,
            "restarts": 0 if pool is None else pool.restarts,
            "graph_bytes": 0 if pool is None else pool.workers.sharing.nbytes,
            "clients": len(self.clients),
            "visits": len(self._ever),
            "network": None if self._network is None else self._network.details(),
        }

    def _welcome(self) -> dict[str, Any]:
        return {**self.details(), "workers": self._spec.workers_per_server, "log": self._log}

    def _turn(self) -> None:
        """Waits for something to happen, and does what is to be done."""
        ready = self._wait()
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:  # one request's trouble is not the server's
                logger.exception("something that was asked for failed")
        self._obey()
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
        return set(self._waker.wait(poller, _LOOK_S if self.pool is not None and self.pool.workers.starting else None))

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
                assert message.kind == "graph" and self.pool is not None, "the copy is of the parts that the workers sample"
                if not self.pool.workers.sharing.take_over(message):
                    logger.warning("the copy of the graph cannot be mapped")

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
