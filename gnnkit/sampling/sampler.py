"""Samples batches: seeds, walk, layout and rows, one stage after the other; one object per thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import InputAnchors, Inputs, Sampling
from gnnkit.sampling.batch_writer import BatchWriter, RowWriter
from gnnkit.sampling.graph_access import GraphAccess, LocalGraphAccess
from gnnkit.sampling.kinds import cached_nodes, finish, seeder_of, walker_of
from gnnkit.sampling.scratch import NodeScratch
from gnnkit.sampling.subgraph import BatchLayout
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import SampleRequest, Walked
from gnnkit.sampling.walkers.neighbors import NeighborWalker
from gnnkit.schema import NodeType


class Chooser(Protocol):
    """Chooses the nodes and edges of batches."""

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""

    def choose(self, requests: Sequence[SampleRequest]) -> list[Walked]:
        """The first of these batches, at least one and as many as go at once, valid until the next call."""


class StagedChooser:
    """Chooses as the plan's inputs and sampling say.

    Args:
        inputs: What batches start from.
        sampling: What is sampled around it.
        reach: The way to the graph.
    """

    def __init__(self, inputs: Inputs, sampling: Sampling, reach: GraphAccess) -> None:
        self._reach = reach
        self._seeder = seeder_of(inputs, sampling)
        self._walker = walker_of(sampling)
        # Numbers that are given to anchors' labels are gone with the next batch.
        self._together = reach.walks_together and isinstance(self._walker, NeighborWalker) and not isinstance(inputs, InputAnchors)

    def use(self, tables: GraphTables) -> None:
        """See ``Chooser.use``."""
        self._reach.use(tables)

    def choose(self, requests: Sequence[SampleRequest]) -> list[Walked]:
        """See ``Chooser.choose``."""
        seeds = []
        for request in requests if self._together else requests[:1]:
            seeds.append(self._seeder.seeds(request, self._reach))
            seeds[-1].variates = request.variates
        if self._together and isinstance(self._walker, NeighborWalker):
            found = self._walker.walk_together(seeds, [request.key for request in requests], self._reach)
        else:
            found = [self._walker.walk(seeds[0], requests[0].key, self._reach)]
        return [finish(walked, self._reach) for walked in found]


class Sampled(NamedTuple):
    """A batch in its block.

    Attributes:
        layout: Its layout.
        block: uint8 ``[at least layout.nbytes]``.
        sample_s: Seconds spent sampling it.
        gather_s: Seconds spent gathering.
    """

    layout: BatchLayout
    block: NDArray[np.uint8]
    sample_s: float
    gather_s: float


class BatchSampler:
    """Samples batches.

    Args:
        tables: The graph.
        chooser: Chooses their nodes and edges.
        emitter: Writes them.
    """

    def __init__(self, tables: GraphTables, chooser: Chooser, emitter: BatchWriter) -> None:
        self.tables = tables
        self._chooser, self._emitter = chooser, emitter

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""
        self.tables = tables
        self._chooser.use(tables)
        self._emitter.use(tables)

    def sample(self, request: SampleRequest) -> BatchLayout:
        """Chooses the batch's nodes and edges and lays its block out.

        Returns:
            The layout, valid until the next call.
        """
        return self._emitter.lay_out(self._chooser.choose([request]))[0]

    def sample_into(self, request: SampleRequest, acquire: Callable[[int], NDArray[np.uint8]]) -> Sampled:
        """Samples one batch; see ``sample_all``."""
        return self.sample_all([request], acquire)[0]

    def sample_all(self, requests: Sequence[SampleRequest], acquire: Callable[[int], NDArray[np.uint8]]) -> list[Sampled]:
        """Samples batches, as many at once as their kind allows.

        Args:
            requests: The batches, at least one.
            acquire: Returns a block of at least so many bytes; asked for one batch after the other.

        Returns:
            The batches. Those that were sampled at once share the time evenly; waiting for blocks counts as neither kind of it.
        """
        found: list[Sampled] = []
        while len(found) < len(requests):
            started = time.perf_counter()
            layouts = self._emitter.lay_out(self._chooser.choose(requests[len(found) :]))
            sampled = time.perf_counter()
            blocks = [acquire(layout.nbytes) for layout in layouts]
            acquired = time.perf_counter()
            self._emitter.fill(blocks)
            count, filled = len(layouts), time.perf_counter()
            for request, layout, block in zip(requests[len(found) :], layouts, blocks, strict=False):
                found.append(Sampled(layout, block, request.waited_s + (sampled - started) / count, (filled - acquired) / count))
        return found


def local_sampler(
    tables: GraphTables,
    inputs: Inputs,
    sampling: Sampling,
    scratch: NodeScratch | None = None,
    *,
    walks_only: bool = False,
    cached: Mapping[NodeType, NDArray[np.uint64]] | None = None,
) -> BatchSampler:
    """A sampler where every part is on this host.

    Args:
        tables: The graph.
        inputs: What batches start from.
        sampling: What is sampled around it.
        scratch: Memory that is shared with other samplers of the same thread and graph; None makes some.
        walks_only: Whether batches are structures, for whoever gathers the rows elsewhere.
        cached: ``LoaderPlan.cached``.
    """
    reach = LocalGraphAccess(tables, sampling.with_edge, scratch)
    emitter: BatchWriter = RowWriter(tables, sampling.with_edge, cached_nodes(cached))
    if walks_only:
        from gnnkit.sampling.structure import StructureWriter  # its kernels are for those alone whose rows are gathered elsewhere

        emitter = StructureWriter(tables)
    return BatchSampler(tables, StagedChooser(inputs, sampling, reach), emitter)
