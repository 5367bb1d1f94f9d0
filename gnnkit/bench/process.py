"""One measurement is one process: nothing is left over from another, and its memory is seen from outside."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from gnnkit.errors import GnnkitError

# How often memory is looked at; what lives shorter than this may be missed.
_LOOK_EVERY_S = 0.02
# How often children are searched for, which costs more.
_CHILDREN_EVERY_S = 0.25
_TAIL_LINES = 15
# Environment variable that tells a process when it was started, in seconds of ``time.time()``.
STARTED = "GNNKIT_BENCH_STARTED"


class BenchError(GnnkitError):
    """A measurement failed."""


@dataclass(frozen=True)
class Measurement:
    """What one process reported and what was seen of it.

    Attributes:
        values: The JSON object of its last line.
        wall_s: From its start to its end.
        anonymous_bytes: Most memory of its own, over it and its children: heap and private mappings.
        shared_bytes: Most shared memory in any of its processes, mapped files not counted.
    """

    values: Mapping[str, Any]
    wall_s: float
    anonymous_bytes: int
    shared_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Most memory that was its own or shared; an upper bound, for the two may not have been at once."""
        return self.anonymous_bytes + self.shared_bytes


def measure(command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str]) -> Measurement:
    """Runs a command whose last line of output is a JSON object.

    Raises:
        BenchError: It failed, took too long, or said nothing.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        env = {**environment, STARTED: repr(time.time())}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True)
        watch = _MemoryWatch(process.pid)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"`{' '.join(command)}` took more than {timeout_s:g} s") from None
        finally:
            wall_s = time.perf_counter() - start
            watch.stop()
            _kill(process, watch.seen)
        out.seek(0)
        err.seek(0)
        lines = out.read().splitlines()
        if code or not lines:
            tail = "\n".join([*lines, *err.read().splitlines()][-_TAIL_LINES:])
            raise BenchError(f"`{' '.join(command)}` ended with code {code}:\n{tail}")
    try:
        values = json.loads(lines[-1])
    except ValueError as error:
        raise BenchError(f"`{' '.join(command)}` ended with {lines[-1]!r} instead of JSON") from error
    return Measurement(values, wall_s, watch.anonymous_bytes, watch.shared_bytes)


class _MemoryWatch:
    """Looks at the memory of a process and its children until it is told to stop."""

    def __init__(self, pid: int) -> None:
        self.anonymous_bytes = self.shared_bytes = 0
        self.seen: dict[int, psutil.Process] = {}
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gnnkit-bench-memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the looking."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        next_search = 0.0
        while True:
            if time.monotonic() >= next_search:
                self._find_children()
                next_search = time.monotonic() + _CHILDREN_EVERY_S
            rows = [memory_of(pid) for pid in [self._pid, *self.seen]]
            self.anonymous_bytes = max(self.anonymous_bytes, sum(anonymous for anonymous, _ in rows))
            self.shared_bytes = max(self.shared_bytes, max(shared for _, shared in rows))
            if self._stopped.wait(_LOOK_EVERY_S):
                return

    def _find_children(self) -> None:
        try:
            self.seen.update({child.pid: child for child in psutil.Process(self._pid).children(recursive=True)})
        except psutil.Error:
            return


def memory_of(pid: int | str) -> tuple[int, int]:
    """Anonymous and shared bytes of a process now; zeros where it is gone."""
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file if line.startswith("Rss"))
    except (OSError, ValueError):
        return 0, 0
    return tuple(int(fields.get(name, "0").split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))  # type: ignore[return-value]


def _kill(process: subprocess.Popen[str] | subprocess.Popen[bytes], children: Mapping[int, psutil.Process]) -> None:
    """Ends what is left of a measurement, children that outlived it included."""
    for child in children.values():
        try:
            child.kill()  # psutil compares start times: never another process of the same number
        except psutil.Error:
            continue
    if process.poll() is None:
        process.kill()
        process.wait()
