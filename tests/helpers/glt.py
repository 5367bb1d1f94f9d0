"""graphlearn-torch as gnnkit loads it: all of it, or its Python part on stand-ins."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gnnkit import distributed
from gnnkit.vendor.glt import status


def of_glt(path: str) -> Any:
    """A name of graphlearn-torch, such as ``"data.Topology"``."""
    assert distributed.Split is not None, "loads it"
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"graphlearn_torch.{module}"), name)


def is_native() -> bool:
    """Whether its native library fits here."""
    return status().kind == "native"
