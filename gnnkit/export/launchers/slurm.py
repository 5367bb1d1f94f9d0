"""A job for Slurm: ``job.sbatch``, with storage servers as a component of their own."""

from __future__ import annotations

import json

from gnnkit.export.job import ExportJob, Instructions, InstructionStep, Port
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import (
    MAX_RESTARTS,
    SERVE,
    TOKEN_TEXT,
    between_ranks,
    common_settings,
    rank_cores,
    render,
    storage_cores,
    storage_gib,
    storage_ports,
    trainer_gib,
)
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
        needs: dict[str, object] = {
            "cpus_per_task": rank_cores(job),
            "gib": trainer_gib(job),
            "storage_cpus": storage_cores(job),
            "storage_gib": storage_gib(job),
        }
        limits = {"time": "24:00:00", **job.options}
        needs["options"] = "\n".join(f"#SBATCH --{name}={value}" for name, value in limits.items())
        files = {SBATCH: render(SBATCH, job, group_0="--het-group=0 " if job.num_servers else "", **needs)}
        if job.num_servers:
            files[SERVE] = render(SERVE, job, where="slurm")
        return files

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about ``sbatch``."""
        return Instructions(_start(job), _restart(job), _watch(), _ports(job), _settings(job))

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


def _start(job: ExportJob) -> tuple[InstructionStep, ...]:
    text = (
        "This directory has to be the same on every node, on a shared file system for example. `job.sbatch` activates the environment"
        " `env/` that you have made above: edit that line where gnnkit is in another one. Look at the time limit, the cores and the memory,"
        f" estimates from the store and the batches, in its first lines; it asks for {job.gpu_words}. A partition or an account that were"
        " not exported go onto the command line, and hyper-parameters behind it: `sbatch job.sbatch --set lr=0.01`."
    )
    if not job.num_servers:
        text += " So do other numbers of nodes and ranks: `sbatch --nodes=1 --ntasks-per-node=2 job.sbatch`."
    else:
        text += f" The job makes a token for its servers at each start. {TOKEN_TEXT}"
    return (InstructionStep("Submit it", text, ("sbatch job.sbatch",)),)


def _restart(job: ExportJob) -> InstructionStep:
    lines = [
        f"* A rank{' or a storage server' if job.num_servers else ''} fails: the job's steps end, and the job asks Slurm to be started"
        f" again, as long as it was started again fewer than {MAX_RESTARTS} times. It continues from the last checkpoint."
        " A mistake, which another start would not mend (exit code 2), ends it.",
        "* A node is gone, also the first one: Slurm ends what is left and starts the job again on other nodes (`--requeue`).",
        "* The time limit is near: 180 s before it a checkpoint is written, and the job asks to be started again, however often it was; but"
        " not where no checkpoint was made since it was started.",
        "* Where users may not requeue jobs: `sbatch job.sbatch` once more continues from the last checkpoint.",
    ]
    return InstructionStep("When something fails", "\n".join(lines))


def _watch() -> InstructionStep:
    text = "Everything that is printed is in the job's log, which every restart continues, with the number of the rank before each line."
    return InstructionStep("Watch it, end it", text, ("squeue --me", "tail -f *.log", "scancel <job id>"))


def _ports(job: ExportJob) -> tuple[Port, ...]:
    rows = [
        Port(
            "store of the ranks (MASTER_PORT)", "the first node", "15000 + job id modulo 8000", ephemeral=False, change="`MASTER_PORT=...`"
        )
    ]
    rows += between_ranks(job)
    rows += storage_ports(job, "23000 + job id modulo 8000", "`STORAGE_PORT=...`")
    return tuple(rows)


def _settings(job: ExportJob) -> dict[str, str]:
    settings = {
        "MASTER_PORT": "where ranks meet; made of the job's id",
        "MASTER_ADDR": "address of the first node, as the others reach it; that of the interface which leads to them",
    }
    if job.num_servers:
        settings["STORAGE_PORT"] = "port of the first server of each storage node; made of the job's id"
    run = {"RUN_DIR": "where checkpoints go; `run`, and `run/<task>` for the tasks of an array"}
    return settings | common_settings(job) | run
