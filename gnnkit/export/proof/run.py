"""A job's commands as they run on trial: started and watched by a keeper, and ended with the block, whatever happens in it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnkit.errors import StartTimeout, WorkerDied
from gnnkit.runtime.runs import tail
from gnnkit.waiting import Deadline

_KEEPER = "gnnkit.export.proof.keeper"
# How long what has done its work may take to end by itself, and how long the keeper may take to end the rest.
_STOP_TIMEOUT_S, _KEEPER_S = 5.0, 15.0
# After the first command that failed: the one at fault may not be the first to end.
_MORE_S = 2.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class Command:
    """A command of a job.

    Attributes:
        name: What it is, for messages: "launch.sh of node 1".
        words: Its words.
        environment: All of its variables.
        folder: Where it runs.
        log: The file that its output goes to.
        host: The network namespace that it runs in; None: none of them.
        serves: Whether it runs until it is ended.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    host: int | None
    serves: bool = False


class TrialRun:
    """Commands that run.

    Args:
        commands: The commands.
        keeper: Their keeper.
        log: What that writes.
    """

    def __init__(self, commands: Sequence[Command], keeper: subprocess.Popen[bytes], log: Path) -> None:
        self._commands, self._keeper, self._log, self._unread = commands, keeper, log, b""
        self._left = {number for number, command in enumerate(commands) if not command.serves}

    def look(self, wait_s: float = 0.0) -> bool:
        """Sees what has happened; whether all but the servers have done their work.

        Args:
            wait_s: How long to wait for something to happen.

        Raises:
            WorkerDied: A command has failed, or a server has ended.
            StartTimeout: They cannot be started.
        """
        for said in self._said(wait_s):
            if said[0] == "failed":
                raise StartTimeout(f"the job cannot be started here: {said[1]}")
            if said[0] == "ended":
                self._book(*said[1:])
        return not self._left

    def _book(self, number: int, status: int) -> None:
        command = self._commands[number]
        self._left.discard(number)
        if status or command.serves:
            how = f"ended with exit status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
            deadline = Deadline(_MORE_S)
            while self._left and (rest_s := deadline.left_s) > 0:
                self._left -= {said[1] for said in self._said(min(rest_s, _LOOK_S)) if said[0] == "ended"}
            raise WorkerDied(f"{command.name} {how}{last_lines(command.log)}")

    def _said(self, wait_s: float) -> Iterator[list]:  # type: ignore[type-arg]
        """Yields the messages that the keeper has written since the last call."""
        assert self._keeper.stdout is not None
        fd = self._keeper.stdout.fileno()
        while select.select([fd], [], [], wait_s)[0]:
            wait_s = 0.0
            data = os.read(fd, 1 << 16)
            if not data:
                status = self._keeper.wait(_KEEPER_S)
                raise WorkerDied(f"what keeps the job's processes ended with exit status {status}{last_lines(self._log)}")
            *lines, self._unread = (self._unread + data).split(b"\n")
            yield from map(json.loads, lines)


@contextlib.contextmanager
def running(commands: Sequence[Command], num_hosts: int, folder: Path, scratch: Path) -> Iterator[TrialRun]:
    """Commands, for as long as the block lasts.

    Args:
        commands: The commands.
        num_hosts: Network namespaces to run them in; 0: none.
        folder: Where they are at home.
        scratch: Is removed with the commands if this process is killed.
    """
    spec = {
        "hosts": num_hosts,
        "folder": str(folder),
        "scratch": str(scratch),
        "commands": [
            {
                "words": list(command.words),
                "environment": dict(command.environment),
                "cwd": str(command.folder),
                "log": str(command.log),
                "host": command.host,
            }
            for command in commands
        ],
    }
    log = folder / "keeper.log"
    path = os.pathsep.join(os.getcwd() if entry == "" else entry for entry in sys.path)
    with log.open("wb") as errors:
        keeper = subprocess.Popen(
            [sys.executable, "-m", _KEEPER, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
    farewell = b""
    try:
        assert keeper.stdin is not None
        keeper.stdin.write(json.dumps(spec).encode() + b"\n")
        keeper.stdin.flush()
        yield TrialRun(commands, keeper, log)
        farewell = f"{_STOP_TIMEOUT_S}\n".encode()
    finally:
        _end(keeper, farewell)


def _end(keeper: subprocess.Popen[bytes], farewell: bytes) -> None:
    """Has everything ended, and waits for that."""
    try:
        with contextlib.suppress(BrokenPipeError):
            keeper.communicate(farewell, timeout=_KEEPER_S + _STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.communicate()


def last_lines(log: Path, lines: int = 40) -> str:
    """The end of a log for an error: the log is gone when that is read.

    Args:
        log: The log.
        lines: How many lines, at most.
    """
    end = tail(log, lines)
    return ", and wrote nothing" if not end else "; its last lines:\n" + "\n".join(f"    {line}" for line in end.splitlines())
