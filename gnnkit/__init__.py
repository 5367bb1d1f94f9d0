"""gnnkit: training graph neural networks on graphs too large for one batch.

from gnnkit import GraphLoader

loader = GraphLoader.from_ogb("ogbn-products", num_neighbors=[15, 10, 5], batch_size=1024)
for batch in loader:
...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public names and the modules they live in; importing gnnkit imports none of them.
_HOMES = {
    "BuildOptions": "gnnkit.storage.options",
    "Colocated": "gnnkit.backends.colocated",
    "Glt": "gnnkit.backends.glt",
    "GraphLoader": "gnnkit.loader",
    "InProcess": "gnnkit.backends.inprocess",
    "Store": "gnnkit.storage.store",
    "datasets": "gnnkit.datasets",
    "distributed": "gnnkit.distributed",
    "errors": "gnnkit.errors",
    "partition": "gnnkit.partitioning",
    "set_options": "gnnkit.ui.options",
}

__all__ = [
    "BuildOptions",
    "Colocated",
    "Glt",
    "GraphLoader",
    "InProcess",
    "Store",
    "datasets",
    "distributed",
    "errors",
    "partition",
    "set_options",
]

if TYPE_CHECKING:
    from gnnkit import datasets as datasets
    from gnnkit import distributed as distributed
    from gnnkit import errors as errors
    from gnnkit.backends.colocated import Colocated as Colocated
    from gnnkit.backends.glt import Glt as Glt
    from gnnkit.backends.inprocess import InProcess as InProcess
    from gnnkit.loader import GraphLoader as GraphLoader
    from gnnkit.partitioning import partition as partition
    from gnnkit.storage.options import BuildOptions as BuildOptions
    from gnnkit.storage.store import Store as Store
    from gnnkit.ui.options import set_options as set_options


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gnnkit' has no attribute {name!r}")
    module = import_module(_HOMES[name])
    value = module if _HOMES[name] == f"gnnkit.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
