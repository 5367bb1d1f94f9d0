"""Run as a program: several processes build parts of one store at a time, and are killed at every stage; what follows is checked.

Each build runs in a fork of this process, which has imported everything already and has no other thread.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit import BuildOptions, Store, partition
from gnnkit.errors import StoreError
from tests.helpers.graphs import random_source
from tests.helpers.stores import listed_stores
from tests.storage.checks import FAST_FOLDER, build_store, files_of
from tests.storage.killed_builds import dying_after, dying_around_rename

SOURCE = random_source(np.random.default_rng(8), num_node_types=2, num_edge_types=2, max_edges=300, chunk_rows=40)
PARTS = 3
OPTIONS = BuildOptions(PARTS, "ldg", with_edge=True, cache_ratio=0.2)
BUSY = 3


def build(path: Path, parts: list[int], events: Callable[[Any], None] = lambda event: None) -> Store | None:
    return partition(SOURCE, PARTS, "ldg", path, with_edge=True, cache_ratio=0.2, parts=parts, events=events)


def forked(work: Callable[[], object]) -> int:
    """Starts ``work`` in a fork; its pid. It ends with 0, or with BUSY where another process has its part."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except StoreError as error:
            code = BUSY if "is being built by" in error.message else 1
            sys.stderr.write(f"{error}\n" if code == 1 else "")
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """How a fork ended: its exit code, or the signal as a negative number."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def check_killed_once(path: Path, wanted: dict[str, bytes], dying: Callable[[], object]) -> bool:
    """One host is killed in the middle, the others come before and after; whether it was killed at all."""
    build(path, [2])
    was_killed = ended(forked(dying)) == -signal.SIGKILL
    if (path / "manifest.json").exists():
        Store.open(path).verify()
    else:
        assert listed_stores(path.parent) == [], "a store that is not whole looks like one"
        build(path, [0])
    store = build(path, [1])
    assert store is not None and files_of(path) == wanted
    assert not path.with_name("store.parts").exists()
    return was_killed


def check_kills(folder: Path, wanted: dict[str, bytes]) -> int:
    """Kills the builder of part 0 at every seventh event, and the last one around each rename; how many kills there were."""
    kills = number = 0
    while True:
        path = folder / f"event{number}" / "store"
        if not check_killed_once(path, wanted, lambda p=path, c=7 * number: build(p, [0], dying_after(c))):
            break
        number, kills = number + 1, kills + 1
    assert kills >= 5, kills
    for rename in range(100):
        for before in (True, False):
            path = folder / f"rename{rename}{before}" / "store"

            def last(path: Path = path, rename: int = rename, before: bool = before) -> None:
                dying_around_rename(rename, before=before)
                build(path, [0, 1])

            if not check_killed_once(path, wanted, last):
                assert kills >= 12, kills
                return kills
            kills += 1
    raise AssertionError("a build without end")


def check_at_once(folder: Path, wanted: dict[str, bytes]) -> None:
    """All parts at once, each wanted by two."""
    for number in range(5):
        path = folder / f"at-once{number}" / "store"
        codes = [ended(child) for child in [forked(lambda path=path, part=part: build(path, [part])) for part in (0, 1, 2, 2, 1, 0)]]
        assert set(codes) <= {0, BUSY} and codes.count(0) >= PARTS, codes
        assert files_of(path) == wanted, sorted(files_of(path).keys() ^ wanted.keys())


def main() -> None:
    """Everything, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="storage-test-", dir=FAST_FOLDER) as name:
        folder = Path(name)
        wanted = files_of(build_store(SOURCE, folder / "one" / "store", OPTIONS).path)
        check_at_once(folder, wanted)
        sys.stdout.write(f"{check_kills(folder, wanted)} kills\n")


if __name__ == "__main__":
    main()
