"""The public names and the modules they live in: what type checkers read, and ``gnnkit.datasets`` itself when a name is first used."""

from gnnkit.datasets.citations import cora as cora
from gnnkit.datasets.ogb import evaluator as evaluator
from gnnkit.datasets.ogb import ogb_names as ogb_names
from gnnkit.datasets.ogb import open_ogb as open_ogb
from gnnkit.datasets.pyg import PyGSource as PyGSource
from gnnkit.datasets.pyg import graph_from_pyg as graph_from_pyg
from gnnkit.datasets.synthetic import papers_like as papers_like
from gnnkit.datasets.synthetic import products_like as products_like
from gnnkit.datasets.synthetic_ogb import write_ogb_layout as write_ogb_layout
from gnnkit.datasets.tables import TableSource as TableSource
from gnnkit.schema import ArraySpec as ArraySpec
from gnnkit.schema import EdgeTypeSchema as EdgeTypeSchema
from gnnkit.schema import GraphSchema as GraphSchema
from gnnkit.schema import NodeTypeSchema as NodeTypeSchema
from gnnkit.shipped import sample_root as sample_root
from gnnkit.shipped import shipped_data_dir as shipped_data_dir
from gnnkit.source import GraphSource as GraphSource
from gnnkit.storage.glt_format import GltPartitionSource as GltPartitionSource
from gnnkit.storage.glt_format import write_glt_partitions as write_glt_partitions
