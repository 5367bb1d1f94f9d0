"""The probe of a disk: it reads the file that it is given, and says so where it cannot."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from gnnkit.storage.disk import probe_disk


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    path.write_bytes(bytes(range(256)) * (mmap.PAGESIZE // 256) * 64)
    (tmp_path / "less").write_bytes(b"less")
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


def test_what_cannot_be_read_is_said(file: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="less than a page"):
        probe_disk(tmp_path / "less")
    with pytest.raises(FileNotFoundError):
        probe_disk(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no file"):
        probe_disk(tmp_path / "empty")
