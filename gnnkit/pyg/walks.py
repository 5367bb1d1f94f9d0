"""``Node2Vec`` and ``MetaPath2Vec`` of PyG, whose walks ``GraphLoader`` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import models as theirs
from typing_extensions import override

from gnnkit.arguments import checks_arguments
from gnnkit.errors import PlanError
from gnnkit.pyg.inputs import NodeForm, node_inputs
from gnnkit.pyg.loaders import _OverGraphLoader
from gnnkit.pyg.samplers import GraphSampler
from gnnkit.samplers import Walks
from gnnkit.schema import EdgeType, NodeType


@dataclass(frozen=True)
class WalkForm(NodeForm):
    """The form of batches of walks: PyG's two tensors of windows, of walks and of negatives.

    Attributes:
        context_size: Nodes of a window.
        columns: The type of each node of a walk, and what is added to ids of its type; empty where the graph has one type.
        dummy: What stands for nodes behind a walk's end; None repeats its last node.
    """

    context_size: int = 1
    columns: tuple[tuple[NodeType, int], ...] = ()
    dummy: int | None = None

    @override
    def __call__(self, batch: Data | HeteroData) -> tuple[Tensor, Tensor]:
        store = batch[self.columns[0][0]] if self.columns else batch
        walks = self._windows(store.walks, batch)
        negatives = self._windows(store.neg_walks, batch) if "neg_walks" in store else walks[:0]
        return (walks.pin_memory(), negatives.pin_memory()) if self.pin_memory else (walks, negatives)

    def _windows(self, walks: Tensor, batch: Data | HeteroData) -> Tensor:
        if self.dummy is None:
            last = (walks >= 0).sum(dim=1, keepdim=True) - 1
            ids = batch.n_id[walks.gather(1, torch.arange(walks.shape[1]).minimum(last))]
        else:
            by_column = zip(self.columns, walks.unbind(dim=1), strict=True)
            ids = torch.stack([self._ids(batch[node_type].n_id + first, numbers) for (node_type, first), numbers in by_column], dim=1)
        windows: Tensor = ids.unfold(1, self.context_size, 1).transpose(0, 1).reshape(-1, self.context_size)
        return windows

    def _ids(self, n_id: Tensor, numbers: Tensor) -> Tensor:
        """The ids of numbers, of which -1 stands for the last."""
        return torch.cat([n_id, n_id.new_tensor([self.dummy])])[numbers]


class WalkSampler(GraphSampler):
    """The sampler of a model's loader."""

    def __init__(self, graph: Data | HeteroData, walks: Walks, form: Mapping[str, Any]) -> None:
        super().__init__(graph)
        self.walks, self._form = walks, form

    @override
    def options(self, graph: Data | HeteroData, edge_type: EdgeType | None = None) -> dict[str, Any]:
        return {"sampler": self.walks, "edge_dir": "out"}

    @override
    def form(self) -> dict[str, Any]:
        return dict(self._form)


class WalkLoader(_OverGraphLoader, DataLoader):  # type: ignore[misc, type-arg]
    """The loader of ``Node2Vec`` and ``MetaPath2Vec``, over ``gnnkit.GraphLoader``: batches are ``(pos_rw, neg_rw)``."""

    def __init__(self, graph: Data | HeteroData, node_type: NodeType | None, sampler: WalkSampler, kwargs: dict[str, Any]) -> None:
        self._start(graph, graph, node_inputs(graph, node_type), sampler, WalkForm, None, kwargs)


class _Model:
    """The common base of both models: their loader, and single batches of it.

    Attributes:
        graph: The graph that is walked in.
    """

    graph: Data | HeteroData
    walk_length: int
    context_size: int
    walks_per_node: int
    num_negative_samples: int

    def _loader(
        self, node_type: NodeType | None, form: Mapping[str, Any], kwargs: dict[str, Any], p: float = 1.0, q: float = 1.0, **more: Any
    ) -> WalkLoader:
        walks = Walks(self.walk_length, self.walks_per_node, p, q, self.num_negative_samples, **more)
        sampler = WalkSampler(self.graph, walks, {"context_size": self.context_size, **form})
        return WalkLoader(self.graph, node_type, sampler, kwargs)

    def loader(self, **kwargs: Any) -> WalkLoader:
        """A loader of walks and negative walks.

        Args:
            **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``batch_size``, ``shuffle``, ``drop_last`` and ``num_workers``.
        """
        raise NotImplementedError

    @cached_property
    def _single(self) -> WalkLoader:
        return self.loader()

    def sample(self, batch: Tensor | list[int]) -> tuple[Tensor, Tensor]:
        """Walks from given nodes, and negative ones; each call draws anew."""
        windows: Any = self._single(batch)
        return windows  # type: ignore[no-any-return]


def _check_context(walk: int, context_size: int) -> None:
    if not 1 <= context_size <= walk:
        raise PlanError(f"context_size={context_size!r}, and walks have {walk} nodes", "a window has one node at least, and none more")


class Node2Vec(_Model, theirs.Node2Vec):  # type: ignore[misc]
    """PyG's ``Node2Vec``, whose ``loader()`` is gnnkit's; it needs neither pyg-lib nor torch-cluster.

    Args:
        edge_index: The edges ``[2, e]``: steps lead from the first to the second row.
        embedding_dim: The size of each embedding.
        walk_length: Nodes of a walk, as in PyG: one more than its steps.
        context_size: Nodes of a window.
        walks_per_node: Walks from each node.
        p: The larger, the less likely a walk goes straight back.
        q: The larger, the less likely it leaves the neighbourhood of the node before.
        num_negative_samples: Negative walks for each walk.
        num_nodes: Nodes of the graph; None is one more than the largest id.
        sparse: Whether gradients of the embeddings are sparse.

    Raises:
        PlanError: A value is unusable.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import Node2Vec
        >>> data = gnnkit.datasets.cora()
        >>> model = Node2Vec(data.edge_index, 16, walk_length=20, context_size=10, q=0.5)
        >>> loader = model.loader(batch_size=32, shuffle=True)
        >>> pos_rw, neg_rw = next(iter(loader))
        >>> model.loss(pos_rw, neg_rw).item() > 0
        True
    """

    @checks_arguments
    def __init__(  # noqa: PLR0913 - PyG's
        self,
        edge_index: Tensor,
        embedding_dim: int,
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        num_negative_samples: int = 1,
        num_nodes: int | None = None,
        sparse: bool = False,
    ) -> None:
        if not isinstance(edge_index, Tensor):
            raise PlanError(f"edge_index is a {type(edge_index).__name__}, and it is a tensor [2, e]", "give data.edge_index")
        torch.nn.Module.__init__(self)  # PyG's own asks for the library that draws its walks
        _check_context(walk_length, context_size)
        self.num_nodes = int(edge_index.max()) + 1 if num_nodes is None else num_nodes
        self.graph = Data(edge_index=edge_index.cpu(), num_nodes=self.num_nodes)
        self.EPS, self.embedding_dim = 1e-15, embedding_dim
        self.walk_length, self.context_size, self.walks_per_node = walk_length - 1, context_size, walks_per_node
        self.p, self.q, self.num_negative_samples = p, q, num_negative_samples
        self.embedding = torch.nn.Embedding(self.num_nodes, embedding_dim, sparse=sparse)
        self.reset_parameters()

    @override
    def loader(self, **kwargs: Any) -> WalkLoader:
        return self._loader(None, {}, kwargs, self.p, self.q)

    def pos_sample(self, batch: Tensor) -> Tensor:
        """Walks from given nodes; each call draws anew."""
        return self.sample(batch)[0]

    def neg_sample(self, batch: Tensor) -> Tensor:
        """Negative walks from given nodes; each call draws anew."""
        return self.sample(batch)[1]


class MetaPath2Vec(_Model, theirs.MetaPath2Vec):  # type: ignore[misc]
    """PyG's ``MetaPath2Vec``, whose ``loader()`` is gnnkit's.

    Args:
        edge_index_dict: The edges of each type.
        embedding_dim: The size of each embedding.
        metapath: The edge types that steps go along, in turn.
        walk_length: Steps of a walk.
        context_size: Nodes of a window.
        walks_per_node: Walks from each node.
        num_negative_samples: Negative walks for each walk.
        num_nodes_dict: Nodes of each type; None is one more than the largest id.
        sparse: Whether gradients of the embeddings are sparse.

    Raises:
        PlanError: A value is unusable.

    Example:
        >>> import torch
        >>> from gnnkit.pyg import MetaPath2Vec
        >>> writes = torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]])
        >>> edges = {("author", "writes", "paper"): writes, ("paper", "by", "author"): writes.flip(0)}
        >>> model = MetaPath2Vec(edges, 16, list(edges), walk_length=4, context_size=3)
        >>> loader = model.loader(batch_size=3)
        >>> pos_rw, neg_rw = next(iter(loader))
        >>> pos_rw.shape
        torch.Size([9, 3])
    """

    @checks_arguments
    def __init__(  # noqa: PLR0913 - PyG's
        self,
        edge_index_dict: Mapping[EdgeType, Tensor],
        embedding_dim: int,
        metapath: Sequence[EdgeType],
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        num_negative_samples: int = 1,
        num_nodes_dict: Mapping[NodeType, int] | None = None,
        sparse: bool = False,
    ) -> None:
        _check_context(walk_length + 1, context_size)
        super().__init__(
            edge_index_dict,
            embedding_dim,
            metapath,
            walk_length,
            context_size,
            walks_per_node,
            num_negative_samples,
            num_nodes_dict,
            sparse,
        )
        self.graph = HeteroData()
        for node_type, num_nodes in self.num_nodes_dict.items():
            self.graph[node_type].num_nodes = num_nodes
        for edge_type, edge_index in edge_index_dict.items():
            self.graph[edge_type].edge_index = edge_index.cpu()

    @override
    def loader(self, **kwargs: Any) -> WalkLoader:
        ends = [self.metapath[0][0], *(self.metapath[step % len(self.metapath)][-1] for step in range(self.walk_length))]
        form = {"columns": tuple((node_type, self.start[node_type]) for node_type in ends), "dummy": self.dummy_idx}
        return self._loader(ends[0], form, kwargs, metapath=list(self.metapath))

    def _sample(self, batch: Tensor | list[int]) -> tuple[Tensor, Tensor]:
        return self.sample(batch)
