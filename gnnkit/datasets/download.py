"""Downloading one file over HTTP: resumed after a cut, also by a later process, and never waiting without end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.datasets.contact import pause, pieces_of, within
from gnnkit.errors import DatasetError
from gnnkit.events import Stage
from gnnkit.files import read_bounded
from gnnkit.units import format_duration, format_rate

if TYPE_CHECKING:
    import httpx

_RETRIED_STATUS = (408, 425, 429, 500, 502, 503, 504)
_ETA_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a download waits for what.

    Attributes:
        contact_s: For the first answer of the server, all attempts together; without a network the error comes after this.
        stall_s: For the next bytes of a running download, and for the answer when it is resumed.
        attempts: Cuts in a row, without a byte in between, after which it is given up.
        contact_attempts: The same before the server's first answer.
        backoff_s: Pause after the first of these; doubled each time.
    """

    contact_s: float = 8.0
    stall_s: float = 30.0
    attempts: int = 6
    contact_attempts: int = 4
    backoff_s: float = 0.5


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
        self._began = time.monotonic()
        self._eta_shown = False

    def run(self) -> None:
        import httpx

        have = self._have()
        if have and self._recall().get("size") == have:
            # An earlier call got all of it and ended before it could be used.
            self._stage.update(have, have)
            return
        timeout = httpx.Timeout(self._patience.stall_s, connect=self._patience.contact_s)
        cuts = 0
        with httpx.Client(follow_redirects=True, timeout=timeout) as client:
            while True:
                before = self._have()
                try:
                    self._attempt(client)
                    return
                except _Cut as cut:
                    cuts = 1 if self._have() > before else cuts + 1
                    gap_s = self._patience.backoff_s * 2 ** min(cuts - 1, 6)
                    attempts = self._patience.attempts if self._answered else self._patience.contact_attempts
                    late = not self._answered and time.monotonic() + gap_s - self._began > self._patience.contact_s
                    if late or cuts >= attempts:
                        raise self._error(f"cannot download {self._url}: {cut}") from cut.__cause__
                    pause(gap_s)

    def _attempt(self, client: httpx.Client) -> None:
        import httpx

        request = client.build_request("GET", self._url, headers=self._headers())
        wait = self._patience.stall_s if self._answered else max(0.1, self._patience.contact_s - (time.monotonic() - self._began))
        try:
            response = within(wait, lambda: client.send(request, stream=True))
        except TimeoutError as error:
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
        import httpx

        status = response.status_code
        if status in _RETRIED_STATUS:
            raise _Cut(f"the server answered {status} {response.reason_phrase}")
        have = self._have()
        if status == 416:
            # Asked to go on behind the end: what is there is not a part of what the server has.
            self._discard()
            raise _Cut("the server has another file than the one that was begun")
        if status not in (200, 206):
            raise self._error(f"{self._url}: the server answered {status} {response.reason_phrase}")
        start = have if status == 206 else 0
        total = _total(response, start)
        if status == 206 and not _continues(response.headers, start):
            self._discard()
            raise _Cut("the server sent another part of the file than the one it was asked for")
        if not self._answered:
            self._answered = True
            self._on_size(total, start)
        self._remember(response.headers, total)
        self._stage.update(start, total)
        try:
            with closing(pieces_of(response)) as pieces, self._part.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.truncate()
                for data in pieces:
                    file.write(data)
                    self._stage.advance(len(data))
                    self._show_eta(start)
        except httpx.TransportError as error:
            raise _Cut(str(error) or type(error).__name__) from error
        except OSError as error:
            raise self._error(f"cannot write {self._part}: {error.strerror or error}") from error
        if total is not None and self._have() != total:
            have = self._have()
            if have > total:
                self._discard()
            raise _Cut(f"{have} bytes came where the server announced {total}")

    def _show_eta(self, start: int) -> None:
        elapsed = time.monotonic() - self._began
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
            state = json.loads(read_bounded(self._state_path))
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

    def _discard(self) -> None:
        discard(self._part)

    def _error(self, message: str) -> DatasetError:
        return DatasetError(message, self._hint)


def discard(part: Path) -> None:
    """Removes what a download left."""
    part.unlink(missing_ok=True)
    part.with_name(f"{part.name}.json").unlink(missing_ok=True)


def _total(response: httpx.Response, start: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    if not length.isdecimal():
        return None
    return start + int(length)


def _continues(headers: Mapping[str, str], start: int) -> bool:
    return headers.get("Content-Range", "").startswith(f"bytes {start}-")
