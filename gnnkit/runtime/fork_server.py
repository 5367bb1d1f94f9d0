"""The fork server: a process without threads that has loaded what sampling processes and servers need, and that they are forked from.

A process that starts as an interpreter of its own spends most of its start on importing NumPy and Numba; one that is forked is there within
milliseconds, and shares that memory with the others. It is started by, and is a child of, the process that asks for it, as if that had
started it itself (``CLONE_PARENT``, clone(2)); the fork server is there for no more than its start. It is started with the first of them,
ends when it has not been needed for a while, and with the process that it is for.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import itertools
import logging
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import NoReturn, TypeAlias

from gnnkit.errors import on_error
from gnnkit.host import leave_no_core
from gnnkit.runtime.entry import die_with_parent, run
from gnnkit.runtime.process_status import wait_for_end
from gnnkit.runtime.wire import Message, Wire
from gnnkit.waiting import Deadline

logger = logging.getLogger(__name__)

_CLONE_PARENT = 0x8000  # linux/sched.h
# The number of the system call clone(2) on each architecture; its first argument is the flags, and the others may all be 0.
_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "loongarch64": 220, "ppc64le": 120}
# A fork server that was not asked for so long ends: it holds some 60 MB, of which those that it has forked share most.
_IDLE_S = 60.0
# It loads what is asked for, which takes a second or two on a busy machine, and forks in milliseconds; one that takes longer is stopped.
ANSWER_S = 20.0
_LOOK_S = 0.1
# It ends at once when it is told to, unless it stands still.
_END_S = 1.0
# Variables that are read once, while modules are loaded: a process with other ones has another fork server.
# (The import path is among them.)
_READ_ONCE = ("PYTHON", "NUMBA_", "LLVM", "LD_", "MALLOC_", "GLIBC_", "HOME", "XDG_CACHE_HOME", "TMPDIR", "GNNKIT_KERNEL_CACHE")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid_for_children", "user", "uts")
# Room for a process's own command line in the place of the fork server's.
_PADDING = "-" * 160


class Forked:
    """A child of this process that a fork server has forked, with what ``subprocess.Popen`` has.

    Args:
        pid: Its number in the system; it is this process's child.
        returncode: Its exit status, as ``Popen`` gives it, where that is known.

    Attributes:
        pid: See above.
    """

    def __init__(self, pid: int, returncode: int | None = None) -> None:
        self.pid, self._returncode = pid, returncode
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Returns the exit status, None while it runs; 0 where another part of the process has collected it, as ``Popen`` has it."""
        with self._lock:
            if self._returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:
                    pid, status = self.pid, 0
                if pid:
                    self._returncode = os.waitstatus_to_exitcode(status)
            return self._returncode

    def wait(self, timeout: float) -> int:
        """Waits for the end; returns the exit status."""
        deadline = Deadline(timeout)
        while (returncode := self.poll()) is None:
            if deadline.has_passed:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            wait_for_end(self.pid, deadline.left_s)
        return returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, if the process still runs."""
        with self._lock:
            if self._returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)


Process: TypeAlias = "subprocess.Popen[bytes] | Forked"


class ForkServer:
    """This process's side of its fork server.

    Args:
        process: The fork server.
        wire: The connection to it.
        from_main_thread: Whether this process's main thread has started it; all that it forks are children of the thread that has.
        circumstances: Those that it was started in; None where it is used in any.

    Attributes:
        from_main_thread: See above.
        owner: The pid of this process.
        pid: That of the fork server.
    """

    def __init__(self, process: Process, wire: Wire, from_main_thread: bool, circumstances: object) -> None:
        self.from_main_thread, self.owner, self.pid = from_main_thread, os.getpid(), process.pid
        self._process, self._wire, self._circumstances = process, wire, circumstances
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._pids: dict[int, int | None] = {}  # of those that were asked for, None before the answer
        self._may_do_better = False  # than to be of no use
        self._is_replaced = False

    @classmethod
    def start(cls, environment: Mapping[str, str], circumstances: object) -> ForkServer:
        """Starts one.

        Args:
            environment: Its variables.
            circumstances: See above.

        Raises:
            OSError: The system does not.
        """
        wire, theirs = Wire.pair()
        from_main_thread = threading.current_thread() is threading.main_thread()
        with theirs, on_error(wire.close):
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid()), str(int(from_main_thread)), _PADDING],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return cls(process, wire, from_main_thread, circumstances)

    def ask(
        self, module: str, numbers: tuple[int, ...], environment: Mapping[str, str], output: int, errors: int, *, starts_others: bool
    ) -> int:
        """Asks for a process.

        Args:
            module: What it runs, as ``python -m`` does; the module, or the package's ``__main__``, has the ``WORK`` of ``entry.run``.
            numbers: What it is handed over, see ``gnnkit.runtime.entry``; the first three are descriptors.
            environment: Its variables.
            output: The descriptor of its standard output.
            errors: That of its standard error.
            starts_others: Whether it starts processes itself, and is to have a fork server for them.

        Returns:
            The number to ask ``answer`` with.
        """
        fds = [fd for fd in numbers[:3] if fd >= 0]
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with self._lock:
                self._pids[number := next(self._numbers)] = None
                body = {"module": module, "numbers": numbers, "environment": dict(environment), "starts_others": starts_others}
                self._wire.send("fork", (output, errors, folder, *fds), number=number, **body)
        finally:
            os.close(folder)
        return number

    def kill(self) -> None:
        """Kills it, and with it what it has not forked yet."""
        self._may_do_better = True
        self._process.send_signal(signal.SIGKILL)

    def fileno(self) -> int:
        """A descriptor that something can be read from when an answer has come."""
        return self._wire.fileno()

    def answer(self, number: int, timeout_s: float) -> int | None:
        """The pid of a process that was asked for, until that is forgotten; None where it is not known within the time.

        Raises:
            EOFError: The fork server has ended, or does not fork.
        """
        deadline = Deadline(timeout_s)
        while True:
            with self._lock:
                if self._pids[number] is None:
                    self._read()
                if (pid := self._pids[number]) is not None:
                    if pid < 0:
                        raise EOFError("the system does not fork")
                    return pid
            if deadline.has_passed:
                return None
            self._wire.wait(deadline.within(_LOOK_S))

    def forget(self, number: int) -> None:
        """Takes an answer off; one that was replaced ends with the last of them."""
        with self._lock:
            self._pids.pop(number, None)
            is_over = self._is_replaced and not self._pids
        if is_over:
            self.end()

    def _read(self) -> None:
        while (message := self._wire.receive()) is not None:
            self._pids[message.body["number"]] = message.body["pid"]
            self._may_do_better |= message.body["pid"] > 0

    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def fits(self, circumstances: object) -> bool:
        """Whether the calling thread can have it start processes."""
        is_main_thread = threading.current_thread() is threading.main_thread()
        return self._circumstances in (None, circumstances) and (self.from_main_thread or not is_main_thread)

    def replace(self) -> None:
        """Ends it once it has answered whatever it was asked."""
        with self._lock:
            self._is_replaced = True
            is_over = not self._pids
        if is_over:
            self.end()

    def give_up(self) -> None:
        """Ends it because it does not answer; in its circumstances there is none any more, unless another one may do better."""
        if not self.end() and self._circumstances is not None:
            _useless.add(self._circumstances)

    def end(self) -> bool:
        """Ends it; whether another one may do better: it has answered, or has ended because it had nothing to do, or was killed."""
        status = self._process.poll()
        if status is None:
            self._process.send_signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        with self._lock:
            with contextlib.suppress(EOFError):  # its last words
                self._read()
            self._wire.close()
        return self._may_do_better or status == 0


_current: ForkServer | None = None
_finding = threading.Lock()
_others: list[ForkServer] = []  # of processes that this one was forked from: their connections must not be shut down
_useless: set[object] = set()  # circumstances in which one does not answer
_IS_POSSIBLE = sys.platform == "linux" and platform.machine() in _CLONE


def fork_server(environment: Mapping[str, str]) -> ForkServer | None:
    """This process's fork server, which is started if there is none that fits; None where processes cannot be forked.

    Args:
        environment: The variables of processes that it is to start.
    """
    global _current
    with _finding:
        if not _IS_POSSIBLE or (circumstances := _circumstances(environment)) in _useless:
            return None
        if _current is not None and _current.owner != os.getpid():
            _others.append(_current)
            _current = None
        if _current is None:
            atexit.register(_end_current)
        elif _current.has_ended():
            _current.give_up()
            if circumstances in _useless:
                return None
        elif not _current.fits(circumstances):
            _current.replace()
        else:
            return _current
        _current = ForkServer.start(environment, circumstances)
        return _current


def _end_current() -> None:
    if _current is not None and _current.owner == os.getpid():
        _current.end()


def _circumstances(environment: Mapping[str, str]) -> object:
    """Returns what a forked process has of its fork server, and one that this process starts itself has of this one."""
    limits = (resource.getrlimit(number) for name, number in sorted(vars(resource).items()) if name.startswith("RLIMIT_"))
    group, root = Path("/proc/self/cgroup"), os.stat("/")
    return (
        sys.executable,
        os.getresuid(),
        os.getresgid(),
        frozenset(os.getgroups()),
        (root.st_dev, root.st_ino),
        *(os.stat(f"/proc/self/ns/{name}").st_ino for name in _NAMESPACES if os.path.exists(f"/proc/self/ns/{name}")),
        *sorted(item for item in environment.items() if item[0].startswith(_READ_ONCE)),
        frozenset(os.sched_getaffinity(0)),
        os.sched_getscheduler(0),
        os.getpriority(os.PRIO_PROCESS, 0),
        *limits,
        group.read_text() if group.exists() else "",
    )


# The fork server's own side ---------------------------------------------------------------------------------------------------


def main() -> NoReturn:
    """Forks whatever it is asked for, until it has nothing to do or the process that it is for has ended."""
    wire_fd, parent_pid, from_main_thread = map(int, sys.argv[1:4])
    if from_main_thread:
        die_with_parent(parent_pid)
    leave_no_core()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the loader's affair
    os.set_inheritable(wire_fd, False)
    _serve(Wire(socket.socket(fileno=wire_fd)))


def _serve(wire: Wire) -> NoReturn:
    with contextlib.suppress(EOFError):
        while wire.wait(_IDLE_S):
            if (message := wire.receive()) is not None:
                work = _work_of(message.body["module"])
                with contextlib.suppress(Exception):  # the process tells of it, which loads it again
                    resolve_name(work)
                gc.freeze()  # so that looking for garbage does not make those that are forked have copies of what is here
                pid = _fork_beside()
                if pid == 0:
                    try:
                        wire.detach()
                        _become(message, work)
                    finally:
                        os._exit(1)
                message.close()
                wire.tell("forked", number=message.body["number"], pid=pid)
    os._exit(0)


def _work_of(module: str) -> str:
    spec = find_spec(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return str(importlib.import_module(f"{module}.__main__" if is_package else module).WORK)


def _fork_beside() -> int:
    """As ``os.fork``, with this process's parent for the parent; -1 where the system does not."""
    python, system = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()  # https://docs.python.org/3/c-api/sys.html: for any function that clones the process
    pid: int = system.syscall(_CLONE[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def _become(message: Message, work: str) -> NoReturn:
    """Makes this process, which was just forked, what was asked for."""
    body = message.body
    output, errors, folder, *handed = message.fds
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.fchdir(folder)
    finally:
        for fd in (output, errors, folder):
            os.close(fd)
    os.environ.clear()
    os.environ.update(body["environment"])
    importlib.invalidate_caches()
    numbers = iter(handed)
    words = [str(next(numbers)) if place < 3 and number >= 0 else str(number) for place, number in enumerate(body["numbers"])]
    sys.argv = [body["module"], *words]
    if body["starts_others"]:
        _fork_another(handed)
    _show_as(f"{sys.executable} -m {' '.join(sys.argv)}")
    run(work)


def _fork_another(handed: Sequence[int]) -> None:
    """Forks the fork server of a process that was just forked itself and is to start others."""
    global _current
    wire, theirs = Wire.pair()
    pid = os.fork()
    if pid == 0:
        wire.detach()
        for fd in handed:
            os.close(fd)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        die_with_parent(os.getppid())
        _show_as(f"{sys.executable} -m {__name__}")
        _serve(Wire(theirs))
    theirs.close()
    _current = ForkServer(Forked(pid), wire, from_main_thread=True, circumstances=None)
    atexit.register(_end_current)


def _show_as(line: str) -> None:
    """Has the system show a command line for this process (proc(5): a line without its last zero byte ends at the first one)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        first, last = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
        if last > first:
            text = line.encode()[: last - first - 2]
            ctypes.memmove(first, text + b"\0" * (last - first - len(text) - 1) + b"\1", last - first)


if __name__ == "__main__":
    from gnnkit.runtime import fork_server as _module  # what is forked imports it under this name

    _module.main()
