"""The process group of a job: ranks meet, are watched by each other, and leave when all have finished."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gnnkit.cluster.hosts import host_identity, interface_address, interface_to, is_loopback, meeting_store, source_address
from gnnkit.distributed.process_group import gloo_interface, is_initialized
from gnnkit.errors import PlanError, StartTimeout, WorkerDied
from gnnkit.jobs.environment import JobPlace, device_key
from gnnkit.runtime.wire import Waker
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    import torch

# Seconds of silence until the kernel asks whether the other side is still there, between questions, and how many of them.
_IDLE_S, _INTERVAL_S, _QUESTIONS = 8, 4, 4
# What was sent and is not acknowledged within so many seconds ends the connection too.
_UNANSWERED_S = 24
# How long the rank may take to end by itself, from the error that its own operation raises.
_GRACE_S = 10.0
_MEETING = "the host that ranks meet at"
_LOST = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


@dataclass(frozen=True)
class TcpConnection:
    """A connection of this process.

    Attributes:
        fd: Its descriptor.
        here: Address and port of this side.
        there: Address and port of the other.
    """

    fd: int
    here: tuple[str, int]
    there: tuple[str, int]


def connections() -> list[TcpConnection]:
    """The TCP connections that this process has now."""
    import psutil

    found: list[Any] = psutil.Process().net_connections("tcp")
    alive = (psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT)
    return [TcpConnection(c.fd, _end(c.laddr), _end(c.raddr)) for c in found if c.fd >= 0 and c.raddr and c.status in alive]


def _end(address: Any) -> tuple[str, int]:
    """Address and port; an IPv4 address that an IPv6 socket uses is one."""
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def keep_asking(found: Sequence[TcpConnection]) -> None:
    """Has the kernel break connections whose other side no longer answers."""
    for connection in found:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as same:  # may be closed meanwhile
            same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (
                ("TCP_KEEPIDLE", _IDLE_S),
                ("TCP_KEEPINTVL", _INTERVAL_S),
                ("TCP_KEEPCNT", _QUESTIONS),
                ("TCP_USER_TIMEOUT", _UNANSWERED_S * 1000),
            ):
                if hasattr(socket, name):
                    same.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class PeerWatch:
    """Watches connections to other ranks from a thread, and ends this process when one is gone and nothing else does.

    Args:
        rank: This rank, for messages.
        watched: Connections, and what is on their other side: "rank 1".
        meeting: Connections to the store that ranks have met at.
        agent: Whether that is torchrun's: where its host is gone, the torchrun of this host has no torchrun left to restart ranks with, and
            would wait for a quarter of an hour; it is ended.
    """

    def __init__(self, rank: int, watched: Sequence[tuple[TcpConnection, str]], meeting: Sequence[TcpConnection], agent: bool) -> None:
        self._rank, self._agent = rank, agent
        self._sockets: dict[int, tuple[socket.socket, str]] = {}
        self._poll = select.poll()
        for connection, name in [*watched, *((connection, _MEETING) for connection in meeting)]:
            with contextlib.suppress(OSError):
                same = socket.socket(fileno=os.dup(connection.fd))
                self._sockets[same.fileno()] = same, name if name == _MEETING else f"{name} ({connection.there[0]})"
                self._poll.register(same, getattr(select, "POLLRDHUP", 0))
        self._hosts = {connection.there[0] for connection in meeting}
        self._waker = Waker()
        self._closing, self._found, self._met = threading.Event(), threading.Event(), threading.Event()
        self._lenient, self._lost = False, list[str]()
        self._thread = threading.Thread(target=self._watch, name="gnnkit-peers", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> str:
        """The names of the ranks that are gone, in the order in which it was noticed; empty while none is.

        A rank that ends because another one is gone may be noticed before that one, and the host where ranks meet is that of one of them.
        """
        return " and ".join(self._lost) or (_MEETING if self._met.is_set() else "")

    def wait_for_loss(self, limit_s: float) -> str:
        """Waits until a rank is gone, at most ``limit_s`` seconds, and returns the names as in ``lost``; empty where none is."""
        self._found.wait(limit_s)
        return self.lost

    def end_agent(self) -> None:
        """Ends the torchrun that has started this process, if the host that ranks have met at is gone."""
        shares_host = any(f"({host})" in self.lost for host in self._hosts) or self.lost == _MEETING
        if not (self._agent and self.lost and shares_host and self._met.wait(_GRACE_S)):
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which torchrun now sends to its ranks: this one ends with its own error
        with contextlib.suppress(OSError):
            os.kill(os.getppid(), signal.SIGTERM)

    def be_lenient(self) -> None:
        """From now on, a rank that goes is only noted: it may have finished."""
        self._lenient = True

    def close(self) -> None:
        """Ends the watch; the connections are the process group's alone again."""
        self._closing.set()
        self._waker.wake()
        self._thread.join()
        for same, _ in self._sockets.values():
            same.close()

    def _watch(self) -> None:
        deadline = Deadline(None)
        while not self._closing.is_set() and (self._lenient or not deadline.has_passed):
            ready = self._waker.wait(self._poll, None if deadline.timeout_s is None else deadline.left_s)
            lost = [fd for fd, events in ready.items() if events & _LOST]
            for fd in lost:
                self._poll.unregister(fd)
                self._note(self._sockets[fd][1])
            if lost:
                self._found.set()
                deadline = Deadline(deadline.within(_GRACE_S))
        if not self._closing.is_set():
            # Whatever the rank waits for, in native code as a rule, cannot be interrupted; its children end with it.
            sys.stderr.write(f"error: rank {self._rank} ends: {gone(self.lost)}\n")
            sys.stderr.flush()
            self.end_agent()
            os._exit(1)

    def _note(self, name: str) -> None:
        if name == _MEETING:
            self._met.set()
        elif name not in self._lost:
            self._lost.append(name)


def gone(names: str) -> str:
    """Returns the sentence about ranks that are gone."""
    if " and " in names:
        return f"{names} of this job are gone: their processes have ended, or their hosts no longer answer"
    return f"{names} of this job is gone: its process has ended, or its host no longer answers"


INTERFACE = "GNNKIT_INTERFACE"
# For all ranks to come: nodes of a cluster may start minutes apart.
JOIN_S = 600.0
# Torchrun's agent has listened for longer than its ranks live: where it is not reached soon it is gone.
_AGENT_S = 20.0
# An operation of the group that takes longer is stuck; ranks that are gone are noticed otherwise.
_OPERATION_S = 1800.0
# A rank that has finished waits for the others for as long as they live, which is watched.
_FINISH_S = 7 * 24 * 3600.0
_STEP_S = 0.1
_LEAVE_S = 20.0
_LOSS_S = 2.0


@contextmanager
def process_group(place: JobPlace, device: torch.device, interface: str | None = None, store: Any = None) -> Iterator[None]:
    """The job's process group, for a ``with`` block; a job of one rank has none.

    A block that ends normally waits until those of all ranks have. A rank that is gone meanwhile ends the others: by the error of an
    operation that needs it, or else by ending the process with exit status 1.

    Args:
        place: Where this rank stands.
        device: What it computes on.
        interface: Interface or address to listen on where there are several hosts; None takes ``$GNNKIT_INTERFACE``, or the one that leads
            to rank 0.
        store: Where ranks meet; None is the place's address.

    Raises:
        PlanError: This process is in a process group already, or an address or interface is of no use.
        StartTimeout: Not all ranks came in time.
        WorkerDied: Another rank is gone.
    """
    if place.world_size == 1:
        yield
        return
    if is_initialized():
        raise PlanError("this process is in a process group already", "gnnkit makes the job's: leave out init_process_group")
    import torch.distributed as dist

    watch = None
    try:
        try:
            name = _listening_interface(place, interface)
            store = _meet(place) if store is None else store
            keep_asking(connections())
            meeting = _generation(store, place) if place.agent_store else _part("gnnkit", store)
            watch = _join(place, device, name, meeting)
        except PlanError:
            raise
        except (RuntimeError, ValueError, TimeoutError) as error:  # torch has no error of its own for a deadline
            raise _not_met(place, error) from error
        try:
            yield
            watch.be_lenient()
            _wait_for_others(meeting, place, watch)
        except RuntimeError as error:
            if lost := watch.wait_for_loss(_LOSS_S):
                watch.end_agent()
                raise WorkerDied(gone(lost), "the first rank that failed says why") from error
            raise
    finally:
        if watch is not None:
            watch.close()
        if dist.is_initialized():
            dist.destroy_process_group()
    _leave(meeting, place)


def _part(name: str, store: Any) -> Any:
    """The keys of a store that begin with a name."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # torch.distributed has no list of its names

    return PrefixStore(name, store)


def _meet(place: JobPlace) -> Any:
    """The store at the place's address: torchrun's, or rank 0's own."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch.distributed has no list of its names

    if not place.agent_store:
        return meeting_store(place.master_addr, place.master_port, place.rank, place.world_size, timedelta(seconds=JOIN_S))
    store = TCPStore(place.master_addr, place.master_port, place.world_size, False, timedelta(seconds=_AGENT_S), wait_for_workers=False)
    store.set_timeout(timedelta(seconds=JOIN_S))
    return store


def _generation(store: Any, place: JobPlace) -> Any:
    """A part of torchrun's store that only this attempt of the job uses: the store outlives attempts, and what they have left in it.

    Every rank says a word that it has made up. Rank 0 shows all the words that it sees; who finds its own among them nods, and when all
    have, the attempt begins. Ranks of earlier attempts nod no more.
    """
    words = _part("gnnkit/attempt", store)
    own, deadline, shown, said = secrets.token_hex(8), Deadline(JOIN_S), "", [""] * place.world_size
    words.set(f"word/{place.rank}", own)
    keys = [f"word/{rank}" for rank in range(place.world_size)]
    while not deadline.has_passed:
        if place.rank == 0 and words.check(keys):
            now = [word.decode() for word in words.multi_get(keys)]
            if now != said:
                said, shown = now, secrets.token_hex(8)
                words.set("shown", json.dumps([shown, said]))
            if words.add(f"{shown}/nods", 0) == place.world_size - 1:
                words.set(f"{shown}/begin", "1")
                return _part(f"gnnkit/{shown}", store)
        elif place.rank and words.check(["shown"]):
            name, seen = json.loads(words.get("shown"))
            if seen[place.rank] == own and name != shown:
                shown = name
                words.add(f"{shown}/nods", 1)
            if shown and words.check([f"{shown}/begin"]):
                return _part(f"gnnkit/{shown}", store)
        time.sleep(_STEP_S / 2)
    raise TimeoutError(f"not all of the {place.world_size} ranks have come")


def _join(place: JobPlace, device: torch.device, interface: str | None, store: Any) -> PeerWatch:
    """Makes the group, and watches its connections."""
    import torch.distributed as dist

    rank, world_size = place.rank, place.world_size
    keys = [f"device/{other}" for other in range(world_size)]
    own = device_key(device)
    store.set(keys[rank], f"{host_identity()} {own}" if own else "")
    store.wait(keys, timedelta(seconds=JOIN_S))
    used = [key.decode() for key in store.multi_get(keys)]
    # Ranks that share a GPU exchange through memory: NCCL refuses them.
    backend = "cpu:gloo,cuda:nccl" if all(used) and len(set(used)) == world_size else "gloo"
    if interface is not None and backend != "gloo":
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    before = connections()
    meeting = [connection for connection in before if place.master_addr and connection.there[1] == place.master_port]
    with gloo_interface(interface):
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=_OPERATION_S))
    made = [connection for connection in connections() if connection not in before]
    keep_asking(made)
    store.set(f"ends/{rank}", json.dumps([connection.here for connection in made]))
    ends = [f"ends/{other}" for other in range(world_size)]
    store.wait(ends, timedelta(seconds=JOIN_S))
    ranks = {tuple(end): other for other, value in enumerate(store.multi_get(ends)) for end in json.loads(value)}
    peers = [(connection, f"rank {ranks[connection.there]}") for connection in made if connection.there in ranks]
    return PeerWatch(rank, peers, meeting, place.agent_store)


def _listening_interface(place: JobPlace, interface: str | None) -> str | None:
    """Name of the interface for gloo.

    Raises:
        PlanError: It cannot be told, or is of no use to other hosts.
    """
    if place.num_nodes == 1:
        return interface_to("127.0.0.1")
    said = os.environ.get(INTERFACE) or interface
    own = interface_address(said) if said else source_address(place.master_addr)
    if said is None and (not own or is_loopback(own)) and place.master_addr:
        found = f"is reached from {own}" if own else "cannot be reached"
        raise PlanError(
            f"MASTER_ADDR={place.master_addr!r} {found}, so that the interface to the other nodes is not clear",
            f"set MASTER_ADDR to an address of rank 0's node that every node can reach, or {INTERFACE} to the interface's name",
        )
    return interface_to(own)


def _not_met(place: JobPlace, error: BaseException) -> StartTimeout:
    where = f" at {place.master_addr}:{place.master_port}" if place.master_addr else ""
    return StartTimeout(
        f"rank {place.rank} of {place.world_size} found no process group{where}: {(str(error).splitlines() or [type(error).__name__])[0]}",
        "all ranks have to be started, and to reach MASTER_ADDR and each other; a firewall may keep them apart",
    )


def _wait_for_others(store: Any, place: JobPlace, watch: PeerWatch) -> None:
    """Waits until the blocks of all ranks have ended.

    Raises:
        WorkerDied: A rank is gone that had not finished.
    """
    store.add("finished", 1)
    deadline = Deadline(_FINISH_S)
    while True:
        lost = watch.lost  # before looking at the count: who has finished may go
        if store.add("finished", 0) >= place.world_size:
            return
        if lost or deadline.has_passed:
            raise WorkerDied(f"rank {place.rank} has finished, but {gone(lost or 'another rank')}", "the first rank that failed says why")
        watch.wait_for_loss(_STEP_S)


def _leave(store: Any, place: JobPlace) -> None:
    """Lets rank 0, which may keep the store, go last."""
    with suppress(RuntimeError):
        store.add("left", 1)
        deadline = Deadline(_LEAVE_S)
        while place.rank == 0 and store.add("left", 0) < place.world_size and not deadline.has_passed:
            time.sleep(_STEP_S)
