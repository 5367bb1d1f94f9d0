"""Which stages make a batch of which kind, each imported with its kernels where its kind is used, and the sampler that runs them."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.events import EventSink, ignore_events
from gnnkit.kernels import jit
from gnnkit.plan import (
    InputAnchors,
    InputLinks,
    InputNodes,
    Inputs,
    NeighborSampling,
    Sampling,
    named,
)
from gnnkit.sampling import seeders, walkers
from gnnkit.sampling.batch_writer import BatchWriter, RowWriter
from gnnkit.sampling.copying import measure_once
from gnnkit.sampling.graph_access import GraphAccess, LocalGraphAccess, NodeScratch
from gnnkit.sampling.structure import ReceivedChooser, StructureWriter
from gnnkit.sampling.subgraph import BatchKey, BatchLayout, SampleRequest, Walked, WalkSeeds
from gnnkit.sampling.tables import GraphTables
from gnnkit.schema import NodeType

if TYPE_CHECKING:
    from gnnkit.sampling.cached import CachedNodes


class Seeder(Protocol):
    """Finds what a walk starts from. Made with ``(inputs, sampling)``; one object per thread."""

    def seeds(self, request: SampleRequest, reach: GraphAccess) -> WalkSeeds:
        """The seeds of a batch."""


class Walker(Protocol):
    """Chooses nodes and edges. Made with ``(sampling,)``; one object per thread."""

    def walk(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> Walked:
        """Chooses nodes and edges around the seeds; ``key`` is the batch's."""


class NeighborWalker(Walker):
    """Draws neighbours hop by hop.

    Args:
        sampling: Fan-outs and options.
    """

    def __init__(self, sampling: NeighborSampling) -> None:
        self._sampling = sampling

    @override
    def walk(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> Walked:
        return self.walk_together([seeds], [key], reach)[0]

    def walk_together(self, seeds: Sequence[WalkSeeds], keys: Sequence[int], reach: GraphAccess) -> list[Walked]:
        """Chooses for several batches at once."""
        return reach.walk(seeds, keys, self._sampling)


# Imports inside the following functions register kernels, which are compiled where their kind is used only.
def seeder_of(inputs: Inputs, sampling: Sampling) -> Seeder:
    """The stage that finds the seeds of batches."""
    if sampling.seeder:
        seeder: Seeder = named(sampling.seeder)(inputs, sampling)
        return seeder
    if isinstance(inputs, InputLinks):
        from gnnkit.sampling.seeders.links import LinkSeeder

        return LinkSeeder(inputs, sampling)
    if isinstance(inputs, InputAnchors):
        from gnnkit.sampling.seeders.nodes import AnchorSeeder

        return AnchorSeeder(inputs, sampling)
    from gnnkit.sampling.seeders.nodes import NodeSeeder

    return NodeSeeder(inputs, sampling)


def walker_of(sampling: Sampling) -> Walker:
    """The stage that chooses the nodes and edges of batches."""
    walker: Walker = named(sampling.walker)(sampling)
    if isinstance(sampling, NeighborSampling) and sampling.subgraph_type != "directional":
        from gnnkit.sampling.walkers.shape import ShapedWalker  # kernels

        return ShapedWalker(sampling, walker)
    return walker


def finish(walked: Walked, reach: GraphAccess) -> Walked:
    """Leaves out the edges that the seeds exclude."""
    if not walked.seeds.excluded:
        return walked
    from gnnkit.sampling.exclusion import exclude

    return exclude(walked, reach)


def cached_nodes(words: Mapping[NodeType, NDArray[np.uint64]] | None) -> dict[NodeType, CachedNodes]:
    """Returns the nodes whose features a batch leaves out, from a plan's bits for them."""
    if not words:
        return {}
    from gnnkit.sampling.cached import CachedNodes  # its kernels are for those alone whose features are cached

    return {node_type: CachedNodes(own) for node_type, own in words.items()}


def prepare(inputs: Inputs, sampling: Sampling, *, caches: bool = False, has_other_hosts: bool = False) -> None:
    """Imports what a plan's batches are made with, so that ``jit.warm`` compiles its kernels.

    Args:
        inputs: What batches start from.
        sampling: What is sampled around them.
        caches: Whether batches come without the features that the trainer has.
        has_other_hosts: Whether hosts ask each other for what they hold, or for batches.
    """
    seeder_of(inputs, sampling)
    walker_of(sampling)
    if not _is_usual(inputs, sampling):
        _import_shared()
    if caches:
        import gnnkit.sampling.cached
    if has_other_hosts:
        import gnnkit.sampling.owned
        import gnnkit.sampling.remote  # noqa: F401


def prepare_all() -> None:
    """Imports what stores are built with, and batches of every kind."""
    _import_shared()
    import gnnkit.sampling.cached
    import gnnkit.sampling.remote
    import gnnkit.storage.kernels  # noqa: F401

    for package in (seeders, walkers):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def compile_ahead(inputs: Inputs, sampling: Sampling, events: EventSink, *, has_other_hosts: bool) -> None:
    """Compiles the kernels of a plan's kind here, with progress, for processes of this host that will load them.

    Those of the usual kind, on one host, they compile themselves, while they start. Hosts are waited for by others, for less time than
    compiling takes on a slow machine.
    """
    if has_other_hosts or not _is_usual(inputs, sampling):
        prepare(inputs, sampling, has_other_hosts=has_other_hosts)
        warm(events)


def _is_usual(inputs: Inputs, sampling: Sampling) -> bool:
    hops = isinstance(sampling, NeighborSampling) and not sampling.has_roots and sampling.subgraph_type == "directional"
    return hops and isinstance(inputs, InputNodes)


def _import_shared() -> None:
    """Imports what every kind but the usual one needs."""
    import gnnkit.sampling.exclusion
    import gnnkit.sampling.numbering
    import gnnkit.sampling.owned  # noqa: F401


def warm(events: EventSink = ignore_events) -> None:
    """Compiles, or loads, the kernels of the usual kind of batches, and of every other module imported so far.

    What has not been measured on this machine yet is: the way in which rows are copied.

    Args:
        events: Receives the stage "compile", a unit per kernel.
    """
    import gnnkit.sampling.batch_writer
    import gnnkit.sampling.graph_access  # noqa: F401

    jit.warm(events)
    measure_once()


class StagedChooser:
    """Chooses the nodes and edges of batches as the plan's inputs and sampling say.

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
        """Switches to another copy of the same graph."""
        self._reach.use(tables)

    def choose(self, requests: Sequence[SampleRequest]) -> list[Walked]:
        """Returns the first of these batches, at least one and as many as go at once, valid until the next call."""
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
        began_s: When that began, as ``time.monotonic()`` of this host; batches sampled at once are told of as one after the other.
        tensors: See ``SampledSubgraph``.
    """

    layout: BatchLayout
    block: NDArray[np.uint8]
    sample_s: float
    gather_s: float
    began_s: float
    tensors: Mapping[BatchKey, Any] | None = None


class BatchSource(Protocol):
    """Samples batches; one object per thread.

    Attributes:
        tables: The graph.
    """

    tables: GraphTables

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""

    def sample_all(self, requests: Sequence[SampleRequest], acquire: Callable[[int], NDArray[np.uint8]]) -> list[Sampled]:
        """Samples batches; see ``BatchSampler.sample_all``."""


class BatchSampler:
    """Samples batches with kernels.

    Args:
        tables: The graph.
        chooser: Chooses their nodes and edges.
        emitter: Writes them.
    """

    def __init__(self, tables: GraphTables, chooser: StagedChooser | ReceivedChooser, emitter: BatchWriter) -> None:
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
            started = time.monotonic()
            layouts = self._emitter.lay_out(self._chooser.choose(requests[len(found) :]))
            sampled = time.monotonic()
            blocks = [acquire(layout.nbytes) for layout in layouts]
            acquired = time.monotonic()
            self._emitter.fill(blocks)
            sample_s, gather_s = (sampled - started) / len(layouts), (time.monotonic() - acquired) / len(layouts)
            for i, (request, layout, block) in enumerate(zip(requests[len(found) :], layouts, blocks, strict=False)):
                began_s = started + i * (sample_s + gather_s) - request.waited_s
                found.append(Sampled(layout, block, request.waited_s + sample_s, gather_s, began_s))
        return found


def local_sampler(
    tables: GraphTables,
    inputs: Inputs,
    sampling: Sampling,
    scratch: NodeScratch | None = None,
    *,
    walks_only: bool = False,
    cached: Mapping[NodeType, NDArray[np.uint64]] | None = None,
    unpacks: bool = False,
) -> BatchSampler:
    """A sampler where every part is on this host.

    Args:
        tables: The graph.
        inputs: What batches start from.
        sampling: What is sampled around it.
        scratch: Memory that is shared with other samplers of the same thread and graph; None makes some.
        walks_only: Whether batches are structures, for processes elsewhere that gather the rows.
        cached: ``LoaderPlan.cached``.
        unpacks: See ``RowWriter``.
    """
    reach = LocalGraphAccess(tables, sampling.with_edge, scratch)
    rows = None if walks_only else RowWriter(tables, sampling.with_edge, cached_nodes(cached), unpacks=unpacks)
    return BatchSampler(tables, StagedChooser(inputs, sampling, reach), rows or StructureWriter(tables))
