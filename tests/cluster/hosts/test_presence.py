"""Who is there, who has left, and who has not been heard of; without a network."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gnnkit.cluster.membership import LeaseRenewal, LeaseTable
from gnnkit.errors import PlanError, StartTimeout
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


def lease_renewal(tell: Any) -> LeaseRenewal:
    return LeaseRenewal(0, {1: tell}, {1: "10.0.0.2:7000"})


def test_a_service_that_is_not_there_yet_is_waited_for() -> None:
    said: list[tuple[str, str]] = []
    come = threading.Event()

    def tell(what: str, name: str, host: int, timeout_s: float) -> None:
        if not come.is_set():
            come.set()
            raise OSError("nobody is there")
        said.append((what, name))

    here = lease_renewal(tell)
    here.begin(20.0)
    assert wait_until(lambda: len(said) > 2), "it goes on saying so"
    here.leave()
    assert said[-1][0] == "bye" and len({name for _, name in said}) == 1


def test_a_service_that_never_comes_or_refuses() -> None:
    def absent(*_: Any) -> None:
        raise OSError("nobody is there")

    def strict(*_: Any) -> None:
        raise PlanError("host 1 refused the token")

    with pytest.raises(StartTimeout, match=r"host 1 did not answer at 10.0.0.2:7000 within 0.2 s: nobody is there"):
        lease_renewal(absent).begin(0.2)
    with pytest.raises(PlanError, match="refused the token"):
        lease_renewal(strict).begin(20.0)
    lease_renewal(absent).leave()
