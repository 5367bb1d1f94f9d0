"""PyG's loaders and samplers under their names, over ``GraphLoader``: a script that uses them changes one import.

    from gnnkit.pyg import NeighborLoader  # was: from torch_geometric.loader import NeighborLoader

Arguments, defaults and attributes are those of ``torch_geometric``, and objects are instances of its classes.
``loader.graph_loader`` is the ``GraphLoader`` underneath, with its dashboard, profile and plan. What differs, and why:
``docs/coming-from.md``.
"""

from gnnkit.pyg.loaders import HGTLoader, LinkNeighborLoader, NeighborLoader, ShaDowKHopSampler
from gnnkit.pyg.samplers import HGTSampler, NeighborSampler
from gnnkit.pyg.subgraphs import (
    ClusterData,
    ClusterLoader,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    GraphSAINTSampler,
)
from gnnkit.pyg.walks import MetaPath2Vec, Node2Vec

__all__ = [
    "ClusterData",
    "ClusterLoader",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "GraphSAINTSampler",
    "HGTLoader",
    "HGTSampler",
    "LinkNeighborLoader",
    "MetaPath2Vec",
    "NeighborLoader",
    "NeighborSampler",
    "Node2Vec",
    "ShaDowKHopSampler",
]
