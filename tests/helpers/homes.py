"""Folders for `GNNKIT_HOME`."""

from __future__ import annotations

from pathlib import Path


def home_with_kernels(folder: Path) -> Path:
    """Makes a home with nothing in it but the kernels that are compiled already: compiling them takes longer than most tests."""
    from gnnkit.kernels.jit import kernel_cache_root

    folder.mkdir(exist_ok=True)
    kernels = folder / "kernels"
    if not kernels.exists():
        kernels.symlink_to(kernel_cache_root().resolve())
    return folder
