"""Sampling with a number of nodes for each type instead of one for each node: HGT and layer-wise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnnkit.schema import EdgeDir, NodeType


@dataclass(frozen=True)
class HGTSampling:
    """How nodes are sampled by budgets, see ``gnnkit.sampling.walkers.hgt``.

    Attributes:
        num_samples: ``{node type: nodes to draw in each iteration}``; every list has the same length, a type that is missing gets none.
        edge_dir: The direction in which the store is compressed and sampled.
        with_edge: Whether batches carry ``e_id``.
    """

    num_samples: Mapping[NodeType, tuple[int, ...]]
    edge_dir: EdgeDir = "in"
    with_edge: bool = False

    @property
    def weight(self) -> None:
        """Budgets follow degrees, not weights."""
        return None

    @property
    def time_attr(self) -> None:
        """Time plays no part."""
        return None

    @property
    def num_hops(self) -> int:
        """Iterations."""
        return max(map(len, self.num_samples.values()), default=0)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {"kind": "hgt", "num_samples": _counts(self.num_samples), "edge_dir": self.edge_dir, "with_edge": self.with_edge}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HGTSampling:
        """Reverses ``to_json``."""
        return cls(_counts_from(value["num_samples"]), value["edge_dir"], value["with_edge"])


@dataclass(frozen=True)
class LayerSampling:
    """How nodes are sampled layer by layer, see ``gnnkit.sampling.walkers.layers``.

    Attributes:
        num_nodes: ``{node type: nodes to choose in each hop}``; every list has the same length, a type that is missing gets none.
        edge_dir: The direction in which the store is compressed and sampled.
        weight: Name of the edge array that the adjacency holds, or None where every edge counts alike.
        with_edge: Whether batches carry ``e_id``.
    """

    num_nodes: Mapping[NodeType, tuple[int, ...]]
    edge_dir: EdgeDir = "in"
    weight: str | None = None
    with_edge: bool = False

    @property
    def time_attr(self) -> None:
        """Time plays no part."""
        return None

    @property
    def num_hops(self) -> int:
        """Hops."""
        return max(map(len, self.num_nodes.values()), default=0)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        shared = {"edge_dir": self.edge_dir, "weight": self.weight, "with_edge": self.with_edge}
        return {"kind": "layer_wise", "num_nodes": _counts(self.num_nodes), **shared}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LayerSampling:
        """Reverses ``to_json``."""
        return cls(_counts_from(value["num_nodes"]), value["edge_dir"], value["weight"], value["with_edge"])


def _counts(counts: Mapping[NodeType, tuple[int, ...]]) -> dict[str, list[int]]:
    return {node_type: list(numbers) for node_type, numbers in sorted(counts.items())}


def _counts_from(value: Mapping[str, Any]) -> dict[NodeType, tuple[int, ...]]:
    return {node_type: tuple(map(int, numbers)) for node_type, numbers in value.items()}
