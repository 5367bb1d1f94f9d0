"""Checks of the software: Python, torch, PyG, compiled kernels, graphlearn-torch."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.cli.checks.row import Check

if TYPE_CHECKING:
    from gnnkit.vendor.glt import GltStatus

_LEAST_TORCH = (2, 3)
PROBE_TIMEOUT_S = 120.0
# In a process of its own: a native library that is built for another torch may abort rather than fail.
_GLT_PROBE = "import dataclasses, json; from gnnkit.vendor.glt import status; print(json.dumps(dataclasses.asdict(status())))"
_GLT_MEANS = {
    "native": "everything of gnnkit works, GLT's own loaders and sampling on GPUs too",
    "python-only": "everything of gnnkit works but GLT's own loaders, which need its native library",
    "absent": "everything of gnnkit works but gnnkit.distributed's loaders and what else is GLT's own",
}


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
        from gnnkit.kernels.jit import kernel_cache_root
    except ImportError as error:
        return Check("kernels", f"numba {version} cannot be imported: {error}", "error", "pip install --upgrade numba numpy")
    root = kernel_cache_root()
    if any(root.glob("**/*.nbc")):
        return Check("kernels", f"compiled, kept in {root} (numba {version})")
    return Check(
        "kernels", f"not compiled yet; the first batch waits some 20 s (numba {version})", "ok", "gnnkit doctor --warm compiles them ahead"
    )


def glt(*, timeout_s: float = PROBE_TIMEOUT_S) -> Check:
    """Whether graphlearn-torch is there, whether its native library fits this torch, and what that means.

    Args:
        timeout_s: How long looking for it may take.
    """
    return glt_row(_glt_status(timeout_s))


def glt_row(found: GltStatus | str) -> Check:
    """The row about graphlearn-torch.

    Args:
        found: Its status, or why that is not known.
    """
    name = "torch/GLT pairing"
    if isinstance(found, str):
        return Check(name, f"unknown: {found}", "warning", "pip install --force-reinstall --no-deps graphlearn-torch==0.2.4")
    what = f"{found.kind.replace('-', ' ')}: {_GLT_MEANS[found.kind]}"
    version = f"; graphlearn-torch {found.version} on torch {_installed('torch') or 'none'}" if found.kind != "absent" else ""
    reason = "" if found.kind == "native" else f" ({found.reason})"
    return Check(name, f"{what}{version}{reason}", "ok", found.fix)


def _glt_status(timeout_s: float) -> GltStatus | str:
    """``gnnkit.vendor.glt.status()``, or why it is not known."""
    from gnnkit.vendor.glt import GltStatus

    try:
        done = subprocess.run(
            [sys.executable, "-c", _GLT_PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return f"looking for it took more than {timeout_s:g} s"
    if done.returncode == 0:
        return GltStatus(**json.loads(done.stdout))
    return (done.stderr.strip().splitlines() or [f"looking for it ended with code {done.returncode}"])[-1]


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
