"""A web server for tests that serves bytes from memory, and can be told to misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """What the server does; change it while it runs.

    Attributes:
        url: Its address.
        files: ``{path: content}``.
        etag: The entity tag it sends, or "" for none.
        last_modified: The date it sends, or "" for none.
        ranges: Whether it honours ``Range``.
        cuts: For each of the next requests, the bytes after which it breaks off; then it behaves.
        statuses: For each of the next requests, a status to answer with instead; then it behaves.
        announced: Content-Length to announce instead of the right one.
        silent: Whether it accepts requests and never answers.
        stall_after: Bytes after which it sends nothing more and keeps the connection, for the next request only.
        pause_s: Seconds that pass after the first half of a body.
        hold_from: ``{path: position}``: requests for bytes from there on are not answered before ``release``.
        requests: The ``Range`` header of each request so far, or None.
        asked: The path of each.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    etag: str = '"one"'
    last_modified: str = ""
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    announced: int | None = None
    silent: bool = False
    stall_after: int | None = None
    pause_s: float = 0.0
    requests: list[str | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    hold_from: dict[str, int] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Lets go of the requests that ``hold_from`` holds, and holds no more."""
        self.hold_from, held = {}, self.released
        self.released = threading.Event()
        held.set()


@contextmanager
def file_server() -> Iterator[FileServer]:
    """Runs a server on a free port of the loopback interface."""
    state = FileServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(self, state)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # A client that went away is what the tests are about.
        handle_error = lambda self, request, client_address: None  # type: ignore[assignment]  # noqa: E731

    server = Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(handler: BaseHTTPRequestHandler, state: FileServer) -> None:
    handler.close_connection = True
    asked = handler.headers.get("Range")
    state.requests.append(asked)
    state.asked.append(handler.path)
    if state.silent:
        state.released.wait()
        return
    if state.statuses:
        _head(handler, state.statuses.pop(0), {"Content-Length": "0"})
        return
    content = state.files.get(handler.path)
    if content is None:
        _head(handler, 404, {"Content-Length": "0"})
        return
    validator = state.etag or state.last_modified
    start, end = 0, len(content)
    if asked and state.ranges and handler.headers.get("If-Range", validator) == validator:
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1, len(content)) if last else len(content)
        if start >= len(content):
            _head(handler, 416, {"Content-Length": "0", "Content-Range": f"bytes */{len(content)}"})
            return
    is_part = (start, end) != (0, len(content))
    headers = {"Content-Length": str((state.announced or end) - start), "ETag": state.etag, "Last-Modified": state.last_modified}
    if is_part:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
    if start >= state.hold_from.get(handler.path, len(content) + 1):
        state.released.wait()
    _head(handler, 206 if is_part else 200, {name: value for name, value in headers.items() if value})
    if handler.command != "HEAD":
        _send(handler, content[start:end], state)


def _send(handler: BaseHTTPRequestHandler, body: bytes, state: FileServer) -> None:
    if state.cuts:
        body = body[: state.cuts.pop(0)]
    if state.stall_after is not None:
        handler.wfile.write(body[: state.stall_after])
        handler.wfile.flush()
        state.stall_after = None
        state.released.wait()
        return
    if state.pause_s:
        handler.wfile.write(body[: len(body) // 2])
        handler.wfile.flush()
        state.released.wait(state.pause_s)
        body = body[len(body) // 2 :]
    handler.wfile.write(body)


def _head(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
