"""The entry point of a sampling process: ``python -m gnnkit.cluster.worker``; a supervisor starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gnnkit.runtime.entry import Loop, run

if TYPE_CHECKING:
    from gnnkit.runtime.entry import ParentWatch
    from gnnkit.runtime.wire import Wire
    from gnnkit.runtime.worker import OtherHosts
    from gnnkit.storage.store import Store


def _connect(setup: Mapping[str, Any], store: Store, threads: int) -> OtherHosts | None:
    """The way to other hosts."""
    if setup["hosts"] is None:
        return None
    from gnnkit.cluster.parts.spreading import Spreading  # brings the network library, which a run on one host does without

    return Spreading(setup["hosts"], store, threads)


def load() -> Callable[[Wire, ParentWatch], Loop]:
    """Imports the work; see ``gnnkit.runtime.entry``."""
    from gnnkit.runtime.worker import WorkerLoop  # what it imports may fail, which is reported

    return lambda wire, watch: WorkerLoop(wire, watch, _connect)


if __name__ == "__main__":
    run(load)
