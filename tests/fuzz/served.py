"""Servers that run, asked over their sockets and over the network by somebody who has the token, and by somebody who has not.

What a case says is answered, refused or not understood; whatever it was, the same processes answer everybody else afterwards.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gnnkit import BuildOptions, GraphLoader, GraphStoreServers, Store, serve
from gnnkit.cluster.network.client import ServiceClient
from gnnkit.cluster.network.codec import PROTOCOL_VERSION, encode
from gnnkit.cluster.network.requests import Requests, to_args
from gnnkit.runtime.ring import SharedBlock
from gnnkit.runtime.wire import in_memory
from gnnkit.sampling.owners import RowsRequest
from tests.cluster.parts.services import CALL, HEAD, Speaker, said_of, told
from tests.cluster.serving.setups import ANSWER_S, Caller, Trainer, hear, server_pids, worker_pids
from tests.fuzz.mutations import mutated, mutated_json
from tests.fuzz.running import Case, Target
from tests.fuzz.targets import OPTIONS, folder, plain_source
from tests.helpers.graphs import stored
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until
from tests.helpers.wires import asked, first_line, second_line

TOKEN = "a token of these tests only"
# So often what runs is looked at.
CHECKED_EVERY = 25
# What a server and its workers may have taken when the cases are over, beside what they began with: one that is asked for ids in a file
# imports torch, and allocators keep some.
MOST_GROWTH = 512 << 20


@contextmanager
def servers(root: Path, **options: Any) -> Iterator[tuple[GraphStoreServers, Store]]:
    stored(plain_source(), root / "store", BuildOptions(1))
    with serve(root / "store", 1, progress=False, log_dir=root / "logs", **options) as handle:
        handle.wait(ANSWER_S)
        yield handle, Store.open(root / "store")


class Watched:
    """Looks after the processes of a server: they stay, and so does their size."""

    def __init__(self, handle: GraphStoreServers, ask: Callable[[], str]) -> None:
        self._handle, self._ask, self._cases = handle, ask, 0
        self._server, self._workers = server_pids(handle), worker_pids(handle)
        self._began = self._memory()

    def _memory(self) -> int:
        return sum(psutil.Process(pid).memory_info().rss for pid in (*self._server.values(), *self._workers.values()))

    def count(self) -> None:
        """One case is over."""
        self._cases += 1
        if self._cases % CHECKED_EVERY == 0:
            self.check()

    def check(self) -> None:
        """They are the same, answer a client, and have grown by little."""
        assert self._ask() == "ready"
        assert (server_pids(self._handle), worker_pids(self._handle)) == (self._server, self._workers), "a process has ended"
        grown = self._memory() - self._began
        assert grown < MOST_GROWTH, f"{grown >> 20} MB more"


def descriptors(rng: random.Random, block: SharedBlock) -> list[int]:
    """Descriptors to send, which the caller closes: the one that belongs there, others, several or none."""
    makers = (
        lambda: os.dup(block.fd),
        lambda: os.open("/dev/zero", os.O_RDWR),
        lambda: os.open("/proc/self/maps", os.O_RDONLY),
        lambda: os.memfd_create("empty"),
        lambda: os.eventfd(0),
    )
    return [rng.choice(makers)() for _ in range(rng.choice((0, 1, 1, 2)))]


def say(rng: random.Random, wire: Any, kind: str, fds: list[int], body: dict[str, Any]) -> None:
    """Sends a message, changed."""
    value = mutated_json(rng, {"kind": kind, **body}) if rng.random() < 0.9 else {"kind": kind, **body}
    text = json.dumps(value).encode()
    text = mutated(rng, text) if rng.random() < 0.1 else text
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(wire.fileno())) as end:
        end.setblocking(True)
        end.settimeout(ANSWER_S)
        end.sendmsg([text or b"\0"], ancillary)


def drain(wire: Any) -> None:
    """Takes what has come."""
    with contextlib.suppress(EOFError):
        while (message := wire.receive()) is not None:
            message.close()


CALLS: dict[str, dict[str, Any]] = {
    "describe": {},
    "status": {},
    "node_ids": {"node_type": "node", "split": "train", "rank": 0, "world_size": 1},
    "node_rows": {"node_type": "node", "name": "x", "ids": np.arange(4)},
    "edge_index": {"edge_type": ["node", "to", "node"], "layout": "coo"},
    "free_ports": {"count": 3},
    "feature_shape": {"node_type": "node"},
    "ids_in_file": {"path": "/nowhere"},
}


@contextmanager
def unix_server() -> Iterator[Case]:
    """Messages of clients to a server and to its worker, over their Unix sockets."""
    with folder() as root, servers(root) as (handle, store):
        with GraphLoader.from_store(store.path, **OPTIONS) as loader:
            plan = json.loads(json.dumps(loader.plan.to_json()))

        def ask() -> str:
            with Trainer(handle) as client:
                client.wire.send("call", number=1, name="status", args={})
                client.worker.close()
                return str(hear(client.wire, "answer").body["value"]["state"])

        watched, block = Watched(handle, ask), SharedBlock.create("gnnkit-ring", 1 << 22)

        def to_server(rng: random.Random) -> None:
            with Caller(handle) as caller:
                if rng.random() < 0.2:
                    join = {"version": PROTOCOL_VERSION, "token": handle.token, "client": "c", "pid": 1, "name": "n"}
                    say(rng, caller.wire, "join", descriptors_of(rng), join)
                    return
                message = caller.join(client=f"client {rng.randrange(3)}")
                message.close()
                for _ in range(rng.randrange(1, 4)):
                    name = rng.choice(list(CALLS))
                    tree, blocks = encode(CALLS[name])
                    fds = list(map(in_memory, blocks))
                    fds = fds if rng.random() < 0.7 else [*fds, *descriptors_of(rng)]
                    kind = rng.choice(("call", "call", "call", "enlist"))
                    say(rng, caller.wire, kind, fds, {"number": 1, "name": name, "args": tree})
                    close(fds)
                drain(caller.wire)

        def to_worker(rng: random.Random) -> None:
            with Trainer(handle) as trainer:
                wire = trainer.worker
                wire.send("open", c=1, plan=plan, trial=None)
                if rng.random() < 0.7:
                    wire.send("ring", (block.fd,), c=1, slot_bytes=1 << 20)
                messages = (
                    ("open", {"c": 2, "plan": plan, "trial": 0, "mode": "batch"}),
                    ("ring", {"c": 1, "slot_bytes": 1 << 20}),
                    ("sample", {"c": 1, "g": 0, "epoch": 0, "steps": [[3, 3, 1], [4, 4, 2]]}),
                    ("now", {"c": 1, "number": 4, "epoch": 0, "batch": 1}),
                    ("cancel", {"c": 1, "g": 1}),
                    ("close", {"c": 1}),
                )
                for _ in range(rng.randrange(1, 4)):
                    kind, body = rng.choice(messages)
                    fds = descriptors_of(rng) if kind in ("ring", "now") or rng.random() < 0.2 else []
                    say(rng, wire, kind, fds, body)
                    close(fds)
                drain(wire)
                wire.close()

        def descriptors_of(rng: random.Random) -> list[int]:
            return descriptors(rng, block)

        def case(rng: random.Random) -> None:
            (to_server if rng.random() < 0.5 else to_worker)(rng)
            watched.count()

        yield case
        watched.check()
        settled(handle)


def close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def settled(handle: GraphStoreServers) -> None:
    """All clients have gone, and nothing of theirs has stayed."""
    assert wait_until(lambda: handle.status()["clients"] == 0, ANSWER_S)


@contextmanager
def network_server() -> Iterator[Case]:
    """Requests over the network, and the lines before them, with and without the token."""
    with folder() as root:
        address = f"127.0.0.1:{free_port('127.0.0.1')}"
        with servers(root, address=address, token=TOKEN) as (handle, store):
            with GraphLoader.from_store(store.path, **OPTIONS) as loader:
                plan = json.loads(json.dumps(loader.plan.to_json()))
            known = {"version": PROTOCOL_VERSION, "fingerprint": store.fingerprint, "client": "client-fuzz", "key": "a", "timeout_s": 1}
            head = {**known, **asked(store)}
            rows = RowsRequest(((0, np.arange(5)),), ((0, 0, 32),))
            requests: list[tuple[str, dict[str, Any]]] = [("call", {**known, "name": name, "args": args}) for name, args in CALLS.items()]
            requests += [
                ("walk", {**head, "epoch": 0, "batch": 1, "seeds": None}),
                ("walk", {**head, "epoch": 0, "batch": 1, "seeds": np.arange(3)}),
                ("file", {**known, "name": "manifest.json"}),
                ("rows", asked(store, **to_args(rows, [10**6] * 4))),
                ("membership", known),
                ("add_loader", {**head, "plan": plan}),
                ("remove_loader", head),
                ("here", {**head, "name": "client-fuzz/1", "host": 0}),
                ("bye", {**head, "name": "client-fuzz/1", "host": 0}),
            ]
            own = ServiceClient(address, TOKEN, None)
            status = {"client": "client-fuzz", "name": Requests.status.name, "args": {}}
            watched = Watched(handle, lambda: str(own.ask(Requests.call, ANSWER_S, **status)["state"]))
            proofs = first_line(TOKEN) + second_line(TOKEN, "").removesuffix(b"\n")  # with any name behind them one is let in

            def ask(rng: random.Random) -> None:
                text, block = said_of(*rng.choice(requests))
                how = rng.random()
                if how < 0.4:
                    text = mutated(rng, text)
                elif how < 0.9:
                    text = json.dumps(mutated_json(rng, json.loads(text))).encode()
                if block and rng.random() < 0.2:
                    block = mutated(rng, block)
                with Speaker(address, TOKEN) as holder:
                    if rng.random() < 0.1:  # a head that is none, or says something else than comes
                        with contextlib.suppress(ConnectionError):
                            holder.end.sendall(mutated(rng, HEAD.pack(CALL, len(text), len(block))) + text + block)
                        return
                    holder.say(text, block)
                    holder.last()

            def case(rng: random.Random) -> None:
                if rng.random() < 0.05:
                    said = mutated(rng, proofs + b"fuzz\n")
                    if not said.startswith(proofs) and said.count(b"\n") == 2:  # others are waited for, as somebody slow would be
                        told(address, said)
                else:
                    ask(rng)
                watched.count()

            try:
                yield case
                watched.check()
            finally:
                own.close()


TARGETS = (Target("a server's sockets", unix_server, 0.2), Target("a server's address", network_server, 0.5))
