"""What a sampling process samples from: the graph, once, and each loader's plan and ring."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from gnnkit.backends.batches import BatchList
from gnnkit.errors import StoreError
from gnnkit.plan import LoaderPlan, NeighborSampling, StoreRef
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.shared_graph import SharedGraph
from gnnkit.runtime.wire import Message
from gnnkit.runtime.worker_jobs import NowJob, SampleJob, TrialJob
from gnnkit.runtime.worker_ring import WorkerRing, WorkerSlot
from gnnkit.sampling.sampler import NeighborSampler, NodeScratch, SampleRequest
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.runtime.parts.spreading import Spreading

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
    """

    def __init__(self, setup: Message) -> None:
        description, store_ref, hosts = setup.body["graph"], setup.body["store"], setup.body["hosts"]
        self.threads: int = setup.body["threads"]
        self.spreading: Spreading | None = None
        shared = None
        if store_ref is None:
            shared = SharedGraph.attach(setup.fds[0], description)
            self.handle = GraphHandle(shared.graph, {})
        else:
            reference = StoreRef(**store_ref)
            store = Store.open(reference.path, None if hosts is None else hosts["parts"])
            if store.fingerprint != reference.fingerprint:
                raise StoreError(f"the store {str(store.path)!r} was replaced while it was in use", "make the loader again")
            self.handle = GraphHandle(store.arrays(), store.splits, reference)
            if hosts is not None:
                from gnnkit.runtime.parts.spreading import Spreading  # brings the network library, which one host does without

                self.spreading = Spreading(hosts, store, self.threads)
                self.threads = self.spreading.threads
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

    def sampler(self, tables: GraphTables, sampling: NeighborSampling, max_seeds: int, scratch: NodeScratch) -> NeighborSampler:
        """What samples batches of one plan in one thread."""
        make = NeighborSampler if self.spreading is None else self.spreading.sampler
        return make(tables, sampling, max_seeds, scratch)

    def leave(self) -> None:
        """Tells other hosts that this process is about to end."""
        if self.spreading is not None:
            self.spreading.leave()


class WorkerChannel:
    """One of the loaders that this process samples for.

    Args:
        graph: The graph.
        plan: The loader's plan.
    """

    def __init__(self, graph: WorkerGraph, plan: LoaderPlan) -> None:
        self._graph, self._plan = graph, plan
        self._weighted = plan.sampling.weight is not None
        self._batches = BatchList(plan, graph.handle)
        self._lock = threading.Lock()
        self._samplers: dict[int, NeighborSampler] = {}
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

    def sampler(self, thread: int, num_seeds: int, scratches: dict[int, NodeScratch]) -> NeighborSampler:
        """What a sampling thread samples this loader's batches with.

        Args:
            thread: The thread's number.
            num_seeds: Seeds of the batch.
            scratches: Memory per node, by thread, shared by all loaders.
        """
        tables, sampler = self._graph.tables(self._weighted), self._samplers.get(thread)
        if sampler is None or sampler.max_seeds < num_seeds:
            scratch = scratches.get(thread)
            if scratch is None:
                scratch = scratches[thread] = NodeScratch(tables)
            most = max(num_seeds, self._plan.batching.batch_size)
            sampler = self._samplers[thread] = self._graph.sampler(tables, self._plan.sampling, most, scratch)
        if sampler.tables is not tables:
            sampler.use(tables)
        return sampler


def name_of(job: SampleJob | NowJob) -> dict[str, Any]:
    """How an answer names the job that it belongs to."""
    if isinstance(job, NowJob):
        return {"c": job.channel, "number": job.number}
    return {"c": job.channel, "g": job.generation, "step": job.step}
