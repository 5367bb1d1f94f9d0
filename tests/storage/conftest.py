"""Stores of these tests are built in memory where the machine has /dev/shm: builds wait for the disk after every file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.checks import FAST_FOLDER


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """As pytest's own, but fast and gone after the test."""
    with tempfile.TemporaryDirectory(prefix="storage-test-", dir=FAST_FOLDER) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keeps the user's own stores out of the tests, and the kernels that are compiled already in."""
    with tempfile.TemporaryDirectory(prefix="storage-test-", dir=FAST_FOLDER) as folder:
        monkeypatch.setenv("GNNKIT_HOME", os.fspath(Path(folder)))
        yield


@pytest.fixture
def folder(own_home: None) -> Path:
    """The folder of stores."""
    return Path(os.environ["GNNKIT_HOME"]) / "stores"
