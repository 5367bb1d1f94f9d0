"""Servers for tests, and a client that speaks to their listener as the documentation of ``gnnkit.cluster.serving`` has it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from gnnkit import GraphLoader, GraphStoreServers, Store, serve
from gnnkit.cluster.network.codec import PROTOCOL_VERSION
from gnnkit.runtime.remote import error_from_json, layout_from_json
from gnnkit.runtime.ring import SharedBlock, mapped
from gnnkit.runtime.wire import Wire
from gnnkit.sampling.subgraph import SampledSubgraph
from tests.cluster.hosts.setups import ANSWER_S, OPTIONS

# What a fault may take to be seen, beyond starting processes.
FAULT_S = 5.0


@contextlib.contextmanager
def ready_servers(store: Store, num_servers: int = 2, **options: Any) -> Iterator[GraphStoreServers]:
    """Servers of this host, with all of their workers."""
    with serve(store, num_servers, progress=False, **options) as handle:
        handle.wait()
        yield handle


def server_pids(servers: GraphStoreServers) -> dict[int, int]:
    """Pids of the servers, by rank."""
    return {server["rank"]: server["pid"] for server in servers.status()["servers"] if server["pid"] is not None}


def worker_pids(servers: GraphStoreServers) -> dict[tuple[int, int], int]:
    """Pids of their workers, by server and number."""
    return {
        (server["rank"], worker["worker"]): worker["pid"]
        for server in servers.status()["servers"]
        for worker in server["workers"]
        if worker["pid"] is not None
    }


def blocks_of(pid: int, name: str) -> set[str]:
    """Inodes of the shared blocks of a name that a process maps."""
    return {line.split()[4] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if f"memfd:{name}" in line}


class Caller:
    """Somebody at a server's listener.

    Args:
        servers: The servers.
        rank: The one to call at.
    """

    def __init__(self, servers: GraphStoreServers, rank: int = 0) -> None:
        self.servers = servers
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.connect(str(servers.folder / f"server-{rank}.sock"))
        self.wire = Wire(end)

    def join(self, **words: Any) -> Any:
        """Says who it is; the server's answer."""
        given = {"version": PROTOCOL_VERSION, "token": self.servers.token, "client": "test", "pid": os.getpid(), "name": "a test", **words}
        self.wire.send("join", **given)
        return hear(self.wire)

    def close(self) -> None:
        """Leaves."""
        self.wire.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def hear(wire: Wire, *kinds: str) -> Any:
    """The next message, or the next of these kinds.

    Raises:
        EOFError: The other side is gone.
    """
    while True:
        while (message := wire.receive()) is None:
            assert wire.wait(ANSWER_S), f"nothing came, not even {kinds}"
        if not kinds or message.kind in kinds:
            return message
        message.close()


def refusal(message: Any, kind: str = "refused") -> Exception:
    """The error in a refusal, or in a message of another kind that has one."""
    assert message.kind == kind, message
    return error_from_json(message.body["error"], "joining")


class Trainer(Caller):
    """A client that has joined, and deals with one worker.

    Args:
        servers: See ``Caller``.
        name: What it calls itself.
    """

    def __init__(self, servers: GraphStoreServers, name: str = "test") -> None:
        super().__init__(servers)
        assert self.join(client=name).kind == "welcome"
        self.wire.send("enlist")
        self.meet(hear(self.wire, "worker"))

    def meet(self, message: Any) -> None:
        """Takes the connection to the worker."""
        end, vitals = message.fds
        os.close(vitals)
        self.worker_pid = int(message.body["pid"])
        self.worker = Wire(socket.socket(fileno=end))
        self._opened: dict[int, str] = {}

    def open(self, number: int, plan: Any) -> None:
        """Comes in with a loader."""
        self.worker.send("open", c=number, plan=plan.to_json(), trial=None)
        assert hear(self.worker).body == {"c": number, "nbytes": 0}

    def ask(self, number: int, batch: int) -> None:
        """Asks for a batch."""
        self.worker.send("now", c=number, number=batch, epoch=0, batch=batch)

    def batch(self) -> tuple[Any, SampledSubgraph]:
        """The next batch that comes."""
        message = hear(self.worker)
        assert message.kind == "done", message
        layout = layout_from_json(message.body["batches"][0]["layout"])
        return message, SampledSubgraph(0, int(message.body["number"]), False, layout, mapped(message.fds[0]))

    def give_ring(self, number: int) -> str:
        """Gives a loader's ring to the worker; the inode of its memory."""
        block = SharedBlock.create("gnnkit-ring", 1)
        self.worker.send("ring", (block.fd,), c=number, slot_bytes=block.nbytes)
        return str(os.fstat(block.fd).st_ino)

    def close(self) -> None:
        """Leaves, as a process that ends does."""
        self.worker.close()
        super().close()


def arrays_of(subgraph: SampledSubgraph) -> dict[str, Any]:
    """A batch's arrays by name."""
    return {field.key.name: subgraph.array(field) for field in subgraph.layout.fields}


def expected_batches(store: Store, **options: Any) -> tuple[Any, list[Any]]:
    """A plan, and the first epoch's batches, sampled in this process."""
    with GraphLoader.from_store(store.path, backend="inprocess", progress=False, **{**OPTIONS, **options}) as loader:
        return loader.plan, list(loader)
