"""A child process that moves files from and to URLs, as this process sees it; ``gnnkit.cluster.urls`` has its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from gnnkit.errors import GnnkitError
from gnnkit.events import Stage
from gnnkit.runtime.entry import run
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import new_run, with_tail
from gnnkit.runtime.supervisor import Exit, Supervisor, SupervisorOptions
from gnnkit.runtime.wire import Message, Waker, from_memory
from gnnkit.waiting import SLICE_S, Deadline

_MODULE, WORK = "gnnkit.cluster.urls.transfer", "gnnkit.cluster.urls.transfer_loop:TransferLoop"
# The child has shorter limits of its own for whatever it asks a server for, and says so when they are over.
_SILENCE_S = 900.0


@dataclass(frozen=True)
class RemoteFile:
    """A file that was found at a URL.

    Attributes:
        url: Its own URL.
        size: Its bytes.
        version: What the server has to say of its content: an entity tag, a generation or a date; empty where that is nothing.
    """

    url: str
    size: int
    version: str


@dataclass(frozen=True)
class Move:
    """A file that is to be fetched or put.

    Attributes:
        url: Its URL.
        path: Its place on this disk.
        size: Its bytes.
        crc32: Its CRC-32; None where that is not known.
        version: See ``RemoteFile``; None where it does not matter.
    """

    url: str
    path: str
    size: int
    crc32: int | None = None
    version: str | None = None


class Transfer:
    """The child process, for a ``with`` block; it is started when it is first asked for something.

    An interrupt ends it; what it has fetched so far stays for the next one.

    Args:
        url: Where files are moved from or to, for the record of the run.
        error: The class of errors.

    Attributes:
        error: The same.
        is_cut: Whether what it raised last is that the server cannot be reached.
    """

    def __init__(self, url: str, error: type[GnnkitError]) -> None:
        self._url, self.error, self.is_cut = url, error, False

    @cached_property
    def _supervisor(self) -> Supervisor:
        options = SupervisorOptions(
            1, 1, _MODULE, title="the transfer process", lane="transfer", advice="call it again: what has come is kept"
        )
        return Supervisor(options, new_run(None, {"url": self._url}, "transfer"), lambda child: None)

    def __enter__(self) -> Transfer:
        self._waker = Waker()
        return self

    def __exit__(self, *exc: object) -> None:
        if "_supervisor" in vars(self):
            self._supervisor.stop()

    def read(self, url: str) -> bytes:
        """Reads a file of a bounded size.

        Raises:
            GnnkitError: The file is not there, or may not be read, or the server cannot be reached (``is_cut``).
        """
        message = self._ask("read", url=url)
        return from_memory(message.fds.pop())

    def write(self, url: str, content: bytes) -> None:
        """Puts a file, all at once; see ``read``."""
        self._ask("write", content, url=url)

    def find(self, url: str) -> list[RemoteFile]:
        """The file at a URL, or all files of a folder or a glob, by name; empty where there is none. See ``read``."""
        return [RemoteFile(**found) for found in self._ask("find", url=url).body["files"]]

    def remove(self, urls: Sequence[str]) -> None:
        """Removes files; see ``read``."""
        self._ask("remove", urls=list(urls))

    def get(self, files: Sequence[Move], stage: Stage, before: int = 0) -> None:
        """Fetches files, going on from what an earlier call left.

        Args:
            files: What is fetched; their folders exist.
            stage: Progress in bytes.
            before: Bytes of the stage that are done already.

        Raises:
            GnnkitError: A file is missing or another one than expected, or cannot be written, or the server cannot be reached.
        """
        self._ask("get", stage=stage, before=before, files=[asdict(file) for file in files])

    def put(self, files: Sequence[Move], stage: Stage, before: int = 0) -> None:
        """Puts files, each of which is there whole or not at all; see ``get``."""
        self._ask("put", stage=stage, before=before, files=[asdict(file) for file in files])

    def _ask(self, kind: str, *content: bytes, stage: Stage | None = None, before: int = 0, **body: Any) -> Message:
        supervisor, deadline, self.is_cut = self._supervisor, Deadline(_SILENCE_S), False
        supervisor.start_missing()
        supervisor.send(0, kind, content, **body)
        while True:
            self._waker.wait(supervisor.poller(), SLICE_S)
            for _, said in supervisor.listen():
                deadline = Deadline(_SILENCE_S)
                if isinstance(said, Exit):
                    raise said.error
                if said.kind == "done":
                    return said
                if said.kind == "refused":
                    self.is_cut = said.body["unreachable"]
                    error = error_from_json(said.body["error"], self._url, self.error)
                    raise error if type(error) is self.error else self.error(error.message, error.hint)
                if stage is not None:
                    stage.update(before + said.body["bytes"])
            if deadline.has_passed:
                text = f"{self._url}: {supervisor.name(0)} has said nothing for {_SILENCE_S:.0f} s"
                raise self.error(with_tail(text, supervisor.folder.log(0)), "call it again: what has come is kept")


if __name__ == "__main__":
    run(WORK)
