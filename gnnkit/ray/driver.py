"""Ray's driver: a child process that joins a cluster, or starts one on this host, for one launch or one build.

Ray Train runs the ranks of a launch, tasks the parts of a store (``building``).
What ranks say reaches it through an actor (``Board``), and its parent through the wire. Ray's own processes of a cluster of this host, and
their folder, go with it, however it ends.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, NoReturn, cast

import ray

from gnnkit.errors import GnnkitError, PlanError, StartTimeout, WorkerDied
from gnnkit.plan import LoaderPlan
from gnnkit.ray.building import ClusterTasks, RayBuild, StoodStill, call
from gnnkit.ray.cluster import RayCluster
from gnnkit.ray.worker import Board, RayTask, train_worker
from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.wire import PARENT_WAIT_S, Message, Wire, from_memory
from gnnkit.waiting import Deadline

logger = logging.getLogger(__name__)

_COLOURS, _RAISED = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"[\w.]*(Error|Exception|Timeout|Died)\b.*: ")
# Ray Train starts its controller with these variables; a process that has others is of no use to it.
_OF_CONTROLLER = {"RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0"}
_LISTEN_S, _POLL_S, _ANSWER_S = 0.2, 0.25, 60.0
# Checkpoints that stay in the storage, as in a folder.
_KEPT = 2
# How often a build that stands still after a node's death is begun anew.
_BEGUN_ANEW = 2
# Ray puts Unix sockets below its folder, and their paths may have 107 characters.
_LONGEST_FOLDER = 44
_CLEANER = "gnnkit.ray.cleaner"
_CLEANER_S = 10.0


def failure(error: BaseException) -> str:
    """Describes an error of Ray's in one line: what was raised in the end, of all the tracebacks that it and its causes have for it."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    if error.__cause__ is not None and not raised:
        return failure(error.__cause__)
    return raised[-1] if raised else f"{type(error).__name__}: {lines[0] if lines else 'it says no more'}"


def remedy(said: str, other: str | None = None) -> str | None:
    """The remedy of a failure that ``failure`` has described; ``other`` where the cluster itself is not the reason."""
    if "InvalidAuthToken" in said:
        return "RAY_AUTH_MODE=token, and the cluster's token in RAY_AUTH_TOKEN, or its file in RAY_AUTH_TOKEN_PATH"
    if "No module named" in said:
        return (
            "nodes of the cluster need what this process has: install it there (`pip install 'gnnkit[ray]'`, the same versions), or have"
            " Ray install it: gnnkit.Ray(runtime_env={'pip': [...]})"
        )
    return other


@contextlib.contextmanager
def connected(options: RayCluster, timeout_s: float) -> Iterator[None]:
    """A connection of this process to the cluster, for a ``with`` block; one that was started here ends with it.

    Args:
        options: Which cluster.
        timeout_s: Seconds that it may take.

    Raises:
        StartTimeout: The cluster cannot be joined or started in time.
    """
    with contextlib.ExitStack() as undo:
        if options.joined is None:
            _start_here(options, undo.enter_context(_own_folder()), Deadline(timeout_s))
        else:
            try:
                ray.init(options.joined, log_to_driver=False, runtime_env=options.runtime_env)
            except Exception as error:  # whatever Ray and what it stands on raise
                said, hint = failure(error), "both sides need the same versions of Ray and Python"
                raise StartTimeout(
                    f"the Ray cluster at {options.joined!r} cannot be joined: {said}",
                    remedy(said, f"start it with `ray start --head`, and look at `ray status`; {hint}"),
                ) from error
        undo.callback(ray.shutdown)
        yield


def _start_here(options: RayCluster, folder: str, deadline: Deadline) -> None:
    """Starts a cluster of this host, whose files are in a folder.

    Raises:
        StartTimeout: It does not start in time.
    """
    while True:
        try:
            ray.init(
                "local",
                num_cpus=options.num_cpus or options.num_workers * options.cpus_per_worker,
                object_store_memory=options.object_store_memory,
                include_dashboard=False,
                log_to_driver=False,
                runtime_env=options.runtime_env,
                _temp_dir=folder,
            )
            return
        except Exception as error:  # on a busy machine processes of Ray give each other up
            ray.shutdown()
            if deadline.has_passed:
                raise StartTimeout(f"Ray cannot be started on this host: {failure(error)}", "raise start_timeout_s") from error
            logger.warning("Ray did not start: %s; once more", failure(error))


@contextlib.contextmanager
def _own_folder() -> Iterator[str]:
    """A folder for a cluster of this host, which goes with this process, however that ends."""
    base = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="gnnkit-ray-", dir=base if len(base) <= _LONGEST_FOLDER - 20 else "/tmp")
    words = [sys.executable, "-m", _CLEANER, str(os.getsid(0)), folder]
    cleaner = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            cleaner.communicate(b"done\n", timeout=_CLEANER_S)


class RayDriver:
    """The driver of one launch or one build, from its first message to its end.

    Args:
        wire: The connection to the process that wants it.
        watch: Shows that this one is alive.
    """

    def __init__(self, wire: Wire, watch: ParentWatch) -> None:
        self._wire = wire
        self._heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._connection = contextlib.ExitStack()
        self._trained = threading.Event()

    def run(self) -> None:
        """Trains or builds once; never returns: the parent process ends this one."""
        threading.Thread(target=self._listen, name="gnnkit-driver", daemon=True).start()
        works = {
            "calls": (self._call, "Ray cannot read the tables"),
            "build": (self._build, "Ray cannot build the store"),
            "setup": (self._train, "Ray cannot run the ranks"),
        }
        what = "Ray has no work"
        try:
            first = self._heard.get(timeout=PARENT_WAIT_S)
            work, what = works[first.kind]
            work(first)
        except BaseException as error:
            logger.error("%s", what, exc_info=error)
            said = failure(error)
            self._lose(error if isinstance(error, GnnkitError) else StartTimeout(f"{what}: {said}", remedy(said)))
        threading.Event().wait()

    def _listen(self) -> NoReturn:
        """A thread: takes messages, and ends Ray and this process when the parent does not need them any more."""
        while True:
            message = self._wire.hear(_LISTEN_S)
            if message is not None and message.kind == "stop":
                with contextlib.suppress(Exception):  # what is left is the cleaner's
                    self._connection.close()
                os._exit(0)
            if message is not None:
                self._heard.put(message)

    def _call(self, asked: Message) -> None:
        """Has nodes call functions, once for each request."""
        options = RayCluster(**asked.body["engine"])
        self._connection.enter_context(connected(options, asked.body["timeout_s"]))
        while True:
            function, shared, calls = pickle.loads(from_memory(asked.fds.pop()))
            tasks, pending = ClusterTasks(shared, options.cpus_per_worker), dict[Any, int]()
            for number, (words, nbytes) in enumerate(calls):
                (made,) = tasks.submit(call, 1, function, words, weight=nbytes)
                pending[made] = number
            for (node, value), number in tasks.results(pending):
                self._wire.tell("called", [pickle.dumps((number, node, value))])
            asked = self._heard.get()

    def _build(self, setup: Message) -> None:
        options = RayCluster(**setup.body["engine"])
        self._connection.enter_context(connected(options, setup.body["timeout_s"]))
        task, has_told = pickle.loads(from_memory(setup.fds[0])), False
        for is_last in (False,) * _BEGUN_ANEW + (True,):
            work = RayBuild(task, options.cpus_per_worker, lambda event: self._wire.tell("progress", event=asdict(event)))
            try:
                totals = work.divide()
                if not has_told:
                    self._wire.tell("divided", totals=totals.to_json())
                    shared = self._heard.get(timeout=PARENT_WAIT_S)
                    assert shared.kind == "shared"
                    has_told = True
                work.build(totals)
                break
            except StoodStill as error:  # the nodes that are left begin anew, with the parts that are missing
                if is_last:
                    raise WorkerDied(error.message, error.hint) from error
        self._wire.tell("built")

    def _train(self, setup: Message) -> None:
        body, options = setup.body, RayCluster(**setup.body["engine"])
        self._connection.enter_context(connected(options, body["timeout_s"]))
        _prepare_controller()
        self._wire.tell("joined", resources=ray.cluster_resources())
        plan = self._heard.get(timeout=PARENT_WAIT_S)
        assert plan.kind == "plan"
        device = _device(body["device"], options)
        directory = str(body["directory"])
        task = RayTask(
            code=from_memory(setup.fds[0]),
            plan=LoaderPlan.load(plan.body["path"]).to_json(),
            directory="" if "://" in directory else directory,
            device="cpu" if device == "cpu" else "auto",
            tokens=plan.body["tokens"],
            timeout_s=body["timeout_s"],
            on_one_host=options.joined is None,
            variables=body["variables"],
        )
        # On the node of this process: it is not to go with another one.
        board = ray.remote(num_cpus=0)(Board).options(scheduling_strategy=_here()).remote()
        reader = threading.Thread(target=self._read, args=(board, options.num_workers), name="gnnkit-board", daemon=True)
        reader.start()
        try:
            _fit(task, board, options, directory, body["max_restarts"], use_gpu=device != "cpu")
        finally:
            self._trained.set()
            reader.join(_ANSWER_S)
        self._wire.tell("trained")

    def _read(self, board: Any, num_workers: int) -> None:
        """A thread: passes on what ranks say, to the last word, and that Ray has no room for them."""
        is_last, was_pending, begun = False, False, set[int]()
        while not is_last:
            is_last = self._trained.wait(_POLL_S)
            try:
                # Of the cluster only while ranks are missing: it is asked again and again.
                is_pending = len(begun) < num_workers and _is_pending(num_workers)
                resources = (ray.cluster_resources(), ray.available_resources()) if is_pending or was_pending else ()
                said = ray.get(board.take.remote(), timeout=_ANSWER_S)
            except ray.exceptions.RayActorError as error:
                words = failure(error)
                self._lose(WorkerDied(f"the ranks cannot be heard any more: {words}", remedy(words)))
                return
            except Exception as error:  # the connection is being closed, or slow
                logger.warning("the ranks cannot be heard: %s", failure(error))
                continue
            if resources:
                self._wire.tell("pending", is_pending=is_pending, resources=resources[0], free=resources[1])
            was_pending = is_pending
            for kind, body in said:
                if kind == "begins":
                    begun.add(body["rank"])
                elif kind == "broken":  # all start again, and may have to wait for room again
                    begun.clear()
                self._wire.tell(kind, [body.pop("data")] if kind == "result" else [], **body)

    def _lose(self, error: GnnkitError) -> None:
        self._wire.tell("lost", error=error_to_json(error))


def _device(word: str, options: RayCluster) -> str:
    """The device of the ranks: "cuda" where the cluster has a GPU for each and the word does not say otherwise.

    Raises:
        PlanError: GPUs were asked for, and there are too few.
    """
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if word == "cpu" or (word == "auto" and gpus < options.num_workers):
        return "cpu"
    if gpus < options.num_workers:
        raise PlanError(f"device={word!r} for {options.num_workers} ranks, and the Ray cluster has {gpus} GPUs", "device='cpu'")
    return "cuda"


def _import_train() -> None:
    """Imports Ray Train; a task, whose process Ray keeps for the next one that it fits."""
    importlib.import_module("ray.train.torch")


def _prepare_controller() -> None:
    """Has Ray start the process of Ray Train's controller while this one imports Ray Train, which takes seconds in both."""
    options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": _here(), "runtime_env": {"env_vars": _OF_CONTROLLER}}
    ray.remote(**options)(_import_train).remote()


def _here() -> Any:
    """The strategy that keeps a task or an actor on the node of this process."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _is_pending(num_workers: int) -> bool:
    """Whether a request for as many workers waits for room in the cluster.

    Ray Train asks for all of its workers by one placement group, which has no name of its own.
    """
    from ray.util import placement_group_table

    groups = placement_group_table().values()
    return any(group["state"] == "PENDING" and len(group["bundles"]) == num_workers for group in groups)


def _fit(task: RayTask, board: Any, options: RayCluster, directory: str, max_restarts: int, *, use_gpu: bool) -> None:
    """Runs the ranks, again and again while they fail and may.

    Raises:
        Exception: Ray's own, once they have failed for good.
    """
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, UserCallback
    from ray.train.backend import Backend
    from ray.train.torch import TorchConfig, TorchTrainer

    class OwnGroup(TorchConfig):  # type: ignore[misc]  # Ray has no types
        """Ranks make their process group themselves, as under every launcher."""

        @property
        def backend_cls(self) -> type[Any]:
            return cast("type[Any]", Backend)

    class FailureReport(UserCallback):  # type: ignore[misc]
        """Tells the driver which ranks have failed."""

        def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
            board.say.remote("broken", {"reasons": {str(rank): failure(error) for rank, error in worker_exceptions.items()}})

    parent, _, name = directory.rstrip("/").rpartition("/")
    TorchTrainer(
        train_worker,
        train_loop_config={"task": task, "board": board},
        torch_config=OwnGroup(),
        scaling_config=ScalingConfig(
            num_workers=options.num_workers,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": options.cpus_per_worker, "GPU": int(use_gpu), **(options.resources or {})},
            placement_strategy=options.placement_strategy,
        ),
        run_config=RunConfig(
            name=name,
            storage_path=parent or "/",
            failure_config=FailureConfig(max_failures=max_restarts),
            checkpoint_config=CheckpointConfig(num_to_keep=_KEPT),
            callbacks=[FailureReport()],
        ),
    ).fit()
