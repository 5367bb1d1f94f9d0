"""The disk that a store lies on: its name, how busy it is, and how many pages it reads in a second, asked past the page cache."""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnkit.storage.arrays import address_of

# Reads under way at once: what one thread has, what a processor's kernels ask for together, and more than any disk makes use of.
DEPTHS = (1, 4, 16, 64, 256)
_SECONDS = 0.25
# A thread looks at the clock after so many seconds of reading, more or less.
_TURN_S = 0.005


@dataclass(frozen=True)
class Disk:
    """A disk of this machine.

    Attributes:
        name: The system's name of it, such as "nvme0n1".
        counters: The file with its counters.
    """

    name: str
    counters: Path

    @classmethod
    def under(cls, path: str | Path) -> Disk | None:
        """The disk of a file or folder; None where the system does not say: on networks, in memory, on systems other than Linux."""
        try:
            device = Path(path).stat().st_dev
            folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
        except OSError:
            return None
        folder = folder.parent if (folder / "partition").exists() else folder
        return cls(folder.name, folder / "stat")

    def busy_s(self) -> float:
        """Seconds in which it has had something to do since the machine started; nan where the system does not say."""
        try:
            return int(self.counters.read_text().split()[9]) / 1e3
        except (OSError, ValueError, IndexError):
            return math.nan


@dataclass(frozen=True)
class DiskRate:
    """The rate at which a disk reads single pages at random places.

    Attributes:
        path: The file that was read.
        pages_per_s: ``{reads under way at once: pages in a second}``.
    """

    path: Path
    pages_per_s: dict[int, float]

    @property
    def best_depth(self) -> int:
        """The number of reads under way that gives most."""
        return max(self.pages_per_s, key=lambda depth: self.pages_per_s[depth])

    @property
    def best(self) -> float:
        """The most pages in a second, over all depths."""
        return self.pages_per_s[self.best_depth]


def probe_disk(path: str | Path, depths: Iterable[int] = DEPTHS, seconds: float = _SECONDS) -> DiskRate:
    """Measures how many pages the disk of a file reads in a second, at random places, past the page cache (``O_DIRECT``).

    A thread for each read that is under way: nothing of it depends on what the system offers for asking without threads. Many reads at once
    take processors, too; where these are busy with something else, the rate is theirs.

    Args:
        path: The file, or a folder, whose largest file it is then. Holes of a sparse file are not read from the disk.
        depths: How many reads are under way at once, one measurement for each.
        seconds: How long each measurement takes.

    Raises:
        OSError: There is no such file, it has less than a page, or its file system cannot read past the page cache.
    """
    path = _largest(Path(path))
    if not hasattr(os, "O_DIRECT"):
        raise OSError(f"{path}: this system cannot read past its page cache")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        num_pages = os.fstat(fd).st_size // mmap.PAGESIZE
        if not num_pages:
            raise OSError(f"{path} has less than a page to read")
        _read_until(fd, num_pages, 0.0, 0)  # the kernel is compiled, or loaded
        return DiskRate(path, {depth: _rate(fd, num_pages, depth, seconds) for depth in depths})
    finally:
        os.close(fd)


def _largest(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = [file for file in path.rglob("*") if file.is_file()]
    if not files:
        raise FileNotFoundError(f"there is no file in {path}")
    return max(files, key=lambda file: file.stat().st_size)


def _rate(fd: int, num_pages: int, depth: int, seconds: float) -> float:
    begun = time.perf_counter()
    with ThreadPoolExecutor(depth, thread_name_prefix="gnnkit-probe-disk") as pool:
        total = sum(pool.map(lambda seed: _read_until(fd, num_pages, begun + seconds, seed), range(depth)))
    return total / (time.perf_counter() - begun)


def _read_until(fd: int, num_pages: int, end: float, seed: int) -> int:
    """Reads pages one after the other until it is ``end`` by ``time.perf_counter``; returns how many."""
    from gnnkit.storage.kernels import read_pages  # numba

    random = np.random.default_rng(seed)
    done, count = 0, 1
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        buffer = np.frombuffer(memory, np.uint8)
        while done == 0 or time.perf_counter() < end:
            begun = time.perf_counter()
            if read_pages(address_of("pread"), fd, buffer, random.integers(0, num_pages, count)) < count:
                raise OSError("the disk could not be read past the page cache")
            done += count
            if time.perf_counter() - begun < _TURN_S / 2:
                count *= 2
        del buffer  # it holds the memory
    return done
