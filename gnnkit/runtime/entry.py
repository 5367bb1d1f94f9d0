"""The beginning and the end of every background process, whatever its work; ``gnnkit.runtime.supervisor`` starts them.

They need neither torch nor the user's ``__main__``, and everything that they hold is gone when they are.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn, Protocol, TypeVar

from gnnkit.host import leave_no_core
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.vitals import ParentWatch, Vitals, die_with_parent
from gnnkit.runtime.wire import Wire

T = TypeVar("T")


class Loop(Protocol):
    """The work of a background process."""

    def run(self) -> None:
        """Works until the process is to end."""
        ...


def run(load: Callable[[], Callable[[Wire, ParentWatch], Loop]]) -> NoReturn:
    """Reads what was handed over on the command line, works, and ends the process.

    Args:
        load: Imports what makes the work from the process's ``Wire`` and ``Watch``; called once an error of it can be reported.
    """
    try:
        _work(load)
    except BaseException:
        logging.getLogger(load.__module__).exception("the process ends")
        logging.shutdown()
        os._exit(1)
    # Threads may be in the middle of a kernel, and there is nothing to tidy up.
    os._exit(0)


def _work(load: Callable[[], Callable[[Wire, ParentWatch], Loop]]) -> None:
    wire_fd, vitals_fd, parent_fd, parent_pid, rank, from_main_thread = map(int, sys.argv[1:])
    if from_main_thread:
        die_with_parent(parent_pid)
    leave_no_core()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the loader's affair
    for fd in (wire_fd, vitals_fd, parent_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    watch = ParentWatch(parent_fd, parent_pid, Vitals(SharedBlock.attach(vitals_fd, writable=True)).row(rank))
    watch.start()
    wire = Wire(socket.socket(fileno=wire_fd))
    load_work(load, wire)(wire, watch).run()


def load_work(load: Callable[[], T], wire: Wire) -> T:
    """Imports work and returns it; an error goes to whoever has started the process.

    Args:
        load: Does so.
        wire: The connection to whoever has started the process.
    """
    gc.disable()  # looking for garbage while modules are loaded takes a tenth of the start, and there is none
    try:
        work = load()
    except BaseException as error:  # a broken installation; the loader raises it
        wire.send("failed", error=error_to_json(error))
        wire.send_all(1.0)
        raise
    gc.freeze()
    gc.enable()
    return work
