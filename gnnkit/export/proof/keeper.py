"""Keeps the processes of a job that runs on trial, whatever they are: ``python -m gnnkit.export.proof.keeper PARENT < spec``.

Shell scripts, torchrun and what they start do not know the process that wants them. All that is started here stays a descendant of this
process, also what has left its session or lost its parent, and is ended with it: when standard input ends, or when the parent does.

The spec is a line of JSON: ``{"hosts": number of network namespaces or 0, "folder": theirs, "scratch": removed if the parent ends,
"commands": [{"words", "environment", "cwd", "log", "host"}]}``. Lines on standard output say what happens: ``["started"]``,
``["ended", command, exit status]``, ``["failed", why]``. A line on standard input ends them: the seconds that they may take to do it by
themselves; its end leaves them less.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnnkit.cluster.namespaces import NamespaceError, NamespaceHost, network
from gnnkit.runtime.process_status import wait_for_end
from gnnkit.waiting import Deadline

STDIN, STDOUT = 0, 1
# A file of the folder: the words that run a command in each of the namespaces.
HOSTS = "hosts.json"
_PR_SET_CHILD_SUBREAPER = 36
# How long processes may take to end by themselves while a user waits for the prompt; and to be gone once they were killed.
_HASTE_S, _EXIT_WAIT_S = 0.3, 10.0
_LOOK_S = 0.2


class TrialSupervisor:
    """Runs the commands of a spec.

    Args:
        spec: See the module.
        parent: Pid of the process that wants them.
    """

    def __init__(self, spec: dict[str, Any], parent: int) -> None:
        self._spec, self._parent = spec, os.pidfd_open(parent)
        self._commands: dict[int, int] = {}  # pid: number of the command
        self._wakeup, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wakeup)
        if os.getppid() != parent:  # it has ended before it was watched
            sys.exit(1)

    def run(self) -> None:
        """Starts everything, and ends it when the parent says so or ends."""
        folder = Path(self._spec["folder"])
        haste_s = _HASTE_S
        with contextlib.ExitStack() as stack:
            stack.callback(self._tidy)
            try:
                hosts = stack.enter_context(network(self._spec["hosts"])) if self._spec["hosts"] else []
            except NamespaceError as error:
                return tell("failed", str(error))
            (folder / HOSTS).write_text(json.dumps([host.enter for host in hosts]))
            keepers = set(_descendants())  # those of the namespaces, which the commands need to the end
            try:
                for number, command in enumerate(self._spec["commands"]):
                    self._start(number, command, hosts)
                tell("started")
                haste_s = self._watch()
            except OSError as error:
                tell("failed", str(error))
            finally:
                self._end(keepers, haste_s)

    def _start(self, number: int, command: dict[str, Any], hosts: list[NamespaceHost]) -> None:
        inside = hosts and command["host"] is not None
        words = [*hosts[command["host"]].enter, *command["words"]] if inside else command["words"]
        with open(command["log"], "ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=command["environment"],
                cwd=command["cwd"],
                start_new_session=True,
            )
        self._commands[process.pid] = number
        process.returncode = 0  # it is waited for below, with everything else

    def _tidy(self) -> None:
        """Does what the parent would have done, if it has ended."""
        if select.select([self._parent], [], [], 0)[0]:
            shutil.rmtree(self._spec["scratch"], ignore_errors=True)

    def _watch(self) -> float:
        """Tells of commands that end, until the parent wants no more; returns the seconds that the rest may take to end by itself."""
        poller = select.poll()
        for fd in (STDIN, self._parent, self._wakeup):
            poller.register(fd, select.POLLIN | select.POLLHUP)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                for number, status in self._collect():
                    tell("ended", number, status)
            if self._parent in ready:
                return _HASTE_S
            if STDIN in ready:
                return float(read_line() or _HASTE_S)

    def _collect(self) -> Iterator[tuple[int, int]]:
        """Exit statuses of everything that has ended; yields those of commands."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self._commands:
                    yield self._commands.pop(ended[0]), os.waitstatus_to_exitcode(ended[1])

    def _end(self, keepers: set[int], haste_s: float) -> None:
        # A process that has started others ends them: a server whose workers are ended from outside takes that for their failure.
        told: set[int] = set()
        deadline = Deadline(haste_s / 2)
        while (left := _children() - keepers) and not deadline.has_passed:
            _signal_all(left - told, signal.SIGTERM)
            told |= left
            wait_for_end(next(iter(left)), deadline.within(_LOOK_S))  # what it leaves behind is a child of this process then
            list(self._collect())
        deadline = Deadline(haste_s / 2)
        _signal_all(set(_descendants()) - keepers, signal.SIGTERM)
        self._await_end(keepers, deadline)
        deadline = Deadline(_EXIT_WAIT_S)
        while (left := set(_descendants()) - keepers) and not deadline.has_passed:  # some may fork while they are killed
            _signal_all(left, signal.SIGKILL)
            self._await_end(keepers, Deadline(deadline.within(1.0)))
        list(self._collect())

    def _await_end(self, keepers: set[int], deadline: Deadline) -> None:
        while (left := set(_descendants()) - keepers) and (rest_s := deadline.left_s) > 0:
            wait_for_end(left.pop(), rest_s)
            list(self._collect())


def _children() -> set[int]:
    """Pids of the commands and of everything that has lost its parent, and that still run."""
    return set(_by_parent().get(os.getpid(), []))


def _descendants() -> list[int]:
    """Pids of everything that this process has started or inherited, and that still runs."""
    children = _by_parent()
    found, waiting = [], [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _by_parent() -> dict[int, list[int]]:
    """Pids of all that runs, by the pid of their parent."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    children.setdefault(int(fields[1]), []).append(int(name))
    return children


def _signal_all(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def read_line() -> bytes:
    """A line of standard input, and no byte more, so that the next one is seen to be there; empty at its end."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(STDIN, 1)):
        line += byte
    return line


def tell(*said: Any) -> None:
    """Writes a line for the parent, which may be gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(STDOUT, (json.dumps(said) + "\n").encode())


def main() -> None:
    """Reads the spec, and keeps what it says."""
    signal.signal(signal.SIGINT, lambda number, frame: None)  # an interrupt is the parent's affair; not SIG_IGN, which children inherit
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    TrialSupervisor(json.loads(read_line()), int(sys.argv[1])).run()


if __name__ == "__main__":
    main()
