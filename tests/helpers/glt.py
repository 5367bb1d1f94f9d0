"""graphlearn-torch's own classes, to compare ours with: all of it, or its Python part where its native library does not fit."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
import torch_geometric  # noqa: F401  # before there is a stand-in for torch_sparse

from gnnkit.vendor import glt, glt_sparse

# Of tests that compare with graphlearn-torch's own classes; what is ours needs no such mark.
needs_glt = pytest.mark.skipif(
    importlib.util.find_spec("graphlearn_torch") is None, reason="graphlearn-torch is not installed; to enable: Python 3.10 or 3.11"
)


def of_glt(path: str) -> Any:
    """A name of graphlearn-torch, such as ``"data.Topology"``."""
    _import()
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"graphlearn_torch.{module}"), name)


def is_native() -> bool:
    """Whether its native library fits here."""
    return glt.status().kind == "native"


@cache
def _import() -> None:
    if is_native():
        glt.load("a test")
        return
    native, device = ModuleType("graphlearn_torch.py_graphlearn_torch"), torch.device
    native.__getattr__ = lambda name: type(name, (Exception,), {})  # type: ignore[method-assign]
    standing_in = {native.__name__: native, "torch_sparse": glt_sparse}
    with warnings.catch_warnings(), mock.patch.dict(os.environ), mock.patch.dict(sys.modules, standing_in):
        warnings.simplefilter("ignore")
        # Without a GPU, torch from 2.5 on has no device 0, a default of its loaders (GLT-3).
        with mock.patch.object(torch, "device", lambda *given: device("cuda", 0) if given == (0,) else device(*given)):
            import_module("graphlearn_torch")
        made = {name: module for name, module in sys.modules.items() if name.startswith("graphlearn_torch") and module is not native}
    sys.modules.update(made)  # without its native library, which is still not there
