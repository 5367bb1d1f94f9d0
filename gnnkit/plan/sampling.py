"""What is sampled around the inputs of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from gnnkit.errors import PlanError
from gnnkit.plan.budgets import HGTSampling, LayerSampling
from gnnkit.plan.encoding import edge_type_from_json
from gnnkit.plan.ppr import PPRSampling
from gnnkit.schema import EdgeDir, EdgeType

SubgraphType: TypeAlias = Literal["directional", "bidirectional", "induced"]
TemporalStrategy: TypeAlias = Literal["uniform", "last"]


class Sampling(Protocol):
    """What every way of sampling says; each is a frozen dataclass, equal to others with the same values."""

    @property
    def edge_dir(self) -> EdgeDir:
        """The direction in which the store is compressed and sampled."""
        ...

    @property
    def with_edge(self) -> bool:
        """Whether batches carry ``e_id``."""
        ...

    @property
    def weight(self) -> str | None:
        """Name of the edge array that draws follow; None for uniform draws."""
        ...

    @property
    def time_attr(self) -> str | None:
        """Name of the array that keeps later neighbours out; None where time plays no part."""
        ...

    @property
    def num_hops(self) -> int:
        """Hops that ``num_sampled_nodes`` and ``num_sampled_edges`` count."""
        ...

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form, with its ``kind``."""
        ...


@dataclass(frozen=True)
class NeighborSampling:
    """How neighbourhoods are sampled, hop by hop.

    Attributes:
        num_neighbors: ``{edge type: fan-out per hop}``; -1 takes all neighbours, 0 none. Every list has the same length.
        replace: Whether a neighbour may be drawn more than once.
        edge_dir: The direction in which the store is compressed and sampled.
        weight: Name of the edge array that neighbours are drawn in proportion to, or None for uniform draws.
        with_edge: Whether batches carry ``e_id``.
        disjoint: Whether every seed has a neighbourhood of its own, in which no other seed's nodes take part.
        subgraph_type: Which edges batches hold: "directional" those that were drawn, "bidirectional" also their reverses, "induced" every
            edge among the batch's nodes.
        time_attr: Name of the node or edge array that keeps later neighbours out of a seed's neighbourhood; implies ``disjoint``.
        temporal_strategy: With ``time_attr``: "uniform" draws among the neighbours that are early enough, "last" takes the latest of them.
    """

    num_neighbors: Mapping[EdgeType, tuple[int, ...]]
    replace: bool = False
    edge_dir: EdgeDir = "in"
    weight: str | None = None
    with_edge: bool = False
    disjoint: bool = False
    subgraph_type: SubgraphType = "directional"
    time_attr: str | None = None
    temporal_strategy: TemporalStrategy = "uniform"

    def __post_init__(self) -> None:
        if self.subgraph_type not in ("directional", "bidirectional", "induced"):
            raise PlanError(f"subgraph_type must be 'directional', 'bidirectional' or 'induced', got {self.subgraph_type!r}")
        if self.temporal_strategy not in ("uniform", "last"):
            raise PlanError(f"temporal_strategy must be 'uniform' or 'last', got {self.temporal_strategy!r}")
        if not isinstance(self.disjoint, bool):
            raise PlanError(f"disjoint must be True or False, got {self.disjoint!r}")
        if self.time_attr is not None and self.subgraph_type == "induced":
            raise PlanError(
                f"time_attr={self.time_attr!r} with subgraph_type='induced': edges that nobody drew may be of the future",
                "leave one of them out, or use subgraph_type='bidirectional'",
            )
        if self.temporal_strategy == "last":
            self._check_last()

    def _check_last(self) -> None:
        """The latest neighbours are not drawn: nothing can say how."""
        if self.time_attr is None:
            raise PlanError("temporal_strategy='last' needs times", "name the array that holds them: time_attr='time'")
        if self.replace:
            raise PlanError(
                "temporal_strategy='last' with replace=True: it takes each of the latest neighbours once", "leave one of them out"
            )
        if self.weight is not None:
            raise PlanError(
                f"temporal_strategy='last' with weight={self.weight!r}: it takes the latest neighbours, whatever they weigh",
                "use temporal_strategy='uniform', which follows weights, or leave weight out",
            )

    @property
    def num_hops(self) -> int:
        """Length of every fan-out list."""
        return max((len(fan_out) for fan_out in self.num_neighbors.values()), default=0)

    @property
    def has_roots(self) -> bool:
        """Whether each seed has a neighbourhood of its own."""
        return self.disjoint or self.time_attr is not None

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        fan_outs = [{"edge_type": list(edge_type), "num_neighbors": list(fan)} for edge_type, fan in sorted(self.num_neighbors.items())]
        return {
            "kind": "neighbors",
            "num_neighbors": fan_outs,
            "replace": self.replace,
            "edge_dir": self.edge_dir,
            "weight": self.weight,
            "with_edge": self.with_edge,
            "disjoint": self.disjoint,
            "subgraph_type": self.subgraph_type,
            "time_attr": self.time_attr,
            "temporal_strategy": self.temporal_strategy,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NeighborSampling:
        """Reverses ``to_json``."""
        fan_outs = {edge_type_from_json(row["edge_type"]): tuple(int(n) for n in row["num_neighbors"]) for row in value["num_neighbors"]}
        return cls(fan_outs, **{name: given for name, given in value.items() if name not in ("kind", "num_neighbors")})


_KINDS: dict[str, Callable[[Mapping[str, Any]], Sampling]] = {
    "neighbors": NeighborSampling.from_json,
    "hgt": HGTSampling.from_json,
    "layer_wise": LayerSampling.from_json,
    "ppr": PPRSampling.from_json,
}


def sampling_from_json(value: Mapping[str, Any]) -> Sampling:
    """Reverses the ``to_json`` of any sampling.

    Raises:
        PlanError: Its kind is unknown.
    """
    kind = value["kind"]
    if kind not in _KINDS:
        raise PlanError(f"the plan samples in the unknown way {kind!r}", f"known: {list(_KINDS)}")
    return _KINDS[kind](value)
