"""Downloading over HTTP, resumed after a cut and never waiting without end, and unpacking what came."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from gnnkit.datasets.streaming import read_ahead
from gnnkit.errors import DatasetError
from gnnkit.events import Stage
from gnnkit.files import read_json
from gnnkit.units import format_bytes, format_duration, format_rate
from gnnkit.waiting import Deadline, begin_apart, is_done

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")

# Pieces of a body that may have come and not been taken yet, of 64 KiB at most.
_MOST_PIECES = 16


def pause(seconds: float) -> None:
    """Lets time pass."""
    is_done(Future[None](), seconds)


def within(seconds: float, work: Callable[[], R]) -> R:
    """Does ``work`` in a thread and leaves it there if it takes too long: name resolution, for one, knows no time-out.

    Raises:
        TimeoutError: It took longer than ``seconds``.
    """
    outcome = begin_apart(work, "gnnkit-contact", daemon=True)
    if not is_done(outcome, seconds):
        raise TimeoutError
    return outcome.result()


def _shut_down(response: httpx.Response) -> None:
    """Ends what the reader waits for. Closing would not: who reads from a descriptor that is closed goes on waiting."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if isinstance(connection, socket.socket):
        with contextlib.suppress(OSError):  # it has ended already
            connection.shutdown(socket.SHUT_RDWR)


def free_disk(folder: Path) -> int:
    """Bytes that may be written into ``folder``, or into the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def require_disk(folder: Path, needs: dict[str, int], what: str) -> None:
    """Refuses to begin what would fill the disk.

    Args:
        folder: Where it would be written.
        needs: Bytes, by what they are for.
        what: What would be written, for the error's text.

    Raises:
        DatasetError: There is less space than all needs together.
    """
    free, total = free_disk(folder), sum(needs.values())
    if free < total:
        parts = ", ".join(f"{format_bytes(count)} {name}" for name, count in needs.items())
        raise DatasetError(
            f"{what} needs {format_bytes(total)} of disk in {folder} ({parts}), where {format_bytes(free)} are free",
            f"free {format_bytes(total - free)}, or pass root= with a folder on a larger disk",
        )


_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_RETRIED_STATUS = (408, 425, 429, 500, 502, 503, 504)
_ETA_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The time-outs and the number of attempts of a download.

    Attributes:
        contact_s: For the first answer of the server, all attempts together; without a network the error comes after this.
        stall_s: For the next bytes of a running download, and for the answer when it is resumed.
        attempts: Cuts in a row, without a byte in between, after which it is given up.
        contact_attempts: The same before the server's first answer.
        backoff_s: Pause after the first of these; doubled each time.
        lock_s: How long another process that gets the same dataset may hold the lock without a byte coming or being unpacked.
    """

    contact_s: float = 8.0
    stall_s: float = 30.0
    attempts: int = 6
    contact_attempts: int = 4
    backoff_s: float = 0.5
    lock_s: float = 300.0


PATIENT = RetryPolicy()


class _Cut(Exception):
    """The transfer broke off in a way that may go away by itself."""


def download(
    url: str, part: Path, *, stage: Stage, on_size: Callable[[int | None, int], None], hint: str, patience: RetryPolicy = PATIENT
) -> None:
    """Downloads ``url`` into ``part``, going on from what an earlier call left there.

    Beside ``part`` lies ``<part>.json``, which says what the bytes belong to; the server is asked by ``If-Range`` whether
    that is still what it has, and the download starts anew if not.

    Args:
        url: Where from.
        part: The file; its folder must exist.
        stage: Progress in bytes.
        on_size: Called once with the size (None where the server does not say) and the bytes that are there already, before
            anything is written; may raise to refuse.
        hint: What the reader can do by hand; becomes every error's hint.
        patience: How long to wait.

    Raises:
        DatasetError: The server cannot be reached, refuses, or keeps breaking off. What has come stays for the next call.
    """
    _Download(url, part, stage, on_size, hint, patience).run()


class _Download:
    def __init__(
        self, url: str, part: Path, stage: Stage, on_size: Callable[[int | None, int], None], hint: str, patience: RetryPolicy
    ) -> None:
        self._url, self._part, self._stage, self._on_size = url, part, stage, on_size
        self._hint, self._patience = hint, patience
        self._state_path = part.with_name(f"{part.name}.json")
        self._answered = False
        self._contact = Deadline(patience.contact_s)
        self._eta_shown = False

    def run(self) -> None:
        import httpx  # heavy

        have = self._have()
        if have and self._recall().get("size") == have:
            # An earlier call got all of it and ended before it could be used.
            self._stage.update(have, have)
            return
        timeout = httpx.Timeout(self._patience.stall_s, connect=self._patience.contact_s)
        cuts = 0
        try:
            client = httpx.Client(follow_redirects=True, timeout=timeout)
        except (ImportError, ValueError, httpx.InvalidURL) as error:  # it reads the environment's proxies
            variables = [name for name in os.environ if name.lower() in _PROXIES and os.environ[name]]
            raise DatasetError(
                f"cannot download {self._url}: the proxy of {' and '.join(variables)} cannot be used: {error}",
                "write it like http://host:port, or unset it; NO_PROXY names hosts that are reached without one; "
                "pip install 'httpx[socks]' brings SOCKS",
            ) from error
        with client:
            while True:
                before = self._have()
                try:
                    self._attempt(client)
                    return
                except _Cut as cut:
                    cuts = 1 if self._have() > before else cuts + 1
                    gap_s = self._patience.backoff_s * 2 ** min(cuts - 1, 6)
                    attempts = self._patience.attempts if self._answered else self._patience.contact_attempts
                    late = not self._answered and self._contact.left_s < gap_s
                    if late or cuts >= attempts:
                        raise self._error(f"cannot download {self._url}: {cut}") from cut.__cause__
                    pause(gap_s)

    def _attempt(self, client: httpx.Client) -> None:
        import httpx  # heavy

        request = client.build_request("GET", self._url, headers=self._headers())
        wait = self._patience.stall_s if self._answered else max(0.1, self._contact.left_s)
        try:
            response = within(wait, lambda: client.send(request, stream=True))
        except (TimeoutError, httpx.TimeoutException) as error:  # whichever of the two limits is met first
            raise _Cut(f"no answer within {wait:.0f} s") from error
        except httpx.TransportError as error:
            raise _Cut(str(error) or type(error).__name__) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._error(f"cannot download {self._url}: {error}") from error
        try:
            self._receive(response)
        finally:
            response.close()

    def _receive(self, response: httpx.Response) -> None:
        import httpx  # heavy

        status = response.status_code
        if status in _RETRIED_STATUS:
            raise _Cut(f"the server answered {status} {response.reason_phrase}")
        have = self._have()
        if status == 416:
            # Asked to go on behind the end: what is there is not a part of what the server has.
            discard(self._part)
            raise _Cut("the server has another file than the one that was begun")
        if status not in (200, 206):
            raise self._error(f"{self._url}: the server answered {status} {response.reason_phrase}")
        start = have if status == 206 else 0
        total = _total(response, start)
        if status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            discard(self._part)
            raise _Cut("the server sent another part of the file than the one it was asked for")
        if not self._answered:
            self._answered = True
            self._on_size(total, start)
        self._remember(response.headers, total)
        self._stage.update(start, total)
        # In the pieces in which it comes: a chunk that is waited for would be lost in a cut. Closing it ends the thread that reads.
        pieces = read_ahead(response.iter_raw(), depth=_MOST_PIECES, unblock=lambda: _shut_down(response))
        try:
            with closing(pieces), self._part.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.truncate()
                for data in pieces:
                    file.write(data)
                    self._stage.advance(len(data))
                    self._show_eta(start)
        except httpx.TimeoutException as error:
            raise _Cut(f"nothing came for {self._patience.stall_s:.0f} s") from error
        except httpx.TransportError as error:
            raise _Cut(str(error) or type(error).__name__) from error
        except OSError as error:
            raise self._error(f"cannot write {self._part}: {error.strerror or error}") from error
        if total is not None and self._have() != total:
            have = self._have()
            if have > total:
                discard(self._part)
            raise _Cut(f"{have} bytes came where the server announced {total}")

    def _show_eta(self, start: int) -> None:
        elapsed = self._contact.elapsed_s
        if self._eta_shown or self._stage.total is None or elapsed < _ETA_AFTER_S:
            return
        self._eta_shown = True
        rate = max(1.0, (self._stage.done - start) / elapsed)
        left = self._stage.total - self._stage.done
        self._stage.message(f"{format_rate(rate, 'B')}, about {format_duration(max(1, math.ceil(left / rate)))} left")

    def _have(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _headers(self) -> dict[str, str]:
        # An encoding of the server's own would make byte positions meaningless.
        headers = {"Accept-Encoding": "identity"}
        state = self._recall()
        have = self._have()
        validator = state.get("etag") or state.get("last_modified")
        if have and validator and (state.get("size") is None or have <= state["size"]):
            headers |= {"Range": f"bytes={have}-", "If-Range": validator}
        return headers

    def _recall(self) -> dict[str, Any]:
        try:
            state = read_json(self._state_path)
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) and state.get("url") == self._url else {}

    def _remember(self, headers: Mapping[str, str], total: int | None) -> None:
        etag = headers.get("ETag", "")
        # A weak tag promises the same meaning, not the same bytes.
        etag = "" if etag.startswith("W/") else etag
        state = {"url": self._url, "size": total, "etag": etag, "last_modified": headers.get("Last-Modified", "")}
        try:
            self._state_path.write_text(json.dumps(state))
        except OSError as error:
            raise self._error(f"cannot write {self._state_path}: {error.strerror or error}") from error

    def _error(self, message: str) -> DatasetError:
        return DatasetError(message, self._hint)


def discard(part: Path) -> None:
    """Removes what a download left."""
    part.unlink(missing_ok=True)
    part.with_name(f"{part.name}.json").unlink(missing_ok=True)


def _total(response: httpx.Response, start: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() else None


# Datasets are compressed before they are archived: members shrink by a few per cent, not by 50 times.
_MAX_RATIO = 50
_ALWAYS_ALLOWED_BYTES = 100 << 20
_MAX_MEMBERS = 100_000
_CHUNK_BYTES = 1 << 20


class DamagedArchive(DatasetError):
    """The archive itself is to blame: keeping it would be of no use."""


_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)


def unpack(archive: Path, folder: Path, *, stage: Stage) -> None:
    """Unpacks a zip into ``folder``, which must be empty or missing.

    Files are on the disk, not only in its cache, when this returns.

    Args:
        archive: The zip.
        folder: Where to; left half-filled if this raises.
        stage: Progress, in bytes written.

    Raises:
        DamagedArchive: The archive is truncated, corrupt or malicious.
        DatasetError: It does not fit the disk, or the folder cannot be written.
    """
    try:
        with zipfile.ZipFile(archive) as zipped:
            items = zipped.infolist()
            targets = [_target(archive, item) for item in items]
            _check_sizes(archive, items, folder)
            if len(set(targets)) != len(targets):
                raise DamagedArchive(f"{archive} has two members of one name")
            stage.update(0, sum(item.file_size for item in items))
            folder.mkdir(parents=True, exist_ok=True)
            for item, target in zip(items, targets, strict=True):
                _write(zipped, item, folder / target, stage)
    except _DAMAGE as error:
        raise DamagedArchive(f"{archive} is corrupt: {error}") from error
    except OSError as error:
        message = f"cannot unpack {archive} into {folder}: {error.strerror or error}"
        raise DatasetError(message, "is there space, and may you write there?") from error


def _target(archive: Path, item: zipfile.ZipInfo) -> PurePosixPath:
    """The member's path inside the folder."""
    path = PurePosixPath(item.filename)
    mode = item.external_attr >> 16
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in item.filename or ":" in path.parts[0]:
        raise DamagedArchive(f"{archive} would write outside its folder: {item.filename!r}", "do not use this archive")
    if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_IFMT(mode) == 0):
        raise DamagedArchive(f"{archive} holds {item.filename!r}, which is neither a file nor a folder", "do not use this archive")
    return path


def _check_sizes(archive: Path, items: list[zipfile.ZipInfo], folder: Path) -> None:
    unpacked, packed = sum(item.file_size for item in items), archive.stat().st_size
    if len(items) > _MAX_MEMBERS or unpacked > max(_ALWAYS_ALLOWED_BYTES, _MAX_RATIO * packed):
        raise DamagedArchive(f"{archive} would unpack from {packed} bytes to {unpacked} in {len(items)} files", "do not use this archive")
    require_disk(folder, {"unpacked": unpacked}, f"unpacking {archive.name}")


def _write(zipped: zipfile.ZipFile, item: zipfile.ZipInfo, target: Path, stage: Stage) -> None:
    if item.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # The member's checksum is compared when its end is read; it gives no more bytes than the size it declares.
    with zipped.open(item) as source, target.open("xb") as file:
        while data := source.read(_CHUNK_BYTES):
            file.write(data)
            stage.advance(len(data))
        file.flush()
        os.fsync(file.fileno())
