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
from typing import Any

import numpy as np

import gnnkit
from gnnkit import BuildOptions, Store
from gnnkit.errors import StoreError
from gnnkit.storage import staging
from tests.helpers.graphs import random_source
from tests.helpers.stores import pruned
from tests.storage.checks import FAST_FOLDER, assert_holds, build_store

SOURCE = random_source(np.random.default_rng(8), num_node_types=2, num_edge_types=2, max_edges=300, chunk_rows=40)
OLD, NEW = BuildOptions(1), BuildOptions(3, "ldg", weight="weight")


def die() -> None:
    """Ends this process as the kernel's OOM killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(count: int) -> Callable[[Any], None]:
    """An event sink that ends the process at the event number ``count``."""
    left = [count]

    def sink(event: Any) -> None:
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
        pruned(path.parent)
        assert_holds(Store.open(path), SOURCE)
    store = build_store(SOURCE, path, NEW)
    store.verify()
    assert_holds(store, SOURCE)
    pruned(path.parent)
    assert {p.name for p in path.parent.iterdir()} == {path.name}, list(path.parent.iterdir())
    return was_killed


def dying_at_link(number: int) -> None:
    """Ends the process at the link number ``number``."""
    link, left = os.link, [number]

    def dying(*args: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            die()
        link(*args)

    os.link = dying  # type: ignore[assignment]


def appends(folder: Path) -> int:
    """Kills appends to a store at every stage; the number of places. Tables are read in forks alone: Arrow has threads of its own."""
    path, new = folder / "store", ({"src": [1, 5], "dst": [3, 1], "weight": [0.5, 1.0]}, {"key": [5], "x": [4.0]})

    def build() -> None:
        folder.mkdir()
        edges = {"src": [1, 2, 3, 1], "dst": [2, 3, 1, 3], "weight": [1.0, 2.0, 3.0, 4.0]}
        nodes = {"key": [1, 2, 3], "x": [1.0, 2.0, 3.0]}
        source = gnnkit.tables(edges, nodes, keys="key", features="x", edge_weight="weight", scratch_dir=folder)
        build_store(source, path, BuildOptions(2, weight="edge_weight"))

    def append(before: Callable[[], None] = lambda: None, count: int = 10**9) -> None:
        before()
        Store.open(path).append(*new, events=dying_after(count))

    assert not killed(build)
    ways: list[Callable[[], None]] = [lambda c=count: append(count=c) for count in range(0, 8, 2)]  # type: ignore[misc]
    ways += [lambda n=number: append(lambda: dying_at_link(n)) for number in (0, 2)]  # type: ignore[misc]
    ways += [lambda b=before: append(lambda: dying_around_rename(0, before=b)) for before in (True, False)]  # type: ignore[misc]
    kept, points = {name: (path / name).read_bytes() for name in Store.open(path).files}, 0
    for way in ways:
        points += killed(way)
        for made in [found for found in folder.iterdir() if found != path and (found / "manifest.json").exists()]:
            Store.open(made).verify()
            staging.remove_tree(made)
        assert {name: (path / name).read_bytes() for name in Store.open(path).files} == kept
    assert points >= len(ways) - 1, points  # there may be fewer events
    assert not killed(append)
    pruned(folder)
    stores = [Store.open(found) for found in folder.iterdir()]
    assert sorted(store.schema.num_edges for store in stores) == [4, 6], stores
    for store in stores:
        store.verify()
    return points


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
        sys.stdout.write(f"{appends(Path(folder) / 'append')} places of an append\n")


if __name__ == "__main__":
    main()
