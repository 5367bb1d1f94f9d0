"""What a sampling process samples from: the graph, once, and each loader's plan and ring."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from gnnkit.errors import StoreError
from gnnkit.kernels.jit import warm
from gnnkit.plan import LoaderPlan, StoreRef
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.shared_graph import SharedGraph
from gnnkit.runtime.wire import Message
from gnnkit.runtime.worker_jobs import NowJob, SampleJob, TrialJob
from gnnkit.runtime.worker_ring import WorkerRing, WorkerSlot
from gnnkit.sampling.kinds import prepare
from gnnkit.sampling.sampler import BatchSampler, local_sampler
from gnnkit.sampling.scratch import NodeScratch
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import SampleRequest
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.cluster.parts.spreading import Spreading
    from gnnkit.cluster.receiving.receiver import BatchReceiver

logger = logging.getLogger(__name__)


class WorkerGraph:
    """The graph as it lies in memory now; shared by the sampling threads and by all loaders.

    Args:
        setup: The first message.

    Attributes:
        handle: The graph as it was opened.
        graph: The arrays to read now.
        threads: Sampling threads to run.
        spreading: The other hosts; None where every part is on this one.
        receiving: The servers that walk instead of this process; None where it has parts of its own.
    """

    def __init__(self, setup: Message) -> None:
        description, store_ref, hosts = setup.body["graph"], setup.body["store"], setup.body["hosts"]
        servers = setup.body.get("servers")
        self.threads: int = setup.body["threads"]
        self.spreading: Spreading | None = None
        self.receiving: BatchReceiver | None = None
        shared = None
        if store_ref is None:
            shared = SharedGraph.attach(setup.fds[0], description)
            self.handle = GraphHandle(shared.graph, {})
        else:
            reference = StoreRef(**store_ref)
            store = Store.open(reference.path, () if servers is not None else None if hosts is None else hosts["parts"])
            if store.fingerprint != reference.fingerprint:
                raise StoreError(f"the store {str(store.path)!r} was replaced while it was in use", "make the loader again")
            self.handle = GraphHandle(store.arrays(), store.splits, reference, link_splits=store.link_splits)
            if hosts is not None:
                from gnnkit.cluster.parts.spreading import Spreading  # brings the network library, which one host does without

                self.spreading = Spreading(hosts, store, self.threads)
                self.threads = self.spreading.threads
            if servers is not None:
                from gnnkit.cluster.receiving.receiver import BatchReceiver

                self.receiving = BatchReceiver(servers, store)
                self.threads = self.receiving.threads
            if description is not None:
                shared = SharedGraph.attach(setup.fds[0], description, self.handle.arrays)
        self.graph = self.handle.arrays if shared is None else shared.graph
        self._lock = threading.Lock()
        self._tables: dict[bool, GraphTables] = {}

    def tables(self, weighted: bool) -> GraphTables:
        """The tables of the graph as it lies in memory now."""
        with self._lock:
            tables = self._tables.get(weighted)
            if tables is None or tables.graph is not self.graph:
                tables = self._tables[weighted] = GraphTables(self.graph, weighted)
            return tables

    def channel(self, plan: LoaderPlan, mode: str) -> WorkerChannel:
        """What samples for one loader.

        Args:
            plan: The loader's plan.
            mode: "batch", or "structure" for whoever gathers the rows elsewhere.
        """
        if self.receiving is not None:
            from gnnkit.cluster.receiving.receiver import ReceivingChannel

            return ReceivingChannel(self, plan, self.receiving)
        prepare(plan.inputs, plan.sampling, walks_only=mode == "structure", caches=bool(plan.cached))
        warm()  # the kernels of its kind, which other loaders do without
        return WorkerChannel(self, plan, walks_only=mode == "structure")

    def sampler(self, tables: GraphTables, plan: LoaderPlan, scratch: NodeScratch, *, walks_only: bool) -> BatchSampler:
        """What samples batches of one plan in one thread."""
        if self.receiving is not None:
            return self.receiving.sampler(tables, plan)
        if self.spreading is not None:
            return self.spreading.sampler(tables, plan, scratch, walks_only=walks_only)
        return local_sampler(tables, plan.inputs, plan.sampling, scratch, walks_only=walks_only, cached=plan.cached)

    def traffic(self) -> dict[str, Any]:
        """What a receiving process says with each batch: the bytes that it has received and sent so far."""
        return {} if self.receiving is None else {"traffic": [self.receiving.traffic.received, self.receiving.traffic.sent]}

    def leave(self) -> None:
        """Tells other hosts that this process is about to end."""
        for others in (self.spreading, self.receiving):
            if others is not None:
                others.leave()


class WorkerChannel:
    """One of the loaders that this process samples for.

    Args:
        graph: The graph.
        plan: The loader's plan.
        walks_only: Whether it is for batches' structures (``gnnkit.sampling.structure``) instead of batches.
    """

    def __init__(self, graph: WorkerGraph, plan: LoaderPlan, *, walks_only: bool = False) -> None:
        self._graph, self._plan, self._walks_only = graph, plan, walks_only
        self._weighted = plan.sampling.weight is not None
        self._batches = BatchList(plan, graph.handle)
        self._lock = threading.Lock()
        self._samplers: dict[int, BatchSampler] = {}
        self._ring: WorkerRing | None = None

    def use_ring(self, block: SharedBlock, slot_bytes: int) -> None:
        """Batches go to the slots of this ring from now on."""
        self._ring = WorkerRing(block, slot_bytes)

    def slot(self, number: int) -> WorkerSlot:
        """A slot; it keeps its ring."""
        assert self._ring is not None, "the ring comes before the first job"
        return WorkerSlot(self._ring, number)

    def request(self, job: SampleJob | NowJob | TrialJob) -> SampleRequest:
        """What a job is sampled from."""
        with self._lock:
            if isinstance(job, NowJob) and job.seeds is not None:
                return self._batches.request_for(job.epoch, job.batch_index, job.seeds)
            return self._batches.request(0 if isinstance(job, TrialJob) else job.epoch, job.batch_index)

    def sampler(self, thread: int, scratches: dict[int, NodeScratch]) -> BatchSampler:
        """What a sampling thread samples this loader's batches with.

        Args:
            thread: The thread's number.
            scratches: Memory per node, by thread, shared by all loaders.
        """
        tables, sampler = self._graph.tables(self._weighted), self._samplers.get(thread)
        if sampler is None:
            scratch = scratches.get(thread)
            if scratch is None:
                scratch = scratches[thread] = NodeScratch(tables)
            sampler = self._samplers[thread] = self._graph.sampler(tables, self._plan, scratch, walks_only=self._walks_only)
        if sampler.tables is not tables:
            sampler.use(tables)
        return sampler

    def close(self) -> None:
        """The loader has left."""


def name_of(job: SampleJob | NowJob) -> dict[str, Any]:
    """How an answer names the job that it belongs to."""
    if isinstance(job, NowJob):
        return {"c": job.channel[1], "number": job.number}
    return {"c": job.channel[1], "g": job.generation, "step": job.step}
