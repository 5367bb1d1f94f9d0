"""Finds the small datasets that come with gnnkit."""

from __future__ import annotations

import os
from pathlib import Path

from gnnkit.errors import DatasetError


def shipped_data_dir() -> Path:
    """The folder that holds ``cora`` and ``sample/ogbn_products``: inside the installed package, else in the source checkout.

    Raises:
        DatasetError: Neither is there: the installation is incomplete.
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "data", package.parent / "data")
    for candidate in candidates:
        # Path.is_dir raises where this user may not look into a folder.
        if os.path.isdir(candidate / "cora"):
            return candidate
    looked = " nor ".join(map(str, candidates))
    raise DatasetError(f"the data that comes with gnnkit is neither in {looked}", "reinstall gnnkit")


def is_shipped(path: Path) -> bool:
    """Whether a path lies in the data that comes with gnnkit, where nothing is written."""
    try:
        return shipped_data_dir() in (path.resolve(), *path.resolve().parents)
    except DatasetError:
        return False


def sample_root() -> Path:
    """The root under which ``ogbn_products`` is a small synthetic graph in OGB's layout; not OGB's data.

    Raises:
        DatasetError: See ``shipped_data_dir``.
    """
    return shipped_data_dir() / "sample"
