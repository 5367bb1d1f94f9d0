"""WorkerPool of one thread where parts are on other hosts, or where servers walk."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import Inputs, Sampling
from gnnkit.sampling import fill as fill_kernel
from gnnkit.sampling.batch_writer import RowWriter
from gnnkit.sampling.fill import RowStep
from gnnkit.sampling.hosts import PartMap
from gnnkit.sampling.kinds import cached_nodes
from gnnkit.sampling.owners import PartOwners
from gnnkit.sampling.received import ReceivedChooser
from gnnkit.sampling.remote_rows import RowFiller
from gnnkit.sampling.sampler import BatchSampler, StagedChooser
from gnnkit.sampling.scratch import NodeScratch
from gnnkit.sampling.spread import RemoteGraphAccess
from gnnkit.sampling.structure import StructureWriter
from gnnkit.sampling.tables import GraphTables
from gnnkit.schema import NodeType


class RemoteRowWriter(RowWriter):
    """A ``RowWriter`` that asks other hosts for the rows of their parts.

    Args:
        tables: The graph; parts of other hosts have no arrays.
        with_edge: See ``RowWriter``.
        where: Where the parts are.
        owners: The other hosts.
        cached: ``LoaderPlan.cached``.
    """

    def __init__(
        self,
        tables: GraphTables,
        with_edge: bool,
        where: PartMap,
        owners: PartOwners,
        cached: Mapping[NodeType, NDArray[np.uint64]] | None = None,
    ) -> None:
        super().__init__(tables, with_edge, cached_nodes(cached))
        self._rows = RowFiller(tables, where, owners)

    def use(self, tables: GraphTables) -> None:
        """See ``BatchWriter.use``."""
        super().use(tables)
        self._rows.use(tables)

    def _run(self, steps: list[RowStep]) -> bool:
        copies = [(target, step) for target, step in steps if step[0] == fill_kernel.COPY]
        super()._run(copies)
        return self._rows.fill([(target, step) for target, step in steps if step[0] != fill_kernel.COPY])


def spread_sampler(
    tables: GraphTables,
    inputs: Inputs,
    sampling: Sampling,
    where: PartMap,
    owners: PartOwners,
    scratch: NodeScratch | None = None,
    *,
    walks_only: bool = False,
    cached: Mapping[NodeType, NDArray[np.uint64]] | None = None,
) -> BatchSampler:
    """A sampler whose batches are those of ``local_sampler`` on one host.

    Args:
        tables: The graph; parts of other hosts have no arrays.
        inputs: What batches start from.
        sampling: What is sampled around it.
        where: Where the parts are.
        owners: The other hosts.
        scratch: See ``local_sampler``.
        walks_only: See ``local_sampler``.
        cached: See ``local_sampler``.
    """
    reach = RemoteGraphAccess(tables, sampling.with_edge, where, owners, scratch)
    emitter = StructureWriter(tables) if walks_only else RemoteRowWriter(tables, sampling.with_edge, where, owners, cached)
    return BatchSampler(tables, StagedChooser(inputs, sampling, reach), emitter)


def receiving_sampler(
    tables: GraphTables,
    sampling: Sampling,
    where: PartMap,
    owners: PartOwners,
    cached: Mapping[NodeType, NDArray[np.uint64]] | None = None,
) -> BatchSampler:
    """A sampler of ``received.WalkedRequest``: every row is asked of whoever has it.

    Args:
        tables: The graph's outline.
        sampling: What is sampled.
        where: Who is asked for the rows of each part.
        owners: Those who are.
        cached: See ``local_sampler``.
    """
    return BatchSampler(tables, ReceivedChooser(tables), RemoteRowWriter(tables, sampling.with_edge, where, owners, cached))
