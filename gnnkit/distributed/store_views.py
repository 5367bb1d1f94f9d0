"""A store as graphlearn-torch's vocabulary sees it: books, local graphs, features, labels and splits, all in dataset ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.distributed.dataset_schema import EDGE_FEATURES, NODE_FEATURES, NODE_LABELS, torch_dtype
from gnnkit.distributed.features import DistFeature, LocalFeature, as_tensor
from gnnkit.distributed.graph import LocalGraph
from gnnkit.distributed.partition_book import LazyPartitionBook, PartitionBook, RangePartitionBook, RenumberedPartitionBook, look_up
from gnnkit.distributed.parts import check_part
from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.layout import part_folder
from gnnkit.storage.manifest_io import read_manifest
from gnnkit.storage.part_ids import EdgeRows, NodeRows, dataset_ids, part_edge_ids
from gnnkit.storage.store import Store


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
        path = Path(store).expanduser().absolute()
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
        graph = self.arrays
        if of == "node":
            return {
                t: LocalFeature(graph.nodes[t][part].arrays[NODE_FEATURES], nodes.arrays[NODE_FEATURES], NodeRows(graph, t, part))
                for t, nodes in self.store.schema.node_types.items()
                if NODE_FEATURES in nodes.arrays
            }
        return {
            t: LocalFeature(graph.edges[t][part].arrays[EDGE_FEATURES], edges.arrays[EDGE_FEATURES], EdgeRows(graph, t, part))
            for t, edges in self.store.schema.edge_types.items()
            if EDGE_FEATURES in edges.arrays
        }

    def dist_feature(self, part: int, of: Literal["node", "edge"]) -> DistFeature:
        """See ``DistFeature.from_store``."""
        num_parts = self.store.require().num_parts
        check_part(part, num_parts)
        stores = [self.features(other, of) for other in range(num_parts)]
        if not stores[part]:
            raise PlanError(f"{self.store.name} has no {of} features")
        books: Mapping[Any, PartitionBook] = self.node_books(part) if of == "node" else self.edge_books(part)
        peers = {other: self.unwrapped(features) for other, features in enumerate(stores) if other != part}
        featured = {t: books[t] for t in stores[part]}
        return DistFeature(num_parts, part, self.unwrapped(stores[part]), self.unwrapped(featured), peers=peers)

    def labels(self) -> dict[NodeType, torch.Tensor]:
        """Whole labels by dataset id: ``[num_nodes]`` for one task, else ``[num_nodes, K]``; every part must be open."""
        self.store.require()
        found = {}
        for node_type, nodes in self.store.schema.node_types.items():
            spec = nodes.arrays.get(NODE_LABELS)
            if spec is None:
                continue
            whole = np.empty((nodes.num_nodes, *spec.row_shape), spec.numpy_dtype)
            for part in range(self.store.num_parts):
                whole[dataset_ids(self.arrays, node_type, part)] = self.arrays.nodes[node_type][part].arrays[NODE_LABELS]
            if spec.row_shape == (1,):
                whole = whole.reshape(-1)
            found[node_type] = as_tensor(whole, torch_dtype(spec))
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
    bounds, table = graph.node_bounds[node_type], graph.store_id[node_type]
    return _range_book(bounds, part) if table is None else RenumberedPartitionBook(table, bounds)


def _edge_book(store: Store, graph: GraphArrays, edge_type: EdgeType, part: int) -> PartitionBook:
    parts, bounds = graph.edges[edge_type], graph.edge_bounds[edge_type]
    if len(parts) == 1 or parts[0].edge_id is None:
        return _range_book(bounds, part)

    def table() -> NDArray[Any]:
        store.require()  # only a part's own folder says which edges it owns
        found = np.empty(int(bounds[-1]), np.uint8 if len(parts) <= 256 else np.int32)
        for owner in range(len(parts)):
            found[part_edge_ids(graph, edge_type, owner)] = owner
        return found

    return LazyPartitionBook(table, int(bounds[-1]))


def _range_book(bounds: NDArray[np.int64], part: int) -> RangePartitionBook:
    ends = [int(bound) for bound in bounds]
    return RangePartitionBook(list(zip(ends[:-1], ends[1:], strict=True)), part)
