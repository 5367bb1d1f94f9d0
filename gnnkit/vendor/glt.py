"""The one place that imports graphlearn-torch: where its native library fits, and something needs that.

Nothing here runs when gnnkit is imported. What is worked around, and until when: ``docs/development/defects.md``.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from gnnkit.errors import PlanError
from gnnkit.host import installed_version
from gnnkit.vendor.packages import package_folder, undisturbed

__all__ = ["GltStatus", "attribute", "imported", "load", "require_native", "status"]

PACKAGE = "graphlearn_torch"
NATIVE_FIX = (
    "in an environment of Python 3.10 or 3.11 on Linux x86-64: pip install 'gnnkit[glt-native]' (torch 2.3 or 2.4 in a build for CUDA)"
)
# Variables that importing graphlearn_torch (GLT-4), and PyG with it, sets.
_SET_ON_IMPORT = ("TORCH_CPP_LOG_LEVEL", "TORCHINDUCTOR_CACHE_DIR")
_SPARSE = "torch_sparse"
_import_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class GltStatus:
    """The state of graphlearn-torch in this environment.

    Attributes:
        kind: "native" (it can be used), "unfit" (its native library cannot be loaded, and without it nothing of it, GLT-1) or "absent".
        version: Version of the installed package, or None.
        reason: One sentence: why it is of this kind.
        fix: What to do to have it; empty where there is nothing to do.
    """

    kind: Literal["native", "unfit", "absent"]
    version: str | None
    reason: str
    fix: str = ""


def status() -> GltStatus:
    """Finds out whether it can be used, without importing graphlearn-torch; imports torch, which its library links to."""
    folder = package_folder(PACKAGE)
    if folder is None:
        return GltStatus("absent", None, "graphlearn-torch is not installed", NATIVE_FIX)
    version = installed_version("graphlearn-torch")
    problem = _native_problem(folder)
    if problem is None:
        return GltStatus("native", version, "the native library fits this torch")
    return GltStatus("unfit", version, problem, NATIVE_FIX)


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


def load(what: str) -> ModuleType:
    """Imports graphlearn-torch; the first call takes seconds, later ones nothing. Safe to call from any thread.

    Args:
        what: What needs it, as the subject of the error's sentence.

    Returns:
        The package.

    Raises:
        PlanError: It cannot be used, or cannot be imported; a later call tries again.
    """
    with _import_lock:
        if sys.modules.get(PACKAGE) is not None:
            return importlib.import_module(PACKAGE)  # which waits where another thread has only half imported it
        require_native(what)
        try:
            with undisturbed(*_SET_ON_IMPORT), _sparse():
                return importlib.import_module(PACKAGE)
        except Exception as error:
            raise PlanError(
                f"{what} needs graphlearn-torch, which is installed but cannot be imported: {type(error).__name__}: {error}",
                "pip install graphlearn-torch==0.2.4 --force-reinstall --no-deps",
            ) from error


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
    return getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)


def imported(path: str) -> Any:
    """The same where the process has imported graphlearn-torch, else None; imports nothing."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(f"{PACKAGE}.{module}"), name, None)


def _native_problem(folder: Path) -> str | None:
    """Why the native library in the package's ``folder`` cannot be used, as a sentence; None where it can."""
    stem = "py_graphlearn_torch"
    if f"{PACKAGE}.{stem}" in sys.modules:
        return None
    try:
        import torch
    except ImportError as error:
        return f"torch, which it links to, cannot be imported ({error})"
    files = [path for suffix in importlib.machinery.EXTENSION_SUFFIXES if (path := folder / f"{stem}{suffix}").exists()]
    if not files:
        return f"the installed package has no library for Python {'.'.join(map(str, sys.version_info[:2]))}"
    try:
        # A library of another torch lacks symbols, and so is refused before any of its code runs.
        ctypes.CDLL(str(files[0]))
    except OSError as error:
        return f"the library does not fit torch {torch.__version__} ({str(error).rpartition(str(files[0]))[2].lstrip(': ')})"
    return None


@contextmanager
def _sparse() -> Iterator[None]:
    """Has a stand-in for torch_sparse where that cannot be imported, for as long as graphlearn-torch is imported (GLT-2)."""
    importlib.import_module("torch_geometric")  # which would take the stand-in for the real one
    try:
        importlib.import_module(_SPARSE)
    except Exception:  # whatever a library built for another torch raises
        sys.modules[_SPARSE] = importlib.import_module("gnnkit.vendor.glt_sparse")
        try:
            yield
        finally:
            del sys.modules[_SPARSE]
    else:
        yield
