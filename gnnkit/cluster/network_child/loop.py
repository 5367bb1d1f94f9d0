"""The work of a network child: it joins servers, and calls them or has them walk batches; see ``gnnkit.cluster.network_child``."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.cluster.membership import CLIENT_PREFIX, JOINING, JoinedServers, LeaseRenewal, members_of
from gnnkit.cluster.network.calls import send_answer
from gnnkit.cluster.network.client import ServiceClient, Unreachable
from gnnkit.cluster.network.codec import decode
from gnnkit.cluster.network.requests import Requests
from gnnkit.errors import SamplingError, StartTimeout
from gnnkit.runtime.entry import ParentWatch, load_work
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.wire import Message, Wire
from gnnkit.storage.manifest import find_outline, keep_outline
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.cluster.network_child.receiver import RemoteServers
    from gnnkit.runtime.graph_memory import GraphHandle
    from gnnkit.runtime.worker import WorkerLoop
    from gnnkit.storage.store import Store

logger = logging.getLogger(__name__)

# Between two questions whether all servers are there, and for one of them.
_GAP_S, _CALL_S = 0.2, 5.0
_FILE_S = 120.0
# Nothing is said of servers that come within this time.
_SILENT_S = 1.0
_MOST_CALLS = 16


class NetworkChildLoop:
    """Obeys the trainer; see ``gnnkit.cluster.network_child`` for the messages.

    Args:
        wire: The connection to the trainer.
        watch: The process's watchman.
    """

    def __init__(self, wire: Wire, watch: ParentWatch) -> None:
        self._wire, self._watch = wire, watch
        self._ending = threading.Event()
        self._renewal: LeaseRenewal | None = None
        self._askers: dict[str, ServiceClient] = {}
        self._joined: JoinedServers | None = None

    def run(self) -> None:
        """Works until the trainer goes away or says stop."""
        with contextlib.suppress(EOFError):
            self._setup = self._wire.next().body
            self._name = f"{CLIENT_PREFIX}{self._setup['client']}/{secrets.token_hex(4)}"
            if self._setup["membership"] is None:
                threading.Thread(target=self._join, name="gnnkit-join", daemon=True).start()
            else:
                self._joined = JoinedServers.of(self._setup["membership"], self._setup["outlines"])
            calls = ThreadPoolExecutor(_MOST_CALLS, "gnnkit-calls")
            while (message := self._wire.next()).kind == "call":
                calls.submit(self._answer, message)
            if message.kind == "setup":
                self._sample(message)
        self._ending.set()
        if self._renewal is not None:
            self._renewal.leave()

    def _sample(self, setup: Message) -> None:
        """Samples until the process is to end."""
        self._new_servers, new_loop = load_work(_load_sampling, self._wire)
        new_loop(self._wire, self._watch, self._connect).run(setup)

    def _connect(self, setup: Mapping[str, Any], graph: GraphHandle, store: Store | None, threads: int) -> RemoteServers:
        """The way to what servers sample, for the loop of a sampling process."""
        assert self._joined is not None and store is not None, "a sampling process is told of servers that were joined before"
        words = self._setup
        servers = self._new_servers(self._joined, store, self._name, words["token"], words["ca"], again=setup["again"])
        self._stay()
        return servers

    # Joining -------------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        try:
            membership = self._wait_for_all()
            joined = JoinedServers.of(membership, self._setup["outlines"])
            outline = self._outline(joined)
            self._joined = joined
            if self._setup["stays"]:
                self._stay(_CALL_S)
        except BaseException as error:  # the trainer raises it
            self._wire.tell("refused", error=error_to_json(error))
            return
        self._wire.tell("joined", membership=membership, outline=str(outline))

    def _wait_for_all(self) -> dict[str, Any]:
        """Asks the servers that answer until every server is there and ready.

        Raises:
            StartTimeout: They were not in time; says which.
            GnnkitError: They will not have this trainer.
        """
        addresses, limit_s = self._setup["addresses"], float(self._setup["join_timeout_s"])
        askers = [self._asker(address) for address in addresses]
        told, deadline = None, Deadline(limit_s)
        while True:
            membership, reasons = _first_answer(askers, max(_GAP_S, deadline.within(_CALL_S)))
            missing = _missing(membership)
            if membership is not None and not missing:
                return membership
            text = "; ".join(reasons) if membership is None else _describe(membership, missing)
            if deadline.has_passed:
                raise StartTimeout(
                    f"the servers at {', '.join(addresses)} were not ready within {limit_s:g} s: {text}",
                    "is the address right, do all servers run, does a firewall keep them apart? With serve(tls_cert=...), give tls_ca",
                )
            if text != told and deadline.elapsed_s > _SILENT_S:
                told, total = text, None if membership is None else membership["num_servers"]
                self._wire.tell("waiting", text=text, there=None if total is None else total - len(missing), total=total)
            self._ending.wait(_GAP_S)

    def _outline(self, joined: JoinedServers) -> Path:
        folder = joined.outline
        if (found := find_outline(folder, joined.fingerprint)) is not None:
            return found
        asker = self._asker(joined.servers[0].address)

        def fetch(name: str) -> Iterator[bytes]:
            yield asker.ask(Requests.file, _FILE_S, name=name).tobytes()

        try:
            return keep_outline(folder, joined.fingerprint, fetch)
        except Unreachable as error:
            raise StartTimeout(f"{error}, and what the trainer has to know of its store is not here", "make the loader again") from error

    def _stay(self, timeout_s: float | None = None) -> None:
        """Says from now on that the trainer is there, as the sampling processes of other hosts do.

        Args:
            timeout_s: Seconds to wait until every server has heard it; None does not wait.
        """
        setup, joined = self._setup, self._joined
        assert joined is not None
        addresses = {server.rank: server.address for server in joined.servers}
        self._renewal = LeaseRenewal(0, addresses, setup["token"], joined.fingerprint, ca=setup["ca"], name=self._name)
        if timeout_s is None:
            self._renewal.begin_at_once()
        else:
            self._renewal.begin(timeout_s)

    # Calls ---------------------------------------------------------------------------------------------------------------

    def _answer(self, message: Message) -> None:
        try:
            value = self._call(message.body, decode(message.body["args"], message.fds))
        except BaseException as error:
            value = error
        send_answer(self._wire.tell, message.body["number"], value)

    def _call(self, body: Mapping[str, Any], args: Any) -> Any:
        rank, timeout_s = int(body["rank"]), float(body["timeout_s"])
        assert self._joined is not None, "servers are called once they are joined"
        address = self._joined.servers[rank].address
        asker = self._askers.setdefault(address, self._asker(address))
        try:
            return asker.ask(Requests.call, timeout_s, client=self._setup["client"], name=body["name"], args=args)
        except Unreachable as error:
            raise SamplingError(f"server {rank}: {error}", "when it runs again at the same address, ask again") from error

    def _asker(self, address: str) -> ServiceClient:
        return ServiceClient(address, self._setup["token"], self._setup["ca"])


def _load_sampling() -> tuple[type[RemoteServers], type[WorkerLoop]]:
    from gnnkit.cluster.network_child.receiver import RemoteServers  # the compiler, which joining and calls do without
    from gnnkit.runtime.worker import WorkerLoop

    return RemoteServers, WorkerLoop


def _first_answer(askers: list[ServiceClient], timeout_s: float) -> tuple[dict[str, Any] | None, list[str]]:
    """Returns the membership from the first server that answers; else None, with the reasons why none does."""
    reasons = []
    for asker in askers:
        try:
            membership = asker.ask(Requests.membership, timeout_s)
            members_of(membership)
            return membership, []
        except Unreachable as error:
            reasons.append(str(error))
    return None, reasons


def _missing(membership: Mapping[str, Any] | None) -> list[int]:
    """Ranks of the servers that are not ready."""
    if membership is None:
        return []
    there = {value["rank"] for value in membership["servers"] if value["state"] != JOINING}
    return [rank for rank in range(membership["num_servers"]) if rank not in there]


def _describe(membership: Mapping[str, Any], missing: list[int]) -> str:
    known = {value["rank"]: value["address"] for value in membership["servers"]}
    names = [f"{rank} ({known[rank]}, starting)" if rank in known else str(rank) for rank in missing]
    text = f"server{'s' if len(missing) > 1 else ''} {', '.join(names)} of {membership['num_servers']} not there yet"
    return "; ".join([text, *membership["refused"]])
