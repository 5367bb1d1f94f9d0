"""A batch of ``GraphLoader`` in the form that PyG's loaders give it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from gnnkit.pyg.graphs import ADJ_VALUE, PreparedGraph


@dataclass(frozen=True)
class NodeForm:
    """The form of ``NeighborLoader``, ``LinkNeighborLoader`` and ``HGTLoader``; a transform of ``GraphLoader``.

    Attributes:
        graph: The graph.
        num_hops: Hops that were asked for; None where batches have no counts by hop.
        input_id: What inputs are called, by their places; None for the places.
        transform: The user's function, called last.
        pin_memory: Whether batches are copied to page-locked memory.
        has_edge_ids: Whether edges of a ``HeteroData`` keep ids and arrays; in bidirectional batches of PyG they have none.
    """

    graph: PreparedGraph
    num_hops: int | None
    input_id: Tensor | None = None
    transform: Callable[[Any], Any] | None = None
    pin_memory: bool = False
    has_edge_ids: bool = True
    _copied: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_copied", type(self.graph.like) not in (Data, HeteroData))

    def __call__(self, batch: Data | HeteroData) -> Any:
        """The batch as the user is to see it; the object itself where possible."""
        return self._finished(self._shown(batch))

    def _finished(self, batch: Any) -> Any:
        batch = batch.pin_memory() if self.pin_memory else batch
        return batch if self.transform is None else self.transform(batch)

    def _shown(self, batch: Data | HeteroData) -> Any:
        graph = self.graph
        for store in batch.stores:
            self._correct(store)
        for aside in graph.aside:  # what is named as the ids comes last
            store = batch._store if aside.owner is None else batch[aside.owner]
            store[aside.name] = aside.value[store["n_id" if aside.is_node else "e_id"]]
        for key in graph.sparse:
            _to_matrix(batch if key is None else batch[key], batch)
        if isinstance(batch, HeteroData):
            if not self.has_edge_ids:
                _without_edge_ids(batch, graph.data)
            _in_order(batch, graph.like)
        return _of_class(batch, graph.like) if self._copied else batch

    def _correct(self, store: Any) -> None:
        """Names of inputs, and numbers of hops and of nodes, as PyG's loaders give them."""
        if self.input_id is not None and "input_id" in store:
            store["input_id"] = self.input_id[store["input_id"]]
        if self.num_hops is None:
            for name in ("num_sampled_nodes", "num_sampled_edges"):
                store._mapping.pop(name, None)
        elif self.num_hops == 0:  # which was sampled as one hop that draws nothing
            for name, kept in (("num_sampled_nodes", 1), ("num_sampled_edges", 0)):
                if name in store:
                    store[name] = store[name][:kept]
        if "n_id" in store and store._key in self.graph.counted:
            store["num_nodes"] = len(store["n_id"])
        else:
            store._mapping.pop("num_nodes", None)


def _without_edge_ids(batch: HeteroData, graph: HeteroData) -> None:
    """Takes ids and arrays from edges that stand for themselves and for their reverses, of which PyG gives neither."""
    for store in batch.edge_stores:
        arrays = [name for name in graph[store._key] if graph[store._key].is_edge_attr(name)] if store._key in graph.edge_types else []
        for name in ("e_id", *arrays):
            if name != "edge_index":
                store._mapping.pop(name, None)


def _to_matrix(store: Any, batch: Data | HeteroData) -> None:
    """Replaces ``edge_index`` by ``adj_t``, as the graph had it."""
    from torch_sparse import SparseTensor  # only where a graph came with one

    key = getattr(store, "_key", None)
    sizes = (batch.num_nodes,) * 2 if key is None else (batch[key[2]].num_nodes, batch[key[0]].num_nodes)
    row, col = store["edge_index"]
    value = store._mapping.pop(ADJ_VALUE, None)
    del store["edge_index"]
    store["adj_t"] = SparseTensor(row=col, col=row, value=value, sparse_sizes=sizes, trust_data=True)


def _in_order(batch: HeteroData, like: HeteroData) -> None:
    """Lists types in the order of the user's object, which code that takes ``x_dict.values()`` may count on."""
    for name in ("_node_store_dict", "_edge_store_dict"):
        stores, order = getattr(batch, name), getattr(like, name)
        batch.__dict__[name] = {
            key: stores[key] for key in (*(key for key in order if key in stores), *(key for key in stores if key not in order))
        }


def _of_class(batch: Data | HeteroData, like: Data | HeteroData) -> Any:
    """The batch as an object of the user's own class."""
    shown = copy.copy(like)
    for store in batch.stores:
        own = (
            shown._store
            if store._key is None and isinstance(batch, Data)
            else shown._global_store
            if store._key is None
            else shown[store._key]
        )
        own._mapping.update(store._mapping)
    return shown


@dataclass(frozen=True)
class ShadowForm(NodeForm):
    """The form of ``ShaDowKHopSampler``: a subgraph for each root, one after the other, nodes by their ids and edges by their ends."""

    def _shown(self, batch: Data | HeteroData) -> Any:
        graph, num_roots, num_nodes = self.graph, int(batch.batch_size), len(batch.n_id)
        by_id = batch.n_id.argsort(stable=True)
        nodes = by_id[batch.batch[by_id].argsort(stable=True)]  # where the node at each place of the new order comes from
        place = torch.empty_like(nodes)
        place[nodes] = torch.arange(num_nodes)
        row, col = place[batch.edge_index]
        edges = batch.e_id.argsort(stable=True)
        edges = edges[(row * num_nodes + col)[edges].argsort(stable=True)]
        sizes = torch.bincount(batch.batch, minlength=num_roots)
        shown = Batch(batch=batch.batch[nodes], ptr=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))
        shown.root_n_id, shown.edge_index = place[:num_roots], torch.stack([row, col])[:, edges]
        for name, value in graph.data.items():
            if name in ("edge_index", "num_nodes", "batch", "ptr"):
                continue
            if graph.data.is_node_attr(name):
                shown[name] = batch[name][nodes[shown.root_n_id] if name == "y" else nodes]
            else:
                shown[name] = batch[name][edges] if graph.data.is_edge_attr(name) else value
        n_id, e_id = batch.n_id[nodes], batch.e_id[edges]
        for aside in graph.aside:
            shown[aside.name] = aside.value[n_id if aside.is_node else e_id]
        if graph.sparse:
            _to_matrix(shown, shown)
        return shown
