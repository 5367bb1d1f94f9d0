"""Disks that fill while something is written to them: a build's spool, the logs of processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnkit import Colocated, GraphLoader, Store
from gnnkit.datasets import GltPartitionSource, write_glt_partitions
from gnnkit.errors import StoreError
from gnnkit.jobs.context import Checkpoints
from tests.cluster.hosts.setups import OPTIONS, build, expected
from tests.helpers.batches import digests
from tests.helpers.graphs import ArraySource, built, homogeneous_source, random_edges

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounting a small file system needs root")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 70 MB; a build wants 64 of them to be free."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=70m", "tmpfs", folder], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> Path:
    """Fills it up to the last byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for nbytes in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(nbytes)):
                    pass
    return filler


class Filling(ArraySource):
    """A source that is slow to read, so that a build spools it, and that fills the disk after its first chunks."""

    disk: Path

    def edge_chunks(self, edge_type: object):  # type: ignore[no-untyped-def]
        for number, chunk in enumerate(super().edge_chunks(edge_type)):  # type: ignore[arg-type]
            if number == 2:
                fill(self.disk)
            yield chunk


def test_a_disk_that_fills_during_the_spool_of_a_build(disk: Path) -> None:
    inner = homogeneous_source(random_edges(np.random.default_rng(0), 500, 500, 20_000), 500)
    source = Filling(inner.schema, inner.edges, inner.node_arrays, inner.edge_arrays, chunk_rows=1000, edges_are_cheap=False)
    source.disk = disk
    with pytest.raises(StoreError, match=r"the disk is full \([0-9.]+ k?B of 73.*nothing was left behind"):
        built(source, disk / "store", 2)
    assert [path.name for path in disk.iterdir()] == ["filler"]
    (disk / "filler").unlink()
    source.disk = disk / "nowhere"
    built(inner, disk / "store", 2).verify()


@pytest.mark.parametrize("nbytes", [0, 200_000])
def test_a_disk_that_fills_under_a_checkpoint(disk: Path, nbytes: int) -> None:
    """The one before it stays whole, and room is left for others where there was some."""
    model = torch.nn.Linear(300, 300)
    kept = Checkpoints(disk)
    first = kept.write({"model": model}, {"epoch": 1})
    filler = fill(disk)
    os.truncate(filler, filler.stat().st_size - nbytes)
    with pytest.raises(StoreError, match=r"could not be written: the disk is full \([0-9.]+ k?B of 73.*the one before it is whole"):
        kept.write({"model": model}, {"epoch": 2})
    assert first is not None and {path.name for path in disk.iterdir()} == {"filler", first.name}
    assert kept.restore({"model": torch.nn.Linear(300, 300)}) == {"epoch": 1}
    filler.unlink()
    kept.write({"model": model}, {"epoch": 2})
    assert kept.restore({"model": torch.nn.Linear(300, 300)}) == {"epoch": 2}


@pytest.mark.parametrize("nbytes", [0, 30_000, 300_000, 900_000, 1_300_000, 1_800_000])
def test_a_disk_that_fills_under_a_folder_for_graphlearn_torch(disk: Path, tmp_path: Path, nbytes: int) -> None:
    edges = random_edges(np.random.default_rng(0), 500, 500, 40_000)
    inner = homogeneous_source(edges, 500, x=np.ones((500, 200)), more=np.ones((500, 99)))
    store = built(inner, tmp_path / "store", 2, with_edge=True)
    filler = fill(disk)
    os.truncate(filler, filler.stat().st_size - nbytes)
    with pytest.raises(StoreError, match=r"the disk is full \([0-9.]+ [kM]?B of 73"):
        write_glt_partitions(store, disk / "glt", [].append)
    assert [path.name for path in disk.iterdir()] == ["filler"]
    filler.unlink()
    write_glt_partitions(store, disk / "glt", [].append)
    assert GltPartitionSource(disk / "glt").schema == store.schema


@pytest.mark.slow
def test_a_disk_that_fills_under_the_logs(disk: Path, tmp_path: Path) -> None:
    """Batches go on, also those of a process that takes a dead one's place, and of one that starts when there is no room any more."""
    store: Store = build(tmp_path, 1)
    backend, whole = Colocated(1, log_dir=str(disk / "logs"), max_restarts=1), expected(store, epochs=3)
    with GraphLoader.from_store(store.path, backend=backend, progress=False, **OPTIONS) as loader:
        assert digests(loader) == whole[0]
        filler = fill(disk)
        assert digests(loader) == whole[1]
        other = Colocated(1, log_dir=str(disk / "other"))
        with GraphLoader.from_store(store.path, backend=other, progress=False, **OPTIONS) as late:
            assert digests(late) == whole[0]
        (pid,) = [process.pid for process in loader.status().processes if process.pid != os.getpid()]
        os.kill(pid, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="SIGKILL"):
            assert digests(loader) == whole[2]
        filler.unlink()
