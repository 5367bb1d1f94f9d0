"""Graphlearn-torch through gnnkit: whole, without its native library, and not at all."""

from __future__ import annotations

import importlib.machinery
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnkit.distributed
from gnnkit.errors import PlanError
from gnnkit.vendor import glt, glt_sparse

ROOT = Path(__file__).resolve().parents[2]


@cache
def probe(what: str, python: str = sys.executable) -> dict[str, Any]:
    """What the probe found in an interpreter of its own."""
    command = [python, str(Path(__file__).with_name("glt_probe.py")), what]
    env = {key: value for key, value in os.environ.items() if key != "TORCH_CPP_LOG_LEVEL"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def check_whole(found: dict[str, Any]) -> None:
    assert found["late"] and found["status is late"], "graphlearn_torch was imported before it was needed"
    assert found["changed"] == [], "importing graphlearn_torch changed the user's process"
    assert found["one package"]
    assert found["second load"] < 0.1
    assert found["kind after"] == found["kind"] == "native" and found["fix"] == found["refused"] == ""
    assert found["sorts"]
    assert found["context"] == [1, 2, True, "group_1"]
    assert set(found["names"]) == set(gnnkit.distributed._GLT_HOMES)


def check_retry(found: dict[str, Any]) -> None:
    kind, message, cause = found["first"]
    assert kind == "PlanError" and cause in ("ImportError", "ModuleNotFoundError")
    assert message.startswith("MyLoader needs graphlearn-torch, which is installed but cannot be imported")
    assert found["second"] == "DistLoader" and found["sorts by itself"] and found["stand-in is gone"]


@pytest.mark.glt
def test_all_of_it_is_there_in_the_second_environment(glt_interpreter: Path) -> None:
    check_whole(probe("whole", str(glt_interpreter)))
    check_retry(probe("retry", str(glt_interpreter)))


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if graphlearn-torch were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "graphlearn_torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "graphlearn_torch", None)


@pytest.mark.usefixtures("absent")
def test_without_it_what_needs_it_says_so_in_one_sentence() -> None:
    assert glt.status().kind == "absent"
    with pytest.raises(PlanError) as caught:
        _ = gnnkit.distributed.ShmChannel
    assert (
        caught.value.message == "gnnkit.distributed.ShmChannel needs graphlearn-torch's native library: graphlearn-torch is not installed"
    )
    assert "gnnkit[glt-native]" in caught.value.hint
    with pytest.raises(PlanError, match="the Glt backend needs graphlearn-torch's native library"):
        glt.require_native("the Glt backend")


def test_a_library_of_another_python_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "graphlearn_torch"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "graphlearn_torch"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    found = glt.status()
    assert (found.kind, "no library for Python" in found.reason) == ("unfit", True)
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (package / f"py_graphlearn_torch{suffix}").write_bytes(b"not a library")
    assert "does not fit torch" in glt.status().reason


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'DistNothing'"):
        _ = gnnkit.distributed.DistNothing


def test_the_defects_that_comments_name_are_described() -> None:
    described = re.findall(r"^\| ((?:GLT|OGB)-\d+) \|(?: [^|]+ \|){3}$", (ROOT / "docs/development/defects.md").read_text(), re.M)
    assert described == [*(f"GLT-{number}" for number in range(1, 15)), *(f"OGB-{number}" for number in range(1, 6))]
    named = {name for path in ROOT.glob("gnnkit/**/*.py") for name in re.findall(r"\b(?:GLT|OGB)-\d+\b", path.read_text())}
    assert named <= set(described)


@given(st.integers(1, 8), st.integers(1, 8), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=40))
def test_the_sparse_stand_in_compresses_rows(num_rows: int, num_cols: int, pairs: list[tuple[int, int]]) -> None:
    pairs = [(row % num_rows, col % num_cols) for row, col in pairs]
    row, col = (torch.tensor([pair[end] for pair in pairs], dtype=torch.int64) for end in (0, 1))
    storage = glt_sparse.SparseTensor(row, col, torch.arange(len(pairs)), (num_rows, num_cols)).storage
    order = sorted(range(len(pairs)), key=lambda edge: (*pairs[edge], edge))
    assert storage.value().tolist() == order
    assert storage.col().tolist() == [pairs[edge][1] for edge in order]
    assert storage.rowptr().tolist() == [sum(r < row for r, _ in pairs) for row in range(num_rows + 1)]
    assert glt_sparse.SparseTensor(row, col, None, (num_rows, num_cols)).storage.value() is None
