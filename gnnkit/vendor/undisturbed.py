"""Imports of packages that change the process when they are imported."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed(*variables: str) -> Iterator[None]:
    """Ignores warnings, which a user of gnnkit could not act on, and puts variables of the environment back."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
