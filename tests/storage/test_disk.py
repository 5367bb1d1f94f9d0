"""The probe of a disk: it reads the file that it is given, and says so where it cannot."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from gnnkit.storage.disk import Disk, probe_disk
from tests.helpers.waiting import wait_until


@pytest.fixture
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk")  # this folder's ``tmp_path`` is in memory
    path = folder / "x.npy"
    path.write_bytes(bytes(range(256)) * (mmap.PAGESIZE // 256) * 64)
    (folder / "less").write_bytes(b"less")
    try:
        probe_disk(path, (1,), 0.01)
    except OSError as error:
        pytest.skip(f"no reading past the page cache here: {error}")
    return path


def test_each_depth_has_a_rate_and_the_best_is_the_largest(file: Path) -> None:
    rate = probe_disk(file.parent, (1, 8), 0.02)
    assert rate.path == file  # the largest of the folder
    assert set(rate.pages_per_s) == {1, 8} and all(pages > 0 for pages in rate.pages_per_s.values())
    assert rate.best == max(rate.pages_per_s.values()) == rate.pages_per_s[rate.best_depth]


def test_a_disk_has_a_name_and_is_busy_while_it_is_read(file: Path) -> None:
    disk = Disk.under(file)
    if disk is None:
        assert not os.major(file.stat().st_dev), "layers of a container, or a network: no disk of this machine's"
        return
    assert (Path("/sys/block") / disk.name).exists()
    before = disk.busy_s()
    assert before >= 0
    # The system counts in whole ticks, and a busy machine may give the threads none of them.
    assert wait_until(lambda: probe_disk(file, (16,), 0.1).best > 0 and disk.busy_s() > before)


def test_what_has_no_disk_has_no_name() -> None:
    assert Disk.under("/proc/self/stat") is None and Disk.under("/none") is None


def test_what_cannot_be_read_is_said(file: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="less than a page"):
        probe_disk(file.parent / "less")
    with pytest.raises(FileNotFoundError):
        probe_disk(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no file"):
        probe_disk(tmp_path / "empty")
