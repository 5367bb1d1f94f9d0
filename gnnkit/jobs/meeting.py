"""The store at which torchrun's agents meet, in a process of its own: it stays until the last of them has gone."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta

from gnnkit.jobs.process_group import connections
from gnnkit.waiting import Deadline

# For the agents of other nodes, once that of this node has ended.
_LEAVE_S, _STEP_S = 120.0, 0.2


def keep_meeting(port: int) -> None:
    """Keeps the store until this process is told by SIGUSR1 that this node's agent has ended, and then until all others have.

    Args:
        port: Where it listens, on every interface: torch knows no other way.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch.distributed has no list of its names

    told = threading.Event()
    signal.signal(signal.SIGUSR1, lambda number, frame: told.set())
    store = TCPStore("127.0.0.1", port, None, True, timedelta(seconds=_LEAVE_S), wait_for_workers=False)
    parent = os.getppid()
    while not told.wait(_STEP_S):
        if os.getppid() != parent:
            return
    deadline = Deadline(_LEAVE_S)
    while any(connection.here[1] == port and connection.there[0] != "127.0.0.1" for connection in connections()):
        if deadline.has_passed:
            return
        threading.Event().wait(_STEP_S)
    del store
