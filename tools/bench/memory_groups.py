"""Processes that may use no more than so much memory, page cache included: a memory cgroup of their own, of either version.

``python -m tools.bench.memory_groups --bytes N COMMAND...`` runs a command in one; its exit status is the command's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TOP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryGroup:
    """A memory cgroup.

    Attributes:
        folder: Its folder.
        version: Version of its hierarchy, 1 or 2.
    """

    folder: Path
    version: int

    @property
    def peak_bytes(self) -> int | None:
        """The most that it has held, page cache included; None where the kernel does not tell."""
        path = self.folder / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes")
        return int(path.read_text()) if path.exists() else None

    @property
    def was_killed(self) -> bool:
        """Whether the kernel has ended one of its processes for want of memory."""
        text = (self.folder / ("memory.events" if self.version == 2 else "memory.oom_control")).read_text()
        return any(line.split()[0] == "oom_kill" and int(line.split()[1]) > 0 for line in text.splitlines())

    def run(self, arguments: Sequence[str], *, timeout_s: float, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs Python in it, and returns what it wrote."""
        env = {**os.environ, **environment}
        return subprocess.run(
            [*self.enter, sys.executable, *arguments], capture_output=True, text=True, env=env, timeout=timeout_s, check=False
        )

    @property
    def enter(self) -> list[str]:
        """The beginning of a command line: a shell enters the group and becomes the command behind it, so that all of it counts."""
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.folder)]


def _place() -> tuple[Path, int] | None:
    """A folder in which groups can be made, and the version."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        own[controllers] = name.lstrip("/")
    memory = next((names for names in own if "memory" in names.split(",")), None)
    if memory is not None:
        return next(((path, 1) for path in (_TOP / "memory" / own[memory], _TOP / "memory") if path.is_dir()), None)
    for path in (_TOP / own.get("", ""), _TOP):
        # Version 2 lets only groups without processes of their own hand controllers to children; the root may.
        if path.is_dir() and "memory" in (path / "cgroup.subtree_control").read_text().split():
            return path, 2
    return None


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Makes a group, and takes it away.

    Raises:
        OSError: This process may not, or there is no place for it.
    """
    place = _place()
    if place is None:
        raise OSError("no memory controller is in reach")
    folder, version = place[0] / f"gnnkit-{uuid.uuid4().hex[:12]}", place[1]
    folder.mkdir()
    try:
        limits = [("memory.max", limit_bytes), ("memory.swap.max", 0)] if version == 2 else [("memory.limit_in_bytes", limit_bytes)]
        for name, value in limits:
            if (folder / name).exists():
                (folder / name).write_text(str(value))
        yield MemoryGroup(folder, version)
    finally:
        folder.rmdir()


def missing_memory_group() -> str | None:
    """Why there are no groups here, or None."""
    if not Path("/proc/self/cgroup").exists():
        return "memory cgroups are Linux's"
    try:
        with memory_group(32 << 20) as group:
            done = group.run(["-c", "print(len(bytearray(200 << 20)))"], timeout_s=30)
    except OSError as error:
        return f"memory cgroups cannot be made here: {error}"
    return "the limit of a memory cgroup does not hold here" if done.returncode == 0 else None


def main() -> int:
    """Runs a command in a group; returns its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    with memory_group(given.bytes) as group:
        code = subprocess.run([*group.enter, *given.command], check=False).returncode
        if group.was_killed:
            sys.stderr.write(f"the kernel ended a process: {given.bytes} bytes are not enough for {' '.join(given.command)}\n")
        return code


if __name__ == "__main__":
    sys.exit(main())
