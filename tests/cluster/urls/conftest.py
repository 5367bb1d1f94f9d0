"""A small store, a home of its own for each test, and web servers that hold files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gnnkit import Store
from tests.helpers.graphs import built, homogeneous_source
from tests.helpers.http_files import FileServer, file_server


@pytest.fixture(scope="package")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of two parts whose features take two pieces to fetch."""
    rng, count = np.random.default_rng(3), 9000
    source = homogeneous_source(
        rng.integers(0, count, (2, 4 * count)),
        count,
        x=rng.random((count, 600), np.float32),
        y=rng.integers(0, 5, count),
        splits={"train": np.arange(0, count, 9)},
    )
    return built(source, tmp_path_factory.mktemp("built") / "store", num_parts=2)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GNNKIT_OFFLINE", raising=False)
    return tmp_path / "home"


@pytest.fixture
def server(store: Store) -> Iterator[FileServer]:
    """A web server that has the store at ``/store``."""
    with file_server() as server:
        server.files = {f"/store/{path.relative_to(store.path)}": path.read_bytes() for path in store.path.rglob("*") if path.is_file()}
        yield server
