"""A store in graphlearn-torch's vocabulary: partition books, local graphs, features, labels and splits, in the dataset's ids."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.backends.glt.data import OffsetIndex, PartBuilder
from gnnkit.bounds import check_choice, whole_number
from gnnkit.distributed.graph_types import even_bounds, is_labeled_homogeneous
from gnnkit.errors import PlanError
from gnnkit.files import user_path
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, ArraySpec, EdgeDir, EdgeType, GraphSchema, NodeType, Quantization
from gnnkit.storage.arrays import (
    GraphArrays,
    PartEdgeRows,
    PartNodeRows,
    as_tensor,
    dataset_ids,
    edge_order,
    node_values,
    part_edge_ids,
)
from gnnkit.storage.convert import plain_rows
from gnnkit.storage.layout import part_folder
from gnnkit.storage.manifest import read_manifest
from gnnkit.storage.store import Store

GraphType: TypeAlias = NodeType | EdgeType
T = TypeVar("T")


def check_part(partition_idx: int, num_partitions: int) -> None:
    """Makes sure that there is such a part.

    Raises:
        PlanError: There is not.
    """
    if isinstance(partition_idx, bool) or num_partitions < 1 or not 0 <= partition_idx < num_partitions:
        raise PlanError(f"there is no part {partition_idx} of {num_partitions}", f"parts go from 0 to {num_partitions - 1}")


def by_type(value: Mapping[Any, T] | T, graph_type: GraphType | None, what: str) -> T:
    """The value of a type in a dict by type; ``value`` itself where it is no dict.

    Args:
        value: A dict by type, or the only value of a homogeneous graph.
        graph_type: The type; None will do for a homogeneous graph.
        what: What is looked for, for the error.

    Raises:
        PlanError: There is none for the type, or no type is given and there are several.
    """
    if not isinstance(value, Mapping):
        return value
    if graph_type is None or graph_type not in value:
        wanted = "no type is given" if graph_type is None else f"none for {graph_type!r}"
        raise PlanError(f"there is {what} for each of the types {list(value)}, and {wanted}", "name one of these types")
    return value[graph_type]


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
        object.__setattr__(self, "dim", whole_number("a feature's dim", self.dim, 1))


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
        check_choice("edge_dir", self.edge_dir, EdgeDir)
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

    @property
    def default_node_type(self) -> NodeType | None:
        """The type that need not be named, of a homogeneous graph with labels; None for every other graph."""
        return HOMOGENEOUS_NODE_TYPE if self.is_homogeneous_with_labeled_edge_type else None

    @property
    def default_edge_type(self) -> EdgeType | None:
        """The same for edges."""
        return HOMOGENEOUS_EDGE_TYPE if self.is_homogeneous_with_labeled_edge_type else None

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
    """Returns the size and dtype of an array's rows as features: rows are flattened, single numbers have size 1. None for None."""
    if spec is None:
        return None
    size = math.prod(spec.row_shape)
    return FeatureInfo(size, torch_dtype(spec)) if size else None


def _quantized(arrays: Mapping[str, ArraySpec]) -> dict[str, Quantization]:
    return {name: spec.quantization for name, spec in arrays.items() if spec.quantization is not None}


def torch_dtype(spec: ArraySpec) -> torch.dtype:
    """Torch's name of the element type that an array has in a batch."""
    dtype: Any = getattr(torch, spec.batch_dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise PlanError(f"torch has no element type {spec.dtype!r}")
    return dtype


class PartitionBook(ABC):
    """Says which part owns an id; ``book[ids]`` with int64 ``[k]`` gives int64 ``[k]``."""

    @abstractmethod
    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        """Parts of ids, of the same shape."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of ids."""

    @abstractmethod
    def ids_of(self, partition_idx: int) -> torch.Tensor:
        """int64 ``[k]``: the ids that a part owns, ascending."""

    @property
    def device(self) -> torch.device:
        """The device on which ids are looked up."""
        return torch.device("cpu")

    def id_filter(self, node_pb: AnyBook, partition_idx: int) -> torch.Tensor:
        """The ids that a part owns by the book ``node_pb``; under the name by which graphlearn-torch asks a book."""
        return get_ids_on_rank(node_pb, partition_idx)


AnyBook: TypeAlias = PartitionBook | torch.Tensor


class RangePartitionBook(PartitionBook):
    """A book of parts that own one range of ids each; parts may be empty.

    Args:
        partition_ranges: First id and last id + 1 of each part, from 0 and without gaps.
        partition_idx: The part that ``id2index`` is for.

    Raises:
        PlanError: The ranges have gaps or run backwards, or there is no such part.
    """

    def __init__(self, partition_ranges: Sequence[tuple[int, int]], partition_idx: int) -> None:
        bounds = [0, *(end for _, end in partition_ranges)]
        if not partition_ranges or [start for start, _ in partition_ranges] != bounds[:-1] or bounds != sorted(bounds):
            raise PlanError(f"partition_ranges must be ranges from 0 on without gaps, got {list(partition_ranges)}")
        if not 0 <= partition_idx < len(partition_ranges):
            raise PlanError(f"there is no part {partition_idx}", f"parts go from 0 to {len(partition_ranges) - 1}")
        self.partition_bounds = torch.tensor(bounds[1:], dtype=torch.int64)
        self.partition_idx = partition_idx
        self._starts = bounds[:-1]

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self.partition_bounds, _checked(indices, len(self)), right=True)

    def __len__(self) -> int:
        return int(self.partition_bounds[-1])

    def ids_of(self, partition_idx: int) -> torch.Tensor:
        """The ids of one range."""
        return torch.arange(self._starts[partition_idx], int(self.partition_bounds[partition_idx]), dtype=torch.int64)

    @property
    def id2index(self) -> OffsetIndex:
        """From an id of the part ``partition_idx`` to its row there."""
        return OffsetIndex(self._starts[self.partition_idx])


class NumberedPartitionBook(PartitionBook):
    """The book of parts that own ranges of other numbers than ids: those of a store, or the parts' own.

    Args:
        make: Returns integers ``[num_ids]``, a number of each of the dataset's ids; called at the first look.
        bounds: int64 ``[num_parts + 1]``; part ``p`` owns the numbers from ``bounds[p]`` up to ``bounds[p + 1]``.
        num_ids: Number of ids.
    """

    def __init__(self, make: Callable[[], NDArray[Any]], bounds: NDArray[np.int64], num_ids: int) -> None:
        self._numbers, self._bounds, self._num_ids = cache(make), bounds, num_ids

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        numbers = self._numbers()[_checked(indices, len(self)).numpy()]
        return torch.from_numpy(np.searchsorted(self._bounds[1:], numbers, side="right"))

    def __len__(self) -> int:
        return self._num_ids

    def ids_of(self, partition_idx: int) -> torch.Tensor:
        """The ids whose numbers lie within one range."""
        (low, high), numbers = self._bounds[partition_idx : partition_idx + 2], self._numbers()
        return torch.from_numpy(np.flatnonzero((numbers >= low) & (numbers < high)))


def build_partition_book(num_entities: int, rank: int, world_size: int) -> RangePartitionBook:
    """A book of ranges whose sizes differ by at most 1, larger ones first.

    Args:
        num_entities: Number of ids.
        rank: The part that its ``id2index`` is for.
        world_size: Number of parts.

    Raises:
        PlanError: A number is too small, or there is no such part.
    """
    if num_entities < 0 or world_size < 1:
        raise PlanError(f"{num_entities} ids cannot be cut into {world_size} parts")
    return range_book(even_bounds(num_entities, world_size), rank)


def range_book(bounds: Iterable[int], part: int) -> RangePartitionBook:
    """The book of parts whose ranges lie between ``num_parts + 1`` bounds; ``part`` is the one that its ``id2index`` is for."""
    ends = [int(bound) for bound in bounds]
    return RangePartitionBook(list(zip(ends[:-1], ends[1:], strict=True)), part)


def get_ids_on_rank(partition_book: AnyBook, rank: int) -> torch.Tensor:
    """int64 ``[k]``: the ids that the part ``rank`` owns, ascending.

    Args:
        partition_book: A book, or a tensor ``[num_ids]`` with each id's part.
        rank: The part.

    Raises:
        PlanError: The tensor is not one-dimensional, or the value is no book.
    """
    if isinstance(partition_book, PartitionBook):
        return partition_book.ids_of(rank)
    return torch.nonzero(_table(partition_book) == rank).view(-1)


def get_total_ids(partition_book: AnyBook) -> int:
    """Number of ids in a book; arguments and errors as for ``get_ids_on_rank``."""
    return len(partition_book) if isinstance(partition_book, PartitionBook) else _table(partition_book).numel()


def look_up(partition_book: AnyBook | Mapping[Any, AnyBook], ids: torch.Tensor, graph_type: GraphType | None = None) -> torch.Tensor:
    """int64 ``[k]``: the parts of ids, by a book or by a tensor with each id's part, or by such a one for their type.

    Raises:
        PlanError: An id is out of range or not a whole number, the value is no book, or there is none for the type.
    """
    book = by_type(partition_book, graph_type, "a partition book")
    if isinstance(book, PartitionBook):
        return book[ids]
    table = _table(book)
    return table[_checked(ids, table.numel())].long()


def _table(book: object) -> torch.Tensor:
    bounds = getattr(book, "partition_bounds", None)
    if isinstance(bounds, torch.Tensor):  # graphlearn-torch's own book of ranges
        return torch.repeat_interleave(torch.arange(len(bounds)), bounds.diff(prepend=bounds.new_zeros(1)))
    if not isinstance(book, torch.Tensor):
        raise PlanError(f"a partition book is a PartitionBook or a tensor with each id's part, got a {type(book).__name__}")
    if book.dim() != 1 or book.is_floating_point():
        raise PlanError(f"a partition book's tensor holds one whole number per id, got {book.dtype} of shape {list(book.shape)}")
    return book


def _checked(ids: torch.Tensor, count: int) -> torch.Tensor:
    """Ids on the CPU as int64, once they have been found to be some: an index below 0 would count from the end."""
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise PlanError(f"ids must be whole numbers, got {ids.dtype}")
    ids = ids.cpu().long()
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= count:
            raise PlanError(f"there is no id {low if low < 0 else high}", f"ids go from 0 to {count - 1}")
    return ids


class LocalGraph:
    """The edges of one type that one part owns; what is handed out is in the dataset's ids.

    Args:
        graph: The arrays of all parts.
        edge_type: The type.
        part: The part.
        weight: Name of the edge array that holds weights, or None.
    """

    def __init__(self, graph: GraphArrays, edge_type: EdgeType, part: int, weight: str | None = None) -> None:
        self._graph, self._edge_type, self._part, self._weight = graph, edge_type, part, weight
        self._edges = graph.edges[edge_type][part]

    @property
    def layout(self) -> str:
        """The compression of edges: "CSC" by target, "CSR" by source."""
        return "CSC" if self._graph.edge_dir == "in" else "CSR"

    @property
    def row_count(self) -> int:
        """Nodes that own the edges."""
        return len(self._edges.indptr) - 1

    @property
    def edge_count(self) -> int:
        """Edges of this part."""
        return len(self._edges.indices)

    @property
    def degrees(self) -> torch.Tensor:
        """int64 ``[row_count]``, in the order of the part's nodes (ascending ids)."""
        ids = dataset_ids(self._graph, self._graph.frontier_type(self._edge_type), self._part)
        self._graph.checked(self._edge_type)
        return torch.from_numpy(np.diff(np.asarray(self._edges.indptr, np.int64))[np.argsort(ids, kind="stable")])

    @property
    def edge_weights(self) -> torch.Tensor | None:
        """float32 ``[edge_count]`` in the order of ``export_topology``, or None without weights."""
        if self._weight is None or self._weight not in self._edges.arrays:
            return None
        weights = np.array(self._edges.arrays[self._weight], np.float32)
        order = edge_order(self._graph, self._edge_type, self._part)
        return torch.from_numpy(weights if order is None else weights[order])

    def export_topology(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Copies the edges out, compressed over *all* nodes of the owning end, as graphlearn-torch keeps them.

        Returns:
            indptr: int64 ``[num_nodes + 1]`` by id; other parts' nodes have no edges here.
            indices: int64 ``[edge_count]``, ids at the other end, in the dataset's edge order within a node.
            edge_ids: int64 ``[edge_count]``; places in the store where it has no edge ids.
        """
        return PartBuilder(self._graph, self._part, of_dataset=True).topology(self._edge_type)[:3]


class DistGraph:
    """A part of a graph and the books that say what the other parts own.

    Typed graphs have a dict by type wherever a homogeneous one has a single value.

    Args:
        num_partitions: Number of parts.
        partition_idx: The part here.
        local_graph: Its edges.
        node_pb: Which part owns which node: partition books, or tensors with each id's part.
        edge_pb: The same for edges; None where edges are not looked up.

    Raises:
        PlanError: There is no such part, or only some of graphs and books are dicts.
    """

    def __init__(
        self,
        num_partitions: int,
        partition_idx: int,
        local_graph: LocalGraph | Mapping[EdgeType, LocalGraph],
        node_pb: AnyBook | Mapping[NodeType, AnyBook],
        edge_pb: AnyBook | Mapping[EdgeType, AnyBook] | None = None,
    ) -> None:
        check_part(partition_idx, num_partitions)
        typed = isinstance(local_graph, Mapping)
        if any(book is not None and isinstance(book, Mapping) != typed for book in (node_pb, edge_pb)):
            raise PlanError("local_graph, node_pb and edge_pb must all be dicts by type, or none of them")
        self.num_partitions, self.partition_idx = num_partitions, partition_idx
        self.local_graph, self.node_pb, self.edge_pb = local_graph, node_pb, edge_pb
        self.data_cls = "hetero" if typed else "homo"

    def get_local_graph(self, etype: EdgeType | None = None) -> LocalGraph:
        """The edges of a type in the part here; a homogeneous graph has only one."""
        return by_type(self.local_graph, etype, "a graph")

    def get_node_partitions(self, ids: torch.Tensor, ntype: NodeType | None = None) -> torch.Tensor:
        """int64 ``[k]``: the parts that own nodes ``[k]`` of a type."""
        return look_up(self.node_pb, ids, ntype)

    def get_edge_partitions(self, eids: torch.Tensor, etype: EdgeType | None = None) -> torch.Tensor:
        """int64 ``[k]``: the parts that own edges ``[k]`` of a type.

        Raises:
            PlanError: There is no book of edges, an id is out of range, or the type is unknown.
        """
        if self.edge_pb is None:
            raise PlanError("this DistGraph has no edge_pb", "give one when you make it")
        return look_up(self.edge_pb, eids, etype)


class LocalFeature:
    """The features of one type in one part; ``feature[ids]`` copies rows.

    Args:
        rows: The rows of all of them as they are stored, mapped or in memory.
        spec: What a row looks like.
        index: From the dataset's ids to rows.
    """

    def __init__(self, rows: NDArray[Any], spec: ArraySpec, index: PartNodeRows | PartEdgeRows) -> None:
        self._rows, self._spec, self._index = rows, spec, index
        self.dtype = torch_dtype(spec)

    @property
    def shape(self) -> torch.Size:
        """Of all local rows together."""
        return torch.Size((len(self._rows), *self._spec.row_shape))

    def size(self, dim: int) -> int:
        """One of ``shape``."""
        return int(self.shape[dim])

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        return self.cpu_get(ids)

    def cpu_get(self, ids: torch.Tensor) -> torch.Tensor:
        """Looks up features.

        Args:
            ids: The dataset's ids, integers ``[k]``, all of this part.

        Returns:
            ``[k, *row_shape]``, the caller's own; float32 of quantised ones.

        Raises:
            PlanError: An id belongs to another part, or to none.
        """
        wanted = ids.cpu().long().numpy()
        rows = self._index.rows(wanted)
        if rows.size and rows.min() < 0:
            raise PlanError(f"this part has no features of id {int(wanted[rows < 0][0])}", "look up which part has, by the partition book")
        return as_tensor(plain_rows(np.take(self._rows, rows, axis=0), self._spec), self._spec.batch_dtype)


class DistFeature:
    """Features of a whole graph: those of the part here, and those of parts that this process can read directly.

    Typed graphs have a dict by type wherever a homogeneous one has a single value. ``feature[ids]`` or ``feature[type, ids]``
    looks up ids of any part.

    Args:
        num_partitions: Number of parts.
        partition_idx: The part here.
        local_feature: Its features.
        feature_pb: Which part has the features of which id: partition books, or tensors with each id's part.
        local_only: Refuses ids of other parts even where they could be read.
        rpc_router: Must be None: other parts are not fetched through graphlearn-torch's RPC.
        device: Where results are put; None is the CPU.
        peers: Features of other parts that this process can read, by part.

    Raises:
        PlanError: An ``rpc_router`` is given, there is no such part, or only one of features and books is a dict.
    """

    def __init__(
        self,
        num_partitions: int,
        partition_idx: int,
        local_feature: LocalFeature | Mapping[GraphType, LocalFeature],
        feature_pb: AnyBook | Mapping[GraphType, AnyBook],
        local_only: bool = False,
        rpc_router: Any = None,
        device: torch.device | None = None,
        *,
        peers: Mapping[int, LocalFeature | Mapping[GraphType, LocalFeature]] | None = None,
    ) -> None:
        if rpc_router is not None:
            raise PlanError("gnnkit does not fetch features through graphlearn-torch's RPC, but got an rpc_router", "leave it out")
        check_part(partition_idx, num_partitions)
        if isinstance(local_feature, Mapping) != isinstance(feature_pb, Mapping):
            raise PlanError("local_feature and feature_pb must both be dicts by type, or neither")
        self.num_partitions, self.partition_idx = num_partitions, partition_idx
        self.local_feature, self.feature_pb = local_feature, feature_pb
        self.data_cls = "hetero" if isinstance(local_feature, Mapping) else "homo"
        self.device = device
        self._stores = {**({} if local_only else peers or {}), partition_idx: local_feature}

    @classmethod
    def from_store(cls, store: Store | str | Path, partition_idx: int = 0, *, of: Literal["node", "edge"] = "node") -> DistFeature:
        """The features of a store, every part of it mapped.

        Args:
            store: The store, or its folder.
            partition_idx: The part that counts as local.
            of: "node" or "edge".

        Raises:
            PlanError: The store has no such features, or no such part.
        """
        views = StoreViews.of(store)
        num_parts = views.store.require().num_parts
        check_part(partition_idx, num_parts)
        features = [views.features(part, of) for part in range(num_parts)]
        own = features[partition_idx]
        if not own:
            raise PlanError(f"{views.store.name} has no {of} features")
        books: Mapping[Any, PartitionBook] = views.node_books(partition_idx) if of == "node" else views.edge_books(partition_idx)
        peers = {part: views.unwrapped(found) for part, found in enumerate(features) if part != partition_idx}
        return cls(num_parts, partition_idx, views.unwrapped(own), views.unwrapped({t: books[t] for t in own}), peers=peers)

    def local_get(self, ids: torch.Tensor, input_type: GraphType | None = None) -> torch.Tensor:
        """Features ``[k, *row_shape]`` of ids ``[k]`` of the part here, on the CPU; see ``LocalFeature.cpu_get``."""
        return by_type(self.local_feature, input_type, "features").cpu_get(ids)

    def async_get(self, ids: torch.Tensor, input_type: GraphType | None = None) -> torch.futures.Future[torch.Tensor]:
        """A future of ``self[ids]``; it is done, since nothing is fetched from elsewhere."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        try:
            future.set_result(self._get(ids, input_type))
        except PlanError as error:
            future.set_exception(error)  # type: ignore[arg-type]  # what torch annotates here is the result
        return future

    def __getitem__(self, input: torch.Tensor | tuple[GraphType, torch.Tensor]) -> torch.Tensor:
        return self._get(input, None) if isinstance(input, torch.Tensor) else self._get(input[1], input[0])

    def _get(self, ids: torch.Tensor, input_type: GraphType | None) -> torch.Tensor:
        local = by_type(self.local_feature, input_type, "features")
        parts = look_up(self.feature_pb, ids, input_type)
        found = torch.empty((ids.numel(), *local.shape[1:]), dtype=local.dtype)
        for part in map(int, torch.unique(parts)):
            if part not in self._stores:
                missing = int(ids[(parts == part).to(ids.device)][0])
                raise PlanError(
                    f"part {part} has the features of id {missing}, and only those of the parts {sorted(self._stores)} can be read here",
                    "map all parts with DistFeature.from_store, or ask the host that has the part",
                )
            chosen = parts == part
            found[chosen] = by_type(self._stores[part], input_type, "features").cpu_get(ids.cpu()[chosen])
        return found if self.device is None else found.to(self.device)


@dataclass(frozen=True)
class StoreViews:
    """Views of a store; homogeneous graphs are unwrapped here, so that values are single ones or dicts by type.

    Attributes:
        store: The store.
    """

    store: Store

    @classmethod
    def of(cls, store: Store | str | Path, part: int | None = None) -> StoreViews:
        """Views of a store, or of the one in a folder.

        Args:
            store: The store, or its folder.
            part: Opens this part alone where the folder, as on one host of several, does not hold all.
        """
        if isinstance(store, Store):
            return cls(store)
        path = user_path(store)
        others = range(read_manifest(path).num_parts) if part is not None else ()
        alone = part in others and not all((path / part_folder(other)).is_dir() for other in others)
        return cls(Store.open(path, (part,) if part is not None and alone else None))

    @cached_property
    def arrays(self) -> GraphArrays:
        """Its arrays; placeholders for parts that are not open."""
        return self.store.arrays()

    def unwrapped(self, by_type: Mapping[Any, Any]) -> Any:
        """The only value for a homogeneous graph, else the dict; None where there is nothing."""
        if not by_type:
            return None
        return next(iter(by_type.values())) if self.store.schema.is_homogeneous else dict(by_type)

    def node_books(self, part: int) -> dict[NodeType, PartitionBook]:
        """Which part owns which node; ``part`` is the one that ``id2index`` of a range is for."""
        return {t: _node_book(self.arrays, t, part) for t in self.store.schema.node_types}

    def edge_books(self, part: int) -> dict[EdgeType, PartitionBook]:
        """Which part owns which edge."""
        return {t: _edge_book(self.store, self.arrays, t, part) for t in self.store.schema.edge_types}

    def graphs(self, part: int) -> dict[EdgeType, LocalGraph]:
        """The edges of a part."""
        return {t: LocalGraph(self.arrays, t, part, self.store.options.weight) for t in self.store.schema.edge_types}

    def features(self, part: int, of: Literal["node", "edge"]) -> dict[Any, LocalFeature]:
        """The features of a part, for the types that have some."""
        graph, schema = self.arrays, self.store.schema
        found: Any = (NODE_FEATURES, schema.node_types, graph.nodes, PartNodeRows)
        if of == "edge":
            found = (EDGE_FEATURES, schema.edge_types, graph.edges, PartEdgeRows)
        name, types, parts, index = found
        specs = {t: spec for t, of_type in types.items() if (spec := of_type.arrays.get(name)) is not None}
        return {t: LocalFeature(parts[t][part].arrays[name], spec, index(graph, t, part)) for t, spec in specs.items()}

    def labels(self) -> dict[NodeType, torch.Tensor]:
        """Whole labels by dataset id: ``[num_nodes]`` for one task, else ``[num_nodes, K]``; every part must be open."""
        self.store.require()
        found = {}
        for node_type, nodes in self.store.schema.node_types.items():
            spec = nodes.arrays.get(NODE_LABELS)
            if spec is None:
                continue
            whole = node_values(self.arrays, node_type, NODE_LABELS)
            if spec.row_shape == (1,):
                whole = whole.reshape(-1)
            found[node_type] = as_tensor(whole, spec.dtype)
        return found

    def split(self, name: str, part: int) -> dict[NodeType, torch.Tensor]:
        """int64 ``[k]`` by type: the nodes of a split that a part owns, in the split's order; types without the split left out."""
        found = {}
        for node_type, splits in self.store.splits.items():
            if name in splits:
                ids = torch.from_numpy(np.array(splits[name], np.int64))
                found[node_type] = ids[look_up(_node_book(self.arrays, node_type, part), ids) == part]
        return found

    def node_ids(self, part: int) -> dict[NodeType, torch.Tensor]:
        """int64 ``[num_local_nodes]`` by type: train, then validation, then test nodes of a part, then those in no split."""
        splits = [self.split(name, part) for name in ("train", "valid", "test")]
        found = {}
        for node_type in self.store.schema.node_types:
            chosen = torch.cat([torch.empty(0, dtype=torch.int64), *(split[node_type] for split in splits if node_type in split)])
            own = torch.from_numpy(np.array(dataset_ids(self.arrays, node_type, part)))
            found[node_type] = torch.cat([chosen, own[~torch.isin(own, chosen)]])
        return found


def _node_book(graph: GraphArrays, node_type: NodeType, part: int) -> PartitionBook:
    bounds, table = graph.node_bounds[node_type], graph.checked(node_type).store_id[node_type]
    return range_book(bounds, part) if table is None else NumberedPartitionBook(lambda: table, bounds, len(table))


def _edge_book(store: Store, graph: GraphArrays, edge_type: EdgeType, part: int) -> PartitionBook:
    parts, bounds = graph.edges[edge_type], graph.edge_bounds[edge_type]
    if len(parts) == 1 or parts[0].edge_id is None:
        return range_book(bounds, part)

    def owners() -> NDArray[Any]:
        store.require()  # only a part's own folder says which edges it owns
        found = np.empty(int(bounds[-1]), np.uint8 if len(parts) <= 256 else np.int32)
        for owner in range(len(parts)):
            found[part_edge_ids(graph, edge_type, owner)] = owner
        return found

    return NumberedPartitionBook(owners, np.arange(len(parts) + 1), int(bounds[-1]))
