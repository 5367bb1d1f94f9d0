"""Kernels that are compiled before a test that is not about compiling them."""

from __future__ import annotations

from pathlib import Path

from gnnkit.kernels.folder import kernel_cache_root
from gnnkit.sampling.kinds import warm


def compiled_kernels() -> Path:
    """Compiles those that are not yet; the folder that holds them."""
    warm()
    return kernel_cache_root()
