from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.graphs import split_store
from tests.jupyter.workplace import Workplace, cache_without
from tests.ui.conftest import jupyter_home as jupyter_home
from tests.ui.kernels import Kernel

TOKEN = "a-token-of-many-characters-0123456789"
SETUP = """
import json, os, time
import gnnkit, torch
from gnnkit import Colocated, GraphLoader, GraphStore, InProcess
from gnnkit.datasets import products_like
from gnnkit.loader.inspection import batches_digest
from torch_geometric.data import Data
from gnnkit.ui import progress
class Recorder:
    # Progress as it is, and the beginning and the first step of every stage as a line: what is drawn comes late on a busy machine.
    def __init__(self, sink):
        self.sink, self.close, self.told = sink, sink.close, set()
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.close()
    def __call__(self, event):
        self.sink(event)
        line = f"{event.stage} {event.kind}"
        if (event.kind == "start" or (event.kind == "progress" and event.done > 0)) and line not in self.told:
            self.told.add(line)
            print(line, flush=True)
if not hasattr(progress, "make_silent_sink"):
    progress.make_silent_sink = progress.make_sink
    progress.make_sink = lambda *args, **options: Recorder(progress.make_silent_sink(*args, **options))
def digest(loader):
    with loader:
        return batches_digest(loader)
"""


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store with a split of 1000 nodes."""
    return split_store(tmp_path_factory.mktemp("stores") / "store")


@pytest.fixture(scope="module")
def running_place(jupyter_home: Path) -> Iterator[Workplace]:
    """One kernel for a module; it has a home of its own, and all compiled kernels but a few."""
    home, cache = jupyter_home / "home", cache_without(jupyter_home / "cache", "numbering")
    environment = {"GNNKIT_HOME": str(home), "XDG_CACHE_HOME": str(cache), "GNNKIT_OFFLINE": "", "GNNKIT_TOKEN": TOKEN}
    kernel = Kernel(environment)
    try:
        kernel.run(SETUP)
        yield Workplace(kernel, home)
    finally:
        kernel.stop()


@pytest.fixture
def place(running_place: Workplace) -> Iterator[Workplace]:
    """The kernel with nothing but the imports; nothing may be left after the test."""
    running_place.kernel.reset()
    running_place.kernel.run(SETUP)
    yield running_place
    running_place.check_is_clean()


@pytest.fixture
def kernel(place: Workplace) -> Kernel:
    return place.kernel
