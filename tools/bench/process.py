"""One measurement is one process: its time, its memory seen from outside, and how busy processors are."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gnnkit.errors import GnnkitError

# A process that copies memory from one half of half a gigabyte to the other, as long as its parent lives.
_HOG = """
import os, numpy
parent, halves = os.getppid(), numpy.ones((2, 1 << 25))
while os.getppid() == parent:
    halves[1] = halves[0]
"""


@contextlib.contextmanager
def memory_hogs(count: int) -> Iterator[None]:
    """Has so many other processes copy memory as long as a ``with`` block lasts."""
    with contextlib.ExitStack() as held:
        for _ in range(count):
            hog = held.enter_context(subprocess.Popen([sys.executable, "-c", _HOG]))
            held.callback(hog.kill)
        yield


_GRAPH, _RING = "/memfd:gnnkit-graph", "/memfd:gnnkit-ring"


def children_running(module: str) -> list[int]:
    """Pids of this process's children, theirs included, that run ``python -m module``."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if module in child.cmdline():
                found.append(child.pid)
        except psutil.Error:  # gone meanwhile
            continue
    return found


def footprint(pids: Iterable[int], store: Path) -> dict[str, float]:
    """Proportional set sizes (PSS: a page that ``n`` processes map counts as one ``n``-th for each), summed over processes.

    Args:
        pids: The processes.
        store: Folder of the store that they map.

    Returns:
        Bytes: "graph_bytes" (its copy in huge pages and the pages of the store's files), "ring_bytes" and "own_bytes", which is
        everything else: heap, stacks, libraries; and "processes", how many there were.
    """
    sizes = {"graph_bytes": 0.0, "ring_bytes": 0.0, "own_bytes": 0.0, "processes": 0.0}
    for pid in pids:
        sizes["processes"] += 1
        for name, nbytes in _mappings(pid):
            if name.startswith((_GRAPH, f"{store.resolve()}/")):
                sizes["graph_bytes"] += nbytes
            elif name.startswith(_RING):
                sizes["ring_bytes"] += nbytes
            else:
                sizes["own_bytes"] += nbytes
    return sizes


def _mappings(pid: int) -> Iterable[tuple[str, int]]:
    """Name and PSS of each mapping, from ``/proc/<pid>/smaps`` (see proc_pid_smaps(5))."""
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if not word.endswith(":"):  # "start-end perms offset dev inode   name"
            fields = line.split(maxsplit=5)
            name = fields[5] if len(fields) > 5 else ""
        elif word == "Pss:":
            yield name, int(rest.split()[0]) * 1024


_IDLE = ("idle", "iowait")


class ProcessorWatch:
    """Watches the processors that this process may use, from when it is made."""

    def __init__(self) -> None:
        self._own, (self._idle, _), self._start = _own_seconds(), _idle_seconds(), time.perf_counter()

    def shares(self) -> dict[str, float]:
        """Returns the shares of processor time that were used since the watch began.

        Returns:
            Shares of all that these processors could have done: "busy", with all work, which counts time that a hypervisor gave to
            others, and "own_busy", with that of this process and its children.
        """
        (idle, count), own, elapsed = _idle_seconds(), _own_seconds(), time.perf_counter() - self._start
        busy = 1.0 - (idle - self._idle) / (elapsed * count)
        return {"busy": min(1.0, max(0.0, busy)), "own_busy": (own - self._own) / (elapsed * count)}


def _idle_seconds() -> tuple[float, int]:
    """Seconds in which the processors that this process may use had nothing to do, summed over them, and how many they are."""
    every, mine = psutil.cpu_times(percpu=True), os.sched_getaffinity(0)
    processors = [times for number, times in enumerate(every) if number in mine] or every
    return sum(getattr(times, name, 0.0) for times in processors for name in _IDLE), len(processors)


def _own_seconds() -> float:
    """Processor time of this process and the children that it has now, theirs included."""
    this, seconds = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            seconds += sum(process.cpu_times()[:2])
        except psutil.Error:  # gone meanwhile
            continue
    return seconds


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
class ProcessMeasurement:
    """The values that one process reported, and the resources that it used.

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


def measure(command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str]) -> ProcessMeasurement:
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
    return ProcessMeasurement(values, wall_s, watch.anonymous_bytes, watch.shared_bytes)


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
