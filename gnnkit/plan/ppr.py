"""Sampling by personalised PageRank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnnkit.plan.encoding import edge_type_from_json
from gnnkit.schema import EdgeDir, EdgeType

# The relation of a typed graph's edges from seeds to the nodes that they keep.
PPR_RELATION = "ppr"


@dataclass(frozen=True)
class PPRChannel:
    """A walk of its own along some of the edge types.

    Attributes:
        edge_types: The types that it follows, sorted.
        ratio: Its share of a seed's nodes.
        target: How many of them that is.
    """

    edge_types: tuple[EdgeType, ...]
    ratio: float
    target: int


@dataclass(frozen=True)
class PPRSampling:
    """How nodes are chosen by personalised PageRank, see ``gnnkit.sampling.walkers.ppr``.

    Attributes:
        edge_types: The types that are walked along, sorted.
        alpha: The probability of going back to the seed, in each step.
        eps: What is left over at a node, relative to its degree and ``alpha``, below which it is not followed any more.
        max_ppr_nodes: Nodes of each type that a seed keeps, at most.
        enable_residual_topup: Whether nodes that were reached and not followed fill what is left of ``max_ppr_nodes``.
        num_neighbors_per_hop: Edges of each type that a node is followed along, at most; -1 for all of them.
        max_fetch_iterations: Rounds in which a seed's walk asks for neighbours, at most; None for any number.
        channels: Walks that are kept apart; empty for a single one along ``edge_types``.
        include_sampled_edges: Whether batches also hold the walked edges between their nodes.
        edge_dir: The direction in which the store is compressed and sampled.
        with_edge: Whether batches carry ``e_id``, of walked edges.
    """

    edge_types: tuple[EdgeType, ...]
    alpha: float = 0.5
    eps: float = 1e-4
    max_ppr_nodes: int = 50
    enable_residual_topup: bool = True
    num_neighbors_per_hop: int = 1000
    max_fetch_iterations: int | None = None
    channels: tuple[PPRChannel, ...] = ()
    include_sampled_edges: bool = False
    edge_dir: EdgeDir = "in"
    with_edge: bool = False

    @property
    def weight(self) -> None:
        """Mass is shared out evenly."""
        return None

    @property
    def time_attr(self) -> None:
        """Time plays no part."""
        return None

    @property
    def num_hops(self) -> int:
        """A batch's nodes are all one edge away from their seeds."""
        return 1

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {
            "kind": "ppr",
            "edge_types": [list(edge_type) for edge_type in self.edge_types],
            "alpha": self.alpha,
            "eps": self.eps,
            "max_ppr_nodes": self.max_ppr_nodes,
            "enable_residual_topup": self.enable_residual_topup,
            "num_neighbors_per_hop": self.num_neighbors_per_hop,
            "max_fetch_iterations": self.max_fetch_iterations,
            "channels": [
                {"edge_types": [list(t) for t in channel.edge_types], "ratio": channel.ratio, "target": channel.target}
                for channel in self.channels
            ],
            "include_sampled_edges": self.include_sampled_edges,
            "edge_dir": self.edge_dir,
            "with_edge": self.with_edge,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PPRSampling:
        """Reverses ``to_json``."""
        channels = tuple(PPRChannel(_edge_types(c["edge_types"]), float(c["ratio"]), int(c["target"])) for c in value["channels"])
        named = {name: given for name, given in value.items() if name not in ("kind", "edge_types", "channels")}
        return cls(_edge_types(value["edge_types"]), channels=channels, **named)


def _edge_types(value: Any) -> tuple[EdgeType, ...]:
    return tuple(map(edge_type_from_json, value))
