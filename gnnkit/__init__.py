"""gnnkit: training graph neural networks on graphs too large for one batch.

from gnnkit import GraphLoader

loader = GraphLoader.from_ogb("ogbn-products", num_neighbors=[15, 10, 5], batch_size=1024)
for batch in loader:
...
"""

import typing as _typing
from importlib import import_module as _import_module

from gnnkit.rendering import register as _register
from gnnkit.version import __version__ as __version__

# Public names and the modules they live in; importing gnnkit imports none of them.
_HOMES = {
    "BuildOptions": "gnnkit.storage.layout",
    "Clusters": "gnnkit.samplers",
    "Colocated": "gnnkit.backends.colocated",
    "Glt": "gnnkit.backends.glt.options",
    "GraphLoader": "gnnkit.graph_loader",
    "GraphStore": "gnnkit.backends.graph_store",
    "GraphStoreServers": "gnnkit.serving",
    "HGT": "gnnkit.samplers",
    "InProcess": "gnnkit.backends.inprocess",
    "Labor": "gnnkit.samplers",
    "LayerWise": "gnnkit.samplers",
    "LoaderPlan": "gnnkit.plan",
    "OnDevice": "gnnkit.backends.on_device",
    "PPR": "gnnkit.samplers",
    "Ray": "gnnkit.ray.options",
    "RunHandle": "gnnkit.jobs.launching.engine",
    "Saint": "gnnkit.samplers",
    "Store": "gnnkit.storage.store",
    "TrainContext": "gnnkit.jobs.context",
    "Walks": "gnnkit.samplers",
    "add_label_edges": "gnnkit.datasets.pyg",
    "check_leakage": "gnnkit.loader.inspection",
    "datasets": "gnnkit.datasets",
    "distributed": "gnnkit.distributed",
    "errors": "gnnkit.errors",
    "launch": "gnnkit.jobs.launching",
    "partition": "gnnkit.partitioning",
    "pyg": "gnnkit.pyg",
    "serve": "gnnkit.serving",
    "set_options": "gnnkit.ui.options",
    "split_links": "gnnkit.splitters",
    "split_nodes": "gnnkit.splitters",
    "tables": "gnnkit.datasets.tables",
    "unpad": "gnnkit.loader.building",
    "verify_export": "gnnkit.export.verify",
}

__all__ = [
    "BuildOptions",
    "Clusters",
    "Colocated",
    "Glt",
    "GraphLoader",
    "GraphStore",
    "GraphStoreServers",
    "HGT",
    "InProcess",
    "Labor",
    "LayerWise",
    "LoaderPlan",
    "OnDevice",
    "PPR",
    "Ray",
    "RunHandle",
    "Saint",
    "Store",
    "TrainContext",
    "Walks",
    "add_label_edges",
    "check_leakage",
    "datasets",
    "distributed",
    "errors",
    "launch",
    "partition",
    "pyg",
    "serve",
    "set_options",
    "split_links",
    "split_nodes",
    "tables",
    "unpad",
    "verify_export",
]

if _typing.TYPE_CHECKING:
    from gnnkit import datasets as datasets
    from gnnkit import distributed as distributed
    from gnnkit import errors as errors
    from gnnkit import pyg as pyg
    from gnnkit.backends.colocated import Colocated as Colocated
    from gnnkit.backends.glt.options import Glt as Glt
    from gnnkit.backends.graph_store import GraphStore as GraphStore
    from gnnkit.backends.inprocess import InProcess as InProcess
    from gnnkit.backends.on_device import OnDevice as OnDevice
    from gnnkit.datasets.pyg import add_label_edges as add_label_edges
    from gnnkit.datasets.tables import tables as tables
    from gnnkit.export.verify import verify_export as verify_export
    from gnnkit.graph_loader import GraphLoader as GraphLoader
    from gnnkit.jobs.context import TrainContext as TrainContext
    from gnnkit.jobs.launching import launch as launch
    from gnnkit.jobs.launching.engine import RunHandle as RunHandle
    from gnnkit.loader.building import unpad as unpad
    from gnnkit.loader.inspection import check_leakage as check_leakage
    from gnnkit.partitioning import partition as partition
    from gnnkit.plan import LoaderPlan as LoaderPlan
    from gnnkit.ray.options import Ray as Ray
    from gnnkit.samplers import HGT as HGT
    from gnnkit.samplers import PPR as PPR
    from gnnkit.samplers import Clusters as Clusters
    from gnnkit.samplers import Labor as Labor
    from gnnkit.samplers import LayerWise as LayerWise
    from gnnkit.samplers import Saint as Saint
    from gnnkit.samplers import Walks as Walks
    from gnnkit.serving import GraphStoreServers as GraphStoreServers
    from gnnkit.serving import serve as serve
    from gnnkit.splitters import split_links as split_links
    from gnnkit.splitters import split_nodes as split_nodes
    from gnnkit.storage.layout import BuildOptions as BuildOptions
    from gnnkit.storage.store import Store as Store
    from gnnkit.ui.options import set_options as set_options


def __getattr__(name: str) -> _typing.Any:
    if name not in _HOMES:
        from gnnkit.errors import near_matches

        near = near_matches(name, [*_HOMES], 0.7) or ("; PyG's loaders are in gnnkit.pyg" if name.endswith(("Loader", "Sampler")) else "")
        raise AttributeError(f"module 'gnnkit' has no attribute {name!r}{near}")
    try:
        module = _import_module(_HOMES[name])
    except AttributeError as error:  # "from gnnkit import ..." would say only that there is no such name
        raise ImportError(f"{_HOMES[name]} cannot be imported: {error}") from error
    value = module if _HOMES[name] == f"gnnkit.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _card(shown: _typing.Any) -> _typing.Any:
    from gnnkit.ui.objects import card_of  # only when something is looked at

    return card_of(shown)


def _store_plot(store: "Store") -> _typing.Any:
    from gnnkit.ui.plots import plot_store  # matplotlib

    return plot_store(store)


def _traceback(*args: _typing.Any) -> list[str]:
    from gnnkit.ui.ipython import lines_for  # only when an error is shown

    return lines_for(*args)


def _open_url(*args: _typing.Any, **options: _typing.Any) -> "Store":
    from gnnkit.cluster.urls.stores import open_url  # processes, which opening a folder does without

    return open_url(*args, **options)


def _push(*args: _typing.Any, **options: _typing.Any) -> str:
    from gnnkit.cluster.urls.stores import push  # the same

    return push(*args, **options)


def _fetch_tables(*args: _typing.Any) -> "list[tuple[str, str]]":
    from gnnkit.cluster.urls.stores import fetch_tables  # the same

    return fetch_tables(*args)


def _append(store: "Store", *tables: _typing.Any, path: _typing.Any, events: _typing.Any, **options: _typing.Any) -> "Store":
    from gnnkit.datasets.tables.source import tables_after  # pyarrow
    from gnnkit.storage.append import append_to_store  # numba

    rows = tables_after(store, *tables, folder=store.path.parent, events=events, **options)
    return append_to_store(store, rows, rows.recoding, path, events)


_register(
    card=_card,
    store_plot=_store_plot,
    traceback=_traceback,
    open_url=_open_url,
    push=_push,
    fetch_tables=_fetch_tables,
    append=_append,
)


def load_ipython_extension(shell: _typing.Any) -> None:
    """Called by ``%load_ext gnnkit``: makes ``%gnnkit`` known."""
    from gnnkit.ui.ipython import load

    load(shell)


def unload_ipython_extension(shell: _typing.Any) -> None:
    """Called by ``%unload_ext gnnkit``."""
    from gnnkit.ui.ipython import unload

    unload(shell)
