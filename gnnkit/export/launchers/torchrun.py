"""A job that a person starts on each node: ``launch.sh``, which runs torchrun, and ``serve.sh`` on storage nodes."""

from __future__ import annotations

from gnnkit.export.job import ExportJob, Instructions
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import ABOUT, LAUNCH, SERVE, instructions_of, scripts
from gnnkit.export.proof.trial import Command, JobTrial


class Torchrun(Launcher):
    """Scripts that a person, or another program, starts on each node; torchrun starts the ranks."""

    title = "torchrun"
    about_trial = f"{LAUNCH} with torchrun"
    about_files = ABOUT

    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns ``launch.sh``, and ``serve.sh`` where there are storage nodes."""
        return scripts(job, "machines")

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about starting both on each node."""
        return instructions_of("torchrun.md", job)

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns a start of ``serve.sh`` for each storage node, and one of ``launch.sh`` for each node, as a person would."""
        starts = [(node, SERVE, "STORAGE_RANK") for node in trial.storage_nodes] + [(node, LAUNCH, "NODE_RANK") for node in trial.nodes]
        return [trial.command(node, script, [f"./{script}"], {rank: str(node.rank)}) for node, script, rank in starts]
