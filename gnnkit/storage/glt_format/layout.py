"""Where a graphlearn-torch 0.2.4 partition directory keeps what.

    META                                              pickle: num_parts, data_cls, node_types, edge_types
    node_pb.pt | node_pb/<type>.pt                    int64 [num_nodes], each node's part
    edge_pb.pt | edge_pb/<edge type>.pt               int64 [num_edges], each edge's part
    part<p>/graph[/<edge type>]/{rows,cols,eids[,weights]}.pt
    part<p>/node_feat[/<type>]/{feats,ids}.pkl[,{cache_feats,cache_ids}.pt]
    part<p>/edge_feat[/<edge type>]/{feats,ids}.pkl
    graph[/<edge type>]/...                           instead of part<p>/graph where the topology was kept whole

The sub-folders per type are there for typed ("hetero") graphs only. ``.pkl`` files are pickled tensors one after another.
What this layout has no place for is kept beside it, where graphlearn-torch does not look:

    node_label.pt | node_label/<type>.pt              whole labels, what its ``whole_node_label_file`` takes
    gnnkit/about.json                                 schema, name and metadata
    gnnkit/{nodes/<type>,edges/<edge type>,splits/<type>}/<name>.npy     in the dataset's order
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gnnkit.schema import EdgeType, NodeType, edge_type_name

META_NAME = "META"
HOMOGENEOUS = "homo"
TYPED = "hetero"

FEATURE_NAME = "x"
LABEL_NAME = "y"
EDGE_FEATURE_NAME = "edge_attr"
WEIGHT_NAME = "weight"


@dataclass(frozen=True)
class GltLayout:
    """Paths in a partition directory.

    Attributes:
        root: The directory.
        typed: Whether there is a sub-folder per type.
    """

    root: Path
    typed: bool

    @property
    def meta(self) -> Path:
        """The pickled description."""
        return self.root / META_NAME

    @property
    def about(self) -> Path:
        """Our own description."""
        return self.root / "gnnkit" / "about.json"

    def part(self, part: int) -> Path:
        """The folder of a part."""
        return self.root / f"part{part}"

    def node_book(self, node_type: NodeType) -> Path:
        """The partition book of a node type."""
        return self._file("node_pb", node_type)

    def edge_book(self, edge_type: EdgeType) -> Path:
        """The partition book of an edge type."""
        return self._file("edge_pb", edge_type_name(edge_type))

    def labels(self, node_type: NodeType) -> Path:
        """The whole labels of a node type."""
        return self._file("node_label", node_type)

    def graph(self, part: int | None, edge_type: EdgeType) -> Path:
        """The folder of an edge type's edges in a part; None for the whole graph in one place."""
        return self._folder((self.root if part is None else self.part(part)) / "graph", edge_type_name(edge_type))

    def node_features(self, part: int, node_type: NodeType) -> Path:
        """The folder of a node type's features in a part."""
        return self._folder(self.part(part) / "node_feat", node_type)

    def edge_features(self, part: int, edge_type: EdgeType) -> Path:
        """The folder of an edge type's features in a part."""
        return self._folder(self.part(part) / "edge_feat", edge_type_name(edge_type))

    def node_array(self, node_type: NodeType, name: str) -> Path:
        """A node array that the layout has no other place for."""
        return self.root / "gnnkit" / "nodes" / node_type / f"{name}.npy"

    def edge_array(self, edge_type: EdgeType, name: str) -> Path:
        """An edge array that the layout has no other place for."""
        return self.root / "gnnkit" / "edges" / edge_type_name(edge_type) / f"{name}.npy"

    def split(self, node_type: NodeType, name: str) -> Path:
        """The ids of a split."""
        return self.root / "gnnkit" / "splits" / node_type / f"{name}.npy"

    def _file(self, name: str, type_name: str) -> Path:
        return self.root / name / f"{type_name}.pt" if self.typed else self.root / f"{name}.pt"

    def _folder(self, folder: Path, type_name: str) -> Path:
        return folder / type_name if self.typed else folder
