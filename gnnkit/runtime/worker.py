"""The entry point of a sampling process: ``python -m gnnkit.runtime.worker``; started by ``gnnkit.runtime.children`` only.

It needs neither torch nor the user's ``__main__``, and everything that it holds is gone when it is.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.vitals import Vitals
from gnnkit.runtime.watch import Watch, die_with_parent
from gnnkit.runtime.wire import Wire


def main() -> None:
    """Reads what was handed over on the command line, and works."""
    wire_fd, vitals_fd, parent_fd, parent_pid, rank, from_main_thread = map(int, sys.argv[1:])
    if from_main_thread:
        die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the loader's affair
    for fd in (wire_fd, vitals_fd, parent_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    watch = Watch(parent_fd, parent_pid, Vitals(SharedBlock.attach(vitals_fd, writable=True)).row(rank))
    watch.start()
    wire = Wire(socket.socket(fileno=wire_fd))
    try:
        from gnnkit.runtime.worker_loop import WorkerLoop
    except BaseException as error:  # a broken installation; the loader raises it
        wire.send("failed", error=error_to_json(error))
        wire.send_all(1.0)
        raise
    WorkerLoop(wire, watch).run()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        logging.getLogger("gnnkit.runtime.worker").exception("the sampling process ends")
        logging.shutdown()
        os._exit(1)
    # Threads may be in the middle of a kernel, and there is nothing to tidy up.
    os._exit(0)
