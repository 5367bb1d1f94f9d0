"""The store that those who should not read it try to reach."""

from __future__ import annotations

import pytest

from gnnkit import Store
from tests.cluster.hosts.setups import build


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of one part that tests leave as it is; modules that need another have their own."""
    return build(tmp_path_factory.mktemp("served"), 1)
