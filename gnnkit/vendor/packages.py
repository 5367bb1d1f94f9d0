"""Packages that are looked for without an import, or change the process when they are imported."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnnkit.host import set_variables


def package_folder(name: str) -> Path | None:
    """The folder of an installed package, found without importing it; None where there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ValueError, ImportError):
        return None
    return Path(next(iter(spec.submodule_search_locations))) if spec is not None and spec.submodule_search_locations else None


@contextmanager
def undisturbed(*variables: str) -> Iterator[None]:
    """Ignores warnings, which a user of gnnkit could not act on, and puts variables of the environment back."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_variables(before)
