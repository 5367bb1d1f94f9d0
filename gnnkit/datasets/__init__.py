"""Graphs that stores are built from: OGB's datasets, PyG objects, generated graphs and what ships with the package."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gnnkit.errors import near_matches

# Public names and the modules they live in; importing the package imports none of them.
_HOMES = {
    "ArraySpec": "gnnkit.schema",
    "EdgeTypeSchema": "gnnkit.schema",
    "GltPartitionSource": "gnnkit.storage.glt_format",
    "GraphSchema": "gnnkit.schema",
    "GraphSource": "gnnkit.source",
    "NodeTypeSchema": "gnnkit.schema",
    "PyGSource": "gnnkit.datasets.pyg",
    "TableSource": "gnnkit.datasets.tables",
    "cora": "gnnkit.datasets.citations",
    "evaluator": "gnnkit.datasets.ogb",
    "graph_from_pyg": "gnnkit.datasets.pyg",
    "ogb_names": "gnnkit.datasets.ogb",
    "open_ogb": "gnnkit.datasets.ogb",
    "papers_like": "gnnkit.datasets.synthetic",
    "products_like": "gnnkit.datasets.synthetic",
    "sample_root": "gnnkit.shipped",
    "shipped_data_dir": "gnnkit.shipped",
    "write_glt_partitions": "gnnkit.storage.glt_format",
    "write_ogb_layout": "gnnkit.datasets.synthetic_ogb",
}

__all__ = [*_HOMES]

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gnnkit.datasets' has no attribute {name!r}{near_matches(name, [*_HOMES])}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
