"""Imports graphlearn-torch where parts of it do not fit: a finder that is in place during its import only."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from types import CodeType, ModuleType
from typing import Any, NoReturn

from gnnkit.errors import PlanError

PACKAGE = "graphlearn_torch"
NATIVE = f"{PACKAGE}.py_graphlearn_torch"


class _Missing:
    """Stands for a member of the native library: it may be named and passed on, and says what is missing once it is used."""

    def __init__(self, name: str, reason: str, fix: str) -> None:
        self._name, self._reason, self._fix = name, reason, fix

    def _refuse(self) -> NoReturn:
        raise PlanError(f"{self._name} needs graphlearn-torch's native library: {self._reason}", self._fix)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


class _QueueTimeoutError(Exception):
    """The error that the native queue raises; the Python part names it in ``except`` clauses."""


class StandIn(ModuleType):
    """Stands for the native module (defect GLT-1).

    Args:
        reason: Why the real one cannot be loaded.
        fix: What to install.
    """

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(NATIVE, reason)
        self._reason, self._fix = reason, fix
        self.QueueTimeoutError = _QueueTimeoutError

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(name, self._reason, self._fix)


class _StandInLoader(Loader):
    def __init__(self, module: StandIn) -> None:
        self._module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


class _PatchingLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module after replacing text in its source; the compiled code is not cached."""

    def __init__(self, fullname: str, path: str, replacements: Mapping[bytes, bytes]) -> None:
        super().__init__(fullname, path)
        self._replacements = replacements

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        for old, new in self._replacements.items():
            source = source.replace(old, new)
        code: CodeType = self.source_to_code(source, path)
        return code


class Finder(MetaPathFinder):
    """Finds the stand-in, and modules whose source has to be changed; everything else is left to the next finder.

    Args:
        stand_in: What takes the place of the native module, or None where the real one loads.
        replacements: ``{prefix of module names: {old source text: new}}``.
    """

    def __init__(self, stand_in: StandIn | None, replacements: Mapping[str, Mapping[bytes, bytes]]) -> None:
        self._stand_in, self._replacements = stand_in, replacements

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """See ``importlib.abc.MetaPathFinder``."""
        if fullname == NATIVE:
            return None if self._stand_in is None else importlib.util.spec_from_loader(fullname, _StandInLoader(self._stand_in))
        for prefix, replacements in self._replacements.items():
            if fullname == prefix or fullname.startswith(f"{prefix}."):
                spec = importlib.machinery.PathFinder.find_spec(fullname, path)
                if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
                    spec.loader = _PatchingLoader(fullname, spec.loader.path, replacements)
                return spec
        return None


@contextmanager
def finding(finder: Finder) -> Iterator[None]:
    """Has ``finder`` asked first for as long as the block runs."""
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
