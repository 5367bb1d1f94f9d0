"""The entry point of a process that runs graphlearn-torch: ``python -m gnnkit.backends.glt.driver``; started by ``GltPool`` only.

graphlearn-torch starts workers of its own below it. They import this module first of all, as ``__mp_main__``, and end with it.
"""

from __future__ import annotations

import multiprocessing
import os

from gnnkit.runtime.entry import die_with_parent, run

WORK = "gnnkit.backends.glt.loop:GltLoop"
# Tells workers whose they are; multiprocessing says so too late.
_DRIVER = "GNNKIT_GLT_DRIVER"

if __name__ == "__mp_main__":
    die_with_parent(int(os.environ[_DRIVER]))
    from gnnkit.vendor import glt

    glt.load("a sampling worker of Glt()")

if __name__ == "__main__":
    os.environ[_DRIVER] = str(os.getpid())
    multiprocessing.set_start_method("spawn")  # graphlearn-torch mixes the ways to start processes otherwise, and does not start
    run(WORK)
