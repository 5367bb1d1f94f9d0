"""The keeper of a job on trial ends what it has started as a terminal's user would: from above."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gnnkit.export.proof.trial import Command, running
from tests.helpers.waiting import wait_until

# Has a process of its own, and takes its time when it is told to end; writes down whether the process was still there.
SERVER = """
import signal, subprocess, sys, time

def end(*_):
    time.sleep(0.5)
    left = child.poll() is None
    child.kill()
    child.wait()
    open("told", "w").write("its process is there" if left else "somebody else has ended its process")
    sys.exit(0)

child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
signal.signal(signal.SIGTERM, end)
open("ready", "w").close()
while True:
    signal.pause()
"""


def test_a_server_ends_its_own_processes(tmp_path: Path) -> None:
    command = Command("server", [sys.executable, "-S", "-c", SERVER], dict(os.environ), tmp_path, tmp_path / "log", None, serves=True)
    with running([command], 0, tmp_path, tmp_path / "scratch"):
        assert wait_until(lambda: (tmp_path / "ready").exists()), (tmp_path / "log").read_text()
    assert (tmp_path / "told").read_text() == "its process is there"
