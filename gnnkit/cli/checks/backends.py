"""Checks of the backends: each of them yes, or no with the reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from gnnkit.cli.checks.row import Check

# The names under which gnnkit offers them, and what Colocated does beyond one host.
SEVERAL_HOSTS = "several hosts"
BACKENDS = ("InProcess", "Colocated", SEVERAL_HOSTS, "Glt", "GraphStore")
_NEEDS_LINUX = ("Colocated", SEVERAL_HOSTS, "Glt", "GraphStore")
# For one trial; the first imports torch and PyG, and compiles the kernels where that has not been done.
TRIAL_TIMEOUT_S = 180.0
_REPORT = "please report this"


def backends(broken: list[Check], glt: Check) -> Iterator[Check]:
    """A row for each backend, each tried out on a small graph.

    Args:
        broken: Checks that failed and that every backend depends on.
        glt: The row about graphlearn-torch, whose own engine one backend runs.
    """
    found = {name: without_trial(name, broken, glt) for name in BACKENDS}
    with trials([name for name, row in found.items() if row is None]) as outcomes:
        for name, row in found.items():
            yield row if row is not None else outcomes.row(name)


def _title(name: str) -> str:
    return name if name == SEVERAL_HOSTS else f"backend {name}"


def without_trial(name: str, broken: list[Check], glt: Check) -> Check | None:
    """The row of a backend that need not be tried out, or None; see ``backends``."""
    row = _title(name)
    if broken:
        return Check(row, f"no: {', '.join(check.name for check in broken)}, see above", "error", broken[0].fix)
    if name in _NEEDS_LINUX and sys.platform != "linux":
        return Check(row, f"no: it needs Linux, this is {sys.platform}", "no")
    if name == "Glt" and not glt.value.startswith("native"):
        return Check(row, "no: graphlearn-torch's native library is not there, see above; the other backends do without it", "no", glt.fix)
    return None


class Trials:
    """Reads what a process of trials says, each line within a deadline.

    Args:
        process: The process.
        errors: The file that its standard error goes to.
        timeout_s: How long one trial may take.
    """

    def __init__(self, process: subprocess.Popen[str], errors: Any, timeout_s: float) -> None:
        self._process, self._errors, self._timeout_s = process, errors, timeout_s
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="gnnkit-doctor", daemon=True)
        self._reader.start()

    def row(self, name: str) -> Check:
        """The outcome of the next trial, which is ``name``'s."""
        row = _title(name)
        try:
            line = self._lines.get(timeout=self._timeout_s)
        except Empty:
            self._process.kill()
            return Check(row, f"no: its trial did not end within {self._timeout_s:g} s", "error", _REPORT)
        if line is None:
            self._lines.put(None)  # for the rows that follow
            return Check(row, f"no: its trial {self._end()}", "error", _REPORT)
        outcome = json.loads(line)
        if outcome["ok"]:
            return Check(row, f"yes: {outcome['value']}")
        return Check(row, f"no: {outcome['value']}", "error", _REPORT)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _end(self) -> str:
        code = self._process.wait(self._timeout_s)
        self._errors.seek(0)
        tail = (self._errors.read().strip().splitlines() or [""])[-1]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"{how}: {tail}" if tail else how

    def close(self) -> None:
        """Ends the process, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def trials(names: Sequence[str], *, timeout_s: float = TRIAL_TIMEOUT_S, module: str = "gnnkit.cli.checks.trial") -> Iterator[Trials]:
    """Starts a process that makes some trials, and ends it.

    Args:
        names: See ``trial.TRIALS``.
        timeout_s: How long one may take.
        module: What the process runs.
    """
    with tempfile.TemporaryDirectory(prefix="gnnkit-doctor-") as folder, tempfile.TemporaryFile("w+") as errors:
        # Its temporary files lie where they go with the folder, also when it is killed.
        environment = {**os.environ, "TMPDIR": folder}
        command = [sys.executable, "-m", module, *names]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        found = Trials(process, errors, timeout_s)
        try:
            yield found
        finally:
            found.close()
