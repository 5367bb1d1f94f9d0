"""Run as a program: kills builds with SIGKILL at every stage, and checks what each leaves behind and what follows.

Each build runs in a fork of this process, which has imported everything already and has no other thread.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gnnkit.errors import StoreError
from gnnkit.events import Event
from gnnkit.storage import staging
from gnnkit.storage.build import build_store
from gnnkit.storage.catalog import prune
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.store import Store
from tests.helpers.graphs import random_source
from tests.storage.checks import FAST_FOLDER, assert_holds

SOURCE = random_source(np.random.default_rng(8), num_node_types=2, num_edge_types=2, max_edges=300, chunk_rows=40)
OLD, NEW = BuildOptions(1), BuildOptions(3, "ldg", weight="weight")


def die() -> None:
    """Ends this process as the kernel's OOM killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(count: int) -> Callable[[Event], None]:
    """An event sink that ends the process at the event number ``count``."""
    left = [count]

    def sink(event: Event) -> None:
        left[0] -= 1
        if left[0] < 0:
            die()

    return sink


def dying_around_rename(number: int, *, before: bool) -> None:
    """Ends the process around the rename number ``number``."""
    rename, left = Path.rename, [number]

    def dying(self: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] < 0 and before:
            die()
        result = rename(self, target)
        if left[0] < 0:
            die()
        return result

    Path.rename = dying  # type: ignore[method-assign,assignment]


def killed(build: Callable[[], object]) -> bool:
    """Runs ``build`` in a fork; whether it was killed before it was through."""
    child = os.fork()
    if child == 0:
        try:
            build()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check(path: Path, build: Callable[[], object], *, with_old: bool) -> bool:
    """One killed build and what follows it; whether it was killed at all."""
    if with_old:
        build_store(SOURCE, path, OLD)
    was_killed = killed(build)
    try:
        left = Store.open(path)
    except StoreError:
        left = None
    if left is not None:
        left.verify()
        assert_holds(left, SOURCE)
    elif was_killed and with_old:
        # Only between its two renames may the old store be out of place; the next build or prune puts it back.
        assert path.with_name(path.name + staging.REPLACED).exists()
        prune(path.parent)
        assert_holds(Store.open(path), SOURCE)
    store = build_store(SOURCE, path, NEW)
    store.verify()
    assert_holds(store, SOURCE)
    prune(path.parent)
    assert {p.name for p in path.parent.iterdir()} == {path.name}, list(path.parent.iterdir())
    return was_killed


def main() -> None:
    """Goes through all the places."""
    with tempfile.TemporaryDirectory(prefix="storage-test-", dir=FAST_FOLDER) as folder:
        number = 0
        for with_old in (False, True):
            points = 0
            for count in range(0, 1000, 7):
                path = Path(folder) / f"{number}" / "store"
                number += 1
                if not check(path, lambda p=path, c=count: build_store(SOURCE, p, NEW, dying_after(c)), with_old=with_old):
                    break
                points += 1
            assert points >= 5, points
            for rename in range(2 if with_old else 1):
                for before in (True, False):
                    path = Path(folder) / f"{number}" / "store"
                    number += 1

                    def build(path: Path = path, rename: int = rename, before: bool = before) -> None:
                        dying_around_rename(rename, before=before)
                        build_store(SOURCE, path, NEW)

                    assert check(path, build, with_old=with_old)
                    points += 1
            sys.stdout.write(f"{points} places, {'with' if with_old else 'without'} an old store\n")


if __name__ == "__main__":
    main()
