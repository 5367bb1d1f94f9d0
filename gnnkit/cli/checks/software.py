"""Checks of the software: Python, torch, PyG, compiled kernels, graphlearn-torch."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

from gnnkit.cli.checks.row import Check

_LEAST_TORCH = (2, 3)
_GLT_NATIVE_TORCH = ((2, 3), (2, 5))
_GLT_LAST_PYTHON = (3, 11)
_PROBE_TIMEOUT_S = 120
# Loads the native library in a process of its own: one built for another torch may abort rather than fail.
_GLT_PROBE = """
import ctypes, glob, importlib.util, torch
folder = importlib.util.find_spec("graphlearn_torch").submodule_search_locations[0]
for library in glob.glob(folder + "/py_graphlearn_torch*.so"):
    ctypes.CDLL(library)
"""


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def python() -> Check:
    """Python's version, and whether the platform has every backend."""
    value = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() == "Linux":
        return Check("Python", value)
    return Check("Python", value, "warning", "only InProcess works here; the other backends need Linux")


def torch() -> Check:
    """Torch's version."""
    version = _installed("torch")
    if version is None:
        return Check("torch", "not installed", "error", "pip install 'torch>=2.3'")
    if _release(version) < _LEAST_TORCH:
        return Check("torch", version, "error", "pip install --upgrade 'torch>=2.3'")
    return Check("torch", version)


def torch_geometric() -> Check:
    """PyG's version."""
    version = _installed("torch_geometric")
    if version is None:
        return Check("torch_geometric", "not installed", "error", "pip install torch_geometric")
    return Check("torch_geometric", version)


def kernels() -> Check:
    """Whether the sampling kernels are compiled, and where they are kept."""
    version = _installed("numba")
    if version is None:
        return Check("kernels", "numba is not installed", "error", "pip install numba")
    try:
        from gnnkit.sampling.jit import kernel_cache_root
    except ImportError as error:
        return Check("kernels", f"numba {version} cannot be imported: {error}", "error", "pip install --upgrade numba numpy")
    root = kernel_cache_root()
    if any(root.glob("**/*.nbc")):
        return Check("kernels", f"compiled, kept in {root} (numba {version})")
    return Check(
        "kernels", f"not compiled yet; the first batch waits some 20 s (numba {version})", "ok", "gnnkit doctor --warm compiles them ahead"
    )


def glt() -> Check:
    """Whether graphlearn-torch is there and whether its native library fits this torch."""
    name = "torch/GLT pairing"
    version, torch_version = _installed("graphlearn-torch"), _installed("torch") or "none"
    low, high = (".".join(map(str, pair)) for pair in _GLT_NATIVE_TORCH)
    if version is None:
        if sys.version_info[:2] > _GLT_LAST_PYTHON or sys.platform != "linux" or platform.machine() != "x86_64":
            return Check(name, "graphlearn-torch has no wheel for this Python or platform; gnnkit samples without it")
        return Check(name, "graphlearn-torch is not installed; gnnkit samples without it", "ok", "pip install graphlearn-torch==0.2.4")
    if util.find_spec("graphlearn_torch") is None:
        return Check(
            name, f"graphlearn-torch {version} is damaged", "warning", "pip install --force-reinstall --no-deps graphlearn-torch==0.2.4"
        )
    if _GLT_NATIVE_TORCH[0] <= _release(torch_version) < _GLT_NATIVE_TORCH[1]:
        reason = _glt_load_error()
        if reason is None:
            return Check(name, f"graphlearn-torch {version} with its native library on torch {torch_version}")
        fix = "the native library needs a CUDA build of torch 2.3 or 2.4, on machines without a GPU too"
        return Check(name, f"graphlearn-torch {version} on torch {torch_version}, without its native library: {reason}", "ok", fix)
    value = f"graphlearn-torch {version} on torch {torch_version}, without its native library, which gnnkit does not need"
    return Check(name, value, "ok", f"for GLT's own loaders: pip install 'gnnkit[glt-native]' (torch >= {low}, < {high})")


def _glt_load_error() -> str | None:
    """Why the native library does not load, or None where it does."""
    try:
        done = subprocess.run([sys.executable, "-c", _GLT_PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"it did not load within {_PROBE_TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def ogb() -> Check:
    """Whether OGB's table of datasets is there."""
    version = _installed("ogb")
    if version is None:
        return Check("ogb", "not installed", "warning", "needed for GraphLoader.from_ogb: pip install ogb")
    return Check("ogb", version)


def installation() -> Check:
    """Which gnnkit this is and where it lies."""
    import gnnkit

    return Check("gnnkit", f"{gnnkit.__version__} in {Path(__file__).resolve().parents[2]}")
