"""The quality of a partitioning: sizes of the parts, their balance, and the edges between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.printable import printable_line
from gnnkit.schema import EdgeType, NodeType, plain
from gnnkit.storage.layout import part_of
from gnnkit.storage.manifest import Manifest
from gnnkit.units import format_bytes


@dataclass(frozen=True)
class PartReport:
    """One part.

    Attributes:
        num_nodes: ``{node type: nodes that it owns}``.
        num_edges: ``{edge type: edges that it owns}``.
        num_cached: ``{node type: nodes whose features it replicates}``, types without any left out.
        nbytes: Bytes of its files.
    """

    num_nodes: Mapping[NodeType, int]
    num_edges: Mapping[EdgeType, int]
    num_cached: Mapping[NodeType, int]
    nbytes: int


@dataclass(frozen=True)
class StoreReport:
    """A store's parts.

    Attributes:
        path: The store's folder.
        name: Name of the dataset.
        notice: See ``Store.notice``.
        partition: The partitioner.
        parts: One report each.
        node_balance: ``{node type: nodes of the largest part over the mean}``; 1.0 is perfect.
        edge_balance: The same for edges.
        cuts: ``{edge type: int64 [num_parts, num_parts]}``: edges by the part that owns them and the part of their other end.
        nbytes: Bytes of all files, those outside the parts included.
    """

    path: str | Path
    name: str
    notice: str | None
    partition: str
    parts: tuple[PartReport, ...]
    node_balance: Mapping[NodeType, float]
    edge_balance: Mapping[EdgeType, float]
    cuts: Mapping[EdgeType, NDArray[np.int64]]
    nbytes: int

    @property
    def edge_cut(self) -> dict[EdgeType, float]:
        """``{edge type: share of its edges whose ends lie in different parts}``."""
        return {edge_type: _share(int(cut.sum() - np.trace(cut)), int(cut.sum())) for edge_type, cut in self.cuts.items()}

    @property
    def total_edge_cut(self) -> float:
        """Share of all edges whose ends lie in different parts."""
        total = sum(int(cut.sum()) for cut in self.cuts.values())
        return _share(total - sum(int(np.trace(cut)) for cut in self.cuts.values()), total)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; edge types as ``"source__relation__target"``."""
        return {**plain(self), "edge_cut": plain(self.edge_cut), "total_edge_cut": self.total_edge_cut}

    def __str__(self) -> str:
        count = len(self.parts)
        parts = f"{count} part{'s' if count > 1 else ''} ({self.partition})"
        lines = [f"{self.name}: {parts}, {format_bytes(self.nbytes)}, {self.total_edge_cut:.1%} of the edges cut"]
        lines += [self.notice] if self.notice else []
        for number, part in enumerate(self.parts):
            nodes, edges = sum(part.num_nodes.values()), sum(part.num_edges.values())
            lines.append(f"  part {number}: {nodes:,} nodes, {edges:,} edges, {format_bytes(part.nbytes)}")
        return "\n".join(map(printable_line, lines))


def report_of(manifest: Manifest, path: str | Path) -> StoreReport:
    """The report of a store, from its manifest alone."""
    bounds = {t: np.diff(np.array(b, np.int64)) for t, b in manifest.node_bounds.items()}
    parts = [
        PartReport(
            {t: int(sizes[part]) for t, sizes in bounds.items()},
            {t: counts[part] for t, counts in manifest.edge_counts.items()},
            {t: counts[part] for t, counts in manifest.cached.items()},
            sum(entry.size for name, entry in manifest.files.items() if part_of(name) == part),
        )
        for part in range(manifest.num_parts)
    ]
    return StoreReport(
        path,
        manifest.name,
        manifest.notice,
        manifest.options.partition,
        tuple(parts),
        {t: _balance(list(map(int, sizes))) for t, sizes in bounds.items()},
        {t: _balance(list(counts)) for t, counts in manifest.edge_counts.items()},
        {t: np.array(cut, np.int64) for t, cut in manifest.cuts.items()},
        manifest.nbytes,
    )


def _balance(sizes: list[int]) -> float:
    return max(sizes) * len(sizes) / sum(sizes) if sum(sizes) else 1.0


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
