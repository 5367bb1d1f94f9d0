"""The one place that imports graphlearn-torch, whole where its native library fits, else with stand-ins.

Nothing here runs when gnnkit is imported: ``load`` does, when a name that needs graphlearn-torch is used. What is worked
around, and until when: ``docs/development/defects.md``.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import platform
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal, NoReturn

from gnnkit.errors import PlanError
from gnnkit.vendor.packages import package_folder, undisturbed

__all__ = ["GltStatus", "attribute", "load", "require_native", "status"]

GltKind = Literal["native", "python-only", "absent"]

NATIVE_FIX = (
    "in an environment of Python 3.10 or 3.11 on Linux x86-64: pip install 'gnnkit[glt-native]' (torch 2.3 or 2.4 in a build for CUDA)"
)
_PYTHON_FIX = "pip install graphlearn-torch==0.2.4"
_NO_WHEEL_FIX = "graphlearn-torch has wheels for Python up to 3.11 on Linux x86-64; gnnkit.GraphLoader does without it"
_FIRST_PYTHON_WITHOUT_WHEEL = (3, 12)
# Variables that importing graphlearn_torch (GLT-4), and PyG with it, sets.
_SET_ON_IMPORT = ("TORCH_CPP_LOG_LEVEL", "TORCHINDUCTOR_CACHE_DIR")
_import_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class GltStatus:
    """The usable part of graphlearn-torch in this environment.

    Attributes:
        kind: "native" (all of it), "python-only" (its Python part, on stand-ins) or "absent".
        version: Version of the installed package, or None.
        reason: One sentence: why it is of this kind.
        fix: What to do to have all of it; empty where there is nothing to do.
    """

    kind: GltKind
    version: str | None
    reason: str
    fix: str = ""


def status() -> GltStatus:
    """Finds out what can be used, without importing graphlearn-torch; imports torch, which its library links to."""
    folder = package_folder(PACKAGE)
    if folder is None:
        return _absent()
    try:
        version: str | None = metadata.version("graphlearn-torch")
    except metadata.PackageNotFoundError:
        version = None
    problem = _native_problem(folder)
    if problem is None:
        return GltStatus("native", version, "the native library fits this torch")
    return GltStatus("python-only", version, problem, NATIVE_FIX)


def require_native(what: str) -> None:
    """Makes sure that the native library is there.

    Args:
        what: What needs it, as the subject of the error's sentence.

    Raises:
        PlanError: It is not; the message says why and the hint what to install.
    """
    found = status()
    if found.kind != "native":
        raise PlanError(f"{what} needs graphlearn-torch's native library: {found.reason}", found.fix)


def load(what: str = "gnnkit.distributed") -> ModuleType:
    """Imports graphlearn-torch; the first call takes seconds, later ones nothing. Safe to call from any thread.

    Args:
        what: What needs it, as the subject of the error's sentence.

    Returns:
        The package.

    Raises:
        PlanError: It is not installed, or cannot be imported; a later call tries again.
    """
    with _import_lock:
        if sys.modules.get(PACKAGE) is not None:
            return importlib.import_module(PACKAGE)  # which waits where another thread has only half imported it
        return _import(what)


def attribute(path: str, what: str | None = None) -> Any:
    """A name of graphlearn-torch, e.g. ``attribute("distributed.DistContext")``.

    Args:
        path: Dotted path below the package: modules, then one name.
        what: What needs it, for the error; None is the name itself.

    Raises:
        PlanError: As ``load``.
    """
    module, _, name = path.rpartition(".")
    load(what or name)
    return getattr(importlib.import_module(f"{PACKAGE}.{module}" if module else PACKAGE), name)


def _absent() -> GltStatus:
    python = ".".join(map(str, sys.version_info[:2]))
    no_wheel = sys.version_info[:2] >= _FIRST_PYTHON_WITHOUT_WHEEL or sys.platform != "linux" or platform.machine() != "x86_64"
    if no_wheel:
        where = f"Python {python} on {platform.system()} {platform.machine()}"
        return GltStatus("absent", None, f"graphlearn-torch is not installed, and has no wheel for {where}", _NO_WHEEL_FIX)
    return GltStatus("absent", None, "graphlearn-torch is not installed", _PYTHON_FIX)


def _native_problem(folder: Path) -> str | None:
    """Why the native library in the package's ``folder`` cannot be used, as a sentence; None where it can."""
    loaded = sys.modules.get(NATIVE)
    if isinstance(loaded, StandIn):
        return loaded.__doc__
    if loaded is not None:
        return None
    try:
        import torch
    except ImportError as error:
        return f"torch, which it links to, cannot be imported ({error})"
    stem = NATIVE.rpartition(".")[2]
    files = [path for suffix in importlib.machinery.EXTENSION_SUFFIXES if (path := folder / f"{stem}{suffix}").exists()]
    if not files:
        return f"the installed package has no library for Python {'.'.join(map(str, sys.version_info[:2]))}"
    try:
        # A library of another torch lacks symbols, and so is refused before any of its code runs.
        ctypes.CDLL(str(files[0]))
    except OSError as error:
        return f"the library does not fit torch {torch.__version__} ({str(error).rpartition(str(files[0]))[2].lstrip(': ')})"
    return None


def _import(what: str) -> ModuleType:
    folder = package_folder(PACKAGE)
    if folder is None:
        found = _absent()
        raise PlanError(f"{what} needs graphlearn-torch: {found.reason}", found.fix)
    problem = _native_problem(folder)
    _forget()  # what an import that failed elsewhere left behind
    if problem is not None:
        sys.modules[NATIVE] = StandIn(problem, NATIVE_FIX)
    try:
        with undisturbed(*_SET_ON_IMPORT), finding(Finder(_replacements())):
            return importlib.import_module(PACKAGE)
    except Exception as error:
        _forget()
        raise PlanError(
            f"{what} needs graphlearn-torch, which is installed but cannot be imported: {type(error).__name__}: {error}",
            f"{_PYTHON_FIX} --force-reinstall --no-deps",
        ) from error


def _replacements() -> dict[str, dict[bytes, bytes]]:
    """Returns the changes that this machine needs in the package's source: none on torch 2.4 with torch_sparse."""
    import torch

    found: dict[str, dict[bytes, bytes]] = {}
    try:
        torch.device(0)
    except RuntimeError:
        found[f"{PACKAGE}.loader"] = {b"torch.device(0)": b"torch.device('cuda', 0)"}  # GLT-3
    try:
        with undisturbed():
            importlib.import_module("torch_sparse")
    except Exception:  # whatever a library built for another torch raises: it cannot be used, GLT-2
        found[f"{PACKAGE}.utils.topo"] = {b"import torch_sparse": b"from gnnkit.vendor import glt_sparse as torch_sparse"}
    return found


def _forget() -> None:
    """Removes what a failed import left, the native module aside: an extension is not loaded twice."""
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        if name != NATIVE or isinstance(sys.modules[name], StandIn):
            del sys.modules[name]


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
    """Finds modules whose source has to be changed; everything else is left to the next finder.

    Args:
        replacements: ``{prefix of module names: {old source text: new}}``.
    """

    def __init__(self, replacements: Mapping[str, Mapping[bytes, bytes]]) -> None:
        self._replacements = replacements

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """The spec of a module that is changed; None for every other."""
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
