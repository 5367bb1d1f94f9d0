"""Who is there, who has left, and who has not been heard of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gnnkit.cluster.membership import LeaseRenewal, LeaseRequests, LeaseTable
from gnnkit.cluster.network.requests import LEASES, Answerers, Requests
from gnnkit.cluster.network.service import NetworkService
from gnnkit.errors import PlanError, StartTimeout
from tests.cluster.parts.services import TOKEN
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until


def test_guests_come_leave_and_fall_silent() -> None:
    leases = LeaseTable[str, int]()
    for name, host in (("1-77-a", 1), ("1-77-b", 1), ("1-777-c", 1), ("2-5-d", 2)):
        leases.here(name, host)
    assert set(leases.there().values()) == {1, 2}
    leases.bye("2-5-d")
    leases.here("client-a/12", 0)
    leases.here("client-a/123", 0)
    leases.bye("client-a/12")
    assert set(leases.there()) == {"1-77-a", "1-77-b", "1-777-c", "client-a/123"}, "who is called alike is still there"
    leases.bye("client-a/123")
    leases.bye("1-77-")  # a trainer's service, for all that the trainer has started
    assert set(leases.there().values()) == {1}, "the other trainer of host 1 is still there"
    assert not leases.forget_silent()
    silent = LeaseTable[str, int](silence_s=0.0)
    silent.here("1-77-a", 1)
    assert not silent.there() and silent.forget_silent() == ["1-77-a"] and not silent.forget_silent()


def renewal_at(address: str) -> LeaseRenewal:
    return LeaseRenewal(0, {1: address}, TOKEN, "ab")


@contextmanager
def service(port: int, token: str, said: list[tuple[Requests, str]]) -> Iterator[str]:
    """A service of this process that hears who is there; its address."""
    answerers = Answerers("ab")
    answerers.add(LeaseRequests(lambda what, name, host: said.append((what, name))), LEASES)
    server = NetworkService("127.0.0.1", port, token, answerers)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.close()


def test_a_service_that_is_not_there_yet_is_waited_for() -> None:
    said: list[tuple[Requests, str]] = []
    port = free_port()
    here = renewal_at(f"127.0.0.1:{port}")
    waiting = threading.Thread(target=here.begin, args=(20.0,))
    waiting.start()
    with service(port, TOKEN, said):
        waiting.join(20.0)
        assert wait_until(lambda: len(said) > 2), "it goes on saying so"
        here.leave()
        assert wait_until(lambda: said[-1][0] == Requests.bye) and len({name for _, name in said}) == 1


def test_a_service_that_never_comes_or_refuses() -> None:
    absent = renewal_at(f"127.0.0.1:{free_port()}")
    with pytest.raises(StartTimeout, match=r"host 1 did not answer at 127.0.0.1:\d+ within 0.2 s: host 1 .* cannot be reached"):
        absent.begin(0.2)
    absent.leave()
    with service(0, "another token of the tests", []) as address, pytest.raises(PlanError, match="refused the token"):
        renewal_at(address).begin(20.0)
