"""Samples one batch: seeds, walk, layout and rows, one stage after the other; one object per thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import Inputs, Sampling
from gnnkit.sampling.batch_writer import BatchWriter, RowWriter
from gnnkit.sampling.graph_access import GraphAccess, LocalGraphAccess
from gnnkit.sampling.kinds import cached_nodes, finish, seeder_of, walker_of
from gnnkit.sampling.scratch import NodeScratch
from gnnkit.sampling.subgraph import BatchLayout
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import SampleRequest, Walked
from gnnkit.schema import NodeType


class Chooser(Protocol):
    """Chooses the nodes and edges of a batch."""

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""

    def choose(self, request: SampleRequest) -> Walked:
        """The batch, valid until the next call."""


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

    def use(self, tables: GraphTables) -> None:
        """See ``Chooser.use``."""
        self._reach.use(tables)

    def choose(self, request: SampleRequest) -> Walked:
        """See ``Chooser.choose``."""
        seeds = self._seeder.seeds(request, self._reach)
        seeds.variates = request.variates
        return finish(self._walker.walk(seeds, request.key, self._reach), self._reach)


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
        """Chooses the batch's nodes and edges and lays its block out; ``fill`` then writes it.

        Returns:
            The layout, valid until the next call.
        """
        return self._emitter.lay_out(self._chooser.choose(request))

    def fill(self, block: NDArray[np.uint8]) -> None:
        """Writes the batch that was sampled last into ``block``; see ``BatchWriter.fill``."""
        self._emitter.fill(block)

    def sample_into(
        self, request: SampleRequest, acquire: Callable[[int], NDArray[np.uint8]]
    ) -> tuple[BatchLayout, NDArray[np.uint8], float, float]:
        """Samples, asks ``acquire`` for a block of the right size, and fills it.

        Returns:
            The layout, the block, and the seconds spent sampling and gathering; waiting for the block counts as neither.
        """
        started = time.perf_counter()
        layout = self.sample(request)
        sampled = time.perf_counter()
        block = acquire(layout.nbytes)
        acquired = time.perf_counter()
        self.fill(block)
        return layout, block, request.waited_s + sampled - started, time.perf_counter() - acquired


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
