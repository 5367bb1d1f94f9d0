"""Which stages make a batch of which kind. A stage's module, and with it its kernels, is imported where its kind is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.events import EventSink, ignore_events
from gnnkit.kernels import jit
from gnnkit.plan import (
    HGTSampling,
    InputAnchors,
    InputLinks,
    InputNodes,
    Inputs,
    LayerSampling,
    NeighborSampling,
    PPRSampling,
    Sampling,
)
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.walked import SampleRequest, Walked, WalkSeeds
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


# Imports inside the following functions register kernels, which are compiled where their kind is used only.
def seeder_of(inputs: Inputs, sampling: Sampling) -> Seeder:
    """The stage that finds the seeds of batches."""
    if isinstance(inputs, InputLinks):
        from gnnkit.sampling.seeders.links import LinkSeeder

        return LinkSeeder(inputs, sampling)
    if isinstance(inputs, InputAnchors):
        from gnnkit.sampling.seeders.anchors import AnchorSeeder

        return AnchorSeeder(inputs, sampling)
    from gnnkit.sampling.seeders.nodes import NodeSeeder

    return NodeSeeder(inputs, sampling)


def walker_of(sampling: Sampling) -> Walker:
    """The stage that chooses the nodes and edges of batches."""
    walker = _plain_walker(sampling)
    if isinstance(sampling, NeighborSampling) and sampling.subgraph_type != "directional":
        from gnnkit.sampling.walkers.shape import ShapedWalker

        return ShapedWalker(sampling, walker)
    return walker


def _plain_walker(sampling: Sampling) -> Walker:
    if isinstance(sampling, PPRSampling):
        from gnnkit.sampling.walkers.ppr import PPRWalker

        return PPRWalker(sampling)
    if isinstance(sampling, HGTSampling):
        from gnnkit.sampling.walkers.hgt import HGTWalker

        return HGTWalker(sampling)
    if isinstance(sampling, LayerSampling):
        from gnnkit.sampling.walkers.layers import LayerWalker

        return LayerWalker(sampling)
    assert isinstance(sampling, NeighborSampling), type(sampling)
    if sampling.has_roots:
        from gnnkit.sampling.walkers.rooted import RootedWalker

        return RootedWalker(sampling)
    from gnnkit.sampling.walkers.neighbors import NeighborWalker

    return NeighborWalker(sampling)


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


def prepare(inputs: Inputs, sampling: Sampling, *, walks_only: bool = False, caches: bool = False) -> None:
    """Imports what a plan's batches are made with, so that ``jit.warm`` compiles its kernels.

    Args:
        inputs: What batches start from.
        sampling: What is sampled around them.
        walks_only: Whether batches are structures, for whoever gathers the rows elsewhere.
        caches: Whether batches come without the features that the trainer has.
    """
    seeder_of(inputs, sampling)
    walker_of(sampling)
    if not _is_usual(inputs, sampling):
        _import_shared()
    if walks_only:
        import gnnkit.sampling.structure
    if caches:
        import gnnkit.sampling.cached  # noqa: F401


def prepare_all() -> None:
    """Imports what batches of every kind are made with."""
    _import_shared()
    import gnnkit.sampling.cached
    import gnnkit.sampling.remote
    import gnnkit.sampling.seeders.anchors
    import gnnkit.sampling.seeders.links
    import gnnkit.sampling.seeders.nodes
    import gnnkit.sampling.structure
    import gnnkit.sampling.walkers.hgt
    import gnnkit.sampling.walkers.layers
    import gnnkit.sampling.walkers.neighbors
    import gnnkit.sampling.walkers.ppr
    import gnnkit.sampling.walkers.rooted
    import gnnkit.sampling.walkers.shape  # noqa: F401


def compile_ahead(inputs: Inputs, sampling: Sampling, events: EventSink) -> None:
    """Compiles the kernels of a plan's kind here, with progress, for processes of this host that will load them.

    Those of the usual kind they compile themselves, while they start.
    """
    if not _is_usual(inputs, sampling):
        prepare(inputs, sampling)
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
    """Compiles, or loads, the kernels of the usual kind of batches, of building stores, and of every other module imported so far.

    Args:
        events: Receives the stage "compile", a unit per kernel.
    """
    import gnnkit.sampling.batch_writer
    import gnnkit.sampling.walk
    import gnnkit.storage.kernels  # noqa: F401

    jit.warm(events)
