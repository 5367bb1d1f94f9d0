"""PyG's loaders and samplers under their names, over ``GraphLoader``: a script that uses them changes one import.

    from gnnkit.pyg import NeighborLoader  # was: from torch_geometric.loader import NeighborLoader

Arguments, defaults and attributes are those of ``torch_geometric``, and objects are instances of its classes.
``loader.graph_loader`` is the ``GraphLoader`` underneath, with its dashboard, profile and plan. What differs, and why:
``docs/coming-from.md``.
"""

from gnnkit.pyg.loaders import HGTLoader as HGTLoader
from gnnkit.pyg.loaders import LinkNeighborLoader as LinkNeighborLoader
from gnnkit.pyg.loaders import NeighborLoader as NeighborLoader
from gnnkit.pyg.loaders import ShaDowKHopSampler as ShaDowKHopSampler
from gnnkit.pyg.samplers import HGTSampler as HGTSampler
from gnnkit.pyg.samplers import NeighborSampler as NeighborSampler
from gnnkit.pyg.subgraphs import ClusterData as ClusterData
from gnnkit.pyg.subgraphs import ClusterLoader as ClusterLoader
from gnnkit.pyg.subgraphs import GraphSAINTEdgeSampler as GraphSAINTEdgeSampler
from gnnkit.pyg.subgraphs import GraphSAINTNodeSampler as GraphSAINTNodeSampler
from gnnkit.pyg.subgraphs import GraphSAINTRandomWalkSampler as GraphSAINTRandomWalkSampler
from gnnkit.pyg.subgraphs import GraphSAINTSampler as GraphSAINTSampler
from gnnkit.pyg.walks import MetaPath2Vec as MetaPath2Vec
from gnnkit.pyg.walks import Node2Vec as Node2Vec

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
