"""Servers of a test's own: a real one can be made neither to answer when a test wants nor to keep what it was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def answer_requests(monkeypatch: pytest.MonkeyPatch, now: Callable[..., Any], later: Callable[..., Any]) -> None:
    """Has somebody else answer what clients ask servers.

    Args:
        monkeypatch: Takes it back.
        now: In place of ``request_server``, with the method's name.
        later: In place of ``async_request_server``, likewise.
    """

    def named(answer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda server, method, *args: answer(server, getattr(method, "__name__", method), *args)

    monkeypatch.setattr("gnnkit.distributed.dist_server.request_server", named(now))
    monkeypatch.setattr("gnnkit.distributed.dist_server.async_request_server", named(later))
