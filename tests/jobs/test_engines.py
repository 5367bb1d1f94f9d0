"""Engines of ``gnnkit.launch``: an object, or what a package's entry point names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.jobs.launching.engine import LocalEngine
from tests.export.graphs import make_store
from tests.helpers.plugins import install

ONE = """
from gnnkit.jobs.launching.engine import LocalEngine

class One(LocalEngine):
    num_procs = 1
"""


def world_size(loader: Any, ctx: Any) -> int:
    return int(ctx.world_size)


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[GraphLoader]:
    store = make_store(tmp_path / "tiny")
    with GraphLoader.from_store(store, num_neighbors=[3, 2], batch_size=16, backend="inprocess", progress=False) as made:
        yield made


def test_an_engine_of_a_package_starts_as_many_ranks_as_it_says(
    loader: GraphLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", monkeypatch, "one_engine", ONE, "one = one_engine:One")
    with gnnkit.launch(world_size, loader, engine="one", device="cpu", progress=False) as run:
        assert run.results() == [1] and run.state == "done"
    with pytest.raises(PlanError, match=r"num_procs=3, and <one_engine.One .*starts 1"):
        gnnkit.launch(world_size, loader, 3, engine="one")


@pytest.mark.parametrize("engine", ["rey", "torchrun", 3, LocalEngine])
def test_what_is_no_engine_is_refused(loader: GraphLoader, engine: Any) -> None:
    with pytest.raises(PlanError, match=r"engine must be one of \[.*\], got "):
        gnnkit.launch(world_size, loader, engine=engine)
