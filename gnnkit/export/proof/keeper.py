"""Keeps the processes of a job that runs on trial, whatever they are: ``python -m gnnkit.export.proof.keeper PARENT SOCKET``.

Shell scripts, torchrun and what they start do not know the process that wants them. All that is started here stays a descendant of this
process, also what has left its session or lost its parent, and is ended with it: when the connection or the parent ends.

The first message says what to run: ``hosts``, the number of network namespaces or 0, their ``folder``, the ``scratch`` that is removed if
the parent ends, and ``commands``. The keeper says that one has "ended", or that all have "failed". A message "stop" ends them: they may
take ``timeout_s`` seconds to do it by themselves; the end of the connection leaves them less.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from gnnkit.cluster.namespaces import NamespaceError, NamespaceHost, network
from gnnkit.runtime.wire import Wire
from gnnkit.waiting import Deadline, is_ready

# A file of the folder: the words that run a command in each of the namespaces.
HOSTS = "hosts.json"
_PR_SET_CHILD_SUBREAPER = 36
# How long processes may take to end by themselves while a user waits for the prompt; and to be gone once they were killed.
_HASTE_S, _EXIT_WAIT_S = 0.3, 10.0
_LOOK_S = 0.2


class TrialSupervisor:
    """Runs the commands of a spec.

    Args:
        wire: The connection to the process that wants them.
        parent: Its pid.
    """

    def __init__(self, wire: Wire, parent: int) -> None:
        self._wire, self._spec, self._parent = wire, wire.next().body, os.pidfd_open(parent)
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
                return self._wire.tell("failed", why=str(error))
            (folder / HOSTS).write_text(json.dumps([host.enter for host in hosts]))
            keepers = _running()  # those of the namespaces, which the commands need to the end
            try:
                for number, command in enumerate(self._spec["commands"]):
                    self._start(number, command, hosts)
                haste_s = self._watch()
            except OSError as error:
                self._wire.tell("failed", why=str(error))
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
                cwd=command["folder"],
                start_new_session=True,
            )
        self._commands[process.pid] = number
        process.returncode = 0  # it is waited for below, with everything else

    def _tidy(self) -> None:
        """Does what the parent would have done, if it has ended."""
        if is_ready(self._parent, 0):
            shutil.rmtree(self._spec["scratch"], ignore_errors=True)

    def _watch(self) -> float:
        """Tells of commands that end, until the parent wants no more; returns the seconds that the rest may take to end by itself."""
        poller = select.poll()
        for fd in (self._wire.fileno(), self._parent, self._wakeup):
            poller.register(fd, select.POLLIN | select.POLLHUP)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                for number, status in self._collect():
                    self._wire.tell("ended", number=number, status=status)
            if self._parent in ready:
                return _HASTE_S
            if self._wire.fileno() in ready:
                try:
                    return float(self._wire.next().body["timeout_s"])
                except EOFError:
                    return _HASTE_S

    def _collect(self) -> Iterator[tuple[int, int]]:
        """Exit statuses of everything that has ended; yields those of commands."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self._commands:
                    yield self._commands.pop(ended[0]), os.waitstatus_to_exitcode(ended[1])

    def _end(self, keepers: set[psutil.Process], haste_s: float) -> None:
        # A process that has started others ends them: a server whose workers are ended from outside takes that for their failure.
        told: set[psutil.Process] = set()
        deadline = Deadline(haste_s / 2)
        while (left := _running(recursive=False) - keepers) and not deadline.has_passed:
            _signal_all(left - told, signal.SIGTERM)
            told |= left
            psutil.wait_procs([next(iter(left))], deadline.within(_LOOK_S))  # what it leaves behind is a child of this process then
        _signal_all(left := _running() - keepers, signal.SIGTERM)
        psutil.wait_procs(left, haste_s / 2)
        deadline = Deadline(_EXIT_WAIT_S)
        while (left := _running() - keepers) and not deadline.has_passed:  # some may fork while they are killed
            _signal_all(left, signal.SIGKILL)
            psutil.wait_procs(left, deadline.within(1.0))
        list(self._collect())


def _running(*, recursive: bool = True) -> set[psutil.Process]:
    """All that this process has started or inherited and that still runs; not recursive: the commands, and all that has lost its parent."""
    found = set()
    for process in psutil.Process().children(recursive):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
    return found


def _signal_all(processes: set[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def main() -> None:
    """Keeps what the first message says."""
    signal.signal(signal.SIGINT, lambda number, frame: None)  # an interrupt is the parent's affair; not SIG_IGN, which children inherit
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent, fd = map(int, sys.argv[1:])
    os.set_inheritable(fd, False)
    TrialSupervisor(Wire(socket.socket(fileno=fd)), parent).run()


if __name__ == "__main__":
    main()
