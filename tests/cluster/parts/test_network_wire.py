"""Messages between hosts: what comes back, signs of life, and what becomes of both sides when the other one goes."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit.cluster.network.client import ServiceClient, Unreachable
from gnnkit.cluster.network.service import NetworkService, Stream
from gnnkit.cluster.network.wire import Kind, NetworkWire, Request
from gnnkit.errors import PlanError, SamplingError, StoreError
from gnnkit.runtime.beats import CONNECTION_SILENCE_S
from gnnkit.sampling.owners import BadRequest
from gnnkit.waiting import Deadline
from tests.cluster.parts.services import END, ERROR, LAST, TOKEN, Speaker, said_of
from tests.cluster.serving.networked import certificate
from tests.helpers.waiting import wait_until
from tests.helpers.wires import ask_by_name, first_line, second_line

ANSWER_S = 60.0
HOST = "127.0.0.1"


class Answering:
    """A service of this process.

    Attributes:
        address: Where it listens.
        ended: Set when a stream that was begun has ended.
        hold: Keeps "held" from answering until it is set.
    """

    def __init__(self, tls: tuple[str, str] | None = None) -> None:
        self.ended, self.begun, self.hold = threading.Event(), threading.Event(), threading.Event()
        self.server = NetworkService(HOST, 0, TOKEN, self.answer, tls)
        self.address = f"{HOST}:{self.server.port}"

    def answer(self, name: str, args: dict[str, Any]) -> Any:
        if name not in ("echo", "held", "stream", "endless", "refuse", "rows", "blocks"):
            raise BadRequest(f"there is no call {name!r}")
        return getattr(self, name)(args)

    def echo(self, args: dict[str, Any]) -> Any:
        return args["value"]

    def held(self, args: dict[str, Any]) -> str:
        self.begun.set()
        assert self.hold.wait(ANSWER_S)
        return "held"

    def rows(self, args: dict[str, Any]) -> Stream:
        return Stream(np.full(size, number, np.uint8) for number, size in enumerate(args["sizes"]))

    def blocks(self, args: dict[str, Any]) -> Stream:
        return Stream(self.rows(args).values, Kind.BLOCK)

    def stream(self, args: dict[str, Any]) -> Stream:
        return Stream(item for item in (None, 1, None, np.arange(3)))

    def endless(self, args: dict[str, Any]) -> Stream:
        def wait() -> Generator[Any, None, None]:
            try:
                self.begun.set()
                while True:
                    time.sleep(0.01)
                    yield None
            finally:
                self.ended.set()

        return Stream(wait())

    def refuse(self, args: dict[str, Any]) -> Any:
        raise StoreError("not this one", "another") if args["known"] else FileNotFoundError("nothing there")


@pytest.fixture(scope="module")
def service() -> Iterator[Answering]:
    found = Answering()
    yield found
    found.server.close()


@pytest.fixture
def client(service: Answering) -> Iterator[ServiceClient]:
    found = ServiceClient(service.address, TOKEN, None)
    yield found
    found.close()


def test_values_come_back(client: ServiceClient) -> None:
    """Also more arrays than the system sends pieces at once, and one that is larger than every buffer on the way."""
    many = [np.full(number % 7, number, np.int32) for number in range(3000)]
    large = np.arange(5_000_000)
    for value in (None, {"a": (1, 2.5, "x"), 3: [True, b"bytes"]}, many, large, {"x": large, "many": many}):
        found = ask_by_name(client, "echo", {"value": value}, ANSWER_S)
        assert type(found) is type(value)
        if value is many:
            assert all(np.array_equal(one, other) for one, other in zip(found, many, strict=True))
        elif value is large:
            assert np.array_equal(found, large) and found.flags.writeable
        elif value is None or "a" in value:
            assert found == value


def test_blocks_come_without_a_text_and_only_as_they_were_asked_for(client: ServiceClient) -> None:
    sizes, deadline = [70_000, 1, 5 << 20], Deadline(ANSWER_S)

    def taken(name: str, expected: list[int] | None) -> list[bytes]:
        request = Request.of(name, {"sizes": sizes})
        return client.use(lambda wire: [bytes(block) for block, _ in wire.ask(request, deadline, expected)], deadline)

    assert taken("blocks", sizes) == [bytes([number]) * size for number, size in enumerate(sizes)]
    for name, expected in (("blocks", None), ("rows", sizes), ("blocks", sizes[:2]), ("blocks", [*sizes, 1]), ("blocks", [70_000, 2, 1])):
        with pytest.raises(BadRequest):
            taken(name, expected)
    assert taken("rows", None) == taken("blocks", sizes)


def test_errors_say_where_they_come_from_and_leave_the_service_as_it_was(client: ServiceClient, service: Answering) -> None:
    with pytest.raises(StoreError, match=f"the server at {service.address}: not this one") as caught:
        ask_by_name(client, "refuse", {"known": True}, ANSWER_S)
    assert caught.value.hint == "another"
    with pytest.raises(SamplingError, match="FileNotFoundError: nothing there"):
        ask_by_name(client, "refuse", {"known": False}, ANSWER_S)
    with pytest.raises(SamplingError, match="there is no call 'nothing'"):
        ask_by_name(client, "nothing", {}, ANSWER_S)
    with Speaker(service.address) as holder:  # which of them needs no new connection
        assert holder.ask("refuse", {"known": False})[0] == ERROR
        assert holder.ask("echo", {"value": 3})[:2] == (LAST, b"3")
        assert holder.ask("stream", {})[0] == END


@pytest.mark.slow
def test_a_service_that_works_for_long_is_waited_for(client: ServiceClient, service: Answering) -> None:
    """It gives signs of life; one that gives none does not answer, and neither does one that is late."""
    service.hold.clear()
    timer = threading.Timer(CONNECTION_SILENCE_S + 2.0, service.hold.set)
    timer.start()
    assert ask_by_name(client, "held", {}, ANSWER_S) == "held"
    service.hold.clear()
    with pytest.raises(Unreachable, match="does not answer"):
        ask_by_name(client, "held", {}, 1.0)
    service.hold.set()
    with socket.create_server((HOST, 0)) as silent:
        nobody = ServiceClient(f"{HOST}:{silent.getsockname()[1]}", TOKEN, None)
        with pytest.raises(Unreachable, match="cannot be reached: nothing answers there"):
            ask_by_name(nobody, "echo", {"value": 1}, ANSWER_S)


def test_a_client_that_goes_ends_what_it_waits_for(service: Answering) -> None:
    service.begun.clear()
    service.ended.clear()
    with Speaker(service.address) as holder:
        holder.say(*said_of("endless", {}))
        assert service.begun.wait(ANSWER_S) and not service.ended.is_set()
    assert service.ended.wait(ANSWER_S)


def test_a_client_that_reads_nothing_keeps_nobody_waiting(client: ServiceClient, service: Answering) -> None:
    with Speaker(service.address) as slow:
        slow.say(*said_of("rows", {"sizes": [16 << 20] * 4}))
        for _ in range(3):
            assert ask_by_name(client, "echo", {"value": 1}, ANSWER_S) == 1
            time.sleep(1.1)  # signs of life are due meanwhile
        assert slow.last()[0] == END


def test_what_answers_with_more_than_this_host_has_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is allocated for it."""
    with socket.create_server((HOST, 0)) as listener:

        def lie() -> None:
            end, _ = listener.accept()
            with end:
                end.recv(4096)
                end.sendall(b"welcome\n" * 2)
                end.recv(4096)
                end.sendall(bytes([3, 0, 0, 0]) + (2).to_bytes(4, "little") + (1 << 60).to_bytes(8, "little") + b"[]")
                end.recv(4096)

        thread = threading.Thread(target=lie)
        thread.start()
        client = ServiceClient(f"{HOST}:{listener.getsockname()[1]}", TOKEN, None)
        with pytest.raises(Unreachable, match="is too large for this host"):
            ask_by_name(client, "echo", {"value": 1}, ANSWER_S)
        thread.join()


def test_with_a_certificate(tmp_path: Path) -> None:
    """Lines that were overheard before encryption began are of no use; a client that trusts another certificate goes away."""
    cert, key = (path.read_text() for path in certificate(tmp_path, [HOST]))
    service = Answering((cert, key))
    try:
        speak_encrypted(service, cert, tmp_path)
    finally:
        service.server.close()


def speak_encrypted(service: Answering, cert: str, folder: Path) -> None:
    client = ServiceClient(service.address, TOKEN, cert)
    large = np.arange(1_000_000)
    assert np.array_equal(ask_by_name(client, "echo", {"value": large}, ANSWER_S), large)
    service.begun.clear()
    service.hold.clear()
    timer = threading.Timer(3.0, service.hold.set)
    timer.start()
    assert ask_by_name(client, "held", {}, ANSWER_S) == "held"
    client.close()
    with pytest.raises(PlanError, match="refused the token"):
        ask_by_name(ServiceClient(service.address, "another", cert), "echo", {"value": 1}, ANSWER_S)
    (folder / "other").mkdir()
    other = certificate(folder / "other", [HOST])[0].read_text()
    for ca in (other, None):
        with pytest.raises(Unreachable, match="cannot be reached"):
            ask_by_name(ServiceClient(service.address, TOKEN, ca), "echo", {"value": 1}, ANSWER_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=cert)
    for second in (b"gnnkit-wire " + b"0" * 64 + b" me\n", first_line(TOKEN), second_line("another", "me")):
        with socket.create_connection((HOST, service.server.port), timeout=60) as end:
            end.sendall(first_line(TOKEN))
            assert end.recv(8) == b"welcome\n"
            with context.wrap_socket(end, server_hostname=HOST) as inside:
                inside.sendall(second)
                heard = b""
                try:
                    while more := inside.recv(4096):
                        heard += more
                except (ConnectionError, ssl.SSLError):
                    pass
                assert heard in (b"", b"refused\n")


def test_threads_of_clients_that_have_gone_end(service: Answering) -> None:
    def count() -> int:
        return sum(thread.name == "gnnkit-client" for thread in threading.enumerate())

    before = count()
    speakers = [Speaker(service.address) for _ in range(20)]
    has_begun = wait_until(lambda: count() >= before + 20, ANSWER_S)
    for speaker in speakers:
        speaker.end.close()
    assert has_begun
    assert wait_until(lambda: count() <= before, ANSWER_S)


def test_a_service_that_is_closed_answers_nobody() -> None:
    service = Answering()
    with Speaker(service.address) as speaker:
        assert speaker.ask("echo", {"value": 1})[0] == LAST
        service.server.close()
        assert speaker.is_closed()
    with pytest.raises(ConnectionRefusedError):
        Speaker(service.address)


def test_a_beat_over_a_connection_that_another_thread_has_closed_does_no_harm() -> None:
    """The service's one thread of beats goes through all connections."""
    here, there = socket.socketpair()
    with there:
        wire = NetworkWire(here)
        wire.close()
        wire.beat()
        assert wire.is_gone
