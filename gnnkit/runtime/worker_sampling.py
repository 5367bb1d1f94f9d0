"""What a sampling process samples from: the graph, once, and each loader's plan and ring."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gnnkit.errors import StoreError
from gnnkit.plan import LoaderPlan, StoreRef
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.shared_graph import SharedGraph
from gnnkit.runtime.wire import Message
from gnnkit.runtime.worker_jobs import NowJob, SampleJob, TrialJob
from gnnkit.runtime.worker_ring import WorkerRing, WorkerSlot
from gnnkit.sampling.kinds import prepare, warm
from gnnkit.sampling.sampler import BatchSampler, local_sampler
from gnnkit.sampling.scratch import NodeScratch
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import SampleRequest
from gnnkit.storage.store import Store

logger = logging.getLogger(__name__)


class OtherHosts(Protocol):
    """The way of a sampling process to what is not on its host: parts of the graph, or servers that walk in its place."""

    @property
    def threads(self) -> int:
        """Sampling threads to run."""
        ...

    def session(self, graph: WorkerGraph, plan: LoaderPlan) -> WorkerChannel | None:
        """The session of a loader whose batches are walked elsewhere; None where they are walked here."""
        ...

    def sampler(self, tables: GraphTables, plan: LoaderPlan, scratch: NodeScratch, *, walks_only: bool) -> BatchSampler:
        """A sampler for one thread, on the thread's memory per node."""
        ...

    def report(self) -> dict[str, Any]:
        """Values that are sent with each batch."""
        ...

    def leave(self) -> None:
        """Tells the other hosts that this process needs them no more."""
        ...


# Makes the way to other hosts that a setup message describes, for the store that was opened and so many threads; None where there is none.
ConnectHosts = Callable[[Mapping[str, Any], Store, int], OtherHosts | None]


class WorkerGraph:
    """The graph as it lies in memory now; shared by the sampling threads and by all loaders.

    Args:
        setup: The first message.
        connect: Makes the way to other hosts.

    Attributes:
        handle: The graph as it was opened.
        graph: The arrays to read now.
        threads: Sampling threads to run.
        others: The way to other hosts; None where every part is on this one.
    """

    def __init__(self, setup: Message, connect: ConnectHosts) -> None:
        description, store_ref, hosts = setup.body["graph"], setup.body["store"], setup.body["hosts"]
        servers = setup.body.get("servers")
        self.threads: int = setup.body["threads"]
        self.others: OtherHosts | None = None
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
            self.others = connect(setup.body, store, self.threads)
            if self.others is not None:
                self.threads = self.others.threads
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
        elsewhere = None if self.others is None else self.others.session(self, plan)
        if elsewhere is not None:
            return elsewhere
        prepare(plan.inputs, plan.sampling, walks_only=mode == "structure", caches=bool(plan.cached))
        warm()  # the kernels of its kind, which other loaders do without
        return WorkerChannel(self, plan, walks_only=mode == "structure")

    def sampler(self, tables: GraphTables, plan: LoaderPlan, scratch: NodeScratch, *, walks_only: bool) -> BatchSampler:
        """What samples batches of one plan in one thread."""
        if self.others is not None:
            return self.others.sampler(tables, plan, scratch, walks_only=walks_only)
        return local_sampler(tables, plan.inputs, plan.sampling, scratch, walks_only=walks_only, cached=plan.cached)

    def report(self) -> dict[str, Any]:
        """Values that are sent with each batch."""
        return {} if self.others is None else self.others.report()

    def leave(self) -> None:
        """Tells other hosts that this process is about to end."""
        if self.others is not None:
            self.others.leave()


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
