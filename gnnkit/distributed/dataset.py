"""``DistDataset``: one part of a partitioned graph, and what is known of others; graphlearn-torch's own where its library fits.

What graphlearn-torch reads is made of the store when it is first asked for, in the dataset's ids, and shared with its processes.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from gnnkit.backends.glt.data import PartBuilder
from gnnkit.distributed.dataset_values import DatasetValues, as_tensor, map_types, store_of_parts
from gnnkit.distributed.store_views import (
    AnyBook,
    DatasetSchema,
    DistGraph,
    FeatureInfo,
    LocalFeature,
    LocalGraph,
    StoreViews,
    by_type,
    check_part,
    get_ids_on_rank,
)
from gnnkit.errors import DatasetError, PlanError
from gnnkit.files import user_path
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE, EdgeDir, EdgeType, NodeType
from gnnkit.storage.arrays import dataset_ids
from gnnkit.storage.catalog import default_store_dir, find_or_build
from gnnkit.storage.glt_format import GltPartitionSource
from gnnkit.storage.layout import MANIFEST_NAME, BuildOptions
from gnnkit.storage.store import Store
from gnnkit.vendor import glt

T = TypeVar("T")
_GLT_META = "META"
_WEIGHT = "weight"


def open_partitions(root: Path, edge_dir: EdgeDir, labels: Any, store_dir: str | Path | None, layout: str = "COO") -> Store | Path:
    """Finds a store, or makes one of graphlearn-torch's partitions unless that was done before.

    Args:
        root: The folder.
        edge_dir: Direction of a store that is made.
        labels: File of whole labels of a partition directory, or a file by type; None takes those that lie in it.
        store_dir: Where a store is made; None is the folder of stores.
        layout: How a partition directory's edges are written: "COO", "CSR" or "CSC".

    Returns:
        The folder if it is a store, else the store that was made.

    Raises:
        DatasetError: The folder is neither, or is damaged.
        StoreError: The store is damaged or cannot be written.
    """
    if (root / MANIFEST_NAME).exists():
        return root
    if not (root / _GLT_META).exists():
        raise DatasetError(
            f"{root} is neither a store nor a partition directory of graphlearn-torch",
            f"give a folder with {MANIFEST_NAME} or {_GLT_META} in it",
        )
    source = GltPartitionSource(root, labels=labels, layout=layout)
    edge_types = source.schema.edge_types.values()
    with_edge = any(edges.arrays for edges in edge_types)
    weight = _WEIGHT if edge_types and all(_WEIGHT in edges.arrays for edges in edge_types) else None
    options = BuildOptions(source.num_parts, "given", edge_dir=edge_dir, with_edge=with_edge, weight=weight)
    return find_or_build(source, options, user_path(store_dir) if store_dir else default_store_dir())


_logger = logging.getLogger(__name__)
_GRAPH_MODES = ("CPU", "ZERO_COPY", "CUDA")
SplitIds: TypeAlias = torch.Tensor | dict[NodeType, torch.Tensor] | None


def _split_ids(name: str, doc: str) -> Any:
    """A property of a dataset: the nodes of a split, which may be set."""
    return property(lambda self: self._split(name), lambda self, ids: self._give_split(name, ids), doc=doc)


class DistDataset:
    """One part of a graph's edges, features and labels, with the books of all parts. Ids are the dataset's own.

    Made by ``DistDataset.from_store``, by ``DistDataset().load(...)``, or from values of one's own. Typed graphs have a dict by
    type wherever a homogeneous one has a single value. A dataset of a store keeps its arrays mapped, opens in milliseconds and
    pickles as the store's path. Values that are a whole graph, in one part, become a store when a loader or a server first needs
    one: as for ``load``, it is found by what is in it. Where graphlearn-torch's native library fits, it is a ``DistDataset`` of
    graphlearn-torch's as well.

    Values of one part of several become a store as well, of all parts: where a loader or a server is made, the processes that hold
    them meet (``gnnkit.distributed.dataset_values``).

    Args:
        num_partitions: Number of parts.
        partition_idx: The part here.
        graph_partition: Its edges.
        node_feature_partition: Features of its nodes.
        edge_feature_partition: Features of its edges.
        whole_node_labels: Labels ``[num_nodes]`` or ``[num_nodes, K]`` of all nodes.
        node_pb: Which part owns which node.
        edge_pb: Which part owns which edge.
        node_feat_pb: Which part has a node's features; None is ``node_pb``.
        edge_feat_pb: Which part has an edge's features; None is ``edge_pb``.
        edge_dir: The direction in which edges are compressed; where ``load`` builds a store, that of the store.
        graph_caching: Taken and not used.
        node_split: Training, validation and test nodes; see ``init_node_split``.
        id_filter: Taken and not used: books say who owns what.
        id_select: Taken and not used.

    Attributes:
        values: What was given, where the dataset is none of a store.
        own_split: The split that was given, ``{"train": ids, ...}``, by type likewise.

    Raises:
        PlanError: There is no such part, or edges or features are given without their book.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> DistDataset:
        """Makes a dataset; where graphlearn-torch's native library fits, one that is an instance of its class too."""
        return object.__new__(native_class() or cls)

    def __init__(  # noqa: PLR0913
        self,
        num_partitions: int = 1,
        partition_idx: int = 0,
        graph_partition: LocalGraph | Mapping[EdgeType, LocalGraph] | None = None,
        node_feature_partition: LocalFeature | Mapping[NodeType, LocalFeature] | None = None,
        edge_feature_partition: LocalFeature | Mapping[EdgeType, LocalFeature] | None = None,
        whole_node_labels: torch.Tensor | Mapping[NodeType, torch.Tensor] | None = None,
        node_pb: AnyBook | Mapping[NodeType, AnyBook] | None = None,
        edge_pb: AnyBook | Mapping[EdgeType, AnyBook] | None = None,
        node_feat_pb: AnyBook | Mapping[NodeType, AnyBook] | None = None,
        edge_feat_pb: AnyBook | Mapping[EdgeType, AnyBook] | None = None,
        edge_dir: EdgeDir = "out",
        graph_caching: bool = False,
        node_split: tuple[Any, Any, Any] | None = None,
        id_filter: Any = None,
        id_select: Any = None,
    ) -> None:
        check_part(partition_idx, num_partitions)
        if edge_dir not in ("in", "out"):
            raise PlanError(f"the argument after edge_feat_pb is edge_dir, 'in' or 'out', got {edge_dir!r}")
        for given, book, name in (
            (graph_partition, node_pb, "node_pb"),
            (node_feature_partition, node_pb if node_feat_pb is None else node_feat_pb, "node_pb or node_feat_pb"),
            (edge_feature_partition, edge_pb if edge_feat_pb is None else edge_feat_pb, "edge_pb or edge_feat_pb"),
        ):
            if given is not None and book is None:
                raise PlanError(f"a partition is given without {name}", "give the book that says which part owns what")
        self.num_partitions, self.partition_idx, self.edge_dir = num_partitions, partition_idx, edge_dir
        self.graph, self.node_features, self.edge_features = graph_partition, node_feature_partition, edge_feature_partition
        self._labels, self.node_pb, self.edge_pb = whole_node_labels, node_pb, edge_pb
        self._node_feat_pb, self._edge_feat_pb = node_feat_pb, edge_feat_pb
        self._views: StoreViews | None = None
        # Where graphlearn-torch's own sampling runs.
        self._graph_mode: str = "CPU"
        self._device: int | None = None
        self.own_split: dict[str, Any] = {}
        self.values = DatasetValues()
        if graph_partition is not None:
            self.values.take_graph(graph_partition)
        self.values.take_books(node_pb)
        for rows, word in ((node_feature_partition, "x"), (edge_feature_partition, "edge_attr"), (whole_node_labels, "y")):
            if rows is not None:
                self.values.take_rows(word, rows, owned=self._owned(word))
        if node_split is not None:
            self.init_node_split(node_split)

    # Values -------------------------------------------------------------------------------------------------------------------

    def init_graph(
        self,
        edge_index: Any = None,
        edge_ids: Any = None,
        edge_weights: Any = None,
        layout: str | Mapping[EdgeType, str] = "COO",
        graph_mode: str = "ZERO_COPY",
        directed: bool = False,
        device: int | None = None,
    ) -> None:
        """Gives the dataset a whole graph.

        Args:
            edge_index: Sources and targets ``[2, n]``, or a dict of them by type; None changes nothing.
            edge_ids: The edges' numbers ``[n]``, by type likewise: 0 to n - 1 in any order. None is the order.
            edge_weights: Weights ``[n]``, likewise.
            layout: "COO", or "CSR" or "CSC" where sources or targets are compressed.
            graph_mode: Taken and not used: sampling runs on the CPU.
            directed: Taken and not used.
            device: Taken and not used.

        Raises:
            PlanError: A value is none of this.
        """
        if edge_index is not None:
            self._forget_store()
            self.values.take_edges(edge_index, edge_ids, edge_weights, layout)

    def init_node_features(
        self,
        node_feature_data: Any = None,
        id2idx: Any = None,
        sort_func: Any = None,
        split_ratio: Any = 0.0,
        device_group_list: Any = None,
        device: int | None = None,
        with_gpu: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Gives the nodes features.

        Args:
            node_feature_data: ``[num_nodes, d]``, or a dict by type; None changes nothing.
            id2idx: From ids to rows, likewise; None: rows are in the order of ids.
            sort_func: Taken and not used, and so are those after it but ``dtype``.
            split_ratio: See there.
            device_group_list: See there.
            device: See there.
            with_gpu: See there.
            dtype: What the features become; None leaves them.
        """
        self._init_rows("x", node_feature_data, id2idx, dtype)

    def init_edge_features(
        self,
        edge_feature_data: Any = None,
        id2idx: Any = None,
        split_ratio: Any = 0.0,
        device_group_list: Any = None,
        device: int | None = None,
        with_gpu: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Gives the edges features ``[num_edges, d]``, or a dict of them by type; see ``init_node_features``."""
        self._init_rows("edge_attr", edge_feature_data, id2idx, dtype)

    def init_node_labels(self, node_label_data: Any = None, id2idx: Any = None) -> None:
        """Gives the nodes labels ``[num_nodes]`` or ``[num_nodes, K]``, or a dict of them by type; see ``init_node_features``."""
        self._init_rows("y", node_label_data, id2idx, None)

    def init_node_split(self, node_split: tuple[Any, Any, Any] | None = None) -> None:
        """Gives training, validation and test nodes, each ids ``[n]`` or a dict of them by type; None changes nothing.

        They are this object's. A store that is made of values has them too; servers know the splits of their store.
        """
        if node_split is not None:
            for name, ids in zip(("train", "valid", "test"), node_split, strict=True):
                self._give_split(name, map_types(ids, as_tensor))

    def random_node_split(self, num_val: float | int, num_test: float | int, seed: int = 0) -> None:
        """Splits this part's nodes: those of types with labels, or of all types where none has some.

        Args:
            num_val: Validation nodes; a float is a share of them.
            num_test: Test nodes, likewise. All others are for training.
            seed: The same seed gives the same split.

        Raises:
            PlanError: There are not so many nodes, or there is no graph.
        """
        labelled: Any = self.values.y
        if self.needs_others:
            own = self._owned("y")
        else:
            labels, views, part = self.node_labels, self._stored("random_node_split"), self.partition_idx
            labelled = labels if isinstance(labels, Mapping) else {}
            ids = {t: torch.from_numpy(np.array(dataset_ids(views.arrays, t, part))) for t in views.store.schema.node_types}
            own = views.unwrapped(ids)
        of_types: dict[NodeType, torch.Tensor] = own if isinstance(own, dict) else {HOMOGENEOUS_NODE_TYPE: own}
        drawn = {t: _drawn(ids, num_val, num_test, seed) for t, ids in of_types.items() if not labelled or t in labelled}
        pieces: list[Any] = [{t: split[place] for t, split in drawn.items()} for place in range(3)]
        if own is not of_types:
            pieces = [piece[HOMOGENEOUS_NODE_TYPE] for piece in pieces]
        self.init_node_split((pieces[0], pieces[1], pieces[2]))

    @property
    def has_own_split(self) -> bool:
        """Whether the split is this object's, and not its store's."""
        return bool(self.own_split) and not self._is_of_values

    @property
    def has_edge_weights(self) -> bool:
        """Whether edges have weights that neighbours can be drawn by."""
        store = self.store
        return (self.values.weight if store is None else store.options.weight) is not None

    def _init_rows(self, name: str, rows: Any, index: Any, dtype: torch.dtype | None) -> None:
        if rows is not None:
            self._forget_store()
            converted = rows if dtype is None else map_types(rows, lambda found: _cast(as_tensor(found), dtype, name))
            self.values.take_rows(name, converted, index, self._owned(name))

    def _owned(self, name: str) -> Any:
        """Ids of the rows of this part, by type where there are several; None where it is the only part.

        Raises:
            PlanError: There is no book that says it.
        """
        if self.num_partitions == 1:
            return None
        book, called = {"x": (self.node_feat_pb, "node_pb"), "edge_attr": (self.edge_feat_pb, "edge_pb"), "y": (self.node_pb, "node_pb")}[
            name
        ]
        if book is None:
            raise PlanError(
                f"the dataset is part {self.partition_idx} of {self.num_partitions}, and no {called} says which rows are its own",
                f"DistDataset(..., {called}=book), before rows are given",
            )
        return map_types(book, lambda found: get_ids_on_rank(found, self.partition_idx))

    @property
    def needs_others(self) -> bool:
        """Whether this is one part of several as values, of which no store has been made yet."""
        return self._is_of_values and self._views is None and self.num_partitions > 1

    def meet(self, meeting: Any) -> None:
        """Makes a store of all parts with the processes that hold them, and opens it; does nothing where that is not needed.

        Args:
            meeting: A context manager that gives the ``Meeting``, see ``gnnkit.distributed.dataset_values``; entered where it is needed.

        Raises:
            GnnkitError: See ``store_of_parts``.
        """
        if self.needs_others:
            with meeting as others:
                self._open(store_of_parts(self, others))

    @property
    def _is_of_values(self) -> bool:
        return bool(self.values.edges)

    def _forget_store(self) -> None:
        """Drops the views of earlier values: the next ones make another graph.

        Raises:
            PlanError: The graph is a store's.
        """
        if self._views is not None and not self._is_of_values:
            raise PlanError("the dataset is one of a store, which values cannot change", "give a new DistDataset() the whole graph")
        self._views, self._labels = None, None
        self.__dict__.pop("schema", None)

    def _made_store(self) -> StoreViews | None:
        """The store of values, which is made unless there is one of the same graph; None where they are none, or a part of several."""
        if not self._is_of_values or self.num_partitions != 1:
            return None
        options = BuildOptions(1, edge_dir=self.edge_dir, with_edge=True, weight=self.values.weight)
        return self._open(find_or_build(self.values.source(self.own_split), options, default_store_dir()))

    def _open(self, store: Store) -> StoreViews:
        self._views = views = StoreViews(store)
        if self.graph is None:
            self._show(views)
        return views

    def _show(self, views: StoreViews) -> None:
        """Sets what is read of a part under graphlearn-torch's names."""
        part = self.partition_idx
        self.graph = views.unwrapped(views.graphs(part))
        self.node_features = views.unwrapped(views.features(part, "node"))
        self.edge_features = views.unwrapped(views.features(part, "edge"))
        self.node_pb, self.edge_pb = views.unwrapped(views.node_books(part)), views.unwrapped(views.edge_books(part))

    # Stores -------------------------------------------------------------------------------------------------------------------

    @classmethod
    def from_store(cls, store: Store | str | Path, partition_idx: int = 0, num_partitions: int | None = None) -> DistDataset:
        """One part of a store.

        Args:
            store: The store, or its folder.
            partition_idx: The part.
            num_partitions: Number of parts that the caller counts on; None takes the store's.

        Raises:
            PlanError: The store has another number of parts, or no such part.
            StoreError: There is no store there, or it is damaged.
        """
        views = StoreViews.of(store, partition_idx)
        found = views.store.num_parts
        if num_partitions is not None and num_partitions != found:
            raise PlanError(
                f"{views.store.path} has {found} parts, not {num_partitions}",
                f"gnnkit.partition({str(views.store.path)!r}, {num_partitions}) makes a store with as many",
            )
        check_part(partition_idx, found)
        dataset = cls()
        dataset._take(views, partition_idx)
        return dataset

    def load(  # noqa: PLR0913
        self,
        root_dir: str | Path | None = None,
        partition_idx: int | None = None,
        graph_mode: str = "ZERO_COPY",
        feature_with_gpu: bool = True,
        device_group_list: Any = None,
        whole_node_label_file: str | Mapping[NodeType, str] | None = None,
        device: int | None = None,
        *,
        graph_dir: str | Path | None = None,
        input_layout: str = "COO",
        graph_caching: bool = False,
        store_dir: str | Path | None = None,
    ) -> None:
        """Loads one part of a store, or of a partition directory that graphlearn-torch wrote.

        A partition directory is read without running what its pickles ask for, and made into a store with as many parts, once:
        later calls, in any process, open that store. Its parts are those of the partition books: edges are in the part of the node
        that owns them, by ``edge_dir``. What is in a batch does not depend on them.

        Args:
            root_dir: The folder.
            partition_idx: The part.
            graph_mode: "CPU", "ZERO_COPY" or "CUDA". Sampling gives the same batches in each, and runs on the CPU.
            feature_with_gpu: Taken and not used: features stay in mapped memory.
            device_group_list: Taken and not used, as before.
            whole_node_label_file: Labels of all nodes, as written by ``torch.save``, of a partition directory; a file by type for
                a typed graph. A store has its labels in it.
            device: Taken and not used, as before.
            graph_dir: ``root_dir`` as graphlearn-torch's tutorials call it: give one of them.
            input_layout: How the edges of a partition directory are written: "COO", or with "CSC" (or "CSR") the targets (the sources) as
                offsets. A store says itself how it is written.
            graph_caching: Taken and not used: every part of a store on this host can be read.
            store_dir: Folder of the store that is made; None takes the folder of stores.

        Raises:
            PlanError: ``graph_mode`` is unknown, there is no such part, or the folder is missing or given twice.
            DatasetError: The folder is neither, or is damaged.
            StoreError: The store is damaged or cannot be written.
        """
        folder = root_dir if graph_dir is None else graph_dir
        if folder is None or partition_idx is None or (root_dir is not None and graph_dir is not None):
            raise PlanError(
                f"load got root_dir={root_dir!r}, graph_dir={graph_dir!r} and partition_idx={partition_idx!r}",
                "give the folder, as root_dir or as graph_dir, and the number of the part",
            )
        if not isinstance(feature_with_gpu, bool):
            raise PlanError(
                f"the fourth argument of load is feature_with_gpu, True or False, got {feature_with_gpu!r}",
                "versions of graphlearn-torch order the arguments of load differently: give those after graph_mode by name",
            )
        if graph_mode not in _GRAPH_MODES:
            raise PlanError(f"graph_mode must be one of {list(_GRAPH_MODES)}, got {graph_mode!r}")
        if graph_mode != "CPU":
            _logger.info("graph_mode=%s: gnnkit samples on the CPU, from mapped memory", graph_mode)
        opened = open_partitions(user_path(folder), self.edge_dir, whole_node_label_file, store_dir, str(input_layout).upper())
        views = StoreViews.of(opened, partition_idx)
        check_part(partition_idx, views.store.num_parts)
        self._take(views, partition_idx)
        self._graph_mode, self._device = graph_mode, device

    @property
    def store(self) -> Store | None:
        """The store behind the dataset, made of its values where it has a whole graph of them; None where there is none."""
        views = self._views or self._made_store()
        return None if views is None else views.store

    @property
    def node_feat_pb(self) -> AnyBook | Mapping[NodeType, AnyBook] | None:
        """Which part has a node's features."""
        return self.node_pb if self._node_feat_pb is None else self._node_feat_pb

    @property
    def edge_feat_pb(self) -> AnyBook | Mapping[EdgeType, AnyBook] | None:
        """Which part has an edge's features."""
        return self.edge_pb if self._edge_feat_pb is None else self._edge_feat_pb

    @property
    def node_labels(self) -> torch.Tensor | Mapping[NodeType, torch.Tensor] | None:
        """Labels of all nodes by id: ``[num_nodes]`` for one task, else ``[num_nodes, K]``; read when first asked for."""
        if self._labels is None and self.store is not None and self._views is not None:
            self._labels = self._views.unwrapped(self._views.labels())
        return self._labels

    @cached_property
    def schema(self) -> DatasetSchema:
        """Types, features and direction.

        Raises:
            PlanError: There is no store behind the dataset.
        """
        return DatasetSchema.from_graph(self._stored("schema").store.schema, self.edge_dir)

    @property
    def node_feature_info(self) -> FeatureInfo | dict[NodeType, FeatureInfo] | None:
        """Features of the nodes; see ``DatasetSchema``."""
        return self.schema.node_feature_info

    @property
    def edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Features of the edges; see ``DatasetSchema``."""
        return self.schema.edge_feature_info

    @property
    def node_ids(self) -> SplitIds:
        """int64: the nodes of this part: train, validation and test nodes, then those in no split."""
        views = self._stored("node_ids")
        ids: SplitIds = views.unwrapped(views.node_ids(self.partition_idx))
        return ids

    train_node_ids: SplitIds = _split_ids(
        "train", "int64: the training nodes of this part, in the split's order; None where there is no such split."
    )
    val_node_ids: SplitIds = _split_ids("valid", "int64: the validation nodes of this part.")
    test_node_ids: SplitIds = _split_ids("test", "int64: the test nodes of this part.")
    # Under graphlearn-torch's names.
    train_idx, val_idx, test_idx = train_node_ids, val_node_ids, test_node_ids

    def get_node_types(self) -> list[NodeType] | None:
        """Node types; None for a homogeneous graph."""
        schema = self._stored("get_node_types").store.schema
        return None if schema.is_homogeneous else list(schema.node_types)

    def get_edge_types(self) -> list[EdgeType] | None:
        """Edge types; None for a homogeneous graph."""
        schema = self._stored("get_edge_types").store.schema
        return None if schema.is_homogeneous else list(schema.edge_types)

    def get_graph(self, etype: EdgeType | None = None) -> LocalGraph:
        """The edges of a type in this part."""
        if self.graph is None:
            raise PlanError("the dataset has no graph yet", "call load(), or use DistDataset.from_store")
        return by_type(self.graph, etype, "a graph")

    def get_node_feature(self, ntype: NodeType | None = None) -> LocalFeature | None:
        """The features of a node type in this part; None where it has none."""
        return _optional(self.node_features, ntype)

    def get_edge_feature(self, etype: EdgeType | None = None) -> LocalFeature | None:
        """The features of an edge type in this part; None where it has none."""
        return _optional(self.edge_features, etype)

    def get_node_label(self, ntype: NodeType | None = None) -> torch.Tensor | None:
        """The labels of all nodes of a type; None where it has none."""
        return _optional(self.node_labels, ntype)

    def dist_graph(self) -> DistGraph:
        """This part's edges with the books of all parts."""
        if self.graph is None or self.node_pb is None:
            raise PlanError("the dataset has no graph yet", "call load(), or use DistDataset.from_store")
        return DistGraph(self.num_partitions, self.partition_idx, self.graph, self.node_pb, self.edge_pb)

    def __reduce__(self) -> Any:
        if self.store is None:
            return DistDataset.__new__, (DistDataset,), self.__dict__
        return (_rebuild, (self.store, self.partition_idx, self._choices, {}))

    @property
    def _choices(self) -> dict[str, Any]:
        """The user's choices that a store does not hold."""
        own = self.own_split if self.has_own_split else {}
        return {"own_split": own, "_graph_mode": self._graph_mode, "_device": self._device}

    def __repr__(self) -> str:
        views = self._views
        what = "no store" if views is None and not self._is_of_values else "values" if views is None else views.store
        return f"DistDataset(part {self.partition_idx} of {self.num_partitions}, {what})"

    def _take(self, views: StoreViews, part: int) -> None:
        """Makes this the dataset of a part of a store; whatever is large is read when it is asked for."""
        views.store.require((part,))
        self.__dict__.pop("schema", None)
        self._views, self.partition_idx = views, part
        self.num_partitions, self.edge_dir = views.store.num_parts, views.store.edge_dir
        self.values, self.own_split = DatasetValues(), {}
        self._show(views)
        self._labels = self._node_feat_pb = self._edge_feat_pb = None

    def _give_split(self, name: str, ids: Any) -> None:
        if self._is_of_values:
            self._forget_store()
        self.own_split[name] = ids

    def _split(self, name: str) -> SplitIds:
        views = None if name in self.own_split else self._stored("a split")
        ids: SplitIds = self.own_split[name] if views is None else views.unwrapped(views.split(name, self.partition_idx))
        return ids

    def _stored(self, what: str) -> StoreViews:
        views = self._views or self._made_store()
        if views is None:
            raise PlanError(f"{what} needs a dataset of a store, or of a whole graph", "call load() or init_graph(), or use from_store")
        return views


# Readers and tools look at __new__ otherwise, which takes anything.
_own = inspect.signature(DistDataset.__init__)
DistDataset.__signature__ = _own.replace(parameters=[*_own.parameters.values()][1:])  # type: ignore[attr-defined]


def _cast(rows: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """Rows in another type, which has to hold them."""
    found = rows.to(dtype)
    beyond = found.isinf() & rows.isfinite()
    if dtype.is_floating_point and bool(beyond.any()):
        raise PlanError(f"{name!r} holds {float(rows[beyond][0])!r}, which {dtype} cannot hold", "scale the rows, or leave dtype out")
    return found


def _drawn(ids: torch.Tensor, num_val: float | int, num_test: float | int, seed: int) -> tuple[torch.Tensor, ...]:
    """Training, validation and test nodes out of ``ids``."""
    val, test = (round(len(ids) * given) if isinstance(given, float) else given for given in (num_val, num_test))
    if val < 0 or test < 0 or val + test > len(ids):
        raise PlanError(f"num_val={num_val} and num_test={num_test} of {len(ids)} nodes cannot be drawn", "numbers, or shares of 1.0")
    order = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    return order[val + test :], order[:val], order[val : val + test]


def reduce_dist_dataset(dataset: DistDataset) -> Any:
    """Pickles a dataset as its store's path and part, whatever its size."""
    return dataset.__reduce__()


def _optional(value: Mapping[Any, T] | T | None, graph_type: Any) -> T | None:
    return value.get(graph_type) if isinstance(value, Mapping) else value


# What graphlearn-torch's processes are given rather than make again.
_SHARED = ("graph", "node_features", "edge_features", "node_pb", "edge_pb", "node_labels")


@cache
def native_class() -> type[DistDataset] | None:
    """The class of datasets that are graphlearn-torch's own too; None where its native library does not fit."""
    if glt.status().kind != "native":
        return None
    base: Any = glt.attribute("distributed.DistDataset", "gnnkit.distributed.DistDataset")

    class NativeDistDataset(_Native, base):  # type: ignore[misc]
        __doc__ = DistDataset.__doc__

    ForkingPickler.register(NativeDistDataset, _reduce_shared)
    return NativeDistDataset


def _both(name: str) -> Any:
    """A method that is ``DistDataset``'s, and then graphlearn-torch's own."""

    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        getattr(super(_Native, self), name)(*args, **kwargs)
        getattr(super(DistDataset, self), name)(*args, **kwargs)

    return functools.wraps(getattr(DistDataset, name))(method)


class _Native(DistDataset):
    """A dataset with the attributes of graphlearn-torch's base class; those of a store are made when they are first read."""

    graph: Any = cached_property(lambda self: self._part("edge", lambda builder, t: builder.edges(t, self.store.options.weight)))
    node_features: Any = cached_property(lambda self: self._part("node", lambda builder, t: builder.features(t, "x"), "x"))
    edge_features: Any = cached_property(lambda self: self._part("edge", lambda builder, t: builder.features(t, "edge_attr"), "edge_attr"))
    node_pb: Any = cached_property(lambda self: self._part("node", PartBuilder.book))
    edge_pb: Any = cached_property(lambda self: self._part("edge", PartBuilder.book))
    node_labels: Any = cached_property(lambda self: self._read_labels())
    init_graph, init_node_features, init_edge_features, init_node_labels = map(
        _both, ("init_graph", "init_node_features", "init_edge_features", "init_node_labels")
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._directed = False
        self.graph_caching = False
        self.id_filter = glt.attribute("utils.default_id_filter")
        self.id_select = glt.attribute("utils.default_id_select")
        super().__init__(*args, **kwargs)

    def _show(self, views: StoreViews) -> None:
        for name in _SHARED:
            self.__dict__.pop(name, None)

    def _part(self, kind: str, make: Callable[[PartBuilder, Any], Any], having: str | None = None) -> Any:
        """Makes objects of graphlearn-torch's, one of each type of nodes or edges, or of those that have an array."""
        views = self._stored("a part")
        types: Mapping[Any, Any] = views.store.schema.node_types if kind == "node" else views.store.schema.edge_types
        # "ZERO_COPY" is the default of `load`, also where there is no GPU to read the memory.
        graph_mode: Any = self._graph_mode if torch.cuda.is_available() else "CPU"
        builder = PartBuilder(views.arrays, self.partition_idx, True, graph_mode, self._device)
        return views.unwrapped({t: make(builder, t) for t, found in types.items() if having is None or having in found.arrays})

    def _read_labels(self) -> Any:
        if self._views is None:
            return self._labels
        labels = self._views.labels()
        if not labels and not self._views.store.schema.is_homogeneous:
            return {"": torch.empty(0)}  # GLT-10
        return self._views.unwrapped(labels)


def _reduce_shared(dataset: Any) -> Any:
    """Pickles a dataset for graphlearn-torch's processes, with the objects that it has made; their memory goes by descriptor."""
    store = dataset.store
    if store is None:
        return DistDataset.__reduce__(dataset)
    made = {name: getattr(dataset, name) for name in _SHARED}
    return _rebuild, (store, dataset.partition_idx, dataset._choices, made)


def _rebuild(store: Store, partition_idx: int, choices: dict[str, Any], made: dict[str, Any]) -> Any:
    """The other end of pickling."""
    dataset: Any = DistDataset()
    dataset._take(StoreViews(store), partition_idx)
    dataset.__dict__.update(choices)
    for name, value in made.items():
        setattr(dataset, name, value)
    return dataset
