"""What a receiving process samples with: the servers instead of a graph."""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.cluster.parts.allocation import keep_freed_memory
from gnnkit.cluster.parts.client import Peer, Traffic
from gnnkit.cluster.parts.spreading import num_rows
from gnnkit.cluster.parts.visits import attendance
from gnnkit.cluster.receiving import threads_for
from gnnkit.cluster.receiving.servers import ServerLines, Wanted
from gnnkit.errors import PlanError
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.worker_jobs import NowJob, SampleJob, TrialJob
from gnnkit.runtime.worker_sampling import WorkerChannel
from gnnkit.sampling.hosts import PartMap
from gnnkit.sampling.kinds import warm
from gnnkit.sampling.received import WalkedRequest
from gnnkit.sampling.sampler import BatchSampler
from gnnkit.sampling.scratch import NodeScratch
from gnnkit.sampling.spread_sampler import receiving_sampler
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import SampleRequest
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.runtime.worker_sampling import WorkerGraph


class BatchReceiver:
    """The servers as this process's sampling threads use them.

    Args:
        setup: ``servers`` of the setup message, see ``gnnkit.cluster.receiving``.
        store: The store's outline.

    Attributes:
        threads: Sampling threads to run.
        lines: The connections.

    Raises:
        PlanError: A part is on no server.
    """

    def __init__(self, setup: Mapping[str, Any], store: Store) -> None:
        keep_freed_memory()
        servers, graph = Peer.all_from_json(setup["servers"]), store.arrays()
        client = f"{setup['client']}/{secrets.token_hex(4)}"
        self.threads = threads_for(len(servers))
        self._where = spread_parts(setup["client"], graph.num_parts, {rank: server.parts for rank, server in servers.items()})
        self.lines = ServerLines(setup, client, store.fingerprint, num_rows(graph), at_once=self.threads * (1 + len(servers)))
        warm()  # the kernels that only this module has imported
        addresses = {rank: server.address for rank, server in servers.items()}
        self._attendance = attendance(0, addresses, setup["token"], store.fingerprint, ca=setup["ca"], name=client)
        self._attendance.begin_at_once()

    @property
    def traffic(self) -> Traffic:
        """What has come and gone so far."""
        return self.lines.traffic

    def leave(self) -> None:
        """Tells the servers that this process needs them no more."""
        self._attendance.leave()

    def session(self, graph: WorkerGraph, plan: LoaderPlan) -> ReceivingChannel:
        """The session of a loader whose batches servers walk."""
        return ReceivingChannel(graph, plan, self)

    def report(self) -> dict[str, Any]:
        """The bytes that were received and sent so far, which are sent with each batch."""
        return {"traffic": [self.traffic.received, self.traffic.sent]}

    def sampler(self, tables: GraphTables, plan: LoaderPlan, scratch: NodeScratch, *, walks_only: bool) -> BatchSampler:
        """A sampler for one thread."""
        return receiving_sampler(tables, plan.sampling, self._where, self.lines, plan.cached)


class ReceivingChannel(WorkerChannel):
    """A ``WorkerChannel`` whose batches servers walk.

    Args:
        graph: The graph's outline.
        plan: The loader's plan.
        receiving: The servers.
    """

    def __init__(self, graph: WorkerGraph, plan: LoaderPlan, receiving: BatchReceiver) -> None:
        super().__init__(graph, plan)
        # The rows are asked for here: what the trainer has of them is nothing to the servers.
        self._lines, self._key, self._sent = receiving.lines, secrets.token_hex(6), replace(plan, cached={}).to_json()

    def request(self, job: SampleJob | NowJob | TrialJob) -> SampleRequest:
        """What a job is made of: a server has walked it already."""
        self._lines.begin_batch(self._plan.runtime.batch_timeout_s)
        started = time.perf_counter()
        epoch, seeds = 0 if isinstance(job, TrialJob) else job.epoch, job.seeds if isinstance(job, NowJob) else None
        structure = self._lines.walk(Wanted(self._key, self._sent, epoch, job.batch_index, seeds))
        return WalkedRequest.of(structure, time.perf_counter() - started)

    def close(self) -> None:
        """Tells the servers that the loader has left."""
        self._lines.release(self._key)


def spread_parts(client: str, num_parts: int, holders: Mapping[int, tuple[int, ...]]) -> PartMap:
    """Which server a client asks for the rows of each part.

    Args:
        client: The client; others ask other servers.
        num_parts: Parts of the graph.
        holders: ``{server: its parts}``.

    Raises:
        PlanError: A part is on no server.
    """
    start, chosen = zlib.crc32(client.encode()), []
    for part in range(num_parts):
        having = [rank for rank in sorted(holders) if part in holders[rank]]
        if not having:
            raise PlanError(f"no server has part {part} of {num_parts}", "give the parts of every host in placement")
        chosen.append(having[(start + part) % len(having)])
    return PartMap(max(holders) + 1, np.array(chosen, np.int64))
