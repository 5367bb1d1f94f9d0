"""How large OGB's graphs are, for those who want to know before they download them.

The figures are those that OGB publishes (https://ogb.stanford.edu/docs/nodeprop/ and .../linkprop/). OGB counts an undirected edge once;
its loaders and gnnkit's keep both directions. Graphs for link prediction hold their training edges only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnkit.errors import DatasetError
from gnnkit.schema import ArraySpec, EdgeType, EdgeTypeSchema, GraphSchema, NodeType, NodeTypeSchema

_YEAR = ArraySpec("int64", (1,))
_LABEL = ArraySpec("int64")
_RELATION = {"edge_reltype": ArraySpec("int64", (1,))}


def _x(columns: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(dtype, (columns,))


@dataclass(frozen=True)
class PublishedGraph:
    """A dataset's graph as OGB describes it.

    Attributes:
        schema: Types, sizes and arrays.
        splits: ``{node type: {split: number of ids}}``; official links are not counted.
    """

    schema: GraphSchema
    splits: Mapping[NodeType, Mapping[str, int]]


def _nodes(num_nodes: int, num_edges: int, arrays: dict[str, ArraySpec], edge_arrays: dict[str, ArraySpec], *splits: int) -> PublishedGraph:
    schema = GraphSchema.homogeneous(num_nodes, num_edges, arrays, edge_arrays)
    counts = dict(zip(("train", "valid", "test"), splits, strict=False))
    return PublishedGraph(schema, {next(iter(schema.node_types)): counts} if counts else {})


def _mag() -> PublishedGraph:
    paper = {"x": _x(128), "y": _LABEL, "node_year": _YEAR}
    sizes: dict[NodeType, tuple[int, dict[str, ArraySpec]]] = {
        "author": (1_134_649, {}), "field_of_study": (59_965, {}), "institution": (8_740, {}), "paper": (736_389, paper),
    }  # fmt: skip
    edges: dict[EdgeType, int] = {
        ("author", "affiliated_with", "institution"): 1_043_998,
        ("author", "writes", "paper"): 7_145_660,
        ("paper", "cites", "paper"): 5_416_271,
        ("paper", "has_topic", "field_of_study"): 7_505_078,
    }
    nodes = {name: NodeTypeSchema(count, arrays) for name, (count, arrays) in sizes.items()}
    schema = GraphSchema(nodes, {edge_type: EdgeTypeSchema(count, _RELATION) for edge_type, count in edges.items()})
    return PublishedGraph(schema, {"paper": {"train": 629_571, "valid": 64_879, "test": 41_939}})


_PUBLISHED = {
    "ogbn-products": _nodes(2_449_029, 2 * 61_859_140, {"x": _x(100), "y": _LABEL}, {}, 196_615, 39_323, 2_213_091),
    "ogbn-proteins": _nodes(
        132_534, 2 * 39_561_252, {"y": ArraySpec("int64", (112,)), "node_species": _YEAR}, {"edge_attr": _x(8)}, 86_619, 21_236, 24_679
    ),
    "ogbn-arxiv": _nodes(169_343, 1_166_243, {"x": _x(128), "y": _LABEL, "node_year": _YEAR}, {}, 90_941, 29_799, 48_603),
    "ogbn-papers100M": _nodes(111_059_956, 1_615_685_872, {"x": _x(128), "y": _LABEL, "node_year": _YEAR}, {}, 1_207_179, 125_265, 214_338),
    "ogbn-mag": _mag(),
    "ogbl-ppa": _nodes(576_289, 2 * 21_231_931, {"x": _x(58, "int64")}, {}),
    "ogbl-collab": _nodes(235_868, 2 * 1_179_052, {"x": _x(128)}, {"edge_weight": _YEAR, "edge_year": _YEAR}),
    "ogbl-ddi": _nodes(4_267, 2 * 1_067_911, {}, {}),
    "ogbl-citation2": _nodes(2_927_963, 30_387_995, {"x": _x(128), "node_year": _YEAR}, {}),
    "ogbl-wikikg2": _nodes(2_500_604, 16_109_182, {}, _RELATION),
}


def published_names() -> list[str]:
    """The datasets whose sizes are known here."""
    return sorted(_PUBLISHED)


def published_graph(name: str) -> PublishedGraph:
    """What OGB publishes of a dataset; nothing is downloaded.

    Raises:
        DatasetError: Its sizes are not known here.
    """
    if name not in _PUBLISHED:
        from gnnkit.datasets.registry import ogb_info

        ogb_info(name)  # an unknown name has near matches
        raise DatasetError(
            f"the sizes of {name!r} are not known here", f"known: {', '.join(published_names())}; of any other graph, give a store"
        )
    return _PUBLISHED[name]
