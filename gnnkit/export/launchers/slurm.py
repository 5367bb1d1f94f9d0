"""A job for Slurm: ``job.sbatch``, with storage servers as a component of their own."""

from __future__ import annotations

import json
import re

from gnnkit.errors import PlanError
from gnnkit.export.job import ExportJob, Instructions
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import OPTION, SERVE, checked, instructions_of, rank_cores, render, time_limit, trainer_gib
from gnnkit.export.proof.slurm import TRIAL, TRIAL_VARIABLE
from gnnkit.export.proof.trial import Command, JobTrial, write_command

SBATCH = "job.sbatch"
_STAND_IN = "gnnkit.export.proof.slurm"
_NAME = re.compile("[a-z][a-z0-9-]*")
_SIZE = re.compile("([0-9]+)(?:([KMGT])(?:i?B)?)?", re.IGNORECASE)
# As sbatch takes times: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds.
_TIME = re.compile("[0-9]+(:[0-9]{1,2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)


class Slurm(Launcher):
    """A batch script; ``srun`` starts the ranks."""

    title = "Slurm"
    about_trial = f"{SBATCH}, with stand-ins for srun and scontrol: there is no Slurm here"
    options = {
        "partition": "the queue",
        "account": "who pays",
        "qos": "quality of service",
        "time": "the time limit, 24:00:00 or 4h",
        "constraint": "features that nodes must have",
        "nodelist": "nodes that it must have",
        "exclude": "nodes that it must not have",
        "reservation": "a reservation",
        "mem": "memory of a node with ranks, 64G",
        "cpus-per-task": "processors of a rank",
        "gres": "resources of a node with ranks, gpu:a100:2",
        "mail-type": "when to write a mail, END,FAIL",
        "mail-user": "to whom",
        "extra": "other options of sbatch, {'exclusive': '', 'comment': 'mine'}",
    }
    mappings = frozenset({"extra"})
    elsewhere = {
        "nodes": "it is nodes= of export()",
        "ntasks-per-node": "it is procs_per_node= of export()",
        "gpus-per-node": "it is gpus_per_node= of export()",
        "gpus": "it is gpus_per_node= of export()",
        "memory": "mem='64G'",
        "walltime": "time='4h'",
        "queue": "partition='gpu'",
    }
    about_files = {SERVE: "starts the storage servers of one node", SBATCH: "the job for Slurm"}

    def written(self, name: str, value: str) -> str:
        """Returns times and sizes as ``sbatch`` reads them.

        Raises:
            PlanError: One is neither such nor what stands for it.
        """
        if name == "time":
            return time_limit(name, value, _TIME, "sbatch")
        if name == "mem" and not (size := _SIZE.fullmatch(value)):
            raise PlanError(f"mem={value!r} is no size that sbatch takes", "a whole number with K, M, G or T: mem='64G'")
        return "".join(filter(None, size.groups())).upper() if name == "mem" and size else value

    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns ``job.sbatch``, and ``serve.sh`` where there are storage nodes.

        Raises:
            PlanError: An option of ``extra`` is none.
        """
        given = {"time": "24:00:00", **job.options}
        resources = {"cpus-per-task": rank_cores(job), "mem": f"{trainer_gib(job)}G"}
        if job.gpus_per_node and "gpu" not in given.get("gres", ""):
            resources["gpus-per-node"] = job.gpus_per_node
        resources |= {name: given.pop(name) for name in ("mem", "cpus-per-task", "gres") if name in given}
        given |= checked("extra", given.pop("extra", {}), _NAME, OPTION, "option of sbatch")
        lines = ["\n".join(f"#SBATCH --{name}{'=' * (value != '')}{value}" for name, value in kind.items()) for kind in (given, resources)]
        files = {SBATCH: render(SBATCH, job, options=lines[0], resources=lines[1])}
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
