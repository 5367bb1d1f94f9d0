"""Python reads this at its start in processes that tests start: parts of packages that few of them use are loaded once they are used.

``import torch_geometric`` brings in the compiler of torch, everything that PyG can train and every data set that it knows, and whoever
makes an optimizer or wraps a model has the compiler too: three seconds of a processor, of which this saves two thirds. Nothing is missing:
whoever touches such a module has it. Only what torch asks of its compiler where nothing is compiled is answered here.

Nor is garbage looked for among what such packages have made, neither while they are loaded nor, three times over, when the process ends:
that takes a fifth of a short process.
"""

from __future__ import annotations

import atexit
import gc
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
# What the compiler needs, in the order in which torch loads it; without a compiler nobody does.
_BEFORE_THE_COMPILER = ("torch.export", "torch._meta_registrations")
# Jupyter's check of files makes a parser of addresses that no file of ours has.
_ADDRESSES = "rfc3987_syntax"
_LATE = {
    _ADDRESSES,
    _COMPILER,
    *_BEFORE_THE_COMPILER,
    "torch_geometric.datasets",
    "torch_geometric.explain",
    "torch_geometric.nn",
    "torch_geometric.profile",
}
_LARGE = {"numba", "pandas", "ray", "torch", "torch_geometric"}
# The import system asks for these, and they are there from the beginning.
_KNOWN = {"__class__", "__file__", "__loader__", "__name__", "__spec__"}


class _Part:
    """A module of the compiler that answers a few names by itself and has the compiler loaded for all others."""

    def __init__(self, name: str, **answers: Any) -> None:
        self._name = name
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        compiler = sys.modules[_COMPILER]
        object.__getattribute__(compiler, "_late").load(compiler)
        return getattr(getattr(compiler, self._name), name)


_ANSWERS: dict[str, dict[str, Any]] = {
    # Optimizers keep themselves and their steps from being compiled, process groups have the compiler forget what it compiled, and DDP asks
    # whether its graphs are divided.
    _COMPILER: {
        "disable": lambda function, *_, **__: function,
        "graph_break": lambda: None,
        "trace_rules": _Part("trace_rules", clear_lru_cache=lambda: None),
        "utils": _Part("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    },
    _ADDRESSES: {"__path__": [], "is_valid_syntax": lambda *words: sys.modules[_ADDRESSES].syntax_helpers.is_valid_syntax(*words)},
}


class _LateModule(ModuleType):
    """A module that is loaded when somebody first looks into it; by one thread, for which the others wait.

    ``importlib.util.LazyLoader`` would do, but before Python 3.12 two threads may load a module twice.
    """

    def __getattribute__(self, name: str) -> Any:
        late = object.__getattribute__(self, "_late")
        if name in _KNOWN:
            return ModuleType.__getattribute__(self, name)
        answers = _ANSWERS.get(late.loader.name, {})
        if name in answers and not (late.is_loading or late.is_loaded):
            return answers[name]
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
        if self.loader.name == "torch._meta_registrations":
            _make_generators_usable()

    def load(self, module: ModuleType) -> None:
        self.is_loading = True
        try:
            if self.loader.name == _COMPILER:
                for name in _BEFORE_THE_COMPILER:
                    vars(sys.modules.get(name, sys))
            self.loader.exec_module(module)
            self.is_loaded = True
            if type(module) is _LateModule:  # it may have put another in its place
                module.__class__ = ModuleType
        finally:
            self.is_loading = False


class _CalmLoader(Loader):
    """Has another loader do its work while nobody looks for garbage.

    What it has made is not frozen: a loader in a notebook may be there before torch is, and would never be garbage.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self.loader.exec_module(module)
        finally:
            if was_enabled:
                gc.enable()


def _make_generators_usable() -> None:
    """Sets the metaclass of ``torch.Generator`` where there is one, as the registrations do: nobody can call it before."""
    native = sys.modules["torch._C"]
    if hasattr(native, "_set_generator_metaclass"):
        from torch._opaque_base import OpaqueBaseMeta

        native._set_generator_metaclass(OpaqueBaseMeta)


class _LateFinder:
    """Finds what the others find, and has it loaded when it is first used.

    Attributes:
        is_late: Tells it from the others, also where this file was read twice: at the start, and for the process that runs tests.
    """

    is_late = True

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _LATE and name not in _LARGE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = (_LateLoader if name in _LATE else _CalmLoader)(spec.loader)
                return spec
        return None


# Before anybody else registers something: it is called last.
atexit.register(gc.freeze)
if not any(hasattr(finder, "is_late") for finder in sys.meta_path):
    sys.meta_path.insert(0, _LateFinder())
