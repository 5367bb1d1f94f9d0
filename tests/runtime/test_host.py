"""What this host lets a process use."""

from __future__ import annotations

import time

import pytest

from gnnkit import host
from tests.helpers.system import pretend_free_memory


def test_the_system_is_asked_for_its_memory_when_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little pieces are taken from what it has said; a large one, many little ones and a later one have it asked again."""
    asked, clock = [], [0.0]
    pretend_free_memory(monkeypatch, lambda: asked.append(clock[0]) or 1000)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    memory = host.FreeMemory()
    assert [memory.take(100) for _ in range(3)] == [1000, 900, 800] and len(asked) == 1
    assert memory.take(500) == 1000 and len(asked) == 2
    assert memory.take(100) == 1000 and len(asked) == 3, "more than an eighth of the 500 that are left"
    clock[0] = 0.2
    assert memory.take(1) == 1000 and len(asked) == 4
    assert memory.take(2000) == 1000, "the caller sees that it is not enough"
    assert memory.take(1) == 1000, "and somebody else takes nothing that is not there"
