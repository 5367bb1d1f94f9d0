"""Copies that nobody waits for: what they read stays, in the order of CUDA's events, which are played here."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnnkit.loader.epoch import DeviceTransfer
from tests.loader.graphs import make


class Event:
    """Happens when a test says so, or when somebody waits for it."""

    made: list[Event] = []

    def __init__(self) -> None:
        self.happened = self.waited_for = False
        Event.made.append(self)

    def record(self, stream: object) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self.happened = self.waited_for = True


class Batch(Data):
    """Moves as PyG's does: within the same object."""

    def to(self, device: Any, *args: str, non_blocking: bool = False) -> Batch:
        assert device.type == "cuda" and non_blocking
        moved: Batch = self.apply(torch.clone)
        return moved


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> DeviceTransfer:
    monkeypatch.setattr(Event, "made", [])
    for name, value in ("Stream", lambda device: device), ("Event", Event), ("stream", contextlib.nullcontext):
        monkeypatch.setattr(torch.cuda, name, value)
    return DeviceTransfer(torch.device("cuda", 1))


def started(transfer: DeviceTransfer, subgraph: Any) -> list[weakref.ref[Any]]:
    """Starts copying a batch and forgets it; what was copied from, and what it was made of."""
    data = Batch(x=torch.ones(3), y=torch.zeros(2))
    kept = [weakref.ref(data.x), weakref.ref(data.y), weakref.ref(subgraph)]
    transfer.start(data, subgraph)
    return kept


def test_what_is_copied_from_stays_until_it_is_copied(transfer: DeviceTransfer) -> None:
    """Also tensors that the sampled batch knows nothing of, such as numbers shown for 8 bits."""
    with make() as loader:
        samples = [loader.pipeline.stream.sample_now(0, index) for index in range(3)]
    first = started(transfer, samples.pop())
    second = started(transfer, samples.pop())
    assert all(kept() is not None for kept in first + second)
    Event.made[0].happened = True
    third = started(transfer, samples.pop())
    assert all(kept() is None for kept in first) and all(kept() is not None for kept in second + third)


def test_a_forgotten_transfer_waits_for_its_copies(transfer: DeviceTransfer) -> None:
    with make() as loader:
        samples = [loader.pipeline.stream.sample_now(0, index) for index in range(2)]
    own = DeviceTransfer(torch.device("cuda", 1))
    kept = started(own, samples.pop()) + started(own, samples.pop())
    assert all(one() is not None for one in kept)
    del own
    assert all(one() is None for one in kept) and all(event.waited_for for event in Event.made)


def test_the_batch_is_completed_on_the_stream_of_copies(transfer: DeviceTransfer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the event that the consumer's stream waits for."""
    order: list[str] = []
    monkeypatch.setattr(Event, "record", lambda event, stream: order.append("recorded"))

    def complete(data: Any) -> Any:
        order.append("completed")
        data.z = data.x + 1
        return data

    with make() as loader:
        subgraph = loader.pipeline.stream.sample_now(0, 0)
    moved, event = transfer.start(Batch(x=torch.ones(3)), subgraph, complete)
    assert order == ["completed", "recorded"] and moved.z.tolist() == [2.0] * 3 and event is Event.made[0]
