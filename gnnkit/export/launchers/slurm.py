"""A job for Slurm: ``job.sbatch``, with storage servers as a component of their own."""

from __future__ import annotations

import json

from gnnkit.export.job import ExportJob, Instructions
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import SERVE, instructions_of, render
from gnnkit.export.proof.slurm import TRIAL, TRIAL_VARIABLE
from gnnkit.export.proof.trial import Command, JobTrial, write_command

SBATCH = "job.sbatch"
_STAND_IN = "gnnkit.export.proof.slurm"


class Slurm(Launcher):
    """A batch script; ``srun`` starts the ranks."""

    title = "Slurm"
    about_trial = f"{SBATCH}, with stand-ins for srun and scontrol: there is no Slurm here"
    options = {
        "partition": "the queue",
        "account": "who pays",
        "qos": "quality of service",
        "time": "the time limit, 24:00:00",
        "constraint": "features that nodes must have",
    }
    about_files = {SERVE: "starts the storage servers of one node", SBATCH: "the job for Slurm"}

    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns ``job.sbatch``, and ``serve.sh`` where there are storage nodes."""
        options = "\n".join(f"#SBATCH --{name}={value}" for name, value in {"time": "24:00:00", **job.options}.items())
        files = {SBATCH: render(SBATCH, job, options=options)}
        if job.num_servers:
            files[SERVE] = render(SERVE, job, where="slurm")
        return files

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about ``sbatch``."""
        return instructions_of("slurm.md", job)

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns the start of ``job.sbatch`` with stand-ins for Slurm's commands."""
        for name in ("srun", "scontrol"):
            write_command(trial.folder / "bin" / name, _STAND_IN, name)
        groups = [trial.nodes, *([trial.storage_nodes] if trial.storage_nodes else [])]
        described = [
            {
                "tasks_per_node": trial.job.procs_per_node if number == 0 else 1,
                "nodes": [
                    {"host": node.host, "address": node.address, "folder": str(node.folder), "variables": trial.interface(node)}
                    for node in nodes
                ],
            }
            for number, nodes in enumerate(groups)
        ]
        (trial.folder / TRIAL).write_text(json.dumps(described))
        lists = [",".join(node.address for node in nodes) for nodes in groups]
        first = trial.nodes[0]
        environment = {
            **{name: value for name, value in trial.environment.items() if name not in ("GNNKIT_TOKEN", "NNODES", "NPROC_PER_NODE")},
            TRIAL_VARIABLE: str(trial.folder),
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NAME": trial.job.name,
            "SLURM_SUBMIT_DIR": str(first.folder),
            "SLURM_JOB_NUM_NODES": str(len(trial.nodes)),
            "SLURM_JOB_NODELIST": lists[0],
            **({f"SLURM_JOB_NODELIST_HET_GROUP_{number}": nodes for number, nodes in enumerate(lists)} if trial.storage_nodes else {}),
        }
        # The script itself is on none of the nodes: what it starts is.
        return [Command(SBATCH, ["bash", SBATCH], environment, first.folder, trial.log("job"), None)]
