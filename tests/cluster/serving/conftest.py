"""One store for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnkit import Store
from tests.cluster.hosts.setups import build
from tests.helpers.kernels import compiled_kernels


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A homogeneous graph in two parts."""
    compiled_kernels()
    yield build(Path(tmp_path_factory.mktemp("served")), 2)
