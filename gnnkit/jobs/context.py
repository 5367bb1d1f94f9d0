"""The context of a train function: where it runs, what every distributed loop needs, ``ctx.log``, and the job's checkpoints.

``checkpoint-<number>-<digest>.pt`` is what ``torch.save`` wrote, and the digest is that of the file: a file that was cut off or altered is
known by its name. ``torch.load(path, weights_only=True)["objects"]["model"]`` is a model's state.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import logging
import re
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gnnkit.arguments import check_known, checks_calls
from gnnkit.bounds import whole_number
from gnnkit.callers import warn
from gnnkit.errors import PlanError, StoreError
from gnnkit.files import read_bounded, why_unwritable
from gnnkit.jobs.environment import JobPlace, find_job
from gnnkit.jobs.trackers import Tracker, make_tracker
from gnnkit.plan.config import Config
from gnnkit.storage.files import sync
from gnnkit.units import format_duration, format_rate

if TYPE_CHECKING:
    import torch

    from gnnkit.graph_loader import GraphLoader


VERSION = 1
KEPT = 2
_NAME = re.compile(r"checkpoint-([0-9]{8})-([0-9a-f]{16})\.pt")
_HALF_WRITTEN = ".checkpoint.half-written"


class Checkpoints:
    """The checkpoints in a folder. One process writes there; the ranks of its process group read what it reads.

    Args:
        folder: The folder.
        rank: This rank: 0 writes and reads.
        world_size: Ranks in all.

    Attributes:
        rank: See above.
        world_size: See above.
        is_writer: Whether this rank writes and reads for all.
    """

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size, self.is_writer = rank, world_size, rank == 0
        self._folder = folder
        self._damaged: set[Path] = set()

    def write(self, objects: Mapping[str, Any], loader: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Path | None:
        """Writes a checkpoint, and removes all but the last two. Every rank calls it; only rank 0 does something.

        Args:
            objects: What has ``state_dict()``, by name.
            loader: ``state_dict()`` of the loader.
            config: The job's hyper-parameters.

        Returns:
            Its file; None where it is not in a folder of this host.

        Raises:
            PlanError: An object has no state, or its state holds more than tensors and plain values.
            StoreError: The folder cannot be written, or its disk is full; earlier checkpoints stay as they are.
        """
        if not self.is_writer:
            return None
        import torch

        states = {name: _state(name, value) for name, value in objects.items()}
        buffer = io.BytesIO()
        owner = {"job": find_job(), "config": dict(config or {})}
        torch.save({"version": VERSION, "world_size": self.world_size, "loader": dict(loader), "objects": states, **owner}, buffer)
        content = buffer.getbuffer()
        found = self._files()
        number = 1 + found[-1][0] if found else 1
        path = self._folder / f"checkpoint-{number:08d}-{digest_of(content)}.pt"
        half = self._folder / _HALF_WRITTEN
        try:
            with half.open("wb") as file:
                file.write(content)
            sync(half)
            half.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                half.unlink()
            raise StoreError(
                f"the checkpoint {path} could not be written: {why_unwritable(error, self._folder)}; the one before it is whole",
                "free some space, or give another --dir",
            ) from error
        with contextlib.suppress(OSError):  # some network file systems know no such thing of a folder
            sync(self._folder)
        whole = [other for _, _, other in found if other not in self._damaged]
        for old in {*whole[: len(whole) + 1 - KEPT], *self._damaged}:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()
        self._damaged.clear()
        return path

    def restore(
        self,
        objects: Mapping[str, Any],
        move_loader: Callable[[dict[str, Any]], None] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        """Loads the newest whole checkpoint into objects; in a process group every rank calls it, and all load what rank 0 reads.

        Args:
            objects: What has ``load_state_dict()``, by the names that ``write`` was given.
            move_loader: Called with the loader's state before anything is loaded: what it refuses leaves the objects as they are.
            config: The hyper-parameters that the checkpoint has to have been made with; None takes one of any.

        Returns:
            The loader's state; None where there is no checkpoint.

        Raises:
            PlanError: The newest whole checkpoint holds other objects, is of another job or of a newer gnnkit, or cannot be read without
                running code.
        """
        content = self.newest() if self.is_writer else None
        if self.world_size > 1:
            content = _from_rank_0(content)
        if content is None:
            return None
        value = _read(content)
        states = value["objects"]
        if set(states) != set(objects):
            raise PlanError(
                f"the newest checkpoint in {str(self._folder)!r} holds {sorted(states)}, and restore() was given {sorted(objects)}",
                "give restore() what save() was given, or another --dir to start anew",
            )
        if config is not None and value.get("config", config) != config:
            raise PlanError(
                f"the newest checkpoint in {str(self._folder)!r} was made by {value['job']} with {in_words(value['config'])}, and this job"
                f" has {in_words(config)}",
                "give this job a folder of its own, with --dir or RUN_DIR; --take-over goes on from that checkpoint with the new values",
            )
        loader: dict[str, Any] = value["loader"]
        if move_loader is not None:
            move_loader(loader)
        for name, target in objects.items():
            _unwrapped(target).load_state_dict(states[name])
        return loader

    def _files(self) -> list[tuple[int, str, Path]]:
        """Returns ``(number, digest, path)`` of each checkpoint, the oldest first."""
        named = ((_NAME.fullmatch(path.name), path) for path in self._folder.glob("checkpoint-*.pt"))
        return sorted((int(match[1]), match[2], path) for match, path in named if match is not None)

    def newest(self) -> bytes | None:
        """Returns the bytes of the newest whole checkpoint; None where there is none. Damaged ones are skipped with a warning."""
        for _, digest, path in reversed(self._files()):
            with contextlib.suppress(OSError):  # one that is a pipe or a folder is as good as damaged
                content = read_bounded(path, sys.maxsize - 1)
                if digest_of(content) == digest:
                    return content
            self._damaged.add(path)
            warn(f"the checkpoint {str(path)!r} is damaged; the one before it is taken")
        return None


def in_words(config: Mapping[str, Any]) -> str:
    """Hyper-parameters as they are given on a command line."""
    return ", ".join(f"{name}={value!r}" for name, value in config.items()) or "no --set"


def digest_of(content: bytes | memoryview) -> str:
    """Returns the digest that a checkpoint's name holds, in hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _read(content: bytes) -> dict[str, Any]:
    import torch

    try:
        value = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # arbitrary bytes raise nearly anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise PlanError(f"the newest checkpoint cannot be read: {reason}", "it was not written by ctx.save(); move it away") from error
    if not isinstance(value, dict) or value.get("version") != VERSION:
        found = value.get("version") if isinstance(value, dict) else type(value).__name__
        raise PlanError(
            f"the newest checkpoint is of version {found!r}, this gnnkit reads version {VERSION}", "update gnnkit, or move it away"
        )
    if not isinstance(value.get("objects"), dict) or not isinstance(value.get("loader"), dict):
        raise PlanError("the newest checkpoint holds no states", "it was not written by ctx.save(); move it away")
    return value


def _from_rank_0(content: bytes | None) -> bytes | None:
    """Rank 0's bytes, or None, on every rank of the process group."""
    import torch
    import torch.distributed as dist

    size = torch.tensor([-1 if content is None else len(content)])
    dist.broadcast(size, 0)
    if int(size) < 0:
        return None
    data = torch.empty(int(size), dtype=torch.uint8) if content is None else torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(data, 0)
    return data.numpy().tobytes()


def _unwrapped(value: Any) -> Any:
    """The module inside wrappers that add a prefix to the names in its state."""
    from torch.nn.parallel import DistributedDataParallel

    while True:
        if isinstance(value, DistributedDataParallel):
            value = value.module
        elif hasattr(value, "_orig_mod"):  # what torch.compile makes
            value = value._orig_mod
        else:
            return value


def _state(name: str, value: Any) -> Any:
    if not hasattr(value, "state_dict") or not hasattr(value, "load_state_dict"):
        raise PlanError(
            f"ctx.save({name}=...) was given a {type(value).__name__}, which has no state_dict() and load_state_dict()",
            "save models, optimizers and schedulers; numbers can be found again in what ctx.log() was given",
        )
    state = _unwrapped(value).state_dict()
    _check_plain(state, name)
    return state


def _check_plain(value: Any, where: str) -> None:
    """Refuses what could not be loaded again without running code.

    Raises:
        PlanError: Names it.
    """
    import torch

    plain = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)
    if type(value) in (dict, OrderedDict, Counter):
        for key, item in value.items():
            _check_plain(key, f"a key of {where}")
            _check_plain(item, f"{where}[{key!r}]")
    elif type(value) in (list, tuple, set, torch.Size):
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]")
    elif not (value is None or type(value) in plain or isinstance(value, torch.Tensor)):
        raise PlanError(
            f"the state of {where} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold safely",
            "a state may hold tensors, numbers, texts, and lists and dicts of them; float(value) makes a number of NumPy's",
        )


_EVERY_S = 5.0


class LogLines:
    """A ``Report`` that shows what one rank logs, at most every few seconds, and the last of every epoch.

    Args:
        show: Shows a line.
        clock: Seconds.
    """

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self._held: tuple[float, Logged] | None = None
        self._first: tuple[float, int] | None = None
        self._next_s = -float("inf")

    def __call__(self, logged: Logged) -> None:
        """Takes note of numbers."""
        if self._held is not None and self._held[1].epoch != logged.epoch:
            self.flush()
        self._held = self._clock(), logged
        self._first = self._first or (self._held[0], logged.steps_done)
        if self._held[0] >= self._next_s:
            self.flush()

    def flush(self) -> None:
        """Shows what was logged last, if it was not shown."""
        if self._held is not None and self._first is not None:
            (now, logged), (then, before) = self._held, self._first
            rate = (logged.steps_done - before) / (now - then) if now > then else 0.0
            self._show(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line(logged, rate)}")
            self._held, self._next_s = None, self._clock() + _EVERY_S


def line(logged: Logged, rate: float = 0.0) -> str:
    """Numbers of a step, as a line.

    Args:
        logged: The numbers.
        rate: Steps in a second, for the time that is left; 0 where it is not known.
    """
    parts = [f"epoch {logged.epoch}" + (f" of {logged.num_epochs}" if logged.num_epochs else ""), f"batch {logged.step}/{logged.num_steps}"]
    if rate > 0:
        left = (logged.num_epochs or logged.epoch + 1) * logged.num_steps - logged.steps_done
        of = "" if logged.num_epochs else " of the epoch"
        parts.append(f"{format_rate(rate, 'batches')}, {format_duration(left / rate)} left{of}")
    return "  ".join([*parts, *(f"{name} {value:.4g}" for name, value in logged.numbers.items())])


@dataclass(frozen=True)
class Logged:
    """The numbers of one call of ``ctx.log``.

    Attributes:
        rank: Whose numbers they are.
        epoch: The epoch that its loader is in; -1 before the first.
        step: Batches of the epoch that this rank has had, those before a restart included.
        num_steps: Batches of this rank in one epoch.
        numbers: The numbers.
        num_epochs: Epochs of the whole training, where ``ctx.epochs`` was told; else 0.
    """

    rank: int
    epoch: int
    step: int
    num_steps: int
    numbers: dict[str, float]
    num_epochs: int = 0

    @property
    def steps_done(self) -> int:
        """Batches that this rank has had in all epochs, those before a restart included."""
        return max(0, self.epoch) * self.num_steps + self.step


Report = Callable[[Logged], None]
_logger = logging.getLogger(__name__)
# Options of DistributedDataParallel that follow from the rank's device.
_OF_DEVICES = "device_ids", "output_device"


@checks_calls()
class TrainContext:
    """A rank's place in the job, with its loader, checkpoints and log, for its training loop.

    Args:
        place: Where it stands.
        device: Its device.
        directory: The job's folder.
        loader: Its loader.
        checkpoints: The job's checkpoints.
        report: Called with what ``log`` is given.
        config: The job's hyper-parameters.

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
        config: The job's hyper-parameters: ``config`` of ``gnnkit.launch`` and ``loader.export``, and ``--set`` of ``gnnkit run``.

    Example:
        >>> import gnnkit
        >>> store = gnnkit.partition(gnnkit.datasets.products_like(0.0005), 2, out="store", overwrite=True)
        >>> loader = gnnkit.GraphLoader.from_store(store.path, num_neighbors=[5], progress=False)
        >>> def train(loader, ctx):
        ...     return sum(batch.batch_size for batch in loader), ctx.world_size
        >>> gnnkit.launch(train, loader, 1, progress=False).result()
        (98, 1)
    """

    def __init__(
        self,
        place: JobPlace,
        device: torch.device,
        directory: Path,
        loader: GraphLoader,
        checkpoints: Checkpoints,
        report: Report,
        config: Mapping[str, Any],
        *,
        takes_over: bool = False,
    ) -> None:
        self.rank, self.local_rank, self.node_rank = place.rank, place.local_rank, place.node_rank
        self.world_size, self.local_world_size, self.num_nodes = place.world_size, place.local_world_size, place.num_nodes
        self.restarts, self.is_main = place.restarts, place.rank == 0
        self.device, self.directory = device, directory
        self.config: Mapping[str, Any] = MappingProxyType(Config(config))
        self._loader, self._checkpoints, self._report, self._takes_over = loader, checkpoints, report, takes_over
        self._num_epochs, self._trackers = 0, list[Tracker]()
        self._objects: dict[str, Any] | None = None
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
        logged = Logged(self.rank, epoch, step, len(self._loader), values, self._num_epochs)
        self._report(logged)
        for tracker in self._trackers:
            tracker.log(values, logged.steps_done)

    def track(self, tracker: Tracker | str) -> None:
        """Has what ``log`` is given kept elsewhere, too; every rank calls it, and rank 0 writes.

        Args:
            tracker: "csv", "tensorboard", "wandb", "mlflow", or an object with ``log(numbers, step)`` and ``close()``.

        Raises:
            PlanError: There is none of that name, or its package is not installed.
        """
        if self.is_main:
            self._trackers.append(make_tracker(tracker, self.directory, self.config) if isinstance(tracker, str) else tracker)

    def close(self) -> None:
        """Closes the trackers; ``run_training`` calls it."""
        while self._trackers:
            self._trackers.pop().close()

    def ddp(self, model: Any, **options: Any) -> Any:
        """The model on this rank's device, its gradients averaged over all ranks; alone it is only moved.

        Args:
            model: A ``torch.nn.Module``, the same on every rank: parameters are rank 0's from here on.
            **options: Those of ``DistributedDataParallel``: ``find_unused_parameters=True`` where some batches do not reach all of the
                model, as batches of typed graphs may. They are checked where the model is alone, too.

        Raises:
            PlanError: There is no such option, or it is decided here.
        """
        from torch.nn.parallel import DistributedDataParallel

        known = [name for name in inspect.signature(DistributedDataParallel).parameters if name not in ("module", *_OF_DEVICES)]
        check_known(options, known, dict.fromkeys(_OF_DEVICES, "the model is on ctx.device, one for each rank; leave it out"))
        model = model.to(self.device)
        if self.world_size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None, **options)

    def epochs(self, total: int) -> Iterator[int]:
        """Yields the numbers of the epochs that are left of ``total``, as the loader counts them; a broken one continues.

        Args:
            total: Epochs of the whole training, those before a restart included.

        Raises:
            PlanError: ``total`` is no whole number, or negative.
        """
        total = whole_number("epochs", total, 0)
        epoch, self._num_epochs = self._loader.state_dict()["epoch"], total
        if epoch >= total and self.is_main:
            _logger.warning("all %d epochs are done: nothing is left of this training; %s holds its checkpoints", total, self.directory)
        while epoch < total:
            yield epoch
            if self._loader.epoch < epoch:  # without an iteration it counts as done
                self._loader.set_epoch(epoch + 1)
            epoch = max(epoch, self._loader.epoch) + 1

    def save(self, **objects: Any) -> None:
        """Writes a checkpoint: the state of each object, and where the loader is. The last two are kept.

        Every rank calls it after the same number of steps; rank 0 writes, and others do not wait, but on Ray, for whose
        storage all wait. A checkpoint is there wholly or not at all.

        Args:
            **objects: What has ``state_dict()`` and ``load_state_dict()``: model, optimizer, scheduler. Wrappers of ``ddp`` and
                ``torch.compile`` are taken off.

        Raises:
            PlanError: An object has no state, or its state holds more than tensors and plain values.
        """
        self._objects = objects
        self._checkpoints.write(objects, self._loader.state_dict(), self.config)

    def save_soon(self) -> None:
        """Takes a checkpoint of what was last saved or restored before the next batch is handed out: the time limit is near.

        Rank 0 writes it by itself, so that ranks need not hear of it at the same step. A signal's handler may call it.
        """
        objects = self._objects
        if self.is_main and objects is not None:
            self._loader.pipeline.before_next(lambda: self.save(**objects))

    def restore(self, **objects: Any) -> bool:
        """Puts objects and the loader where the newest checkpoint was taken; every rank calls it.

        Rank 0 reads it and gives it to the others. Damaged ones are skipped with a warning.

        Args:
            **objects: As ``save`` was given them.

        Returns:
            False where there is no checkpoint; nothing was changed then.

        Raises:
            PlanError: The checkpoint holds other objects, or is of another loader or another job's.
        """
        self._objects = objects
        state = self._checkpoints.restore(objects, self._loader.load_state_dict, None if self._takes_over else dict(self.config))
        if state is None:
            return False
        self._continued = state["epoch"], state["next_batch"] // self.world_size
        return True


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError) as error:
        raise PlanError(f"ctx.log({name}={value!r}): that is no number", f"for example ctx.log({name}=loss.item())") from error
