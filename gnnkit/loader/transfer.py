"""Copying batches to a device, beside the training step where the device allows it."""

# Streams and events of torch.cuda have no type hints.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gnnkit.errors import PlanError
from gnnkit.sampling.subgraph import SampledSubgraph

if TYPE_CHECKING:
    import torch


def resolve_device(device: Any) -> torch.device | None:
    """The device that a user names, or None for batches that stay where they are.

    Raises:
        PlanError: It does not exist here.
    """
    if device is None:
        return None
    import torch

    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise PlanError(f"unknown device {device!r}", "'cpu', 'cuda' or 'cuda:<index>'") from error
    if resolved.type == "cpu":
        return None
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise PlanError(
                f"device {device!r} was asked for, but torch finds no CUDA device", "leave device out, or install a CUDA build of torch"
            )
        index = torch.cuda.current_device() if resolved.index is None else resolved.index
        if index >= torch.cuda.device_count():
            raise PlanError(f"device {device!r} was asked for, but there are {torch.cuda.device_count()} CUDA devices")
        return torch.device("cuda", index)
    return resolved


def cache_device(device: Any) -> torch.device | None:
    """The device that features are cached on: where batches are, or are copied to; None where the user names none."""
    if device is None:
        return None
    import torch

    return resolve_device(device) or torch.device("cpu")


class DeviceTransfer:
    """Moves batches to one device.

    On CUDA, copies run on a stream of their own from page-locked blocks. A block must not be reused while it is being read, so
    what is copied from is kept until the event behind its copy has happened, also when this object is forgotten before.

    Args:
        device: The target.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._in_flight: deque[tuple[torch.cuda.Event, object]] = deque()
        if self._cuda:
            weakref.finalize(self, _settle, self._in_flight).atexit = False

    @property
    def looks_ahead(self) -> bool:
        """Whether starting the next copy early overlaps it with the consumer's work."""
        return self._cuda

    def start(self, data: Any, subgraph: SampledSubgraph, then: Callable[[Any], Any] | None = None) -> tuple[Any, Any]:
        """Starts copying a batch; ``finish`` makes it usable.

        Args:
            data: The batch.
            subgraph: What it was made of.
            then: Called with the copy, on the stream of copies; what it returns is the batch.

        Returns:
            The batch on the device, and what ``finish`` needs.
        """

        def make() -> Any:
            moved = data.to(self._device, non_blocking=self._cuda)
            return moved if then is None else then(moved)

        # PyG moves a batch's tensors within the same object, so those that are copied from are kept by themselves: some lie in blocks that
        # the sampled batch knows nothing of, and that would be written to again.
        source = _held(data) if self._cuda else None
        return self.run(make, (subgraph, source))

    def run(self, make: Callable[[], Any], source: object) -> tuple[Any, Any]:
        """Calls ``make``, which copies to the device, on the stream of copies; ``finish`` makes what it returns usable.

        Args:
            make: Makes the batch on the device, by copies that need not have happened when it returns.
            source: What is copied from: kept until the copies have happened.
        """
        if self._stream is None:
            return make(), None
        import torch

        while self._in_flight and self._in_flight[0][0].query():
            self._in_flight.popleft()
        with torch.cuda.stream(self._stream):
            moved = make()
            event = torch.cuda.Event()
            event.record(self._stream)
        self._in_flight.append((event, source))
        return moved, event

    def finish(self, moved: Any, event: Any) -> Any:
        """Makes the consumer's stream wait for the copy, and tells the allocator who uses its memory."""
        if event is None:
            return moved
        import torch

        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        moved.record_stream(current)
        return moved


def _held(data: Any) -> object:
    """Returns the values that a batch is copied from; a ``transform`` may have made something else of it than a PyG object."""
    stores = getattr(data, "stores", None)
    return data if stores is None else [list(store.values()) for store in stores]


def _settle(in_flight: deque[tuple[Any, object]]) -> None:
    """Waits for the copies that nobody waits for any more, and gives up what they are made from."""
    while in_flight:
        in_flight[0][0].synchronize()
        in_flight.popleft()
