"""A job for a Ray cluster: ``launch.sh``, which has Ray Train run the ranks."""

from __future__ import annotations

from dataclasses import dataclass

from gnnkit.errors import PlanError
from gnnkit.export.job import ExportJob, Instructions, InstructionStep, Port
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import LAUNCH, MAX_RESTARTS, between_ranks, rank_cores, render
from gnnkit.export.proof.run import Command
from gnnkit.export.proof.trial import JobTrial
from gnnkit.ray.options import LOCAL, Ray, check_installed

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
        if job.nodes > 1 and not job.placement.is_replicated:
            raise PlanError(
                "Ray decides on which node a rank runs, so that each node has to have all parts of the store, not its share",
                "placement='replicate'",
            )
        return {LAUNCH: render(_TEMPLATE, job, cpus=rank_cores(job))}

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about the cluster that has to be there, and ``launch.sh``."""
        text = (
            "On a node of a running Ray cluster (`ray status` shows it), from this directory, which every node sees at the same path, as"
            " the store; or submit it from elsewhere. `pip install 'gnnkit[ray]'` has to have been done on every node, with the same"
            f" versions of Ray and Python. Ray gives each of the {job.world_size} ranks {rank_cores(job)} processors, and starts them on"
            f" whichever nodes have room. It asks for {job.gpu_words}."
        )
        submit = ("./launch.sh", "# or, from elsewhere:", 'ray job submit --address http://<head node>:8265 -- "$PWD/launch.sh"')
        restart = "\n".join(
            (
                f"* A rank fails, or its node is gone: Ray Train starts all ranks again, wherever there is room, {MAX_RESTARTS} times in"
                " all, and they continue from the last checkpoint.",
                "* The node that `launch.sh` runs on is gone: Ray ends the ranks. Run it again: it continues from the last checkpoint.",
            )
        )
        watch = "The progress of each rank is shown where `launch.sh` runs. Ctrl-C ends the ranks; the cluster stays."
        return Instructions(
            (InstructionStep("Start it", text, submit),),
            InstructionStep("When something fails", restart),
            InstructionStep("Watch it, end it", watch, ("ray status", "ray job list")),
            _ports(job),
            {
                "RAY_ADDRESS": "the cluster: its head node's address, `auto` for that of this node, `local` for one of this machine; auto",
                "NUM_WORKERS": f"ranks; {job.world_size}",
                "CPUS_PER_WORKER": f"processors that Ray reserves for each rank; {rank_cores(job)}",
                "MAX_RESTARTS": f"how often ranks that have failed are started again; {MAX_RESTARTS}",
            },
        )

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


def _ports(job: ExportJob) -> tuple[Port, ...]:
    own = Port("Ray's own processes", "every node of the cluster", "see Ray's documentation", ephemeral=False, change="`ray start ...`")
    meeting = Port("store of the ranks", "rank 0", "any free one", ephemeral=True)
    return (own, *((meeting,) if job.world_size > 1 else ()), *between_ranks(job))
