"""The context of a train function: where it runs, what every distributed loop needs, and ``ctx.log``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.errors import PlanError
from gnnkit.jobs.environment import JobPlace

if TYPE_CHECKING:
    import torch

    from gnnkit.graph_loader import GraphLoader
    from gnnkit.jobs.checkpoint import Checkpoints

_EVERY_S = 5.0


class LogLines:
    """A ``Report`` that shows what one rank logs, at most every few seconds, and the last of every epoch.

    Args:
        show: Shows a line.
        clock: Seconds.
    """

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self._held: Logged | None = None
        self._next_s = -float("inf")

    def __call__(self, logged: Logged) -> None:
        """Takes note of numbers."""
        if self._held is not None and self._held.epoch != logged.epoch:
            self.flush()
        self._held = logged
        if self._clock() >= self._next_s:
            self.flush()

    def flush(self) -> None:
        """Shows what was logged last, if it was not shown."""
        if self._held is not None:
            self._show(line(self._held))
            self._held, self._next_s = None, self._clock() + _EVERY_S


def line(logged: Logged) -> str:
    """Numbers of a step, as a line."""
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in logged.numbers.items())
    return f"epoch {logged.epoch}  batch {logged.step}/{logged.num_steps}  {numbers}"


@dataclass(frozen=True)
class Logged:
    """The numbers of one call of ``ctx.log``.

    Attributes:
        rank: Whose numbers they are.
        epoch: The epoch that its loader is in; -1 before the first.
        step: Batches of the epoch that this rank has had, those before a restart included.
        num_steps: Batches of this rank in one epoch.
        numbers: The numbers.
    """

    rank: int
    epoch: int
    step: int
    num_steps: int
    numbers: dict[str, float]


Report = Callable[[Logged], None]
_logger = logging.getLogger(__name__)


class TrainContext:
    """A rank's place in the job, with its loader, checkpoints and log, for its training loop.

    Args:
        place: Where it stands.
        device: Its device.
        directory: The job's folder.
        loader: Its loader.
        checkpoints: The job's checkpoints.
        report: Called with what ``log`` is given.

    Attributes:
        rank: This rank.
        local_rank: Its place on its node.
        node_rank: Its node.
        world_size: Ranks in all.
        local_world_size: Ranks of its node.
        num_nodes: Nodes.
        is_main: Whether it is rank 0.
        device: A ``torch.device``: the GPU of this local rank, else the CPU.
        directory: Folder for checkpoints and for what the function writes; it exists.
        restarts: How often the job was started again.
    """

    def __init__(
        self, place: JobPlace, device: torch.device, directory: Path, loader: GraphLoader, checkpoints: Checkpoints, report: Report
    ) -> None:
        self.rank, self.local_rank, self.node_rank = place.rank, place.local_rank, place.node_rank
        self.world_size, self.local_world_size, self.num_nodes = place.world_size, place.local_world_size, place.num_nodes
        self.restarts, self.is_main = place.restarts, place.rank == 0
        self.device, self.directory = device, directory
        self._loader, self._checkpoints, self._report = loader, checkpoints, report
        # The epoch in whose midst the loader was put by ``restore``, and the steps of this rank before that.
        self._continued = (-1, 0)

    def __repr__(self) -> str:
        return (
            f"TrainContext(rank={self.rank} of {self.world_size}, node {self.node_rank} of {self.num_nodes}, device={str(self.device)!r})"
        )

    def log(self, **numbers: Any) -> None:
        """Shows numbers of this step: live in a notebook, as a line now and then in a terminal.

        Args:
            **numbers: Numbers, or tensors and arrays of one element.

        Raises:
            PlanError: One is no number.
        """
        epoch, before = self._loader.epoch, self._continued
        step = self._loader.stats().batches + (before[1] if epoch == before[0] else 0)
        values = {name: _number(name, value) for name, value in numbers.items()}
        self._report(Logged(self.rank, epoch, step, len(self._loader), values))

    def ddp(self, model: Any) -> Any:
        """The model on this rank's device, its gradients averaged over all ranks; alone it is only moved.

        Args:
            model: A ``torch.nn.Module``, the same on every rank: parameters are rank 0's from here on.
        """
        model = model.to(self.device)
        if self.world_size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def epochs(self, total: int) -> Iterator[int]:
        """Yields the numbers of the epochs that are left of ``total``, as the loader counts them; a broken one continues.

        Args:
            total: Epochs of the whole training, those before a restart included.
        """
        epoch = self._loader.state_dict()["epoch"]
        if epoch >= total and self.is_main:
            _logger.warning("all %d epochs are done: nothing is left of this training; %s holds its checkpoints", total, self.directory)
        while epoch < total:
            yield epoch
            if self._loader.epoch < epoch:  # nobody has iterated: it counts as done
                self._loader.set_epoch(epoch + 1)
            epoch = max(epoch, self._loader.epoch) + 1

    def save(self, **objects: Any) -> None:
        """Writes a checkpoint: the state of each object, and where the loader is. The last two are kept.

        Every rank calls it after the same number of steps; rank 0 writes, and nobody waits, but on Ray, for whose
        storage all wait. A checkpoint is there wholly or not at all.

        Args:
            **objects: What has ``state_dict()`` and ``load_state_dict()``: model, optimizer, scheduler. Wrappers of ``ddp`` and
                ``torch.compile`` are taken off.

        Raises:
            PlanError: An object has no state, or its state holds more than tensors and plain values.
        """
        self._checkpoints.write(objects, self._loader.state_dict())

    def restore(self, **objects: Any) -> bool:
        """Puts objects and the loader where the newest checkpoint was taken; every rank calls it.

        Rank 0 reads it and gives it to the others. Damaged ones are skipped with a warning.

        Args:
            **objects: As ``save`` was given them.

        Returns:
            False where there is no checkpoint; nothing was changed then.

        Raises:
            PlanError: The checkpoint holds other objects, or is of another loader.
        """
        state = self._checkpoints.restore(objects, self._loader.load_state_dict)
        if state is None:
            return False
        self._continued = state["epoch"], state["next_batch"] // self.world_size
        return True


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError) as error:
        raise PlanError(f"ctx.log({name}={value!r}): that is no number", f"for example ctx.log({name}=loss.item())") from error
