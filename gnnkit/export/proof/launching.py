"""Starts a job on this machine as each launcher does: with the files of the job's directory, and stand-ins for the cluster."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.export.job import STAGE, Launcher
from gnnkit.export.launchers.common import LAUNCH, SERVE
from gnnkit.export.launchers.kubernetes import JOB_YAML
from gnnkit.export.launchers.slurm import SBATCH
from gnnkit.export.proof.run import Command
from gnnkit.export.proof.slurm import TRIAL, TRIAL_VARIABLE
from gnnkit.export.proof.trial import JobTrial, Node, base_environment, write_command, write_commands
from gnnkit.files import read_text

_SLURM = "gnnkit.export.proof.slurm"
_SLURM_JOB = "1"


def job_commands(trial: JobTrial) -> list[Command]:
    """Returns the commands that start a trial's job.

    Raises:
        PlanError: A file of the job cannot be used.
    """
    make: Mapping[Launcher, Callable[[JobTrial], list[Command]]] = {"torchrun": _torchrun, "slurm": _slurm, "kubernetes": _kubernetes}
    return make[trial.job.launcher](trial)


def about_launcher(launcher: Launcher) -> str:
    """Returns the report's words for what started the job, and for what took the place of a cluster.

    Args:
        launcher: The job's.
    """
    return {
        "torchrun": f"{LAUNCH} with torchrun",
        "slurm": f"{SBATCH}, with stand-ins for srun and scontrol: there is no Slurm here",
        "kubernetes": f"the commands of {JOB_YAML}'s containers as processes, with their variables: there is no cluster here",
    }[launcher]


def stage_command(directory: Path, folder: Path) -> Command:
    """Returns the command that cuts a job's store.

    Args:
        directory: The job's directory.
        folder: For what it writes beside the store.
    """
    (folder / "tmp").mkdir()
    write_commands(folder / "bin")
    return Command(STAGE, [f"./{STAGE}"], base_environment(folder), directory, folder / "log", None)


def _of_nodes(trial: JobTrial) -> dict[str, str]:
    """Returns the variables with the addresses of the nodes, for every command of the job."""
    addresses = {"MASTER_ADDR": trial.nodes[0].address}
    if trial.storage_nodes:
        addresses["STORAGE_ADDRS"] = ",".join(node.address for node in trial.storage_nodes)
    return addresses


def _script(trial: JobTrial, node: Node, name: str, words: list[str], variables: Mapping[str, str], *, serves: bool) -> Command:
    environment = {**trial.environment, **variables, **trial.interface(node)}
    host = node.host if trial.in_namespaces else None
    what = f"{name} of {'storage ' if serves else ''}node {node.rank}"
    return Command(what, words, environment, node.folder, trial.log(f"{'storage' if serves else 'node'}{node.rank}"), host, serves)


def _torchrun(trial: JobTrial) -> list[Command]:
    where = _of_nodes(trial)
    started = [
        _script(trial, node, SERVE, [f"./{SERVE}"], {**where, "STORAGE_RANK": str(node.rank)}, serves=True) for node in trial.storage_nodes
    ]
    return started + [
        _script(trial, node, LAUNCH, [f"./{LAUNCH}"], {**where, "NODE_RANK": str(node.rank)}, serves=False) for node in trial.nodes
    ]


def _slurm(trial: JobTrial) -> list[Command]:
    for name in ("srun", "scontrol"):
        write_command(trial.folder / "bin" / name, _SLURM, name)
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
        "SLURM_JOB_ID": _SLURM_JOB,
        "SLURM_JOB_NAME": trial.job.name,
        "SLURM_SUBMIT_DIR": str(first.folder),
        "SLURM_JOB_NUM_NODES": str(len(trial.nodes)),
        "SLURM_JOB_NODELIST": lists[0],
        **({f"SLURM_JOB_NODELIST_HET_GROUP_{number}": nodes for number, nodes in enumerate(lists)} if trial.storage_nodes else {}),
    }
    # The script itself is on none of the nodes: what it starts is.
    return [Command(SBATCH, ["bash", SBATCH], environment, first.folder, trial.log("job"), None)]


def _kubernetes(trial: JobTrial) -> list[Command]:
    where, containers = _of_nodes(trial), _containers(trial.nodes[0].folder / JOB_YAML)
    if trial.storage_nodes and len(containers) < 2:
        raise PlanError(f"{JOB_YAML} has no container for storage servers", "export the job again")
    made = []
    for serves, nodes in ((True, trial.storage_nodes), (False, trial.nodes)):
        for node in nodes:
            container = containers["StatefulSet" if serves else "JobSet"]
            pod = f"{trial.job.name}-storage-{node.rank}" if serves else f"{trial.job.name}-node-0-{node.rank}"
            variables = _pod_variables(container, node, pod, trial.environment) | where
            words = [_in_folder(word, node.folder) for word in (*container.get("command", ()), *container.get("args", ()))]
            name = shlex.join(container.get("command", ())) + f" in {JOB_YAML},"
            made.append(_script(trial, node, name, words, variables, serves=serves))
    return made


def _containers(file: Path) -> dict[str, dict[str, Any]]:
    """The container of each kind of object that has pods."""
    import yaml

    found: dict[str, dict[str, Any]] = {}
    try:
        for document in yaml.safe_load_all(read_text(file)):
            template = (document or {}).get("spec", {})
            if "replicatedJobs" in template:
                template = template["replicatedJobs"][0]["template"]["spec"]
            if "template" in template:
                (found[document["kind"]],) = template["template"]["spec"]["containers"]
    except (OSError, yaml.YAMLError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise PlanError(f"{file.name} cannot be used: {error}", "export the job again") from error
    if "JobSet" not in found:
        raise PlanError(f"{file.name} has no JobSet", "export the job again")
    return found


def _pod_variables(container: Mapping[str, Any], node: Node, pod: str, known: Mapping[str, str]) -> dict[str, str]:
    """A container's variables as a pod would have them; those of this machine, such as folders, stay what they are here."""
    fields = {
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(node.rank),
        "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']": "0",
        "metadata.name": pod,
        "status.podIP": node.address,
    }
    variables = {"HOSTNAME": pod}
    for entry in container.get("env", ()):
        name, source = entry["name"], entry.get("valueFrom", {})
        if "fieldRef" in source:
            variables[name] = fields.get(source["fieldRef"]["fieldPath"], "")
        elif name not in known and "value" in entry and not str(entry["value"]).startswith("/"):
            variables[name] = str(entry["value"])
    return variables


def _in_folder(word: str, folder: Path) -> str:
    """A path in a pod's home as it is here."""
    here = folder / Path(word).name
    return str(here) if word.startswith("/") and here.exists() else word
