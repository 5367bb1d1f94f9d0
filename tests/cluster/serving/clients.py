"""Trainers for tests of servers: loaders that have joined them, here and in forked processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gnnkit import GraphLoader, GraphStore, Store
from tests.cluster.hosts.setups import OPTIONS
from tests.cluster.serving.setups import ANSWER_S
from tests.helpers.batches import digest


def joined(address: str, store: Store, options: dict[str, Any] | None = None, **more: Any) -> GraphLoader:
    """A loader on servers of this host.

    Args:
        address: Their address.
        store: Their store.
        options: Of ``GraphStore``.
        **more: Of the loader.
    """
    backend = GraphStore(address=address, join_timeout_s=ANSWER_S, **(options or {}))
    return GraphLoader.from_store(store.path, backend=backend, progress=False, **{**OPTIONS, **more})


def digests(batches: Any, pause_s: float = 0.0) -> list[str]:
    """A digest of each batch, as they come."""
    found = []
    for batch in batches:
        found.append(digest([batch]))
        time.sleep(pause_s)
    return found


class Trainer:
    """A process that does something with loaders of its own, forked from this one.

    Args:
        work: What; yields what is to be known here, and goes on when this one says so.
    """

    def __init__(self, work: Callable[[], Iterator[Any]]) -> None:
        self._said, said = os.pipe()
        told, self._tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                status = _obey(work, said, told)
            os._exit(status)
        os.close(said)
        os.close(told)
        self._file = os.fdopen(self._said, "rb")

    def next(self) -> Any:
        """What it has to say next."""
        value = pickle.load(self._file)
        if isinstance(value, str) and value.startswith("Traceback"):
            raise AssertionError(value)
        return value

    def go_on(self) -> None:
        """Lets it go on."""
        os.write(self._tell, b"\0")

    def end(self, number: int = signal.SIGKILL) -> None:
        """Ends it, however it is."""
        if self.pid:
            os.kill(self.pid, number)
            os.waitpid(self.pid, 0)
            self.pid = 0
            self._file.close()
            os.close(self._tell)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def _obey(work: Callable[[], Iterator[Any]], said: int, told: int) -> int:
    with open(said, "wb") as file:
        try:
            for value in work():
                pickle.dump(value, file)
                file.flush()
                if not os.read(told, 1):
                    return 0
            return 0
        except BaseException:
            pickle.dump(traceback.format_exc(), file)
            return 1


def server_of(loader: GraphLoader) -> dict[int, int]:
    """Pids of the servers that a loader is connected with, by rank."""
    return dict(loader.status().details.get("server_pids", {}))


def leftovers(home: Path) -> list[Path]:
    """What runs have left in a home of gnnkit's."""
    return [path for name in ("runs", "temporary") for path in (home / name).glob("*")]
