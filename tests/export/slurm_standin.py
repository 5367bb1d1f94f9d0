"""A cluster of one machine: ``sbatch``, ``srun`` and ``scontrol``, as far as batch scripts of ours use them, with Slurm's environment.

Steps are run by the stand-in of ``gnnkit export --verify``, which is told what the job was allotted; jobs, restarts and refusals are
added here.

    python -m tests.export.slurm_standin sbatch job.sbatch

Nodes come from ``nodes.json`` in ``$STANDIN_SLURM``: names, and words that run a command there. ``sbatch`` returns when the job has ended
for good, with the script's exit status. What the real commands would refuse is refused.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gnnkit.export.proof import slurm
from gnnkit.export.proof.keeper import HOSTS
from tests.export.sbatch_options import components

JOB_ID = "4711"


def install(folder: Path, nodes: list[dict[str, Any]], root: Path) -> dict[str, str]:
    """Makes the commands.

    Args:
        folder: For the commands and the state of the cluster.
        nodes: ``{"name": ..., "enter": [...]}`` each.
        root: The checkout.

    Returns:
        Variables with which they are found.
    """
    commands = folder / "bin"
    commands.mkdir(parents=True)
    (folder / "nodes.json").write_text(json.dumps(nodes))
    for name in ("sbatch", "srun", "scontrol"):
        command = commands / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.export.slurm_standin {name} "$@"\n')
        command.chmod(0o755)
    return {"STANDIN_SLURM": str(folder), "PATH": f"{commands}:{os.environ['PATH']}"}


def _state() -> Path:
    return Path(os.environ["STANDIN_SLURM"])


def _nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = json.loads((_state() / "nodes.json").read_text())
    return nodes


def sbatch(arguments: list[str]) -> int:
    """Runs a job until it ends without having asked for another start."""
    *given, file = arguments
    script, state, submitted = Path(file).read_text(), _state(), os.getcwd()
    asked = components(script)
    asked[0] |= components("\n".join(["#!", *(f"#SBATCH {option}" for option in given)]))[0]
    environment = {**os.environ, **_job_environment(asked), "SLURM_SUBMIT_DIR": submitted}
    options = asked[0]
    log = options["output"].replace("%x", options["job-name"]).replace("%j", JOB_ID)
    spooled = state / "slurm_script"
    spooled.write_text(script)
    restarts = 0
    while True:
        (state / "requeued").unlink(missing_ok=True)
        if restarts:
            environment["SLURM_RESTART_COUNT"] = str(restarts)
        with open(log, "a" if restarts and options.get("open-mode") == "append" else "w") as output:
            command = [*_nodes()[0]["enter"], "bash", str(spooled)]
            job = subprocess.Popen(command, cwd=submitted, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        (state / "job.pid").write_text(str(job.pid))
        code = job.wait()
        if not (state / "requeued").exists():
            return code
        restarts += 1


def _job_environment(asked: list[dict[str, str]]) -> dict[str, str]:
    """The job's variables; where its nodes are is written down for its steps."""
    names = [node["name"] for node in _nodes()]
    environment = {"SLURM_JOB_ID": JOB_ID, "SLURM_JOB_NAME": asked[0]["job-name"], slurm.TRIAL_VARIABLE: str(_state())}
    groups, taken = [], 0
    for index, component in enumerate(asked):
        count, per_node = int(component["nodes"]), component["ntasks-per-node"]
        own = range(taken, taken + count)
        taken += count
        if taken > len(names):
            raise SystemExit("sbatch: error: Batch job submission failed: Requested node configuration is not available")
        nodes = [{"host": host, "address": names[host], "folder": os.getcwd(), "variables": {}} for host in own]
        groups.append({"tasks_per_node": int(per_node), "nodes": nodes})
        told = {
            "SLURM_JOB_NODELIST": ",".join(names[host] for host in own),
            "SLURM_NNODES": str(count),
            "SLURM_NTASKS_PER_NODE": per_node,
        }
        if index == 0:
            environment |= told
        if len(asked) > 1:
            environment |= {f"{name}_HET_GROUP_{index}": value for name, value in told.items()} | {"SLURM_HET_SIZE": str(len(asked))}
    (_state() / slurm.TRIAL).write_text(json.dumps(groups))
    (_state() / HOSTS).write_text(json.dumps([node["enter"] for node in _nodes()]))
    return environment


def scontrol(arguments: list[str]) -> int:
    """``show hostnames`` and ``requeue``."""
    if arguments != ["requeue", JOB_ID]:
        return slurm.scontrol(arguments)
    (_state() / "requeued").touch()
    os.kill(int((_state() / "job.pid").read_text()), signal.SIGTERM)
    return 0


def srun(arguments: list[str]) -> int:
    """Runs a step; the highest exit status of its tasks."""
    options = slurm.srun_options(arguments)
    count = len(json.loads((_state() / slurm.TRIAL).read_text())[options.het_group]["nodes"])
    if options.nodes != count or options.ntasks_per_node is None or options.ntasks != count * options.ntasks_per_node:
        sys.stderr.write("srun: error: Unable to create step: More processors requested than permitted\n")
        return 1
    return slurm.srun(arguments)


if __name__ == "__main__":
    sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
