"""The work of the part service's process: it opens the graph, listens, and follows the process that started it."""

from __future__ import annotations

import contextlib
import logging

from gnnkit.cluster.membership import LeaseRenewal, LeaseRequests
from gnnkit.cluster.network.requests import LEASES, PARTS, Answerers
from gnnkit.cluster.network.service import NetworkService
from gnnkit.cluster.parts.answers import Answers
from gnnkit.cluster.worker.owners import keep_freed_memory
from gnnkit.errors import StoreError
from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.graph_memory import SharedGraph
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.wire import Message, Wire
from gnnkit.sampling.kinds import warm
from gnnkit.storage.store import Store

logger = logging.getLogger(__name__)

# The most addresses with another token that are told of.
_MOST_REFUSED = 16


class PartServiceLoop:
    """Obeys; see ``gnnkit.cluster.parts`` for the messages.

    Args:
        wire: The connection to the process that started this one.
        watch: The process's watchman.
    """

    def __init__(self, wire: Wire, watch: ParentWatch) -> None:
        self._wire = wire
        self._renewal: LeaseRenewal | None = None
        self._refused: set[str] = set()

    def run(self) -> None:
        """Serves until the other side goes away or says stop."""
        with contextlib.suppress(EOFError):
            setup = self._wire.next()
            try:
                service = self._open(setup)
            except BaseException as error:  # the process that started this one raises it
                self._wire.tell("failed", error=error_to_json(error))
                raise
            logger.info("listening on %s, port %d", setup.body["ip"], service.port)
            self._wire.tell("ready", port=service.port)
            while (message := self._wire.next()).kind != "stop":
                if message.kind == "attend":
                    self._attend(setup, message)
                else:
                    assert message.kind == "graph"
                    self._answers.use(SharedGraph.attach(message.fds[0], message.body["description"], self._mapped).graph)
            if self._renewal is not None:
                self._renewal.leave()

    def _open(self, setup: Message) -> NetworkService:
        keep_freed_memory()
        warm()
        body = setup.body
        store = Store.open(body["store"], **body["held"])
        if store.fingerprint != body["fingerprint"]:
            raise StoreError(
                f"the store {str(store.path)!r} is another one: its fingerprint is {store.fingerprint}, expected was {body['fingerprint']}",
                "make the loader again",
            )
        graph = self._mapped = store.arrays()
        if body["graph"] is not None:
            graph = SharedGraph.attach(setup.fds[0], body["graph"], graph).graph
        self._answers = Answers(graph, store.local_parts)
        answerers = Answerers(body["fingerprint"])
        answerers.add(self._answers, PARTS)
        answerers.add(LeaseRequests(lambda what, name, host: self._wire.tell(what.name, name=name, host=host)), LEASES)
        return NetworkService(body["ip"], body["port"], body["token"], answerers, refused=self._refuse)

    def _refuse(self, address: str) -> None:
        if address not in self._refused and len(self._refused) < _MOST_REFUSED:
            self._refused.add(address)
            self._wire.tell("refused", address=address)

    def _attend(self, setup: Message, message: Message) -> None:
        """Says that this host needs the parts of others, or that it does not any more."""
        if self._renewal is not None:
            self._renewal.leave()
        body, peers = setup.body, {int(host): str(address) for host, address in message.body["peers"].items()}
        self._renewal = LeaseRenewal(body["host"], peers, body["token"], body["fingerprint"], for_all=True)
        self._renewal.begin_at_once()
