"""``RemoteReceivingChannel``: what it asks servers for, when, and what it makes of answers that come late, wrong or never."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch.futures import Future

from gnnkit.errors import BatchTimeout, PlanError, SamplingError, WorkerDied
from tests.distributed.standing_in import answer_requests


class Servers:
    """Stand in for servers: requests are kept until they are answered."""

    def __init__(self) -> None:
        self.asked: dict[int, list[Future[Any]]] = defaultdict(list)
        self.ended: set[int] = set()
        self.epochs: list[int | None] = []
        self.count = 0

    def request(self, server: int, method: Any, channel: int, epoch: int | None) -> Future[Any]:
        assert method == "fetch_one_sampled_message" and channel == 10 + server
        future: Future[Any] = Future()
        self.asked[server].append(future)
        if server in self.ended:
            self.end(server)
        self.epochs.append(epoch)
        self.count += 1
        return future

    def give(self, server: int, *values: int) -> None:
        for value in values:
            self.asked[server].pop(0).set_result((message(value), False))

    def end(self, server: int) -> None:
        """It has nothing more, whatever it is asked from now on."""
        self.ended.add(server)
        for future in self.asked.pop(server, []):
            future.set_result((None, True))


def message(value: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.tensor([value])}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    standing_in = Servers()
    answer_requests(monkeypatch, lambda *_: pytest.fail("a channel waits for no answer"), standing_in.request)
    return standing_in


def channel_of(servers: list[int], **options: Any) -> Any:
    from gnnkit.distributed import RemoteReceivingChannel

    return RemoteReceivingChannel(servers, [10 + server for server in servers], **options)


def received(channel: Any) -> int:
    return int(channel.recv(timeout_ms=5000)["ids"])


def asked_ahead(channel: Any) -> None:
    """Has the channel ask, without anything to receive."""
    with pytest.raises(BatchTimeout, match="no message from servers"):
        channel.recv(timeout_ms=1)


def test_recv_prefetch_allows_buffered_message_before_terminal_fetch(servers: Servers) -> None:
    channel = channel_of([0], prefetch_size=2)
    asked_ahead(channel)
    assert len(servers.asked[0]) == 2
    servers.give(0, 7)
    servers.end(0)
    assert received(channel) == 7
    with pytest.raises(StopIteration):
        channel.recv(timeout_ms=5000)
    asked = servers.count
    for _ in range(2):
        with pytest.raises(StopIteration):
            channel.recv()
    assert servers.count == asked, "a server that is done is not asked again"


def test_no_more_than_prefetch_size_is_under_way(servers: Servers) -> None:
    channel = channel_of([0, 1], prefetch_size=3)
    asked_ahead(channel)
    servers.give(0, 1, 2, 3)
    assert sorted(received(channel) for _ in range(3)) == [1, 2, 3]
    asked_ahead(channel)
    assert len(servers.asked[0]) == len(servers.asked[1]) == 3
    assert channel.empty()


def test_recv_skips_inactive_servers(servers: Servers) -> None:
    channel = channel_of([0, 1, 2], active_mask=[True, False, True])
    asked_ahead(channel)
    assert sorted(servers.asked) == [0, 2]
    servers.give(2, 5)
    assert received(channel) == 5
    servers.end(0)
    servers.end(2)
    with pytest.raises(StopIteration):
        channel.recv(timeout_ms=5000)


def test_recv_stops_immediately_when_all_servers_are_inactive(servers: Servers) -> None:
    channel = channel_of([0, 1], active_mask=[False, False])
    with pytest.raises(StopIteration):
        channel.recv()
    assert not servers.asked


def test_recv_does_not_pin_memory_when_disabled(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for pins in (False, True):
        channel = channel_of([0], pin_memory=pins)
        asked_ahead(channel)
        servers.give(0, 3)
        assert received(channel) == 3 and len(pinned) == int(pins)
        servers.asked.clear()


def test_recv_raises_on_failed_future(servers: Servers) -> None:
    channel = channel_of([0, 1], prefetch_size=1)
    asked_ahead(channel)
    servers.asked[0].pop(0).set_exception(WorkerDied("server 0 is gone"))  # type: ignore[arg-type]
    with pytest.raises(WorkerDied, match="server 0 is gone"):
        channel.recv(timeout_ms=5000)
    asked_ahead(channel)
    servers.give(1, 4)
    servers.give(0, 5)
    assert sorted([received(channel), received(channel)]) == [4, 5], "what comes after an error can be received"


def test_recv_forwards_sampling_error_pill_to_decoder(servers: Servers) -> None:
    from gnnkit.distributed.sample_message import MessageFormat

    channel = channel_of([0])
    asked_ahead(channel)
    pill = {"#SAMPLING_ERROR": torch.tensor(list(b"IndexError: index 4"), dtype=torch.uint8)}
    servers.asked[0].pop(0).set_result((pill, False))
    found = channel.recv(timeout_ms=5000)
    with pytest.raises(SamplingError, match="IndexError: index 4"):
        MessageFormat.of(None, None, "in", None).unpack(found, 4)


def test_answers_of_an_epoch_that_was_left_are_dropped(servers: Servers) -> None:
    channel = channel_of([0], prefetch_size=2)
    channel.reset(3)
    asked_ahead(channel)
    late, servers.asked[0] = servers.asked[0], []
    channel.reset(4)
    asked_ahead(channel)
    late[0].set_result((message(1), False))
    late[1].set_exception(WorkerDied("long ago"))  # type: ignore[arg-type]
    servers.give(0, 2)
    assert received(channel) == 2
    servers.end(0)
    with pytest.raises(StopIteration):
        channel.recv(timeout_ms=5000)
    assert sorted(set(servers.epochs), key=str) == [3, 4], "and servers are told which epoch is meant"


def test_an_end_that_comes_late_does_not_end_the_next_epoch(servers: Servers) -> None:
    channel = channel_of([0], prefetch_size=1)
    asked_ahead(channel)
    (late,) = servers.asked.pop(0)
    channel.reset()
    late.set_result((None, True))
    asked_ahead(channel)
    servers.give(0, 9)
    assert received(channel) == 9


def test_nothing_is_sent(servers: Servers) -> None:
    with pytest.raises(PlanError, match="nothing can be sent"):
        channel_of([0]).send({})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"channel_id": [1]}, "have \\[2, 1, 2\\] elements"),
        ({"active_mask": [True]}, "have \\[2, 2, 1\\] elements"),
        ({"prefetch_size": 0}, "prefetch_size must be at least 1"),
        pytest.param(
            {"pin_memory": True},
            "no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device; to enable: a machine without one"),
        ),
    ],
)
def test_wrong_arguments(options: dict[str, Any], said: str) -> None:
    from gnnkit.distributed import RemoteReceivingChannel

    with pytest.raises(PlanError, match=said):
        RemoteReceivingChannel(**{"server_rank": [0, 1], "channel_id": [1, 2], **options})


def test_one_server_needs_no_lists(servers: Servers) -> None:
    from gnnkit.distributed import RemoteReceivingChannel

    channel = RemoteReceivingChannel(0, 10)
    asked_ahead(channel)
    servers.give(0, 1, 2)
    assert {received(channel), received(channel)} == {1, 2}
