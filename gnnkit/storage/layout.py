"""The options of a store, its layout on disk, and the numbers that it gives to nodes.

    manifest.json
    part<p>/edges/<source>__<relation>__<target>/{indptr,indices[,edge_id][,weight_prefix][,effective_time][,<array>]}.npy
    part<p>/nodes/<type>/{[global_id][,<array>]}.npy
    part<p>/cache/<type>/{global_id,x}.npy
    book/<type>/store_id.npy
    splits/<type>/<split>.npy
    splits/<source>__<relation>__<target>/<split>.<array>.npy
    keys/<type>/<array>.npy

Types, splits and arrays of ordinary names are called so, others as ``file_name`` says: it is the manifest that knows their names.

Arrays of a part are in the order of its nodes and edges; ``gnnkit.storage.arrays`` describes their contents.

Hotness comes in levels, each of twice the visits of the next (``gnnkit.storage.partition.hotness``), and nodes of one level are in the
dataset's order: those that batches touch most share pages, and neighbours that the dataset keeps together stay together.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NewType, TypeAlias, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import check_fields, checks_calls
from gnnkit.bounds import keep_whole_number
from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import (
    ELEMENT_TYPES,
    ArraySpec,
    EdgeDir,
    EdgeType,
    GraphSchema,
    NodeType,
    Quantization,
    edge_type_name,
    element_type,
)
from gnnkit.storage.edge_values import TIME_NAME, check_time_attr

Partitioner = Literal["contiguous", "random", "ldg", "metis", "frequency"]
# The dataset says it itself; see ``PartedSource``.
Given = Literal["given"]
# ``"column:NAME"``: the array NAME of nodes says it. A type of its own, so that type checkers still find misspelt names of others.
ByColumn = NewType("ByColumn", str)
BY_COLUMN = "column:"
FeatureDtype = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "quint8", "quint4x2", "quint2x4"]


class TypeFeatures(TypedDict):
    """The features of a type, where some of their columns are kept whole.

    Attributes:
        dtype: The type of the others: "quint8", "quint4x2" or "quint2x4".
        whole: Columns of "x", of edges "edge_attr", by their numbers, or by their names in the table that they come from: they are
            float32.
    """

    dtype: FeatureDtype
    whole: Sequence[int | str]


# One for all types, or one for each of those that are named; an edge type may be written as in names of folders.
FeatureDtypes: TypeAlias = FeatureDtype | Mapping[NodeType | EdgeType, FeatureDtype | TypeFeatures]
Order = Literal["dataset", "hotness"]
# The split that epochs start from unless something else is said.
TRAIN = "train"


@checks_calls()
@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Everything beside the source that decides a store's bytes; part of its fingerprint.

    Attributes:
        num_parts: Parts to cut the graph into, at least 1.
        partition: The way in which nodes are assigned to parts; "column:NAME" takes the values of an array of nodes, "given" the parts of
            a ``PartedSource``.
        edge_dir: "in" compresses edges by target (sampling walks against the edges, as in PyG), "out" by source.
        with_edge: Whether to store the dataset's edge ids (4 or 8 bytes an edge).
        feature_dtype: Stores floating-point arrays of two dimensions ("x", "edge_attr") in this type; None keeps the source's. "quint8",
            "quint4x2" and "quint2x4" keep 8, 4 or 2 bits of each number, affine between its column's least and largest; batches give
            float32. ``{type: dtype}`` says it of some types, ``{type: {"dtype": ..., "whole": [columns]}}`` keeps columns of them as
            float32.
        weight: Name of the one-dimensional edge array to prepare for weighted sampling, or None.
        time_attr: Name of the arrays of integers to prepare for temporal sampling, or None: each node's edges are then stored in the order
            of their times, which are the edge's own or those of the node at its far end (see ``gnnkit.storage.edge_values``).
        cache_ratio: Share of all nodes whose features each part replicates from other parts, hottest first.
        num_neighbors: Fan-out with which "frequency", ``cache_ratio`` and ``order`` measure how hot a node is.
        input_nodes: The split whose nodes they start from, all nodes where there is no split "train"; None is all nodes.
        seed: Seed of the partitioners that draw.
        order: The order of a part's nodes in its files: "dataset", or "hotness", those that batches touch most first, so that they share
            pages of a store that does not fit in memory. Batches are the same.

    Example:
        >>> import gnnkit
        >>> gnnkit.BuildOptions(num_parts=2, partition="random").num_parts
        2
    """

    num_parts: int = 1
    partition: Partitioner | Given | ByColumn = "contiguous"
    edge_dir: EdgeDir = "in"
    with_edge: bool = False
    feature_dtype: FeatureDtypes | None = None
    weight: str | None = None
    time_attr: str | None = None
    cache_ratio: float = 0.0
    num_neighbors: tuple[int, ...] = (15, 10)
    seed: int = 0
    order: Order = "dataset"
    input_nodes: str | None = TRAIN

    def __post_init__(self) -> None:
        check_fields(self)
        keep_whole_number(self, "num_parts", 1, hint="num_parts=1 keeps the graph whole")
        methods = (*get_args(Partitioner), *get_args(Given), *([self.partition] if self.part_column else [f"{BY_COLUMN}NAME"]))
        for name, value, choices in (
            ("partition", self.partition, methods),
            ("edge_dir", self.edge_dir, ("in", "out")),
            ("order", self.order, get_args(Order)),
        ):
            _check_choice(name, value, choices)
        object.__setattr__(self, "feature_dtype", _canonical_dtypes(self.feature_dtype))
        if self.input_nodes == "":
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


def _check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if not isinstance(value, str | None) or value not in choices:
        known = [str(choice) for choice in choices]
        raise PlanError(f"{name} must be one of {known}, got {value!r}{near_matches(str(value), known)}")


def _canonical_dtypes(given: Any) -> Any:
    """Returns what a user said of the types of features in the form in which it is JSON.

    Raises:
        PlanError: There is no such type, or it is not said of which types of the graph.
    """
    if not isinstance(given, Mapping):
        _check_choice("feature_dtype", given, (None, *get_args(FeatureDtype)))
        return given
    found: dict[str, Any] = {}
    for owner, own in given.items():
        what = f"feature_dtype[{owner!r}]"
        features = dict(own) if isinstance(own, Mapping) else {"dtype": own}
        if unknown := [key for key in features if key not in TypeFeatures.__annotations__]:
            raise PlanError(f"{what} says something of {unknown[0]!r}", 'it is a dtype, or {"dtype": "quint4x2", "whole": [columns]}')
        _check_choice(what, features.get("dtype"), get_args(FeatureDtype))
        whole = features.get("whole", ())
        if not isinstance(whole, Sequence) or isinstance(whole, str) or not all(type(column) in (int, str) for column in whole):
            raise PlanError(
                f'{what}["whole"] must be a list of columns, got {whole!r}', "columns are numbers, or names of a table's columns"
            )
        if whole and element_type(features["dtype"]).bits is None:
            raise PlanError(
                f"{what} keeps columns whole, and {features['dtype']} rounds them", "whole= goes with quint8, quint4x2 or quint2x4"
            )
        key = "__".join(map(str, owner)) if isinstance(owner, tuple) else str(owner)
        found[key] = {"dtype": features["dtype"], "whole": list(whole)} if whole else features["dtype"]
    return found


FORMAT = "gnnkit-store"
FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
FEATURE_NAME = "x"
EDGE_FEATURE_NAME = "edge_attr"
LABEL_NAME = "y"

EDGE_FILES = ("indptr", "indices", "edge_id", "weight_prefix", TIME_NAME)
NODE_FILES = ("global_id",)
STORABLE_DTYPES = frozenset(
    ["bool", *ELEMENT_TYPES, "float16", "float32", "float64"] + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_MAX_NAME_BYTES, _KEPT_LETTERS, _DIGITS = 80, 40, 16


def file_name(name: str) -> str:
    """Returns what a folder or a file is called after a type, a split or an array.

    That is the name itself, where it is an ordinary one: up to 80 bytes of UTF-8, all of them printable characters, without slashes and not
    starting with a dot. Of another it is some letters, and 64 bits of a digest of all of it (SHA-256).
    """
    if name and name[0] != "." and "/" not in name and "\\" not in name and name.isprintable() and len(name.encode()) <= _MAX_NAME_BYTES:
        return name
    import hashlib  # OpenSSL, which ordinary names do without

    letters = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name[:_KEPT_LETTERS]).lstrip(".")
    return f"{letters}~{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:_DIGITS]}"


def type_folder(owner: NodeType | EdgeType) -> str:
    """Returns what a folder is called after a node type or an edge type."""
    return "__".join(map(file_name, owner)) if isinstance(owner, tuple) else file_name(owner)


def part_folder(part: int) -> str:
    """Name of a part's folder."""
    return f"part{part}"


def part_of(name: str) -> int | None:
    """The part that a file of a store belongs to; None for those that every host has."""
    folder = name.partition("/")[0]
    number = folder.removeprefix("part")
    return int(number) if folder.startswith("part") and number.isdigit() else None


def has_features(name: str) -> bool:
    """Whether a file of a part holds features: those of its nodes or edges, or replicated ones."""
    _, kind, *_, file = name.split("/")
    return kind == "cache" or file == f"{EDGE_FEATURE_NAME if kind == 'edges' else FEATURE_NAME}.npy"


def is_held(name: str, parts: Container[int], whole_structure: bool) -> bool:
    """Whether a file of a store is on a host.

    Args:
        name: The file.
        parts: The host's parts.
        whole_structure: Whether the host has all but the features of the other parts, too.
    """
    part = part_of(name)
    return part is None or part in parts or (whole_structure and not has_features(name))


def array_file(part: int, owner: NodeType | EdgeType, name: str) -> str:
    """Returns the path of an array of a type's nodes or edges, relative to the store."""
    return f"{part_folder(part)}/{'edges' if isinstance(owner, tuple) else 'nodes'}/{type_folder(owner)}/{file_name(name)}.npy"


def cache_file(part: int, node_type: NodeType, name: str) -> str:
    """Path of an array of the nodes that a part replicates from other parts, relative to the store."""
    return f"{part_folder(part)}/cache/{file_name(node_type)}/{name}.npy"


def book_file(node_type: NodeType) -> str:
    """Path of the map from dataset ids to store ids, relative to the store."""
    return f"book/{file_name(node_type)}/store_id.npy"


def split_file(owner: NodeType | EdgeType, split: str, name: str = "") -> str:
    """Returns the path of a split's ids, or of a named array of a split of links, relative to the store."""
    return f"splits/{type_folder(owner)}/{file_name(split)}{f'.{name}' if name else ''}.npy"


def keys_file(node_type: NodeType, name: str) -> str:
    """Path of an array of the keys of a node type, relative to the store."""
    return f"keys/{file_name(node_type)}/{name}.npy"


def index_dtype(count: int) -> np.dtype[np.signedinteger]:
    """int32 where numbers from 0 to ``count`` fit, else int64."""
    return np.dtype(np.int32 if count <= np.iinfo(np.int32).max else np.int64)


def end_specs(schema: GraphSchema, edge_type: EdgeType) -> tuple[ArraySpec, ArraySpec]:
    """The forms in which the sources and the targets of edges fit."""
    source, target = (ArraySpec(index_dtype(schema.node_types[end].num_nodes).name) for end in (edge_type[0], edge_type[2]))
    return source, target


def store_schema(schema: GraphSchema, options: BuildOptions, metadata: Mapping[str, Any]) -> GraphSchema:
    """The schema of the store that ``options`` make of a source: feature arrays in ``options.feature_dtype``.

    Features are floating-point arrays of two dimensions, labels ("y") excepted: those keep every bit. What the numbers of quantised arrays
    stand for is not known from a schema alone: see ``gnnkit.storage.convert``.

    Args:
        schema: The source's.
        options: How the store is built.
        metadata: The source's; it has the names of columns.

    Raises:
        PlanError: A column that is to be kept whole is not there.
    """

    def convert(of: NodeType | EdgeType, arrays: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
        owner, features = (edge_type_name(of), EDGE_FEATURE_NAME) if isinstance(of, tuple) else (of, FEATURE_NAME)
        said = options.feature_dtype
        own = said.get(owner) if isinstance(said, Mapping) else said
        if own is None:
            return dict(arrays)
        dtype, kept = (own["dtype"], own["whole"]) if isinstance(own, Mapping) else (own, ())
        whole = _numbers_of(kept, owner, arrays.get(features), column_names(metadata, owner, features)) if kept else ()
        return {name: _stored_spec(name, spec, dtype, whole if name == features else ()) for name, spec in arrays.items()}

    return schema.with_arrays(convert)


def _stored_spec(name: str, spec: ArraySpec, dtype: str, whole: tuple[int, ...]) -> ArraySpec:
    """Returns the dtype and shape that an array of the source has in the store."""
    if name == LABEL_NAME or len(spec.row_shape) != 1 or spec.kind != "f":
        return spec
    bits = element_type(dtype).bits
    return ArraySpec(dtype, spec.row_shape, None if bits is None else Quantization((), (), bits, whole), spec.dim)


def column_names(metadata: Mapping[str, Any], owner: str, array: str) -> list[str]:
    """Names of the columns of an array that comes from a table, one for each; none where it comes from elsewhere.

    Args:
        metadata: The source's.
        owner: The array's type, an edge type as in names of folders.
        array: Its name.
    """
    names: list[str] = []
    for column in metadata.get("tables", {}).get(owner, {}).get(array, ()):
        if isinstance(column, Mapping):
            names += [column["column"]] * column["width"] if "column" in column else [column["one_hot"]] * len(column["values"])
        else:
            names.append(column)
    return names


def _numbers_of(columns: Sequence[int | str], owner: str, spec: ArraySpec | None, names: list[str]) -> tuple[int, ...]:
    """The numbers of columns, ascending."""
    width = spec.row_shape[0] if spec is not None and len(spec.row_shape) == 1 else 0
    found: set[int] = set()
    for column in columns:
        own = [k for k in range(width) if k == column or (k < len(names) and names[k] == column)]
        if not own:
            known = f"its columns are {sorted(set(names))}{near_matches(str(column), names)}" if names else "they have no names here"
            raise PlanError(f"feature_dtype keeps column {column!r} of {owner!r} whole, which has {width} columns of features", known)
        found.update(own)
    return tuple(sorted(found))


def check_buildable(schema: GraphSchema, options: BuildOptions, metadata: Mapping[str, Any]) -> None:
    """Refuses what cannot become a store.

    Args:
        schema: The source's.
        options: How to build it.
        metadata: The source's.

    Raises:
        PlanError: ``feature_dtype`` names a type or a column that is not there, two types would share a folder, nodes and edges of a
            homogeneous graph an array's name, a dtype cannot be stored, there are more parts than nodes, the weight array is missing or
            not one number per edge, ``time_attr`` names no times, or nodes have no array of whole numbers that says which parts they
            are in.
    """
    largest = max((t.num_nodes for t in schema.node_types.values()), default=0)
    if not schema.node_types:
        raise PlanError("a graph without node types cannot be stored")
    if options.num_parts > max(largest, 1):
        raise PlanError(
            f"num_parts={options.num_parts} is more than the nodes of any type (the largest has {largest})",
            f"num_parts={max(largest, 1)} is the most",
        )
    for node_type, nodes in schema.node_types.items():
        _check_arrays(f"node type {node_type!r}", nodes.arrays, NODE_FILES)
    if schema.is_homogeneous:
        (nodes,), (edges,) = schema.node_types.values(), schema.edge_types.values()
        if both := sorted(set(nodes.arrays) & set(edges.arrays)):
            raise PlanError(
                f"nodes and edges of a homogeneous graph both have an array called {both[0]!r}",
                "a batch has one place for both: rename one",
            )
    folders: dict[str, EdgeType] = {}
    for edge_type, edges in schema.edge_types.items():
        _check_arrays(f"edge type {edge_type}", edges.arrays, EDGE_FILES)
        folder = type_folder(edge_type)
        other = folders.setdefault(folder, edge_type)
        if other != edge_type:
            raise PlanError(f"edge types {other} and {edge_type} would share the folder {folder!r}", "rename one of them")
    if isinstance(options.feature_dtype, Mapping):
        types = [*schema.node_types, *folders]
        for owner in options.feature_dtype:
            if owner not in types:
                raise PlanError(f"feature_dtype names the unknown type {owner!r}{near_matches(str(owner), types)}", f"known: {types}")
    store_schema(schema, options, metadata)
    _check_weight(schema, options)
    check_time_attr(schema, options.time_attr)
    _check_part_column(schema, options)


def weighted_edge_types(schema: GraphSchema, options: BuildOptions) -> list[EdgeType]:
    """The edge types that carry ``options.weight``; those without it are sampled uniformly."""
    return [edge_type for edge_type, edges in schema.edge_types.items() if options.weight in edges.arrays]


def _check_weight(schema: GraphSchema, options: BuildOptions) -> None:
    if options.weight is None:
        return
    found = weighted_edge_types(schema, options)
    if not found:
        known = sorted({name for edges in schema.edge_types.values() for name in edges.arrays})
        raise PlanError(
            f"weight={options.weight!r} names no edge array{near_matches(options.weight, known)}",
            f"edge arrays of this graph: {known}" if known else "this graph has no edge arrays; weight=None samples uniformly",
        )
    for edge_type in found:
        spec = schema.edge_types[edge_type].arrays[options.weight]
        if spec.row_shape != () or spec.dtype == "bool" or spec.dtype in ELEMENT_TYPES:
            raise PlanError(
                f"weight={options.weight!r} of {edge_type} has rows of shape {spec.row_shape} and dtype {spec.dtype}",
                "it must be one number per edge",
            )


def _check_part_column(schema: GraphSchema, options: BuildOptions) -> None:
    name = options.part_column
    for node_type, nodes in schema.node_types.items() if name is not None else ():
        assert name is not None
        if name not in nodes.arrays:
            known = list(nodes.arrays)
            raise PlanError(
                f"partition={options.partition!r}: nodes of type {node_type!r} have no array {name!r}{near_matches(name, known)}",
                f"they have {known}; categories=... of gnnkit.tables keeps a column of a table",
            )
        spec = nodes.arrays[name]
        if spec.kind not in "iu" or spec.row_shape not in ((), (1,)):
            raise PlanError(
                f"partition={options.partition!r}: {name!r} of {node_type!r} has rows of shape {spec.row_shape} and dtype {spec.dtype}",
                "the number of a part is one whole number for each node; categories=... of gnnkit.tables takes texts",
            )


def _check_arrays(owner: str, arrays: Mapping[str, ArraySpec], reserved: tuple[str, ...]) -> None:
    for name, spec in arrays.items():
        if name in reserved:
            raise PlanError(f"{owner} has an array called {name!r}, a name that the store uses itself", "rename the array")
        if spec.dtype not in STORABLE_DTYPES:
            raise PlanError(f"array {name!r} of {owner} has dtype {spec.dtype!r}", f"it must be one of {sorted(STORABLE_DTYPES)}")
        scales, bits = None if spec.quantization is None else (len(spec.quantization.scale),), element_type(spec.dtype).bits
        if scales != (None if bits is None else spec.row_shape):
            raise PlanError(f"array {name!r} of {owner} has dtype {spec.dtype!r}, rows of shape {spec.row_shape} and scales {scales}")
        if not 0 <= spec.dim <= len(spec.row_shape):
            raise PlanError(f"array {name!r} of {owner} has rows of shape {spec.row_shape} along the dimension {spec.dim}")


# Levels of hotness, from 0 for nodes that no batch touches.
MOST_LEVELS = 64


@dataclass(frozen=True)
class StoreNumbering:
    """The store ids of one node type.

    Attributes:
        bounds: int64 ``[num_parts + 1]``: part ``p`` owns the store ids ``[bounds[p], bounds[p + 1])``.
        store_id: int32 or int64 ``[num_nodes]`` from the dataset's id to the store id; None for the identity.
        hotness: For each part its number of nodes of each level, hottest first; None where nodes are in the dataset's order.
    """

    bounds: NDArray[np.int64]
    store_id: NDArray[Any] | None = None
    hotness: tuple[tuple[int, ...], ...] | None = None

    @property
    def num_nodes(self) -> int:
        """Nodes of the type."""
        return int(self.bounds[-1])

    @property
    def map(self) -> NDArray[Any]:
        """The same as kernels take it: empty for the identity."""
        return np.empty(0, np.int32) if self.store_id is None else self.store_id

    def part_of(self, store_ids: NDArray[Any]) -> NDArray[np.int64]:
        """The part of each store id."""
        return np.searchsorted(self.bounds, store_ids, side="right").astype(np.int64) - 1


def contiguous(num_nodes: int, num_parts: int) -> StoreNumbering:
    """Parts of consecutive nodes whose sizes differ by at most one."""
    return StoreNumbering(np.array([num_nodes * part // num_parts for part in range(num_parts + 1)], np.int64))


def contiguous_numbering(schema: GraphSchema, num_parts: int) -> dict[NodeType, StoreNumbering]:
    """The same for all types of a graph."""
    return {node_type: contiguous(nodes.num_nodes, num_parts) for node_type, nodes in schema.node_types.items()}


def from_assignment(
    node_type: NodeType, num_nodes: int, num_parts: int, part: NDArray[np.integer[Any]], levels: NDArray[np.uint8] | None = None
) -> StoreNumbering:
    """The numbering under which part ``part[i]`` owns node ``i``.

    Args:
        node_type: The nodes' type, for the error.
        num_nodes: How many there are.
        num_parts: Parts.
        part: ``[num_nodes]``, by dataset id.
        levels: ``[num_nodes]``, how hot each node is, at most ``MOST_LEVELS - 1``; None leaves them in the dataset's order.

    Raises:
        PlanError: The assignment does not give each node one of the parts.
    """
    if part.shape != (num_nodes,) or (num_nodes and not 0 <= int(part.min()) <= int(part.max()) < num_parts):
        raise PlanError(f"the partitioner did not give each of the {num_nodes} nodes of type {node_type!r} one of {num_parts} parts")
    bounds = np.concatenate([[0], np.bincount(part, minlength=num_parts).cumsum()]).astype(np.int64)
    hotness, num_keys = None, num_parts
    if levels is not None:
        num_keys *= MOST_LEVELS
        part = part.astype(np.int16 if num_keys <= np.iinfo(np.int16).max else np.int64) * MOST_LEVELS + (MOST_LEVELS - 1 - levels)
        counts = np.bincount(part, minlength=num_keys).reshape(num_parts, MOST_LEVELS)
        hotness = tuple(tuple(row) for row in counts.tolist())
    if num_nodes == 0 or bool((part[1:] >= part[:-1]).all()):
        return StoreNumbering(bounds, None, hotness)
    # NumPy sorts 16-bit integers by radix, in linear time.
    key = part.astype(np.int16) if num_keys <= np.iinfo(np.int16).max else part
    dtype = index_dtype(num_nodes)
    store_id = np.empty(num_nodes, dtype)
    store_id[np.argsort(key, kind="stable")] = np.arange(num_nodes, dtype=dtype)
    return StoreNumbering(bounds, store_id, hotness)
