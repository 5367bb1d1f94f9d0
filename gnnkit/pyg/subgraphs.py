"""``ClusterData``, ``ClusterLoader`` and the samplers of GraphSAINT of PyG, over ``GraphLoader``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch_geometric import loader as theirs
from torch_geometric.data import Data, HeteroData
from typing_extensions import override

from gnnkit.arguments import checks_arguments
from gnnkit.bounds import whole_number
from gnnkit.datasets.pyg import PyGSource
from gnnkit.errors import PlanError
from gnnkit.events import ignore_events
from gnnkit.files import is_writable, os_errors, user_path
from gnnkit.loader.planned import open_in_memory
from gnnkit.loader.subgraphs import with_clusters
from gnnkit.plan import ClustersSampling
from gnnkit.plan.sampling import SaintRoots
from gnnkit.pyg.inputs import NodeForm, as_object, node_inputs
from gnnkit.pyg.loaders import _OverGraphLoader
from gnnkit.pyg.samplers import GraphSampler
from gnnkit.samplers import Clusters, Saint
from gnnkit.schema import EdgeType
from gnnkit.storage.layout import BuildOptions

if TYPE_CHECKING:
    from torch import Tensor

_ELSEWHERE = "name a folder of yours, or leave it out: clusters are cut anew"
# What batches of these loaders of PyG's do not say.
_UNSAID = ("n_id", "e_id", "input_id", "batch_size")


@dataclass(frozen=True)
class SubgraphForm(NodeForm):
    """The form of these loaders: the graph's own attributes, and norms; no ids.

    Attributes:
        along: What edges are sorted by: 0 for their sources, 1 for their targets.
        is_counted: Whether ``num_nodes`` is there whatever the graph says.
    """

    along: int = 0
    is_counted: bool = True

    @override
    def _shown(self, batch: Data | HeteroData) -> Any:
        num_nodes, ends = len(batch.n_id), batch.edge_index
        order = torch.argsort(ends[self.along] * num_nodes + ends[1 - self.along], stable=True)
        of_edges = [name for name in self.graph.data.to_dict() if self.graph.data.is_edge_attr(name) and name in batch]
        for name in dict.fromkeys(("edge_index", "e_id", *of_edges)):
            batch[name] = batch[name].index_select(batch.__cat_dim__(name, batch[name]), order)
        shown = super()._shown(batch)
        for name in _UNSAID:
            if name not in (aside.name for aside in self.graph.aside):
                shown._store._mapping.pop(name, None)
        if self.is_counted:
            shown.num_nodes = num_nodes
        return shown


class _SubgraphSampler(GraphSampler):
    """The sampling of these loaders."""

    def __init__(self, graph: Data | HeteroData, sampler: Any, batch_size: int, along: int = 0, is_counted: bool = True) -> None:
        super().__init__(graph)
        self.sampler, self.batch_size, self.shown = sampler, batch_size, {"along": along, "is_counted": is_counted}

    @override
    def options(self, graph: Data | HeteroData, edge_type: EdgeType | None = None) -> dict[str, Any]:
        own: dict[str, Any] = {"sampler": self.sampler, "batch_size": self.batch_size}
        return {**own, "shuffle": None} if isinstance(self.sampler, Saint) else own

    @override
    def form(self) -> dict[str, Any]:
        return self.shown


def _begin(loader: _OverGraphLoader, graph: Data, sampler: _SubgraphSampler, count: int, kwargs: dict[str, Any]) -> None:
    """Makes one of these loaders, which has ``count`` clusters or steps."""
    loader._refuse(sampler=kwargs.pop("sampler", None), batch_sampler=kwargs.pop("batch_sampler", None))
    loader._start(graph, graph, node_inputs(graph, None), sampler, SubgraphForm, None, kwargs, dataset=range(count))


class ClusterData(theirs.ClusterData):  # type: ignore[misc]
    """PyG's ``ClusterData``, whose clusters gnnkit's partitioners cut: METIS where pymetis is installed, else LDG.

    Args:
        data: The graph.
        num_parts: Clusters.
        recursive: Cannot be followed: METIS cuts into all parts at once.
        save_dir: A folder for the clusters, for the next time.
        filename: Their file in it.
        log: Whether progress is printed.
        keep_inter_cluster_edges: Whether single clusters show edges to other ones.
        sparse_format: "csr" lists edges by their sources, "csc" by their targets.

    Raises:
        PlanError: A value cannot be followed, or the graph is none of one node type.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import ClusterData
        >>> clusters = ClusterData(gnnkit.datasets.cora(), num_parts=50, log=False)
        >>> sum(cluster.num_nodes for cluster in clusters)
        2708
    """

    @checks_arguments
    def __init__(
        self,
        data: Data,
        num_parts: int,
        recursive: bool = False,
        save_dir: str | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: Literal["csr", "csc"] = "csr",
    ) -> None:
        if recursive:
            raise PlanError("recursive=True cannot be followed", "leave it out: METIS cuts into all parts at once")
        self.graph = _homogeneous(data)
        if save_dir is not None:
            folder = user_path(save_dir)
            with os_errors(f"save_dir={save_dir!r} cannot be made", folder, _ELSEWHERE):
                folder.mkdir(parents=True, exist_ok=True)
            if not is_writable(folder):
                raise PlanError(f"save_dir={save_dir!r} cannot be written", _ELSEWHERE)
        super().__init__(self.graph, num_parts, recursive, save_dir, filename, log, keep_inter_cluster_edges, sparse_format)

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        source = PyGSource(Data(edge_index=edge_index.cpu(), num_nodes=num_nodes))
        method = "metis" if importlib.util.find_spec("pymetis") else "ldg"
        graph = open_in_memory(source, BuildOptions(), "clusters")
        found = with_clusters(ClustersSampling(self.num_parts, 1, method), graph, ignore_events).clusters
        return torch.from_numpy(found).long().to(edge_index.device)

    @property
    def clusters(self) -> Tensor:
        """The cluster of each node, int64 ``[num_nodes]``."""
        sizes, found = self.partition.partptr.diff(), torch.empty_like(self.partition.node_perm)
        found[self.partition.node_perm] = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
        return found


class ClusterLoader(_OverGraphLoader, theirs.ClusterLoader):  # type: ignore[misc]
    """PyG's ``ClusterLoader``, over ``gnnkit.GraphLoader``.

    Args:
        cluster_data: A ``gnnkit.pyg.ClusterData``.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``: ``batch_size`` counts clusters; ``shuffle``, ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import ClusterData, ClusterLoader
        >>> loader = ClusterLoader(ClusterData(gnnkit.datasets.cora(), num_parts=50, log=False), batch_size=10, shuffle=True)
        >>> sum(batch.num_nodes for batch in loader)
        2708
    """

    @checks_arguments
    def __init__(self, cluster_data: ClusterData, **kwargs: Any) -> None:
        self._keep(locals())
        if not isinstance(cluster_data, ClusterData):
            raise PlanError(
                f"cluster_data is a {type(cluster_data).__module__}.{type(cluster_data).__name__}", "give gnnkit.pyg.ClusterData"
            )
        count = len(cluster_data)
        per_batch = min(whole_number("batch_size", kwargs.get("batch_size", 1), 1), count)
        clusters, along = Clusters(count, per_batch, cluster_data.clusters), ("csr", "csc").index(cluster_data.sparse_format)
        sampler = _SubgraphSampler(cluster_data.graph, clusters, per_batch, along, False)
        _begin(self, cluster_data.graph, sampler, count, kwargs)


class GraphSAINTSampler(_OverGraphLoader, theirs.GraphSAINTSampler):  # type: ignore[misc]
    """PyG's base of the samplers of GraphSAINT, over ``gnnkit.GraphLoader``; ``edge_norm`` is that of the paper, of an edge's target.

    Args:
        data: The graph.
        batch_size: Roots of a batch.
        num_steps: Batches of an epoch.
        sample_coverage: How often a node is sampled, on average, before the first epoch, so that norms are known.
        save_dir: Changes nothing: norms follow from the seed.
        log: Changes nothing.
        **kwargs: Arguments of ``torch.utils.data.DataLoader``, such as ``num_workers``.

    Raises:
        PlanError: A value is unusable, or cannot be followed.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import GraphSAINTNodeSampler, GraphSAINTSampler
        >>> isinstance(GraphSAINTNodeSampler(gnnkit.datasets.cora(), batch_size=64), GraphSAINTSampler)
        True
    """

    _roots: SaintRoots
    walk_length = 1

    @checks_arguments
    def __init__(
        self,
        data: Data,
        batch_size: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: Any,
    ) -> None:
        self._keep(locals())
        if not hasattr(self, "_roots"):
            hint = "GraphSAINTNodeSampler, GraphSAINTEdgeSampler and GraphSAINTRandomWalkSampler say"
            raise PlanError("GraphSAINTSampler is the base of samplers, and does not say what roots are", hint)
        graph = _homogeneous(data)
        self.num_steps, self.N, self.E = num_steps, graph.num_nodes, graph.num_edges
        sampler = _SubgraphSampler(graph, Saint(self._roots, self.walk_length, num_steps, sample_coverage), batch_size)
        self.__dict__.pop("batch_size")  # DataLoader's own is 1, as in PyG
        _begin(self, graph, sampler, num_steps, kwargs)

    def __len__(self) -> int:
        return int(self.num_steps)


class GraphSAINTNodeSampler(GraphSAINTSampler, theirs.GraphSAINTNodeSampler):  # type: ignore[misc]
    """PyG's ``GraphSAINTNodeSampler``: roots are drawn in proportion to their number of edges. See ``GraphSAINTSampler``.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import GraphSAINTNodeSampler
        >>> loader = GraphSAINTNodeSampler(gnnkit.datasets.cora(), batch_size=64, num_steps=5)
        >>> [batch.num_nodes > 0 for batch in loader]
        [True, True, True, True, True]
    """

    _roots = "nodes"


class GraphSAINTEdgeSampler(GraphSAINTSampler, theirs.GraphSAINTEdgeSampler):  # type: ignore[misc]
    """PyG's ``GraphSAINTEdgeSampler``: roots are both ends of an edge, drawn as in the paper. See ``GraphSAINTSampler``.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import GraphSAINTEdgeSampler
        >>> loader = GraphSAINTEdgeSampler(gnnkit.datasets.cora(), batch_size=64, num_steps=5)
        >>> [batch.num_nodes > 0 for batch in loader]
        [True, True, True, True, True]
    """

    _roots = "edges"


class GraphSAINTRandomWalkSampler(GraphSAINTSampler, theirs.GraphSAINTRandomWalkSampler):  # type: ignore[misc]
    """PyG's ``GraphSAINTRandomWalkSampler``: roots walk ``walk_length`` steps, against the edges. See ``GraphSAINTSampler``.

    Example:
        >>> import gnnkit
        >>> from gnnkit.pyg import GraphSAINTRandomWalkSampler
        >>> loader = GraphSAINTRandomWalkSampler(gnnkit.datasets.cora(), batch_size=64, walk_length=2, num_steps=5)
        >>> [batch.num_nodes > 0 for batch in loader]
        [True, True, True, True, True]
    """

    _roots = "walks"

    @checks_arguments
    def __init__(self, data: Data, batch_size: int, walk_length: int, *args: Any, **kwargs: Any) -> None:
        self.walk_length = walk_length
        super().__init__(data, batch_size, *args, **kwargs)


def _homogeneous(data: Any) -> Data:
    graph = as_object(data)
    if not isinstance(graph, Data):
        raise PlanError(f"data must be a Data, got {type(graph).__name__}", "data.to_homogeneous() makes it one")
    return graph
