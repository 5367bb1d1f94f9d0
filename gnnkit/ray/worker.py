"""One rank on a Ray cluster: a worker of Ray Train's ``TorchTrainer`` that calls ``train(loader, ctx)`` as every other rank does.

These functions run in processes that Ray has started, on any node of the cluster, where gnnkit has to be installed.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray

from gnnkit.cluster.serving.spec import remember_token
from gnnkit.host import without_collections
from gnnkit.jobs.context import Checkpoints
from gnnkit.jobs.environment import JobPlace
from gnnkit.jobs.launching.packing import pack_result, unpack_code
from gnnkit.jobs.launching.rank import RankTeller, carry_extra
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.remote import error_to_json

# How often a rank tells how far it is, at most.
_TELL_S = 0.25
# That the driver's node may take to answer.
_ANSWER_S = 60.0
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class RayTask:
    """The work of the ranks, as Ray brings it to them, pickled.

    Attributes:
        code: The train function, packed (``gnnkit.jobs.launching.packing``).
        plan: The plan as JSON values, its store's path absolute.
        directory: ``ctx.directory``; "" is Ray's own working folder of the rank.
        device: "auto", "cpu" or "cuda".
        tokens: ``{address: token}`` of the servers that the plan names.
        timeout_s: Seconds that ranks have to meet.
        on_one_host: Whether the cluster is one of this host alone, so that nothing of gnnkit's need listen beyond it.
        variables: The environment of the process that launches; a rank takes those that its node does not set.
    """

    code: bytes
    plan: Mapping[str, Any]
    directory: str
    device: str
    tokens: Mapping[str, str]
    timeout_s: float
    on_one_host: bool
    variables: Mapping[str, str]


class Board:
    """The actor that ranks write to and the driver reads from: their progress, results and errors."""

    def __init__(self) -> None:
        self._said: list[tuple[str, dict[str, Any]]] = []
        self._begun: dict[int, int] = {}

    def begin(self, rank: int, pid: int) -> int:
        """Notes that a rank begins, in some process; how often it has begun before."""
        before = self._begun.get(rank, 0)
        self._begun[rank] = before + 1
        self.say("begins", {"rank": rank, "pid": pid})
        return before

    def say(self, kind: str, body: dict[str, Any]) -> None:
        """Notes a message."""
        self._said.append((kind, body))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns what was said since the last call, in the order in which it came."""
        said, self._said = self._said, []
        return said


def train_worker(config: Mapping[str, Any]) -> None:
    """Trains as one rank; ``TorchTrainer`` calls it in each of its workers.

    Args:
        config: ``{"task": RayTask, "board": Board's handle}``.
    """
    import ray.train

    rank, board = ray.train.get_context().get_world_rank(), config["board"]
    restarts = ray.get(board.begin.remote(rank, os.getpid()))
    _RankOnRay(config["task"], rank, restarts, board.say.remote).run()


class _RankOnRay(RankTeller):
    """One attempt of a rank.

    Args:
        task: Its work.
        rank: Its number.
        restarts: How often it was started again.
        say: Tells the driver something.
    """

    def __init__(self, task: RayTask, rank: int, restarts: int, say: Callable[..., Any]) -> None:
        super().__init__()
        self._task, self._rank, self._restarts, self._write = task, rank, restarts, say
        self._printed: list[str] = []
        self._ended = threading.Event()

    def run(self) -> None:
        """Trains, and tells the driver the result.

        Raises:
            Exception: Whatever the train function raises; the driver has been told of it then.
        """
        teller = threading.Thread(target=self._keep_telling, name="gnnkit-rank", daemon=True)
        teller.start()
        try:
            with contextlib.redirect_stdout(_Tee(sys.stdout, self._print)), contextlib.redirect_stderr(_Tee(sys.stderr, self._print)):
                result = pack_result(self._train())
        except BaseException as error:
            self._tell_error(error)
            raise
        finally:
            self._ended.set()
            teller.join()
            self._tell_progress()
        self._say_surely("result", data=result)

    def _say(self, kind: str, **body: Any) -> None:
        self._write(kind, {"rank": self._rank, **body})

    def _say_surely(self, kind: str, **body: Any) -> None:
        """Tells the driver something, and returns once the board has it."""
        ray.get(self._write(kind, {"rank": self._rank, **body}), timeout=_ANSWER_S)

    def _say_error(self, error: BaseException) -> None:
        self._say_surely("raised", error=error_to_json(error), at=time.time(), is_training=self._is_training)

    def _print(self, text: str) -> None:
        with self._tell_lock:
            self._printed.append(text)

    def _train(self) -> Any:
        task = self._task
        os.environ.update({name: value for name, value in task.variables.items() if name not in os.environ})
        with without_collections():
            from gnnkit.jobs.running import run_training  # torch
            from gnnkit.sampling.collate import load_batch_classes  # torch

            train, transform, extra, config = unpack_code(task.code)
            load_batch_classes()
        for address, token in task.tokens.items():
            remember_token(address, token)
        place, store = _meet(task, self._restarts)
        os.environ.update(place.variables())
        plan = LoaderPlan.from_json(task.plan)
        # Every loader that opens this store in this process meanwhile shares the graph with its extra attributes.
        graph = carry_extra(plan.store.path, extra) if extra is not None and plan.store is not None else None
        directory = Path(task.directory or os.getcwd())

        with tempfile.TemporaryDirectory(prefix="gnnkit-plan-") as folder:
            path = Path(folder) / "plan.json"
            plan.save(path)
            result = run_training(
                path,
                self._watched(train),
                place,
                directory=directory,
                report=self._report,
                device=task.device,
                store=store,
                transform=transform,
                checkpoints=RayCheckpoints(directory, place.rank, place.world_size),
                config=config,
            )
        del graph
        return result

    def _keep_telling(self) -> None:
        """A thread: tells now and then how far training is."""
        while not self._ended.wait(_TELL_S):
            self._tell_progress()

    def _tell_progress(self) -> None:
        with self._tell_lock:
            if self._printed:
                self._say("output", text="".join(self._printed))
                self._printed.clear()
        super()._tell_progress()


class _Tee(io.TextIOBase):
    """A stream whose text goes to another one and to the launcher, for ``RunHandle.logs``.

    Args:
        stream: The other one.
        put: Takes the text.
    """

    def __init__(self, stream: Any, put: Callable[[str], None]) -> None:
        self._stream, self._put = stream, put

    def write(self, text: str) -> int:
        """Writes text."""
        self._put(text)
        self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the other stream."""
        self._stream.flush()

    def writable(self) -> bool:
        """Says that it is."""
        return True


def _meet(task: RayTask, restarts: int) -> tuple[JobPlace, Any]:
    """This rank's place, and the store that the ranks meet at; None for a single one.

    Rank 0 listens before the other ranks know where, so that no other program can take the port.
    """
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    from gnnkit.cluster.hosts import meeting_store  # torch

    said = get_context()
    rank, count, node = said.get_world_rank(), said.get_world_size(), said.get_node_rank()
    numbers = rank, said.get_local_rank(), node, count, said.get_local_world_size()
    if count == 1:
        return JobPlace(*numbers, num_nodes=1, restarts=restarts), None
    listener, meeting = None, None
    if rank == 0:
        own = _LOOPBACK if task.on_one_host else ray.util.get_node_ip_address()
        listener = socket.create_server((own, 0))
        meeting = own, listener.getsockname()[1]
    address, port = broadcast_from_rank_zero(meeting)
    store = meeting_store(address, port, rank, count, timedelta(seconds=task.timeout_s), listener)
    store.set(f"node/{rank}", str(node))
    nodes = [f"node/{other}" for other in range(count)]
    store.wait(nodes, timedelta(seconds=task.timeout_s))
    num_nodes = 1 + max(int(number) for number in store.multi_get(nodes))
    return JobPlace(*numbers, num_nodes=num_nodes, restarts=restarts, master_addr=address, master_port=port), store


class RayCheckpoints(Checkpoints):
    """Checkpoints that Ray Train keeps: in the run's storage, where workers on any node find the newest again.

    Every rank waits until the checkpoint is there: Ray wants to hear of it from each of them.
    """

    def write(self, objects: Mapping[str, Any], loader: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Path | None:
        """Writes a checkpoint to the storage; none is left on this host."""
        from ray.train import Checkpoint, report

        if not self.is_writer:
            report({})
            return None
        with tempfile.TemporaryDirectory(prefix="gnnkit-checkpoint-") as folder:
            Checkpoints(Path(folder), self.rank, self.world_size).write(objects, loader, config)
            report({}, checkpoint=Checkpoint.from_directory(folder))
        return None

    def newest(self) -> bytes | None:
        """Returns the newest whole checkpoint that Ray knows of; None where there is none."""
        from ray.train import get_checkpoint

        found = get_checkpoint()
        if found is None:
            return None
        with found.as_directory() as folder:
            return Checkpoints(Path(folder), self.rank, self.world_size).newest()
