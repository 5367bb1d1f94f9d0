"""gnnkit: training graph neural networks on graphs too large for one batch.

from gnnkit import GraphLoader

loader = GraphLoader.from_ogb("ogbn-products", num_neighbors=[15, 10, 5], batch_size=1024)
for batch in loader:
...
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from gnnkit.rendering import register as _register
from gnnkit.rendering import renderer as _renderer
from gnnkit.stubs import homes_of as _homes_of
from gnnkit.version import __version__ as __version__

# Public names and the modules they live in; importing gnnkit imports none of them.
_HOMES = _homes_of(__file__)

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> _Any:
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


_register(
    card="gnnkit.ui.objects:card_of",
    store_plot="gnnkit.ui.plots:plot_store",
    traceback="gnnkit.ui.ipython:lines_for",
    open_url="gnnkit.cluster.urls.stores:open_url",
    push="gnnkit.cluster.urls.stores:push",
    fetch_tables="gnnkit.cluster.urls.stores:fetch_tables",
    append="gnnkit.datasets.tables.source:append_tables",
    load_magic="gnnkit.cli.magic:load",
    unload_magic="gnnkit.cli.magic:unload",
)


def load_ipython_extension(shell: _Any) -> None:
    """Called by ``%load_ext gnnkit``: makes ``%gnnkit`` known."""
    _renderer("load_magic")(shell)


def unload_ipython_extension(shell: _Any) -> None:
    """Called by ``%unload_ext gnnkit``."""
    _renderer("unload_magic")(shell)
