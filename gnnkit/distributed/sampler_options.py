"""Which sampler a loader uses, and how it is set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.samplers import PPR
from gnnkit.schema import EdgeType


class SamplerOptions(ABC):
    """Base of every kind of sampler options; derive from it for a sampler of your own.

    Options are values: make subclasses frozen dataclasses, so that they compare, pickle and can be sent to other processes.
    """

    @abstractmethod
    def check_num_neighbors(self, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> None:
        """Compares the options with the fan-outs that the loader was given.

        Raises:
            PlanError: They contradict each other.
        """


@dataclass(frozen=True)
class KHopNeighborSamplerOptions(SamplerOptions):
    """Neighbourhoods of a number of hops; what loaders use unless they are told otherwise.

    Attributes:
        num_neighbors: Fan-out per hop, for all edge types or by edge type. -1 takes all neighbours, 0 none.
    """

    num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]

    def check_num_neighbors(self, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> None:
        """See ``SamplerOptions``: both must be the same."""
        if _plain(num_neighbors) != _plain(self.num_neighbors):
            raise PlanError(
                f"num_neighbors={num_neighbors} and sampler_options.num_neighbors={self.num_neighbors} differ", "give the same, or only one"
            )


@dataclass(frozen=True)
class PPRSamplerOptions(PPR, SamplerOptions):
    """The nodes with the largest personalised PageRank of each seed, see ``gnnkit.PPR``; the loader's fan-outs are not used."""

    def check_num_neighbors(self, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> None:
        """See ``SamplerOptions``: any will do."""


def resolve_sampler_options(
    num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]], sampler_options: SamplerOptions | None = None
) -> SamplerOptions:
    """The options to sample with.

    Args:
        num_neighbors: The loader's fan-outs.
        sampler_options: What the user chose; None is ``KHopNeighborSamplerOptions(num_neighbors)``.

    Raises:
        PlanError: Both are given and contradict each other, or ``sampler_options`` is of no kind of options.
    """
    if sampler_options is None:
        return KHopNeighborSamplerOptions(num_neighbors)
    if not isinstance(sampler_options, SamplerOptions):
        raise PlanError(
            f"sampler_options must be a SamplerOptions, got a {type(sampler_options).__name__}", "derive it from SamplerOptions"
        )
    sampler_options.check_num_neighbors(num_neighbors)
    return sampler_options


def _plain(num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> Any:
    """The same fan-outs compare equal, whether they are lists or tuples."""
    if isinstance(num_neighbors, Mapping):
        return {edge_type: list(fan_out) for edge_type, fan_out in num_neighbors.items()}
    return list(num_neighbors)
