"""The work of the process that moves files from and to URLs with fsspec; ``gnnkit.cluster.urls`` has its messages."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.callbacks import Callback

from gnnkit.datasets.download import PATIENT, pause
from gnnkit.errors import DatasetError, GnnkitError
from gnnkit.files import MOST_TEXT_BYTES, why_unwritable
from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.wire import Wire, from_memory
from gnnkit.storage.files import file_crc32
from gnnkit.urls import packages_for
from gnnkit.waiting import Deadline

R = TypeVar("R")

# Pieces of files, and those that are on their way at a time: memory for them, and what one connection alone does not carry.
_PIECE_BYTES, _PIECES = 8 << 20, 8
_MOST_PUTS = 4
_TELL_S = 0.1
# What servers and libraries call the version of a file's content.
_VERSIONS = ("ETag", "etag", "generation", "md5Hash", "LastModified", "Last-Modified", "last_modified", "updated")
_HTTP_RETRIED = (408, 425, 429)
_CREDENTIALS = "credentials are fsspec's: for S3 AWS_ACCESS_KEY_ID, AWS_PROFILE or a role, for gs:// GOOGLE_APPLICATION_CREDENTIALS"
PART = ".part"


class _Refused(Exception):
    """A task that cannot be done.

    Attributes:
        error: Why, and what to do.
        unreachable: Whether it is the network that is to blame.
    """

    def __init__(self, message: str, hint: str | None, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.error, self.unreachable = DatasetError(message, hint), unreachable


class TransferLoop:
    """Obeys; see ``gnnkit.cluster.urls`` for the messages.

    Args:
        wire: The connection to the parent.
        watch: The process's watchman.
    """

    def __init__(self, wire: Wire, watch: ParentWatch) -> None:
        self._wire = wire
        self._systems: dict[str, Any] = {}
        self._moved, self._told_s = 0, 0.0
        self._lock = threading.Lock()

    def run(self) -> None:
        """Works until the parent goes away or says stop."""
        with contextlib.suppress(EOFError):
            while (message := self._wire.next()).kind != "stop":
                try:
                    body: dict[str, Any] = {**message.body}
                    if message.fds:
                        body["content"] = from_memory(message.fds.pop())
                    answer = getattr(self, f"_{message.kind}")(**body)
                except _Refused as refused:
                    self._wire.tell("refused", error=error_to_json(refused.error), unreachable=refused.unreachable)
                except Exception as error:  # the parent raises it
                    self._wire.tell("refused", error=error_to_json(error), unreachable=False)
                else:
                    if isinstance(answer, bytes):
                        self._wire.tell("done", [answer])
                    else:
                        self._wire.tell("done", **(answer or {}))

    # The tasks ----------------------------------------------------------------------------------------------------------------

    def _read(self, url: str) -> bytes:
        system, path = self._at(url)
        size = self._insist(url, lambda: system.info(path), "read", PATIENT.contact_attempts).get("size")
        if size is not None and size > MOST_TEXT_BYTES:
            raise _Refused(f"{url} has {size} bytes, and {MOST_TEXT_BYTES} are allowed", "it is no manifest")
        return bytes(self._insist(url, lambda: system.cat_file(path), "read", PATIENT.contact_attempts))

    def _write(self, url: str, content: bytes) -> None:
        system, path = self._at(url)
        self._insist(url, lambda: system.pipe_file(path, content), "write")

    def _find(self, url: str) -> dict[str, Any]:
        system, path = self._at(url)
        try:
            found = self._insist(url, lambda: _found(system, path), "read", PATIENT.contact_attempts)
        except _Refused as refused:
            if isinstance(refused.__cause__, FileNotFoundError):
                return {"files": []}
            raise
        files = []
        for name, info in sorted(found.items()):
            if info.get("type") == "directory":
                continue
            if info.get("size") is None:
                raise _Refused(f"{name}: the server does not say how long it is", "download the file and give its path")
            files.append({"url": str(system.unstrip_protocol(name)), "size": int(info["size"]), "version": _version(info)})
        return {"files": files}

    def _remove(self, urls: list[str]) -> None:
        for url in urls:
            system, path = self._at(url)
            with contextlib.suppress(FileNotFoundError):
                self._insist(url, lambda system=system, path=path: _rm(system, path), "write")  # type: ignore[misc]

    def _get(self, files: list[dict[str, Any]]) -> None:
        self._moved = 0
        self._fetch(self._fetch(files))
        for file in files:
            if file["version"] and file["crc32"] is None:
                system, path = self._at(file["url"])
                system.invalidate_cache()
                now = _version(self._insist(file["url"], lambda system=system, path=path: system.info(path), "read"))  # type: ignore[misc]
                if now != file["version"]:
                    Path(file["path"]).unlink(missing_ok=True)
                    raise _Refused(f"{file['url']} was replaced while it was fetched", "call it again")
        self._tell_moved(0, at_once=True)

    def _put(self, files: list[dict[str, Any]]) -> None:
        self._moved = 0
        pool = ThreadPoolExecutor(_MOST_PUTS, "gnnkit-put")
        try:
            for outcome in [pool.submit(self._put_one, file) for file in files]:
                outcome.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self._tell_moved(0, at_once=True)

    def _put_one(self, file: Mapping[str, Any]) -> None:
        path, url = Path(file["path"]), file["url"]
        try:
            crc = file_crc32(path)
        except OSError as error:
            raise _Refused(f"{path} cannot be read: {error.strerror or error}", None) from error
        if crc != file["crc32"]:
            raise _Refused(f"{path} was changed: its CRC-32 is {crc:08x}, the manifest says {file['crc32']:08x}", "build the store again")
        system, target = self._at(url)
        self._insist(url, lambda: system.put_file(str(path), target, callback=_Count(self._tell_moved)), "write")

    # Fetching ----------------------------------------------------------------------------------------------------------------

    def _fetch(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Fetches files; those that were begun by an earlier call and turn out to be of something else are handed back to be begun anew."""
        again: list[dict[str, Any]] = []
        on_the_way: deque[tuple[_Incoming, int, Future[bytes]]] = deque()

        def take() -> None:
            incoming, end, outcome = on_the_way.popleft()
            data = outcome.result()
            self._tell_moved(len(data))
            if not incoming.take(data, is_last=end == incoming.file["size"]):
                self._tell_moved(-incoming.file["size"])
                again.append(incoming.file)

        pool = ThreadPoolExecutor(_PIECES, "gnnkit-get")
        try:
            for file in files:
                incoming = _Incoming(file)
                self._tell_moved(incoming.have)
                for start, end in incoming.ranges():
                    on_the_way.append((incoming, end, pool.submit(self._piece, file["url"], start, end)))
                    if len(on_the_way) >= _PIECES:
                        take()
            while on_the_way:
                take()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return again

    def _piece(self, url: str, start: int, end: int) -> bytes:
        if start == end:
            return b""
        system, path = self._at(url)

        def read() -> bytes:
            data = bytes(system.cat_file(path, start=start, end=end))
            if len(data) > end - start:
                raise _Refused(f"{url}: the server answers with the whole file when it is asked for a part", "use one that knows ranges")
            if len(data) < end - start:
                raise OSError(f"{len(data)} bytes came where {end - start} were asked for")
            return data

        return self._insist(url, read, "read")

    # Asking ---------------------------------------------------------------------------------------------------------------------

    def _at(self, url: str) -> tuple[Any, str]:
        """The file system of a URL, and the path there."""
        with self._lock:
            scheme = url.partition("://")[0]
            try:
                if scheme not in self._systems:
                    self._systems[scheme] = fsspec.core.url_to_fs(url)[0]
                system = self._systems[scheme]
            except (ImportError, ValueError) as error:
                hint = f"pip install {' '.join(packages_for(url))}; gnnkit[url] brings what s3:// and gs:// need"
                raise _Refused(f"{url} cannot be opened: {_words(error)}", hint) from error
            return system, system._strip_protocol(url)

    def _insist(self, url: str, work: Callable[[], R], verb: str, attempts: int = PATIENT.attempts) -> R:
        """Does what needs the network, and does it again where that may help.

        Raises:
            _Refused: It did not help.
        """
        contact = Deadline(PATIENT.contact_s)
        for attempt in range(1, attempts + 1):
            try:
                return work()
            except _Refused:
                raise
            except Exception as error:
                cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error
                if (hint := _final_hint(cause)) is not None:
                    raise _Refused(f"cannot {verb} {url}: {_words(cause)}", hint) from cause
                # Libraries try again themselves, for seconds; without a network that is too long to wait.
                late = attempts < PATIENT.attempts and contact.has_passed
                if late or attempt == attempts:
                    text = f"cannot {verb} {url}: {_words(cause)} ({attempt} attempt{'s' if attempt > 1 else ''})"
                    raise _Refused(text, "call it again: what has come is kept", unreachable=True) from cause
            pause(PATIENT.backoff_s * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _tell_moved(self, count: int, *, at_once: bool = False) -> None:
        with self._lock:
            self._moved += count
            now = time.monotonic()
            if at_once or now - self._told_s >= _TELL_S:
                self._told_s = now
                self._wire.send("moved", bytes=self._moved)


class _Incoming:
    """A file that is being fetched: what has come of it is in ``<path>.part``.

    Args:
        file: The file, as the message ``get`` has it.

    Attributes:
        file: See above.
        have: Bytes that an earlier call has left.
    """

    def __init__(self, file: dict[str, Any]) -> None:
        self.file, self._path, self._part = file, Path(file["path"]), Path(file["path"] + PART)
        self.have = self._part.stat().st_size if self._part.exists() else 0
        if self.have > file["size"]:
            self._part.unlink()
            self.have = 0
        self._crc = file_crc32(self._part) if self.have else 0

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yields the first byte of each piece that is yet to come, and the one behind it; at least one piece."""
        size = self.file["size"]
        for start in range(self.have, size, _PIECE_BYTES) or (self.have,):
            yield start, min(start + _PIECE_BYTES, size)

    def take(self, data: bytes, *, is_last: bool) -> bool:
        """Writes the next piece; after the last one the file goes to its place.

        Returns:
            False where an earlier call's pieces and these are of different files: what came is removed, and is to be fetched anew.

        Raises:
            _Refused: The file is another one than expected, or cannot be written.
        """
        self._crc = zlib.crc32(data, self._crc)
        try:
            with self._part.open("ab") as out:
                out.write(data)
                out.flush()
                if is_last:
                    os.fsync(out.fileno())
            if not is_last:
                return True
            if (wanted := self.file["crc32"]) is not None and self._crc != wanted:
                self._part.unlink()
                if self.have:
                    return False
                text = f"{self.file['url']}: its CRC-32 is {self._crc:08x}, the manifest says {wanted:08x}"
                raise _Refused(text, "the owner of the store has to put it again: gnnkit push --overwrite")
            self._part.rename(self._path)
            return True
        except OSError as error:
            text = f"{self.file['url']} cannot be written to {self._path}: {why_unwritable(error, self._path)}"
            raise _Refused(text, "free some space, or set GNNKIT_HOME to a folder on another disk") from error


class _Count(Callback):  # type: ignore[misc]
    """Hands on how many bytes were put."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        super().__init__()
        self._tell = tell

    def relative_update(self, inc: int = 1) -> None:
        """Called by fsspec."""
        self._tell(inc)


def _found(system: Any, path: str) -> dict[str, dict[str, Any]]:
    """Files by their paths: those of a glob, of a folder, or one."""
    system.invalidate_cache()
    if any(sign in path for sign in "*?["):
        return dict(system.glob(path, detail=True))
    if "http" in system.protocol:  # folders there are pages of links
        return {path: system.info(path)}
    return dict(system.find(path, detail=True))


def _version(info: Mapping[str, Any]) -> str:
    return next((str(info[word]) for word in _VERSIONS if info.get(word)), "")


def _rm(system: Any, path: str) -> None:
    if system.exists(path):
        system.rm_file(path)


def _final_hint(error: BaseException) -> str | None:
    """Returns the hint for an error that comes again however often one tries; None for one that may not."""
    status = getattr(error, "status", None)  # aiohttp's
    if isinstance(answer := getattr(error, "response", None), dict):  # botocore's
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return "is the URL right, and has everything been pushed?"
    if isinstance(error, PermissionError) or status in (401, 403) or "redential" in type(error).__name__:
        return _CREDENTIALS
    if isinstance(status, int) and 400 <= status < 500 and status not in _HTTP_RETRIED:
        return "is the URL right?"
    if isinstance(error, (GnnkitError, ImportError, NotImplementedError, TypeError, ValueError)):
        return "is the URL right? fsspec's documentation says what its scheme needs"
    return None


def _words(error: BaseException) -> str:
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
