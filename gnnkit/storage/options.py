"""The options of building a store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NewType, get_args

from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import EdgeDir

Partitioner = Literal["contiguous", "random", "ldg", "metis", "frequency"]
# The dataset says it itself; see ``PartedSource``.
Given = Literal["given"]
# ``"column:NAME"``: the array NAME of nodes says it. A type of its own, so that type checkers still find misspelt names of others.
ByColumn = NewType("ByColumn", str)
BY_COLUMN = "column:"
FeatureDtype = Literal["float32", "float16", "bfloat16", "quint8"]
Order = Literal["dataset", "hotness"]
# The split that epochs start from unless something else is said.
TRAIN = "train"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Everything beside the source that decides a store's bytes; part of its fingerprint.

    Attributes:
        num_parts: Parts to cut the graph into, at least 1.
        partition: The way in which nodes are assigned to parts; "column:NAME" takes the values of an array of nodes, "given" the parts of
            a ``PartedSource``.
        edge_dir: "in" compresses edges by target (sampling walks against the edges, as in PyG), "out" by source.
        with_edge: Whether to store the dataset's edge ids (4 or 8 bytes an edge).
        feature_dtype: Stores floating-point arrays of two dimensions ("x", "edge_attr") in this type; None keeps the source's.
            "quint8" keeps 8 bits of each number, affine between its column's least and largest; batches give float32.
        weight: Name of the one-dimensional edge array to prepare for weighted sampling, or None.
        time_attr: Name of the arrays of integers to prepare for temporal sampling, or None: each node's edges are then stored in the order
            of their times, which are the edge's own or those of the node at its far end (see ``gnnkit.storage.edge_values``).
        cache_ratio: Share of all nodes whose features each part replicates from other parts, hottest first.
        num_neighbors: Fan-out with which "frequency", ``cache_ratio`` and ``order`` measure how hot a node is.
        input_nodes: The split whose nodes they start from, all nodes where there is no split "train"; None is all nodes.
        seed: Seed of the partitioners that draw.
        order: The order of a part's nodes in its files: "dataset", or "hotness", those that batches touch most first, so that they share
            pages of a store that does not fit in memory. Batches are the same.
    """

    num_parts: int = 1
    partition: Partitioner | Given | ByColumn = "contiguous"
    edge_dir: EdgeDir = "in"
    with_edge: bool = False
    feature_dtype: FeatureDtype | None = None
    weight: str | None = None
    time_attr: str | None = None
    cache_ratio: float = 0.0
    num_neighbors: tuple[int, ...] = (15, 10)
    seed: int = 0
    order: Order = "dataset"
    input_nodes: str | None = TRAIN

    def __post_init__(self) -> None:
        if isinstance(self.num_parts, bool) or not isinstance(self.num_parts, int) or self.num_parts < 1:
            raise PlanError(f"num_parts must be a whole number of at least 1, got {self.num_parts!r}", "num_parts=1 keeps the graph whole")
        methods = (*get_args(Partitioner), *get_args(Given), *([self.partition] if self.part_column else [f"{BY_COLUMN}NAME"]))
        for name, value, choices in (
            ("partition", self.partition, methods),
            ("edge_dir", self.edge_dir, ("in", "out")),
            ("feature_dtype", self.feature_dtype, (None, *get_args(FeatureDtype))),
            ("order", self.order, get_args(Order)),
        ):
            if value not in choices:
                known = [str(choice) for choice in choices]
                raise PlanError(f"{name} must be one of {known}, got {value!r}{near_matches(str(value), known)}")
        if self.input_nodes is not None and (not isinstance(self.input_nodes, str) or not self.input_nodes):
            raise PlanError(f"input_nodes must be the name of a split, got {self.input_nodes!r}", "None starts from all nodes")
        if not 0.0 <= self.cache_ratio <= 1.0:
            raise PlanError(f"cache_ratio must be between 0 and 1, got {self.cache_ratio!r}", "cache_ratio=0 replicates nothing")

    @property
    def part_column(self) -> str | None:
        """The array of nodes whose values are their parts; None where another method assigns them."""
        named = isinstance(self.partition, str) and self.partition.startswith(BY_COLUMN)
        return self.partition.removeprefix(BY_COLUMN) or None if named else None

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form, with the keys in the order of the fields; "order" and "input_nodes" only where they are not the usual.

        So other stores have the manifest and the fingerprint that they had before there was a choice.
        """
        value = {**asdict(self), "num_neighbors": list(self.num_neighbors)}
        if self.order == "dataset":
            del value["order"]
        if self.input_nodes == TRAIN:
            del value["input_nodes"]
        return value
