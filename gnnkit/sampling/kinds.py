"""Which stages make a batch of which kind. A stage's module, and with it its kernels, is imported where its kind is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.events import EventSink
from gnnkit.kernels.jit import warm
from gnnkit.plan import InputNodes, Inputs, NeighborSampling, Sampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.walked import SampleRequest, Seeds, Walked
from gnnkit.schema import NodeType

if TYPE_CHECKING:
    from gnnkit.sampling.cached import CachedNodes

# By class of the plan: the module and the class of the stage, which is made with what the plan says.
_SEEDERS = {
    "InputNodes": ("nodes", "NodeSeeder"),
    "InputLinks": ("links", "LinkSeeder"),
    "InputAnchors": ("anchors", "AnchorSeeder"),
}
_WALKERS = {
    "NeighborSampling": ("neighbors", "NeighborWalker"),
    "PPRSampling": ("ppr", "PPRWalker"),
    "HGTSampling": ("hgt", "HGTWalker"),
    "LayerSampling": ("layers", "LayerWalker"),
}


# What every kind but the usual one needs.
_SHARED = ("numbering", "owned", "exclusion")


class Seeder(Protocol):
    """Finds what a walk starts from. Made with ``(inputs, sampling)``; one object per thread."""

    def seeds(self, request: SampleRequest, reach: GraphAccess) -> Seeds:
        """The seeds of a batch."""


class Walker(Protocol):
    """Chooses nodes and edges. Made with ``(sampling,)``; one object per thread."""

    def walk(self, seeds: Seeds, key: int, reach: GraphAccess) -> Walked:
        """What is chosen around the seeds; ``key`` is the batch's."""


def _stage(group: str, module: str, name: str) -> Any:
    return getattr(import_module(f"gnnkit.sampling.{group}.{module}"), name)


def _seeder_class(inputs: Inputs) -> Any:
    return _stage("seeders", *_SEEDERS[type(inputs).__name__])


def _walker_class(sampling: Sampling) -> Any:
    if isinstance(sampling, NeighborSampling) and sampling.has_roots:
        return _stage("walkers", "rooted", "RootedWalker")
    return _stage("walkers", *_WALKERS[type(sampling).__name__])


def seeder_of(inputs: Inputs, sampling: Sampling) -> Seeder:
    """What finds the seeds of batches."""
    seeder: Seeder = _seeder_class(inputs)(inputs, sampling)
    return seeder


def walker_of(sampling: Sampling) -> Walker:
    """What chooses the nodes and edges of batches."""
    walker: Walker = _walker_class(sampling)(sampling)
    if isinstance(sampling, NeighborSampling) and sampling.subgraph_type != "directional":
        shaped: Walker = _stage("walkers", "shape", "ShapedWalker")(sampling, walker)
        return shaped
    return walker


def finish(walked: Walked, reach: GraphAccess) -> Walked:
    """Leaves out the edges that the seeds exclude."""
    if not walked.seeds.excluded:
        return walked
    from gnnkit.sampling.exclusion import exclude

    return exclude(walked, reach)


def cached_nodes(words: Mapping[NodeType, NDArray[np.uint64]] | None) -> dict[NodeType, CachedNodes]:
    """What an emitter leaves out, from what a plan says of it."""
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
    _seeder_class(inputs)
    walker_of(sampling)
    if not _is_usual(inputs, sampling):
        _import(*_SHARED)
    if walks_only:
        _import("structure")
    if caches:
        _import("cached")


def prepare_all() -> None:
    """Imports what batches of every kind are made with."""
    _import(*_SHARED, "structure", "cached", "spread_sampler", *(f"seeders.{module}" for module, _ in _SEEDERS.values()))
    _import(*(f"walkers.{module}" for module, _ in _WALKERS.values()), "walkers.rooted", "walkers.shape")


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


def _import(*modules: str) -> None:
    for module in modules:
        import_module(f"gnnkit.sampling.{module}")
