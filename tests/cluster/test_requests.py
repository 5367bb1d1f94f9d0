"""The table of requests: each has the method that answers it, and its line on the page about connections."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from gnnkit.cluster.network.requests import LEASES, MEMBERS, PARTS, STATUS, Answerers, RequestKind, Requests
from gnnkit.cluster.network.wire import NotYet
from gnnkit.errors import PlanError, StoreError
from gnnkit.sampling.owners import BadRequest
from tests.helpers.wires import asked

PAGE = Path(__file__).parents[2] / "docs" / "development" / "connections.md"


class Answering:
    """What answers requests of tests."""

    fingerprint = "ab"

    def here(self, name: str, host: int) -> str:
        return f"{name} of {host}"

    def membership(self) -> str:
        return "all of them"


@pytest.mark.parametrize("request_", Requests, ids=lambda request_: request_.name)
def test_a_request_has_its_method(request_: Requests) -> None:
    answerer = resolve_name(f"gnnkit.cluster.{request_.kind.answered_by}")
    method = "details" if request_.kind == STATUS else request_.name  # which is answered whatever else there is
    assert callable(getattr(answerer, method)) and getattr(answerer, method).__doc__


def test_the_page_has_the_table() -> None:
    said: dict[str, RequestKind] = {}
    kinds = {word: value for word, value in vars(resolve_name("gnnkit.cluster.network.requests")).items() if isinstance(value, RequestKind)}
    for kind, names, by, over, of_store, answered in re.findall(
        r"^\| `([A-Z]+)` \|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", PAGE.read_text(), re.M
    ):
        said |= dict.fromkeys(re.findall(r"`(\w+)`", names), kinds[kind])
        assert kinds[kind].answered_by.partition(":")[2] in by and answered.strip() == kinds[kind].answered
        assert (of_store.strip() == "yes") == kinds[kind].of_store and ("TCP" in over) == (kinds[kind].asked_of != "calls")
    assert said == {request_.name: request_.kind for request_ in Requests}


def test_what_is_asked_is_looked_at_before_it_is_answered() -> None:
    answerers, store = Answerers("ab", PARTS, MEMBERS, LEASES), Answering()
    with pytest.raises(NotYet):
        answerers("membership", {})
    answerers.add(store, MEMBERS, LEASES)
    assert answerers("membership", asked(store)) == "all of them"
    assert answerers("here", asked(store, name="x", host=1)) == "x of 1"
    for name in ("walk", "status", "describe", "fingerprint", "__init__", "nothing"):
        with pytest.raises(BadRequest, match="there is no call"):
            answerers(name, asked(store))
    for name, words, error in (
        ("membership", {"version": 6}, PlanError),
        ("here", {"version": 6}, BadRequest),
        ("here", {"fingerprint": "cd"}, StoreError),
        ("here", {"name": "x"}, PlanError),
        ("here", {"name": "x", "host": 1, "self": 1}, PlanError),
        ("membership", {1: 2}, PlanError),
    ):
        with pytest.raises(error):
            answerers(name, {**asked(store), **words})
