"""Python reads this at its start in processes that tests start: parts of torch and PyG that few of them use are loaded once they are used.

``import torch_geometric`` brings in the compiler of torch, everything that PyG can train and every data set that it knows: five seconds
of a processor, of which this saves more than half. Nothing is missing: whoever touches such a module has it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_LATE = {"torch._dynamo", "torch_geometric.datasets", "torch_geometric.explain", "torch_geometric.nn", "torch_geometric.profile"}


class _LateModule(ModuleType):
    """A module that is loaded when somebody first looks into it; by one thread, for which the others wait.

    ``importlib.util.LazyLoader`` would do, but before Python 3.12 two threads may load a module twice.
    """

    def __getattribute__(self, name: str) -> Any:
        late = object.__getattribute__(self, "_late")
        with late.lock:
            if not late.is_loading and not late.is_loaded:
                late.load(self)
        return ModuleType.__getattribute__(self, name)


class _LateLoader(Loader):
    """Has another loader do its work when the module is first looked into."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self.lock = loader, threading.RLock()
        self.is_loading = self.is_loaded = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        object.__setattr__(module, "_late", self)
        module.__class__ = _LateModule

    def load(self, module: ModuleType) -> None:
        self.is_loading = True
        try:
            self.loader.exec_module(module)
            self.is_loaded = True
            if type(module) is _LateModule:  # it may have put another in its place
                module.__class__ = ModuleType
        finally:
            self.is_loading = False


class _LateFinder:
    """Finds what the others find, and has it loaded when it is first used."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _LATE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _LateLoader(spec.loader)
                return spec
        return None


sys.meta_path.insert(0, _LateFinder())
