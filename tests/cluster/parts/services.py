"""Part services as processes, and what asks them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gnnkit.cluster.parts.client import FlightOwners, Peer
from gnnkit.plan import NeighborSampling
from gnnkit.runtime.graph_memory import SharedGraph
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.supervisor import ChildProcess, end_all
from gnnkit.runtime.vitals import Vitals
from gnnkit.sampling.remote import PartMap, hot_rows, spread_sampler
from gnnkit.sampling.sampler import BatchSampler
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.store import Store
from tests.cluster.parts.several_hosts import inputs_of

TOKEN = "a token of the tests"


def staged(whole: Store, folder: Path, parts: tuple[int, ...]) -> Store:
    """A copy of a store as a host with some of its parts has it."""
    others = {f"part{part}" for part in range(whole.num_parts) if part not in parts}
    shutil.copytree(whole.path, folder, ignore=lambda _, names: [name for name in names if name in others])
    return Store.open(folder, parts)


class Service:
    """A part service of a store's open parts; a context manager.

    Attributes:
        port: Its port.
    """

    def __init__(self, store: Store, folder: Path, *, port: int = 0, ip: str = "127.0.0.1", shared: SharedGraph | None = None) -> None:
        self.store, self.ip = store, ip
        self._vitals = Vitals.create(1)
        folder.mkdir(exist_ok=True)
        self.child = ChildProcess(0, folder / f"service-{time.monotonic_ns()}.log", self._vitals.block.fd, 1, module="gnnkit.cluster.parts")
        self.child.wire.send(
            "setup",
            () if shared is None else (shared.block.fd,),
            store=str(store.path),
            fingerprint=store.fingerprint,
            parts=store.local_parts,
            ip=ip,
            port=port,
            token=TOKEN,
            graph=None if shared is None else shared.description,
        )
        try:
            self.port = self._ready()
        except BaseException:
            self.end()
            raise

    def _ready(self) -> int:
        deadline = time.monotonic() + 120
        while (message := self.child.wire.receive()) is None:
            assert time.monotonic() < deadline, "the service does not start"
            self.child.wire.wait(1)
        if message.kind == "failed":
            raise error_from_json(message.body["error"], "starting the part service")
        assert message.kind == "ready"
        return int(message.body["port"])

    @property
    def peer(self) -> Peer:
        """The service as others know it."""
        return Peer(f"{self.ip}:{self.port}", self.store.local_parts)

    def end(self) -> None:
        """Ends it, whatever it does."""
        end_all([self.child])
        self.child.wire.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.end()


def owners_of(store: Store, peers: Mapping[int, Peer], **options: Any) -> FlightOwners:
    """Connections to services."""
    arrays = store.arrays()
    bounds = [arrays.node_bounds[t] for t in arrays.schema.node_types] + [arrays.edge_bounds[t] for t in arrays.schema.edge_types]
    options = {"token": TOKEN, "fingerprint": store.fingerprint, "timeout_s": 60.0, "at_once": 8, **options}
    return FlightOwners(peers, num_rows=[int(ends[-1]) for ends in bounds], **options)


def sampler_over(store: Store, here: int, owners: FlightOwners, peers: Mapping[int, Peer], sampling: NeighborSampling) -> BatchSampler:
    """A sampler of the host ``here``, whose store holds its parts only."""
    elsewhere = {host: peer.parts for host, peer in peers.items()}
    where = PartMap.of(store.num_parts, here, store.local_parts, elsewhere, hot_rows(store))
    arrays = store.arrays()
    return spread_sampler(GraphTables(arrays, sampling.weight is not None), inputs_of(arrays), sampling, where, owners)
