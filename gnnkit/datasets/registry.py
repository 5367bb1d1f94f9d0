"""OGB's table of its datasets, read without importing ``ogb``, and the published sizes of its graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gnnkit.errors import DatasetError, near_matches
from gnnkit.schema import ArraySpec, EdgeType, EdgeTypeSchema, GraphSchema, NodeType, NodeTypeSchema
from gnnkit.vendor import ogb as vendor_ogb

_KINDS: tuple[Literal["node", "link"], ...] = ("node", "link")


@dataclass(frozen=True, slots=True)
class OgbInfo:
    """One row of OGB's master table.

    Attributes:
        name: "ogbn-products".
        kind: What the dataset is for: "node" or "link" prediction.
        num_tasks: Labels per node; 0 for links.
        num_classes: Classes per label; 0 for links.
        task_type: "multiclass classification", "binary classification", "link prediction" or "KG completion".
        eval_metric: "acc", "rocauc", "hits@50", "mrr", ...
        download_name: Name of the archive and of the folder inside it.
        version: Release of the data that the table describes; the tree holds ``RELEASE_v<version>.txt``.
        url: Where OGB offers the archive.
        add_inverse_edge: Whether each edge of the files stands for itself and its inverse.
        split: Name of the official split.
        node_files: Node arrays beside features and labels ("node_year").
        edge_files: Edge arrays beside features ("edge_reltype").
        is_hetero: Whether nodes and edges are typed.
        is_binary: Whether the raw files are .npz rather than .csv.gz.
    """

    name: str
    kind: Literal["node", "link"]
    num_tasks: int
    num_classes: int
    task_type: str
    eval_metric: str
    download_name: str
    version: int
    url: str
    add_inverse_edge: bool
    split: str
    node_files: tuple[str, ...]
    edge_files: tuple[str, ...]
    is_hetero: bool
    is_binary: bool

    @property
    def folder(self) -> str:
        """The folder that ``ogb`` reads the dataset from: "ogbn_products"."""
        return self.name.replace("-", "_")

    def metadata(self) -> dict[str, Any]:
        """Returns the dataset's task, metric, split, version and number of classes, JSON-serialisable."""
        labels = {"num_classes": self.num_classes, "num_tasks": self.num_tasks} if self.kind == "node" else {}
        return {
            **labels,
            "task_type": self.task_type,
            "eval_metric": self.eval_metric,
            "split": self.split,
            "version": self.version,
            "add_inverse_edge": self.add_inverse_edge,
        }


def ogb_names() -> list[str]:
    """Every dataset that ``open_ogb`` reads.

    Raises:
        DatasetError: The package ``ogb`` is missing.
    """
    return sorted(name for kind in _KINDS for name in vendor_ogb.master_table(kind))


def ogb_info(name: str) -> OgbInfo:
    """Looks a dataset up.

    Raises:
        DatasetError: There is no dataset of that name, or it is one for predicting whole graphs.
    """
    for kind in _KINDS:
        table = vendor_ogb.master_table(kind)
        if name in table:
            return _parse(name, kind, table[name])
    names = ogb_names()
    if name in vendor_ogb.master_table("graph"):
        raise DatasetError(f"{name!r} is a graph prediction dataset, which gnnkit does not read", f"it reads: {', '.join(names)}")
    close = near_matches(str(name).lower().replace("_", "-"), names)
    raise DatasetError(f"there is no OGB dataset {name!r}{close}", f"known: {', '.join(names)}")


def _parse(name: str, kind: Literal["node", "link"], row: Mapping[str, str]) -> OgbInfo:
    try:
        return OgbInfo(
            name=name,
            kind=kind,
            num_tasks=int(row["num tasks"]) if kind == "node" else 0,
            num_classes=int(row["num classes"]) if kind == "node" else 0,
            task_type=row["task type"],
            eval_metric=row["eval metric"],
            download_name=row["download_name"],
            version=int(row["version"]),
            url=row["url"],
            add_inverse_edge=row["add_inverse_edge"] == "True",
            split=row["split"],
            node_files=_names(row["additional node files"]),
            edge_files=_names(row["additional edge files"]),
            is_hetero=row["is hetero"] == "True",
            is_binary=row["binary"] == "True",
        )
    except (KeyError, ValueError) as error:
        message = f"the package 'ogb' describes {name!r} in a way that gnnkit does not understand: {error!r}"
        raise DatasetError(message, "pip install -U gnnkit") from error


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("None", "") else tuple(part.strip() for part in text.split(","))


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
    """Returns the sizes that OGB publishes of a dataset; nothing is downloaded.

    Raises:
        DatasetError: Its sizes are not known here.
    """
    if name not in _PUBLISHED:
        ogb_info(name)  # an unknown name has near matches
        raise DatasetError(
            f"the sizes of {name!r} are not known here", f"known: {', '.join(published_names())}; of any other graph, give a store"
        )
    return _PUBLISHED[name]
