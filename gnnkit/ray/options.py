"""``Ray``: the options of the engine, and of the launcher of exported jobs."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from gnnkit.arguments import checks_calls
from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.export.job import ExportJob, Instructions
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import LAUNCH, instructions_of, render
from gnnkit.export.proof.trial import Command, JobTrial
from gnnkit.jobs.launching.engine import Engine
from gnnkit.jobs.launching.job import LaunchSpec, PlanInputs, fair_threads
from gnnkit.ray.child import DriverChild, build_on_ray
from gnnkit.ray.cluster import LOCAL, RayCluster
from gnnkit.ray.job import RayJob
from gnnkit.source import GraphSource
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.store import Store


@checks_calls()
@dataclass(frozen=True)
class Ray(RayCluster, Engine):
    """The engine that runs ranks of ``gnnkit.launch`` on a Ray cluster, or the tasks of ``gnnkit.partition``.

    Ranks are workers of Ray Train's ``TorchTrainer``.

    Attributes:
        num_workers: Ranks. A build has all of a cluster that is joined, and of one on this host as many processors as so many ranks need.
        address: The cluster to join: ``"<host>:<port>"``, or ``"auto"`` for the one that this host belongs to. ``"local"`` starts one on
            this host that ends with the run. None takes ``$RAY_ADDRESS``, or ``"local"`` where that is not set.
        cpus_per_worker: Processors that Ray reserves for each rank, or each task of a build; sampling threads and processes of a rank
            compete for them.
        num_cpus: Processors that a cluster of this host offers; None: as many as the ranks need.
        object_store_memory: Bytes, or a size such as "1GB", of shared memory that a cluster of this host may use for Ray's own objects.
        runtime_env: What nodes need for ranks and tasks, as Ray's ``runtime_env``: ``{"pip": [...]}``, ``{"env_vars": {...}}`` ...
        resources: Custom resources of the cluster that each rank reserves: ``{name: amount}``.
        placement_strategy: How Ray places ranks: on few nodes ("PACK"), on many ("SPREAD"), or on one or on different ones strictly
            ("STRICT_PACK", "STRICT_SPREAD").
        pending_timeout_s: Seconds that ranks of a launch may wait until the cluster has room for all of them, beside ``start_timeout_s``:
            for other jobs to end, or for an autoscaler to add nodes.

    Raises:
        PlanError: A value is unusable.

    Example:
        >>> import gnnkit
        >>> engine = gnnkit.Ray(num_workers=4, address="auto")  # gnnkit.launch(train, loader, engine=engine)
        >>> engine.num_workers
        4
    """

    @property
    def num_procs(self) -> int:
        """The ranks of a launch."""
        return self.num_workers

    def directory(self, given: str | Path | None) -> str | None:
        """The directory of a launch; a URL of Ray's storage stays as it is."""
        return str(given) if "://" in str(given) else super().directory(given)

    def start(self, spec: LaunchSpec, inputs: PlanInputs, events: EventSink) -> RayJob:
        """Starts the ranks of a launch; see ``Engine``.

        Raises:
            PlanError: Ray is not installed, or a value is of no use here.
        """
        check_installed()
        if self.joined is not None and inputs.is_of_this_host:
            raise PlanError(
                "the loader's graph or its servers are only on this host, and other nodes of the Ray cluster could not reach them",
                "store = gnnkit.partition(data, num_parts, out=a folder or URL that all nodes see), then GraphLoader.from_store(...)",
            )
        if spec.device.startswith("cuda:"):
            raise PlanError(f"device={spec.device!r}, but it is Ray that gives each rank its GPU", "device='cuda'")
        if spec.threads != fair_threads(spec.num_procs):
            raise PlanError(
                f"threads_per_proc={spec.threads}, but ranks on Ray have as many threads as processors",
                f"Ray(cpus_per_worker={spec.threads})",
            )
        return RayJob(self, spec, inputs, events)

    def tasks(self) -> DriverChild:
        """Joins the cluster, for a ``with`` block in which its nodes read tables; see ``gnnkit.tables``.

        Raises:
            PlanError: Ray is not installed.
            StartTimeout: The cluster cannot be joined.
        """
        check_installed()
        return DriverChild(self, "read the tables again")

    def build(self, source: GraphSource, path: Path, options: BuildOptions, events: EventSink) -> Store:
        """Builds a store on the cluster, as ``gnnkit.partition`` does on one machine, byte for byte.

        Tasks of ``cpus_per_worker`` processors read ranges of a ``RangedSource``, and write parts. Other sources are first copied here,
        into the store's folder of parts.

        Args:
            source: The graph; every node of the cluster finds its files at the same paths.
            path: The store's folder, which every node of the cluster sees at the same path.
            options: How to build it.
            events: Receives the stages.

        Raises:
            PlanError: Ray is not installed, or an option needs all of the graph in one place.
            DatasetError: The source does not hold what it announces.
            StoreError: The disk is full, another process is at work, or ``path`` is something else than a store.
            StartTimeout: The cluster cannot be joined.
            WorkerDied: The driver, or every node of the cluster, is gone. Parts that are finished are kept for the next call.
        """
        check_installed()
        return build_on_ray(self, source, path, options, events)


def check_installed() -> None:
    """Looks for Ray, without importing it into this process.

    Raises:
        PlanError: It is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise PlanError("Ray is not installed", "pip install 'gnnkit[ray]'")


_TEMPLATE = "ray.sh"


@dataclass(frozen=True)
class RayTrain(Ray, Launcher):
    """Ray Train: the engine of ``launch(engine="ray")``, and a script that starts it on a cluster."""

    title = "Ray Train"
    about_trial = f"{LAUNCH}, with a Ray cluster of this machine"
    about_files = {LAUNCH: "has Ray start the ranks"}

    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns ``launch.sh``.

        Raises:
            PlanError: The job has storage servers, or its nodes hold different parts: Ray decides which node a rank runs on.
        """
        if job.num_servers:
            raise PlanError("Ray starts no storage servers", "loader.with_backend('colocated').export(..., launcher='ray')")
        if job.modules:
            raise PlanError(f"nodes of a Ray cluster do not see {job.modules[0]}", "install the sampler on them, as a package")
        if job.nodes > 1 and not job.placement.is_replicated:
            raise PlanError(
                "Ray decides on which node a rank runs, so that each node has to have all parts of the store, not its share",
                "placement='replicate'",
            )
        return {LAUNCH: render(_TEMPLATE, job)}

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about the cluster that has to be there, and ``launch.sh``."""
        return instructions_of("ray.md", job)

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns the start of ``launch.sh`` with a Ray cluster of this machine, of as many processors as there are ranks.

        Raises:
            PlanError: Ray is not installed.
        """
        check_installed()
        ranks = str(trial.job.world_size)
        environment = {**trial.environment, "RAY_ADDRESS": LOCAL, "NUM_WORKERS": ranks, "CPUS_PER_WORKER": "1", "MAX_RESTARTS": "0"}
        # Ray's nodes are no nodes of the trial: they are all one.
        return [Command(LAUNCH, [f"./{LAUNCH}"], environment, trial.nodes[0].folder, trial.log("job"), None)]
