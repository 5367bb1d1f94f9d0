"""Which modules another machine gets by installing a distribution, and which lie only on this one."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType


@cache
def distributions_of() -> dict[str, list[str]]:
    """``{top-level module: distributions that install it}``."""
    return {name: sorted(set(found)) for name, found in metadata.packages_distributions().items()}


def is_installed(module: str) -> bool:
    """Whether a module is Python's own or a distribution's; True for one that is not to be found at all.

    Args:
        module: Its name; only the part before the first dot is looked at.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or top == "gnnkit" or top in distributions_of():
        return True
    file = _file_of(top)
    return file is None or any(file.is_relative_to(folder) for folder in _folders())


def _file_of(top: str) -> Path | None:
    known = sys.modules.get(top)
    places: list[str] = []
    if known is not None:
        places = [known.__file__] if isinstance(known.__file__, str) else list(getattr(known, "__path__", []))
    else:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        if spec is not None:
            places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or [])
    return Path(places[0]).resolve() if places else None


@cache
def _folders() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(path).resolve() for name in names if (path := sysconfig.get_path(name))})


def importable(value: object) -> tuple[str, str] | None:
    """Module and name that an object is imported by on every machine that has its distribution; None where there are none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not name.isidentifier():
        return None
    home = sys.modules.get(module)
    if module == "__main__" or not isinstance(home, ModuleType) or not is_installed(module) or getattr(home, name, None) is not value:
        return None
    return module, name
