"""What a loader has to know of a dataset when the data itself is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gnnkit.distributed.label_edges import is_labeled_homogeneous
from gnnkit.errors import PlanError
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, ArraySpec, EdgeDir, EdgeType, GraphSchema, NodeType, Quantization

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Quantizations: TypeAlias = dict[str, Quantization] | dict[T, dict[str, Quantization]]

NODE_FEATURES = "x"
NODE_LABELS = "y"
EDGE_FEATURES = "edge_attr"


@dataclass(frozen=True)
class FeatureInfo:
    """Features of a type.

    Attributes:
        dim: Numbers per node or edge, at least 1.
        dtype: Their type.
    """

    dim: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int) or self.dim < 1:
            raise PlanError(f"a feature's dim must be a whole number of at least 1, got {self.dim!r}")


@dataclass(frozen=True)
class DatasetSchema:
    """A dataset's types and features.

    Attributes:
        is_homogeneous_with_labeled_edge_type: Whether it is a homogeneous graph with label edges, which is stored typed and
            yields homogeneous batches.
        edge_types: All edge types, label types included; None for a homogeneous graph.
        node_feature_info: Features of the nodes: one record for a homogeneous graph, a dict of the types that have features for
            a typed one, None where there are none.
        edge_feature_info: The same for edges.
        edge_dir: "in" (sampling walks from targets to sources) or "out".
        node_quantization: What the numbers of quantised node arrays stand for, ``{array: Quantization}``; such dicts by type for a typed
            graph; None where no array is quantised. Features that are quantised count as float32, which is what batches have.
        edge_quantization: The same for edges.
    """

    is_homogeneous_with_labeled_edge_type: bool
    edge_types: list[EdgeType] | None
    node_feature_info: FeatureInfo | dict[NodeType, FeatureInfo] | None
    edge_feature_info: FeatureInfo | dict[EdgeType, FeatureInfo] | None
    edge_dir: EdgeDir
    node_quantization: Quantizations[NodeType] | None = None
    edge_quantization: Quantizations[EdgeType] | None = None

    def __post_init__(self) -> None:
        if self.edge_dir not in ("in", "out"):
            raise PlanError(f"edge_dir must be 'in' or 'out', got {self.edge_dir!r}")
        typed = self.edge_types is not None
        for name, info in (("node_feature_info", self.node_feature_info), ("edge_feature_info", self.edge_feature_info)):
            if info is not None and isinstance(info, Mapping) != typed:
                kind, wanted = ("typed", "a dict by type") if typed else ("homogeneous", "one FeatureInfo")
                raise PlanError(f"{name} of a {kind} dataset must be {wanted}, got {info!r}")
        if self.is_homogeneous_with_labeled_edge_type and not is_labeled_homogeneous(self.edge_types or ()):
            raise PlanError(
                f"the edge types {self.edge_types} are not those of a homogeneous graph with labels",
                f"expected {HOMOGENEOUS_EDGE_TYPE} and its label types",
            )

    @classmethod
    def from_graph(cls, schema: GraphSchema, edge_dir: EdgeDir) -> DatasetSchema:
        """The schema of a stored graph.

        Args:
            schema: Its types and arrays; "x" and "edge_attr" are features.
            edge_dir: The direction in which it is compressed.
        """
        nodes = {name: info for name, t in schema.node_types.items() if (info := feature_info(t.arrays.get(NODE_FEATURES)))}
        edges = {name: info for name, t in schema.edge_types.items() if (info := feature_info(t.arrays.get(EDGE_FEATURES)))}
        by_node = {name: found for name, t in schema.node_types.items() if (found := _quantized(t.arrays))}
        by_edge = {name: found for name, t in schema.edge_types.items() if (found := _quantized(t.arrays))}
        if schema.is_homogeneous:
            infos = nodes.get(HOMOGENEOUS_NODE_TYPE), edges.get(HOMOGENEOUS_EDGE_TYPE)
            return cls(False, None, *infos, edge_dir, by_node.get(HOMOGENEOUS_NODE_TYPE), by_edge.get(HOMOGENEOUS_EDGE_TYPE))
        edge_types = list(schema.edge_types)
        return cls(is_labeled_homogeneous(edge_types), edge_types, nodes or None, edges or None, edge_dir, by_node or None, by_edge or None)


def feature_info(spec: ArraySpec | None) -> FeatureInfo | None:
    """What an array's rows are as features: rows of several dimensions count as flat ones, single numbers as one. None for None."""
    if spec is None:
        return None
    size = 1
    for length in spec.row_shape:
        size *= length
    return FeatureInfo(size, torch_dtype(spec)) if size else None


def _quantized(arrays: Mapping[str, ArraySpec]) -> dict[str, Quantization]:
    return {name: spec.quantization for name, spec in arrays.items() if spec.quantization is not None}


def torch_dtype(spec: ArraySpec) -> torch.dtype:
    """Torch's name of the element type that an array has in a batch."""
    import torch

    dtype: Any = getattr(torch, spec.batch_dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise PlanError(f"torch has no element type {spec.dtype!r}")
    return dtype
