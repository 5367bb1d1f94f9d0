"""Each public class has an example in its docstring, which runs as it stands."""

from __future__ import annotations

import doctest
import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

import gnnkit
import gnnkit.pyg
from gnnkit import GraphLoader

# They start ranks or servers.
SLOW = {"RunHandle", "TrainContext", "GraphStore", "Colocated"}
CLASSES = {name: value for module in (gnnkit, gnnkit.pyg) for name in module.__all__ if inspect.isclass(value := getattr(module, name))}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CLASSES])
def test_the_example_of_a_class_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(CLASSES[name]) or "", names, name, None, None)
    assert test.examples, "an example"
    level = logging.getLogger("gnnkit").level
    try:
        results = doctest.DocTestRunner().run(test, clear_globs=False)
    finally:
        logging.getLogger("gnnkit").setLevel(level)
        for value in test.globs.values():
            if isinstance(value, GraphLoader):
                value.close()
            elif isinstance(getattr(value, "graph_loader", None), GraphLoader):
                value.graph_loader.close()
    assert results.failed == 0
