"""Pages of a store that is larger than memory: which are asked for before they are read, and what comes of it when that is refused."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import BuildOptions, GraphLoader, InProcess, Store
from gnnkit.datasets import products_like
from gnnkit.storage import arrays as paging
from tests.backends.kinds import KINDS, WHOLE_KINDS, built, kind_loader, source_of
from tests.helpers.batches import same
from tests.helpers.machine import ROOT
from tests.helpers.system import pretend_free_memory, pretend_processors

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_RANDOM"), reason="the system takes no advice")
WORDS: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 64, "progress": False, "memory_budget": 0}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return products_like(0.002, out=tmp_path_factory.mktemp("paging") / "store", options=BuildOptions(2, "random"))


WILL_NEED, POPULATE_READ = 3, 22


class Witness:
    """Stands between kernels and the system: notes their advice and passes it on.

    Attributes:
        pages: ``{advice: the pages, by number, that it has been given for}``.
    """

    def __init__(self) -> None:
        self.pages: dict[int, set[int]] = {WILL_NEED: set(), POPULATE_READ: set()}
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        def note(address: int, nbytes: int, advice: int) -> int:
            assert address % mmap.PAGESIZE == 0
            self.pages[advice].update(range(address // mmap.PAGESIZE, (address + nbytes) // mmap.PAGESIZE))
            return int(madvise(address, nbytes, advice))

        self.note = note

    def watch(self, loader: GraphLoader, rows: int | None = None) -> None:
        """Notes what is advised for a loader's graph, whose kernels have not run yet.

        Args:
            loader: The loader.
            rows: How many are asked for at a time, in place of as many as memory is there for.
        """
        ahead = loader.pipeline.graph.arrays.read_ahead
        if ahead.is_on:
            ahead.table[0] = ctypes.cast(self.note, ctypes.c_void_p).value
            ahead.table[2] = rows or ahead.table[2]


@pytest.fixture(scope="module")
def witness() -> Witness:
    """One for all tests: graphs that others have open may still call it."""
    return Witness()


@pytest.fixture
def advised(witness: Witness) -> dict[int, set[int]]:
    """``{advice: the pages, by number, that it is given for from now on}``; the system is given it, too."""
    for pages in witness.pages.values():
        pages.clear()
    return witness.pages


@pytest.fixture
def asked(advised: dict[int, set[int]]) -> set[int]:
    """The pages that are asked for from now on, by number."""
    return advised[WILL_NEED]


@contextlib.contextmanager
def little_memory(nbytes: int = 1 << 20) -> Iterator[None]:
    """So much is free while a graph is opened, which is when it is decided on."""
    with pytest.MonkeyPatch.context() as system:
        pretend_free_memory(system, nbytes)
        yield


def pages_of(array: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> set[int]:
    """The pages in which rows of an array begin."""
    return set(((array.ctypes.data + rows.astype(np.int64) * array.strides[0]) // mmap.PAGESIZE).tolist())


@pytest.mark.parametrize("rows", [None, 1 << 11])
def test_every_page_that_batches_read_is_asked_for(
    store: Store, witness: Witness, advised: dict[int, set[int]], asked: set[int], tmp_path: Path, rows: int | None
) -> None:
    """Bounds and edges of what is expanded, then ids, features and labels of all nodes: of every batch, in small pieces or at once.

    The system is told that they are read, where it does not see that by itself.
    """
    store = Store.open(shutil.copytree(store.path, tmp_path / "store"))  # an open one has been decided on
    with contextlib.ExitStack() as stack:
        with little_memory():
            loader = stack.enter_context(GraphLoader.from_store(store.path, backend=InProcess(1), **WORDS))
            graph = loader.pipeline.graph.arrays
            witness.watch(loader, rows)
        batches = list(loader)
    (node_type,), (edge_type,) = graph.schema.node_types, graph.schema.edge_types
    bounds = graph.node_bounds[node_type]
    for batch in batches:
        ids = store.to_store_ids(node_type, batch.n_id.numpy())
        expanded = ids[: sum(batch.num_sampled_nodes[:2])]
        for part, (nodes, edges) in enumerate(zip(graph.nodes[node_type], graph.edges[edge_type], strict=True)):
            rows, drawing = (found[(bounds[part] <= found) & (found < bounds[part + 1])] - bounds[part] for found in (ids, expanded))
            assert nodes.global_id is not None
            wanted = pages_of(nodes.global_id, rows) | pages_of(edges.indptr, drawing)
            wanted.update(*(pages_of(array, rows) for array in nodes.arrays.values()))
            assert wanted <= asked
            for first, last in zip(edges.indptr[drawing], edges.indptr[drawing + 1], strict=True):
                assert first == last or pages_of(edges.indices, np.arange(first, last)) & asked
            if graph.read_ahead.table[3] == POPULATE_READ:
                assert wanted <= advised[POPULATE_READ]
                for first, last in zip(edges.indptr[drawing], edges.indptr[drawing + 1], strict=True):
                    assert first == last or pages_of(edges.indices, np.arange(first, last)) & advised[POPULATE_READ]
    # Nothing but the graph's own pages: advice about somebody else's is none of ours.
    own = set[int]()
    for array in graph.each():
        own.update(range(array.ctypes.data // mmap.PAGESIZE, (array.ctypes.data + array.nbytes) // mmap.PAGESIZE + 1))
    assert asked <= own


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_nothing_is_asked_where_the_graph_fits(store: Store, witness: Witness, asked: set[int], budget: int) -> None:
    with contextlib.ExitStack() as stack:
        with little_memory(store.nbytes):
            loader = stack.enter_context(GraphLoader.from_store(store.path, backend=InProcess(1), **{**WORDS, "memory_budget": budget}))
            witness.watch(loader)
        with little_memory(store.nbytes * 9 // 10):  # decided before
            assert sum(1 for _ in loader) > 1
    assert not asked and not loader.pipeline.graph.arrays.read_ahead.is_on


def test_the_distance_follows_the_memory(tmp_path: Path) -> None:
    (file := tmp_path / "x").touch()
    os.truncate(file, 1 << 40)  # all of it a hole
    arrays = [np.memmap(file, np.uint8, "r")]

    def rows(free: int) -> int:
        with little_memory(free):
            return int(paging.ReadAhead(arrays).table[2])

    assert rows(1 << 36) == rows(1 << 33) > rows(1 << 26) > rows(1 << 20) == rows(0) > 0


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    folder, stores = tmp_path_factory.mktemp("kinds"), dict[int, Store]()

    def find(kind: str) -> Store:
        source = source_of("typed", kind, "in")
        if id(source) not in stores:
            stores[id(source)] = built(folder / str(len(stores)), source, 3, "in")
        return stores[id(source)]

    return find


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WHOLE_KINDS])
def test_batches_are_the_same(kind: str, store_of: Callable[[str], Store], witness: Witness, asked: set[int], tmp_path: Path) -> None:
    path = store_of(kind).path
    with kind_loader(kind, "typed", path, InProcess(1), memory_budget=0) as loader:
        witness.watch(loader)
        wanted = list(loader)
    assert not asked
    again = shutil.copytree(path, tmp_path / "store")  # an open one has been decided on
    with contextlib.ExitStack() as stack:
        with little_memory(0):
            loader = stack.enter_context(kind_loader(kind, "typed", again, InProcess(1), memory_budget=0))
            witness.watch(loader, 5)  # rows at a time: many pieces
        found = list(loader)
    assert asked
    for batch, other in zip(found, wanted, strict=True):
        same(batch, other)


_REFUSED = """
import ctypes, pytest, struct, sys
from gnnkit import GraphLoader, InProcess
from tests.helpers.batches import digest
from tests.helpers.system import pretend_free_memory

number = {"x86_64": 28, "aarch64": 233}[sys.argv[2]]
# Load the number of the call; if it is madvise's, answer EPERM; otherwise allow it.
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
if sys.argv[3] == "refused":
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    assert libc.prctl(22, 2, filter_) == 0, ctypes.get_errno()
words = {"num_neighbors": [4, 3], "batch_size": 64, "progress": False, "memory_budget": 0}
with pytest.MonkeyPatch.context() as system:
    pretend_free_memory(system, 1 << 20)
    loader = GraphLoader.from_store(sys.argv[1], backend=InProcess(1), **words)
    loader.pipeline.graph.arrays.read_ahead  # decided here
with loader:
    assert loader.pipeline.graph.arrays.read_ahead.is_on
    print(digest(list(loader)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="filters of system calls are Linux's")
def test_where_the_system_refuses_advice(store: Store) -> None:
    """A container's filter of system calls may: batches are the same."""
    import platform

    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("the number of the call is not known")

    def batches(how: str) -> str:
        command = [sys.executable, "-W", "error", "-c", _REFUSED, str(store.path), platform.machine(), how]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    assert batches("refused") == batches("allowed") != ""


def test_more_threads_where_pages_come_from_a_disk(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A thread that waits for a disk needs no processor. Fewer where their scratch would take the memory of the graph's pages."""
    pretend_processors(monkeypatch, 2)

    def threads(free: int, **words: Any) -> int:
        with little_memory(free), GraphLoader.from_store(store.path, **{**WORDS, **words}) as loader:
            return loader.status().workers

    size = sum(array.nbytes for array in store.arrays().each())
    assert threads(size) == 1
    assert threads(size - 1) == 4
    assert threads(store.schema.num_nodes * 4 * 8 * 2 + 100) == 2
    assert threads(0) == 1
    assert threads(0, backend=InProcess(3)) == 3
