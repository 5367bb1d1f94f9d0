"""A backend that says when a batch is about to be sampled: what may go wrong then goes wrong at a moment of the test's choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from gnnkit import InProcess, LoaderPlan


class _Delegate:
    def __init__(self, real: Any, call: Callable[[], object]) -> None:
        self._real, self._call = real, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Memory(_Delegate):
    """Calls something whenever somebody takes the arrays to sample from."""

    @property
    def graph(self) -> Any:
        self._call()
        return self._real.graph


class _Graph(_Delegate):
    def memory(self, memory_budget: int | None) -> Any:
        return _Memory(self._real.memory(memory_budget), self._call)


@dataclass(frozen=True)
class Watched(InProcess):
    """``InProcess`` on a graph that calls something.

    Attributes:
        call: Called by whoever samples a batch, before it is sampled; what it raises is raised there.
    """

    call: Callable[[], object] = lambda: None

    def open(self, plan: LoaderPlan, graph: Any, events: Any) -> Any:
        return super().open(plan, cast(Any, _Graph(graph, self.call)), events)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "InProcess", "num_threads": self.num_threads}
