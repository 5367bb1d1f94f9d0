"""What a loader gives its processes, and what becomes of slots, tried against a model of the processes."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import gnnkit
from gnnkit.backends.loader_pool import Session
from gnnkit.events import ignore_events
from gnnkit.plan import Batching
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule

# Of a slot for batches of no bytes, with some room.
SLOT_BYTES = 8192


@functools.cache
def graph_and_plan() -> tuple[Any, Any]:
    """A loader's that has many batches under way."""
    with gnnkit.GraphLoader.from_pyg(gnnkit.datasets.cora(), input_nodes="train", num_neighbors=[2]) as loader:
        return loader.pipeline.graph, replace(loader.plan, runtime=replace(loader.plan.runtime, prefetch=100))


class Processes(RuleBasedStateMachine):
    """Each process works through what it was told in order, and dies at any time; epochs are begun and batches held at any time."""

    @initialize(workers=st.integers(1, 4), steps=st.integers(0, 12), slots=st.integers(2, 10), each=st.integers(1, 3))
    def open(self, workers: int, steps: int, slots: int, each: int) -> None:
        (graph, plan), options = graph_and_plan(), gnnkit.Colocated(worker_concurrency=each, channel_size=slots * SLOT_BYTES)
        self.session = Session(options, plan, graph, ignore_events)
        self.session.enter(workers)
        self.session.make_ring(self)  # type: ignore[arg-type]
        self.ready = set(range(workers))
        for rank in self.ready:
            self.session.take(rank, Message("opened", {"nbytes": 0}))
        self.told: dict[int, list[dict[str, Any]]] = {rank: [] for rank in self.ready}
        self.schedule, self.each, self.epoch = Schedule(steps * 2, Batching(2)), each, 0
        self.held: list[np.ndarray[Any, Any]] = []
        self.count, self.grouped = 1, False
        self.begin()

    def send(self, rank: int, kind: str, **body: Any) -> None:
        if kind == "sample":
            assert 1 <= len(body["steps"]) <= max(self.session.group, 1)
        self.told[rank].append(body)

    @rule()
    def begin(self) -> None:
        self.epoch += 10
        self.session.begin(self, self.epoch, self.schedule)  # type: ignore[arg-type]
        self.assign()

    def assign(self) -> None:
        self.session.group = self.count
        self.session.deal(self)  # type: ignore[arg-type]
        for told in self.told.values():
            given = sum(len(body.get("steps", ())) for body in told)
            assert given <= self.count * self.each or self.grouped

    @rule(count=st.integers(1, 5))
    def group(self, count: int) -> None:
        """Batches have become smaller or larger; what was given before may be more than is given now."""
        self.count, self.grouped = count, True

    @rule(number=st.integers(0, 3), times=st.integers(1, 3))
    def work(self, number: int, times: int) -> None:
        rank = number % len(self.told)
        for _ in range(min(times, len(self.told[rank]))):
            body = self.told[rank].pop(0)
            if "steps" in body:
                batches = [{"step": step, "layout": {"nbytes": 1}, "sample_s": 1.0, "gather_s": 0.0} for step, _, _ in body["steps"]]
                self.session.take(rank, Message("done", {"g": body["g"], "thread": None, "batches": batches}))
            else:
                self.session.take(rank, Message("cancelled", {"g": body["g"], "running": []}))

    @rule(number=st.integers(0, 3))
    def lose_answers(self, number: int) -> None:
        """As an interrupt does that comes between receiving and booking, and ends the epoch."""
        rank = number % len(self.told)
        self.told[rank] = [body for body in self.told[rank] if "steps" not in body]
        self.begin()

    @rule(keep=st.booleans())
    def take(self, keep: bool) -> None:
        session, scheduler, ring = self.session, self.session.scheduler, self.session.ring
        assert scheduler is not None and ring is not None
        while scheduler.delivered in scheduler.results:
            own, (body, _) = scheduler.results[scheduler.delivered]
            assert body["step"] == scheduler.delivered and own.epoch == self.epoch and ring.owner(own.slot) is own
            if keep and ring.num_leased < ring.num_slots - scheduler.window:
                self.held.append(ring.lease(own.slot, 1))
            else:
                session.withdraw(own)
            scheduler.hand_out()
        self.assign()

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        self.held.pop()

    @rule(number=st.integers(0, 3))
    def die(self, number: int) -> None:
        rank = number % len(self.told)
        self.told[rank].clear()
        self.session.lost(rank, None)
        self.assign()

    @invariant()
    def held_slots_belong_to_their_batches(self) -> None:
        if hasattr(self, "session"):
            assert self.session.ring is not None and self.session.ring.num_leased == len(self.held)

    def teardown(self) -> None:
        """Left alone, the epoch comes to its end, and every slot that nobody holds is free."""
        if not hasattr(self, "session"):
            return
        for _ in range(200):
            for rank in self.told:
                self.work(rank, 3)
            self.take(False)
        ring = self.session.ring
        assert ring is not None and self.session.is_over
        assert sum(ring.owner(slot) is not None for slot in range(ring.num_slots)) == len(self.held)


TestProcesses = Processes.TestCase
TestProcesses.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
