"""All or nothing: kills, full disks, and several processes that want the same store."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import BuildOptions, GraphLoader, Store
from gnnkit.datasets import GraphSchema, PyGSource
from gnnkit.errors import MemoryLimitError, StoreError
from gnnkit.storage import staging as resources
from tests.helpers.graphs import ArraySource, built, homogeneous_source, random_edges, random_source, stored, typed_source
from tests.helpers.stores import listed_stores, pruned
from tests.helpers.system import pretend_free_memory
from tests.storage.checks import assert_holds, build_store, files_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def program(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", f"tests.storage.{name}", *map(str, arguments)]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def test_builds_killed_anywhere_leave_the_old_state_or_the_new_one() -> None:
    done = subprocess.run(program("killed_builds"), cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("places") == 3


def test_a_store_that_somebody_else_builds(folder: Path, tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(21), num_edge_types=1)
    path = folder / f"tiny-2p-{built(source, tmp_path / 'first', 2).fingerprint[:12]}"
    source.passes = dict.fromkeys(source.passes, 0)
    builder = subprocess.Popen(program("building_elsewhere", path, tmp_path / "gate"), cwd=ROOT)
    waiter = None
    try:
        incomplete = path.with_name(path.name + ".incomplete")
        wait_for((incomplete / "owner.json").exists)
        with pytest.raises(StoreError, match=f"being built by process {builder.pid} on "):
            build_store(source, path, BuildOptions(2))
        with pytest.raises(StoreError, match=f"process {builder.pid} .*waited 0.2 s"):
            build_store(source, path, BuildOptions(2), wait_timeout_s=0.2)
        with pytest.raises(StoreError, match="there is no store"):
            Store.open(path)
        assert listed_stores(path.parent) == [] and pruned(path.parent) == [] and incomplete.exists()
        events: list[Any] = []
        found: list[Store] = []
        waiter = threading.Thread(target=lambda: found.append(stored(source, None, BuildOptions(2), events=events.append)))
        waiter.start()
        wait_for(lambda: bool(events))
        assert str(builder.pid) in events[0].text and events[0].kind == "message"
        (tmp_path / "gate").touch()
        waiter.join(60)
        assert builder.wait(60) == 0
        assert set(source.passes.values()) == {0}
        assert_holds(found[0], source)
    finally:
        builder.kill()
        builder.wait()
        (tmp_path / "gate").touch()
        if waiter is not None:
            waiter.join(60)


def test_waiting_for_a_builder_that_is_killed(folder: Path, tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(21), num_edge_types=1)
    path = folder / f"tiny-2p-{built(source, tmp_path / 'first', 2).fingerprint[:12]}"
    source.passes = dict.fromkeys(source.passes, 0)
    builder = subprocess.Popen(program("building_elsewhere", path, tmp_path / "gate"), cwd=ROOT)
    try:
        wait_for((path.with_name(path.name + ".incomplete") / "owner.json").exists)
        killer = threading.Timer(0.2, builder.kill)
        killer.start()
        store = stored(source, None, BuildOptions(2))
        killer.join()
        assert_holds(store, source)
    finally:
        builder.kill()
        builder.wait()


def test_threads_that_want_the_same_store_build_it_once(folder: Path) -> None:
    sources = [random_source(np.random.default_rng(21)) for _ in range(6)]
    stores: list[Store] = []
    threads = [threading.Thread(target=lambda s=s: stores.append(stored(s, None, BuildOptions(2)))) for s in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {store.path.parent for store in stores} == {folder} and len({store.path for store in stores}) == 1 and len(stores) == 6
    assert sum(any(source.passes.values()) for source in sources) == 1


def test_a_full_disk_leaves_the_old_state(tmp_path: Path) -> None:
    small = homogeneous_source(random_edges(np.random.default_rng(0), 50, 50, 200), 50)
    large = homogeneous_source(small.edges[("node", "to", "node")], 50, x=np.zeros((50, 20_000), np.float32))
    build_store(small, tmp_path / "store", BuildOptions())
    before = files_of(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Writing beyond this limit fails in the middle of a file, as a full disk or a quota does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        for name in ("store", "other"):
            with pytest.raises(StoreError, match="File too large; nothing was left behind"):
                build_store(large, tmp_path / name, BuildOptions(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_of(tmp_path) == before
    assert_holds(build_store(large, tmp_path / "store", BuildOptions(2)), large)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounting a small file system needs root")
def test_a_really_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=70m", "tmpfs", disk], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        edges = random_edges(np.random.default_rng(0), 50, 50, 200)
        with pytest.raises(StoreError, match="needs 40.0 MB of disk"):
            build_store(homogeneous_source(edges, 50, x=np.zeros((50, 200_000), np.float32)), disk / "store", BuildOptions())
        # What the preflight cannot know: somebody else fills the disk during the build.
        source = Filling(homogeneous_source(edges, 50, x=np.zeros((50, 1000), np.float32)), disk / "filler")
        with pytest.raises(StoreError, match="the disk is full"):
            build_store(source, disk / "store", BuildOptions())
        (disk / "filler").unlink()
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", disk], check=True)


class Filling(ArraySource):
    """A source that fills the disk while it is read."""

    def __init__(self, inner: ArraySource, filler: Path) -> None:
        super().__init__(inner.schema, inner.edges, inner.node_arrays, inner.edge_arrays)
        self._filler = filler

    def edge_chunks(self, edge_type: object):  # type: ignore[no-untyped-def]
        with self._filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass
        yield from super().edge_chunks(edge_type)  # type: ignore[arg-type]


def test_room_is_asked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = homogeneous_source(np.empty((2, 0), np.int64), 1)
    huge.schema = GraphSchema.homogeneous(10**9, 10**14)
    with pytest.raises(StoreError, match="PB of disk at .*are free"):
        build_store(huge, tmp_path / "store", BuildOptions())
    pretend_free_memory(monkeypatch, 10**6)
    source = typed_source({"a": 10**6}, {})
    with pytest.raises(MemoryLimitError, match="1.00 MB are available"):
        build_store(source, tmp_path / "store", BuildOptions())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["memory", "store"])
@pytest.mark.parametrize("typed", [False, True])
def test_ids_that_decide_a_size(place: str, typed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three edges between hashed ids: what they need is looked at first."""
    edge_index, num_nodes = torch.tensor([[5, 49_999_999, 77], [31_000_000, 5, 12]]), 50_000_000
    data: Any = HeteroData() if typed else Data(edge_index=edge_index, num_nodes=num_nodes)
    if typed:
        data["a"].num_nodes, data["a", "to", "a"].edge_index = num_nodes, edge_index
    options: dict[str, Any] = {"num_neighbors": [2], "progress": False}
    with monkeypatch.context() as patch:
        pretend_free_memory(patch, 300_000_000)
        says = r"(?s)needs about \d.* of memory, 300 MB are available.*from_tables\(\(edge_index\[0\], .* keeps such ids as keys"
        with pytest.raises(MemoryLimitError, match=says):
            if place == "memory":
                GraphLoader.from_pyg(data, **options)
            else:
                GraphLoader.from_source(PyGSource(data), store_dir=tmp_path, **options)
        with GraphLoader.from_tables((edge_index[0], edge_index[1]), store_dir=tmp_path, **options) as loader:
            assert loader.store.keys("node")[[0, 1, 2, 3, 4]].tolist() == [5, 12, 77, 31_000_000, 49_999_999]
            assert sum(batch.batch_size for batch in loader) == 5


def test_what_is_no_store_is_not_replaced(tmp_path: Path) -> None:
    source = homogeneous_source(np.array([[0], [0]]), 1)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("folder", "file"):
        with pytest.raises(StoreError, match="path that does not exist yet"):
            build_store(source, tmp_path / name, BuildOptions())
    assert (tmp_path / "folder" / "thesis.tex").read_text() == "years of work"
    with pytest.raises(StoreError, match="cannot be written"):
        build_store(source, tmp_path / "file" / "store", BuildOptions())
    (tmp_path / "empty").mkdir()
    assert_holds(build_store(source, tmp_path / "empty", BuildOptions()), source)


@pytest.mark.core
def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(0))

    def interrupt(event: Any) -> None:
        if event.kind == "progress":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_store(source, tmp_path / "store", BuildOptions(), interrupt)
    assert not list(tmp_path.iterdir())


TAKING_TURNS = """
import sys
from pathlib import Path
from typing import Any
from gnnkit.storage.staging import locked

store, count = Path(sys.argv[1]), int(sys.argv[2])
for turn in range(count):
    with locked(store, 60.0, [].append):
        (store.parent / "inside").open("x").close()  # an error where somebody else is inside
        (store.parent / "inside").unlink()
"""


def test_a_lock_is_one_processes_although_its_file_is_removed_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has opened a lock file that is removed then must not take it for the one that others hold."""
    turns = TAKING_TURNS.replace("store, count", "import gnnkit.storage.staging as staging\nstaging._POLL_S = 0.0005\nstore, count", 1)
    started = [subprocess.Popen([sys.executable, "-c", turns, tmp_path / "store", "300"], cwd=ROOT) for _ in range(4)]
    try:
        assert [process.wait(100) for process in started] == [0] * 4
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_build_has_left_of_its_lock_goes_with_the_next_one_or_with_prune(tmp_path: Path) -> None:
    source = homogeneous_source(np.array([[0], [0]]), 1)
    for name in ("store", "other"):
        (tmp_path / f".{name}.lock").touch()
    build_store(source, tmp_path / "store", BuildOptions())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.lock", "store"]
    with resources.locked(tmp_path / "other", 0.0, [].append):
        pruned(tmp_path)
        assert (tmp_path / ".other.lock").exists(), "somebody has it"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    (tmp_path / ".other.lock").touch()
    pruned(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
