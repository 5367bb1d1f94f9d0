from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.graphs import make_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A homogeneous store in one part, see ``make_store``."""
    return make_store(tmp_path_factory.mktemp("stores") / "tiny")
