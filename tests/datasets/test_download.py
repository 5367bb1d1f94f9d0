"""Downloads: resumed after every kind of cut, refused in time, verified, done once by many processes, and never half there."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit.datasets import download as unzip
from gnnkit.datasets import open_ogb
from gnnkit.datasets.download import RetryPolicy, download
from gnnkit.datasets.ogb import archive_url, fetch, ogb_info
from gnnkit.errors import DatasetError, MemoryLimitError
from gnnkit.events import Stage
from gnnkit.files import give_up_lock, take_lock
from tests.datasets.reading import read_everything
from tests.helpers.http_files import FileServer, file_server
from tests.helpers.interrupted_starts import interrupt_the_start_of
from tests.helpers.machine import in_time
from tests.helpers.ogb_trees import archive, write_tree
from tests.helpers.system import pretend_free_disk, pretend_free_memory
from tests.helpers.waiting import wait_until

HASTY = RetryPolicy(contact_s=1.0, stall_s=0.4, attempts=3, backoff_s=0.01)
ARXIV = "/nodeproppred/arxiv.zip"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    with file_server() as state:
        monkeypatch.setenv("GNNKIT_OGB_URL", state.url)
        monkeypatch.delenv("GNNKIT_OFFLINE", raising=False)
        yield state


@pytest.fixture
def arxiv(tmp_path: Path, server: FileServer) -> bytes:
    """The archive that the server offers."""
    content = archive(write_tree("ogbn-arxiv", tmp_path / "original"), "arxiv")
    server.files[ARXIV] = content
    return content


def left_in(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def get(server: FileServer, part: Path, patience: RetryPolicy = HASTY) -> list[Any]:
    events: list[Any] = []
    with Stage(events.append, "download", unit="B") as stage:
        download(f"{server.url}/file", part, stage=stage, on_size=lambda total, have: None, hint="by hand", patience=patience)
    return events


# ---- the transfer


@pytest.mark.parametrize("validator", ["etag", "date"])
def test_goes_on_after_cuts(validator: str, server: FileServer, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    server.files["/file"] = content
    if validator == "date":
        server.etag, server.last_modified = "", "Wed, 21 Oct 2015 07:28:00 GMT"
    server.cuts = [1_000_000, 1, 500_000]
    events = get(server, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == content
    assert server.requests[0] is None
    starts = [int(re.sub(r"\D", "", request or "0")) for request in server.requests]
    assert starts == sorted(starts)
    assert starts[-1] >= 1_500_000
    assert events[-1].kind == "end"
    assert events[-1].done == events[-1].total == len(content)


def test_goes_on_where_an_earlier_call_stopped(server: FileServer, tmp_path: Path) -> None:
    content = os.urandom(1_000_000)
    server.files["/file"] = content
    server.cuts = [300_000, 0, 0, 0]
    with pytest.raises(DatasetError, match="cannot download") as caught:
        get(server, tmp_path / "part")
    assert caught.value.hint == "by hand"
    assert (tmp_path / "part").stat().st_size == 300_000
    server.cuts = []
    server.requests.clear()
    get(server, tmp_path / "part")
    assert server.requests == ["bytes=300000-"]
    assert (tmp_path / "part").read_bytes() == content
    get(server, tmp_path / "part")
    assert len(server.requests) == 1, "all of it is there: nothing to ask for"


def test_starts_anew_when_the_file_has_changed(server: FileServer, tmp_path: Path) -> None:
    server.files["/file"] = b"old" * 100_000
    server.cuts = [100_000, 0, 0, 0]
    with pytest.raises(DatasetError):
        get(server, tmp_path / "part")
    server.files["/file"], server.etag, server.cuts = b"new" * 50_000, '"two"', []
    get(server, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == b"new" * 50_000


@pytest.mark.parametrize("case", ["no ranges", "weak tag", "no validator", "other address", "damaged notes", "longer than the file"])
def test_starts_anew_when_it_cannot_be_known_to_be_the_same_file(case: str, server: FileServer, tmp_path: Path) -> None:
    content = os.urandom(200_000)
    server.files["/file"] = content
    if case == "weak tag":
        server.etag = 'W/"one"'
    if case == "no validator":
        server.etag = ""
    server.cuts = [100_000, 0, 0, 0]
    with pytest.raises(DatasetError):
        get(server, tmp_path / "part")
    server.cuts = []
    notes = tmp_path / "part.json"
    if case == "no ranges":
        server.ranges = False
    elif case == "other address":
        notes.write_text(json.dumps({**json.loads(notes.read_text()), "url": "http://elsewhere/file"}))
    elif case == "damaged notes":
        notes.write_text("{")
    elif case == "longer than the file":
        (tmp_path / "part").write_bytes(b"x" * 200_001)
    get(server, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == content


def test_a_server_that_shrank_the_file_to_what_is_there_is_not_believed(server: FileServer, tmp_path: Path) -> None:
    content = os.urandom(100_000)
    (tmp_path / "part").write_bytes(content + b"more")
    (tmp_path / "part.json").write_text(json.dumps({"url": f"{server.url}/file", "size": None, "etag": '"one"'}))
    server.files["/file"] = content
    get(server, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == content
    assert server.requests == ["bytes=100004-", None]


def test_a_stalled_server_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    content = os.urandom(500_000)
    server.files["/file"], server.stall_after = content, 200_000
    get(server, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == content
    assert server.requests[1] == "bytes=200000-"


def test_passing_trouble_of_the_server_is_waited_out(server: FileServer, tmp_path: Path) -> None:
    server.files["/file"], server.statuses = b"content", [503, 429]
    get(server, tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == b"content"


@pytest.mark.parametrize("announced", [10, 90_000])
def test_a_wrong_length_is_an_error(announced: int, server: FileServer, tmp_path: Path) -> None:
    server.files["/file"], server.announced, server.ranges = b"x" * 50_000, announced, False
    if announced < 50_000:
        # HTTP ends a body at its announced length: too short a file, which its own checksums must catch.
        get(server, tmp_path / "part")
        assert (tmp_path / "part").stat().st_size == announced
        return
    with pytest.raises(DatasetError, match="cannot download"):
        get(server, tmp_path / "part")


def test_404_is_not_tried_again(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="the server answered 404"):
        get(server, tmp_path / "part")
    assert len(server.requests) == 1


def test_a_silent_server_is_given_up_in_time(server: FileServer, tmp_path: Path) -> None:
    server.files["/file"], server.silent = b"", True
    began = time.monotonic()
    with pytest.raises(DatasetError, match="no answer within"):
        get(server, tmp_path / "part")
    assert in_time(time.monotonic() - began, 3)


# In a process of its own: an interrupt that comes where it is not expected would end the tests.
INTERRUPTED = """
import _thread, sys, threading, time
from pathlib import Path

from gnnkit.datasets.download import RetryPolicy, download
from gnnkit.events import Stage
from tests.helpers.http_files import file_server
from tests.helpers.waiting import wait_until

waits_for, part = sys.argv[1:]
with file_server() as server:
    server.files["/file"] = bytes(500_000)
    server.silent = waits_for == "an answer"
    server.stall_after = 200_000 if waits_for == "bytes" else None
    server.statuses = [503] * 9 if waits_for == "the next attempt" else []
    times = []

    def interrupt():
        wait_until(lambda: server.requests)
        times.append(time.monotonic())
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    words = {"on_size": lambda total, have: None, "hint": "", "patience": RetryPolicy(contact_s=300, stall_s=300, backoff_s=200)}
    try:
        with Stage([].append, "download", unit="B") as stage:
            download(server.url + "/file", Path(part), stage=stage, **words)
    except KeyboardInterrupt:
        print(time.monotonic() - times[0])
    assert wait_until(lambda: not any(thread.name == "gnnkit-feed" for thread in threading.enumerate()))
"""


@pytest.mark.parametrize("waits_for", ["an answer", "bytes", "the next attempt"])
def test_an_interrupt_that_does_not_end_a_wait_is_noticed(waits_for: str, tmp_path: Path) -> None:
    """One that comes just before a wait begins does not end it; ``interrupt_main`` sets what such a signal leaves behind."""
    words = [sys.executable, "-c", INTERRUPTED, waits_for, str(tmp_path / "part")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.stdout and not done.stderr, done.stderr
    assert in_time(float(done.stdout), 3)


def test_an_interrupt_while_reading_begins_leaves_no_reader(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["/file"], server.stall_after = bytes(500_000), 200_000
    interrupt_the_start_of("gnnkit-feed", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        get(server, tmp_path / "part", RetryPolicy(contact_s=300, stall_s=300))
    assert wait_until(lambda: not any(thread.name == "gnnkit-feed" for thread in threading.enumerate()))


# ---- the data set


def test_downloads_verifies_unpacks_and_tidies_up(server: FileServer, arxiv: bytes, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    events: list[Any] = []
    source = open_ogb("ogbn-arxiv", root=root, events=events.append)
    original = open_ogb("ogbn-arxiv", root=tmp_path / "original", download=False)
    for key, values in read_everything(original).items():
        np.testing.assert_array_equal(read_everything(source)[key], values)
    assert source.fingerprint() == original.fingerprint()
    assert left_in(root) == {"ogbn_arxiv"}
    announcement = next(event.text for event in events if event.kind == "message")
    for part in ("ogbn-arxiv", server.url, str(root / "ogbn_arxiv"), "of disk needed", "free"):
        assert part in announcement
    ends = [event for event in events if event.kind == "end" and event.unit == "B"]
    assert [event.stage for event in ends] == ["download", "download"]
    assert ends[0].done == ends[0].total == len(arxiv)
    read_everything(open_ogb("ogbn-arxiv", root=root))
    assert len(server.requests) == 1


def test_time_left_is_told(server: FileServer, arxiv: bytes, tmp_path: Path) -> None:
    server.pause_s = 1.1
    events: list[Any] = []
    open_ogb("ogbn-arxiv", root=tmp_path / "root", events=events.append)
    assert sum(bool(re.search(r"/s, about \d+ s left", event.text)) for event in events) == 1


@pytest.mark.parametrize("why", ["download=False", "GNNKIT_OFFLINE is set"])
def test_nothing_is_downloaded_when_it_may_not_be(
    why: str, server: FileServer, arxiv: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "OFFLINE" in why:
        monkeypatch.setenv("GNNKIT_OFFLINE", "1")
    with pytest.raises(DatasetError, match=re.escape(why)) as caught:
        open_ogb("ogbn-arxiv", root=tmp_path / "root", download="OFFLINE" in why)
    assert f"{server.url}{ARXIV}" in str(caught.value.hint)
    assert str(tmp_path / "root" / "ogbn_arxiv") in str(caught.value.hint)
    assert not server.requests
    assert not (tmp_path / "root").exists()


def test_downloads_of_more_than_2_gb_want_to_be_asked_for(
    server: FileServer, arxiv: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_free_disk(monkeypatch, 1 << 30)  # for less than that: what may be downloaded is refused for another reason
    server.announced = 2_000_000_001
    with pytest.raises(DatasetError, match="ogbn-arxiv is a download of") as caught:
        open_ogb("ogbn-arxiv", root=tmp_path / "root")
    assert f"GraphLoader.from_ogb('ogbn-arxiv', root='{tmp_path / 'root'}', download=True" in str(caught.value.hint)
    assert left_in(tmp_path / "root") == set()
    with pytest.raises(DatasetError, match="of disk"):
        open_ogb("ogbn-arxiv", root=tmp_path / "root", download=True)
    server.announced = 2_000_000_000
    with pytest.raises(DatasetError, match="of disk"):
        open_ogb("ogbn-arxiv", root=tmp_path / "root")
    server.announced = None
    read_everything(open_ogb("ogbn-arxiv", root=tmp_path / "root"))


@pytest.mark.slow
def test_without_a_network_the_error_comes_in_time_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with file_server() as gone:
        monkeypatch.setenv("GNNKIT_OGB_URL", gone.url)
    began = time.monotonic()
    with pytest.raises(DatasetError, match="cannot download") as caught:
        open_ogb("ogbn-arxiv", root=tmp_path / "root")
    assert in_time(time.monotonic() - began, 10)
    assert f"{gone.url}{ARXIV}" in str(caught.value.hint)
    assert str(tmp_path / "root" / "arxiv.zip") in str(caught.value.hint)


def test_name_resolution_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def never(*args: object, **kwargs: object) -> None:
        let_go.wait()
        raise OSError("gone")

    monkeypatch.setattr("socket.getaddrinfo", never)
    monkeypatch.setenv("GNNKIT_OGB_URL", "http://mirror.invalid")
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    began = time.monotonic()
    try:
        with pytest.raises(DatasetError, match="no answer within"):
            fetch(ogb_info("ogbn-arxiv"), tmp_path, True, patience=HASTY)
        assert in_time(time.monotonic() - began, 3)
    finally:
        let_go.set()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"<html>Sorry, we are down for maintenance</html>", "not a zip file"),
        ("cut", "not a zip file"),
        ("flipped", "Bad CRC-32|corrupt|invalid"),
        ("other", r"does not hold arxiv/raw; it holds \['something'\]"),
        (b"PK\x05\x06" + bytes(18), r"does not hold arxiv/raw; it holds \[\]"),
    ],
)
def test_an_archive_that_cannot_be_used_is_thrown_away(
    content: bytes | str, expected: str, server: FileServer, arxiv: bytes, tmp_path: Path
) -> None:
    if content == "cut":
        content = arxiv[: len(arxiv) // 2]
    elif content == "flipped":
        damaged = bytearray(arxiv)
        damaged[len(arxiv) // 2] ^= 1
        content = bytes(damaged)
    elif content == "other":
        content = archive(tmp_path / "original" / "ogbn_arxiv" / "split", "something")
    assert isinstance(content, bytes)
    server.files[ARXIV] = content
    with pytest.raises(DatasetError, match=expected) as caught:
        open_ogb("ogbn-arxiv", root=tmp_path / "root")
    assert f"{server.url}{ARXIV}" in str(caught.value)
    assert left_in(tmp_path / "root") == set()
    server.files[ARXIV], server.etag = arxiv, '"two"'
    read_everything(open_ogb("ogbn-arxiv", root=tmp_path / "root"))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
        ("http_proxy", "http://proxy:port"),
        ("ALL_PROXY", "gopher://127.0.0.1:9"),
        ("HTTPS_PROXY", "socks4://127.0.0.1:9"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(
    variable: str, value: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, value)
    with pytest.raises(DatasetError, match=variable) as caught:
        fetch(ogb_info("ogbn-arxiv"), tmp_path, True, patience=HASTY)
    assert caught.value.hint and "unset it" in caught.value.hint


def test_an_archive_fetched_by_hand_is_used_and_kept(server: FileServer, arxiv: bytes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "arxiv.zip").write_bytes(arxiv)
    read_everything(open_ogb("ogbn-arxiv", root=root, download=False))
    assert not server.requests
    assert left_in(root) == {"ogbn_arxiv", "arxiv.zip"}
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "arxiv.zip").write_bytes(arxiv[:1000])
    with pytest.raises(DatasetError, match=r"arxiv.zip is corrupt"):
        open_ogb("ogbn-arxiv", root=tmp_path / "bad", download=False)
    assert left_in(tmp_path / "bad") == {"arxiv.zip"}


def test_a_full_disk_is_noticed_before_it_is_full(
    server: FileServer, arxiv: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_free_disk(monkeypatch, 2 * len(arxiv))
    with pytest.raises(DatasetError, match=r"ogbn-arxiv needs .* of disk in .*to download.*unpacked.*for its store.*free"):
        open_ogb("ogbn-arxiv", root=tmp_path / "root")
    assert left_in(tmp_path / "root") == set()


def test_a_disk_that_takes_no_more_while_unpacking_keeps_the_download(server: FileServer, tmp_path: Path) -> None:
    tree = write_tree("ogbn-arxiv", tmp_path / "original")
    (tree / "raw" / "padding").write_bytes(bytes(4_000_000))
    server.files[ARXIV] = archive(tree, "arxiv")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(server.files[ARXIV]) + 1_000_000, before[1]))
    try:
        with pytest.raises(DatasetError, match="File too large"):
            open_ogb("ogbn-arxiv", root=tmp_path / "root")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left_in(tmp_path / "root") == {".ogbn_arxiv.zip.part", ".ogbn_arxiv.zip.part.json"}
    read_everything(open_ogb("ogbn-arxiv", root=tmp_path / "root"))
    assert len(server.requests) == 1
    assert left_in(tmp_path / "root") == {"ogbn_arxiv"}


def test_too_little_memory_is_noticed_before_the_download(
    server: FileServer, arxiv: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_free_memory(monkeypatch, 1 << 20)
    with pytest.raises(MemoryLimitError, match="reading ogbn-arxiv needs"):
        open_ogb("ogbn-arxiv", root=tmp_path / "root")
    assert not server.requests


def test_a_root_that_cannot_be_made_is_an_error_with_a_hint(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match="cannot make the folder") as caught:
        open_ogb("ogbn-arxiv", root=tmp_path / "file" / "root")
    assert "root=" in str(caught.value.hint)


def test_an_empty_folder_of_the_right_name_is_no_obstacle(server: FileServer, arxiv: bytes, tmp_path: Path) -> None:
    (tmp_path / "root" / "ogbn_arxiv").mkdir(parents=True)
    read_everything(open_ogb("ogbn-arxiv", root=tmp_path / "root"))


def test_the_mirror_stands_for_ogbs_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GNNKIT_OGB_URL", raising=False)
    info = ogb_info("ogbn-products")
    assert archive_url(info) == info.url == "http://snap.stanford.edu/ogb/data/nodeproppred/products.zip"
    monkeypatch.setenv("GNNKIT_OGB_URL", "https://mirror.example/data/")
    assert archive_url(info) == "https://mirror.example/data/nodeproppred/products.zip"
    monkeypatch.setenv("GNNKIT_OGB_URL", "/srv/ogb")
    with pytest.raises(DatasetError, match="no http:// or https:// address"):
        archive_url(info)


# ---- several processes


_OPEN = "import sys; from gnnkit.datasets.ogb import open_ogb; print(open_ogb('ogbn-arxiv', root=sys.argv[1]).fingerprint())"


def _start(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _OPEN, str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.slow
def test_many_processes_download_once(server: FileServer, arxiv: bytes, tmp_path: Path) -> None:
    processes = [_start(tmp_path / "root") for _ in range(3)]
    answers = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 1
    assert len(server.requests) == 1


def test_a_killed_download_is_taken_over(server: FileServer, arxiv: bytes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    server.stall_after = len(arxiv) // 2
    first = _start(root)
    part = root / ".ogbn_arxiv.zip.part"
    deadline = time.monotonic() + 120
    # What the child has written comes out when it closes the file; that it began is enough here.
    while not part.exists() and time.monotonic() < deadline:
        assert first.poll() is None
        time.sleep(0.02)
    events: list[Any] = []
    waiting = threading.Event()

    def watch(event: Any) -> None:
        events.append(event)
        if event.text.startswith("waiting for another process"):
            waiting.set()
            first.send_signal(signal.SIGKILL)

    source = open_ogb("ogbn-arxiv", root=root, events=watch)
    first.communicate(timeout=240)
    assert waiting.is_set()
    assert first.returncode == -signal.SIGKILL
    read_everything(source)
    assert left_in(root) == {"ogbn_arxiv"}


def test_leftovers_of_a_killed_unpacking_are_cleared(server: FileServer, arxiv: bytes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / ".ogbn_arxiv.incomplete/arxiv/raw").mkdir(parents=True)
    (root / ".ogbn_arxiv.incomplete/arxiv/raw/edge.csv.gz").write_bytes(b"half")
    read_everything(open_ogb("ogbn-arxiv", root=root))
    assert left_in(root) == {"ogbn_arxiv"}


def test_a_process_that_holds_the_lock_and_does_nothing_is_not_waited_for_without_end(
    server: FileServer, arxiv: bytes, tmp_path: Path
) -> None:
    held = take_lock(lock := tmp_path / ".ogbn_arxiv.lock")
    assert held is not None
    with pytest.raises(DatasetError, match="has not got on with ogbn-arxiv"):
        fetch(ogb_info("ogbn-arxiv"), tmp_path, True, patience=replace(HASTY, lock_s=0.5))
    give_up_lock(lock, held)
    assert not lock.exists()


# ---- unpacking


def _zip(*members: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for item, content in members:
            zipped.writestr(item, content)
    return buffer.getvalue()


def _link() -> zipfile.ZipInfo:
    item = zipfile.ZipInfo("arxiv/raw/link")
    item.create_system = 3
    item.external_attr = (stat.S_IFLNK | 0o777) << 16
    return item


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (_zip(("../outside", b"x")), "outside its folder"),
        (_zip(("/etc/outside", b"x")), "outside its folder"),
        (_zip(("a/../../outside", b"x")), "outside its folder"),
        (_zip(("c:/outside", b"x")), "outside its folder"),
        (_zip(("./", b"")), "outside its folder"),
        (_zip((_link(), b"/etc/passwd")), "neither a file nor a folder"),
        (_zip(("a//b", b"x"), ("a/b", b"y")), "two members of one name"),
    ],
)
def test_malicious_archives_write_nothing(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(DatasetError, match=expected):
        unzip.unpack(tmp_path / "a.zip", tmp_path / "out", stage=Stage([].append, "download"))
    assert {path.name for path in tmp_path.iterdir()} == {"a.zip"}


def test_a_bomb_is_not_set_off(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as zipped, zipped.open("a", "w", force_zip64=True) as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    with pytest.raises(DatasetError, match="would unpack from"):
        unzip.unpack(tmp_path / "a.zip", tmp_path / "out", stage=Stage([].append, "download"))
    assert not (tmp_path / "out").exists()
