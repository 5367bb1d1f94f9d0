"""One store for all tests of this folder, and servers of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnkit import GraphStoreServers, Store
from tests.cluster.hosts.setups import build
from tests.cluster.serving.setups import ready_servers
from tests.helpers.kernels import compiled_kernels


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A homogeneous graph in two parts."""
    compiled_kernels()
    yield build(Path(tmp_path_factory.mktemp("served")), 2)


@pytest.fixture(scope="module")
def pair(store: Store) -> Iterator[GraphStoreServers]:
    """Two servers with a worker each, of which no test of a module ends a process."""
    with ready_servers(store) as handle:
        yield handle
