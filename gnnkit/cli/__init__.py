"""The command ``gnnkit``: the module of a verb is imported when the verb is invoked.

Exit codes of every verb: 0 it worked; 1 it ran, and something needs attention (a check warned, a comparison failed, a file is
damaged); 2 it could not run (wrong usage, or an error whose message and hint are printed); 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import sys

from gnnkit.host import without_collections


def main() -> None:
    """Runs the command line of this process and exits with its code."""
    with without_collections():
        from gnnkit.cli.app import name_no_place, run  # late: modules of verbs are run by themselves, too

    atexit.register(gc.freeze)  # what is there at the end goes with the process: looking for garbage among torch's modules takes 0.2 s
    name_no_place()
    sys.exit(run(sys.argv[1:]))
