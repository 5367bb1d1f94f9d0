"""Stores are built once for all tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnkit import Store
from tests.cluster.hosts.setups import build, nursery
from tests.helpers.kernels import compiled_kernels


@pytest.fixture(scope="session")
def stores() -> Iterator[dict[int, Store]]:
    """The store in two and in three parts."""
    import gnnkit.sampling.owned
    import gnnkit.sampling.remote  # noqa: F401

    compiled_kernels()
    nursery()  # lasts until the last test has ended: no test's leak
    with tempfile.TemporaryDirectory(prefix="gnnkit-hosts-") as folder:
        yield {count: build(Path(folder) / str(count), count) for count in (2, 3)}
    nursery().close()
