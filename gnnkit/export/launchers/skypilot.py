"""A job for SkyPilot: ``sky.yaml``, which brings this directory and the store to machines of a cloud and runs ``launch.sh`` on each."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.export.job import ExportJob, Instructions
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import LAUNCH, in_gib, instructions_of, rank_cores, render, scripts, trainer_gib
from gnnkit.export.proof.trial import Command, JobTrial
from gnnkit.files import read_text

SKY_YAML = "sky.yaml"
# The folder of a machine's home that takes everything, and the directory's own name below it.
_BASE, _DIRECTORY = "gnnkit", "job"
# Beside the store: the system, an environment with torch for CUDA, checkpoints.
_DISK_GIB, _LEAST_DISK_GIB = 60, 100
# Kinds of GPUs of which SkyPilot takes whichever there is: the file is to be edited.
_GPUS = ("H100", "A100", "L4")


class SkyPilot(Launcher):
    """One file, which ``sky launch`` starts; SkyPilot finds the machines, torchrun starts the ranks."""

    title = "SkyPilot"
    options = {"resources": "fields of resources: infra, instance_type, use_spot, accelerators, ..."}
    mappings = frozenset({"resources"})
    elsewhere = dict.fromkeys(
        ("accelerators", "cloud", "cpus", "disk_size", "infra", "instance_type", "memory", "region", "use_spot", "zone"),
        "resources={'infra': 'aws/us-east-1', 'use_spot': True, 'accelerators': 'A100:8'}",
    )
    about_trial = f"`run` of {SKY_YAML} on each node, with SkyPilot's variables: there is no cloud here"
    about_files = {LAUNCH: "starts the ranks of one node", SKY_YAML: "the job for SkyPilot"}
    brings_files = True

    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns ``sky.yaml`` and ``launch.sh``.

        Raises:
            PlanError: The job has storage nodes: SkyPilot runs the same on every node, until all are done.
        """
        if job.num_servers:
            raise PlanError(
                "SkyPilot starts the same on every node and waits for all of them, and storage servers never end by themselves",
                "loader.with_backend('colocated').export(..., launcher='skypilot')",
            )
        return {SKY_YAML: _sky_yaml(job), **scripts(job, "machines")}

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about ``sky launch``."""
        return instructions_of("skypilot.md", job)

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns ``run`` of ``sky.yaml`` for each node, with the variables that SkyPilot sets.

        Raises:
            PlanError: The file cannot be used.
        """
        script, envs = _run_of(trial.nodes[0].folder / SKY_YAML)
        told = {name: value for name, value in envs.items() if name not in trial.environment}
        told |= {"SKYPILOT_NODE_IPS": "\n".join(node.address for node in trial.nodes), "SKYPILOT_NUM_NODES": str(len(trial.nodes))}
        own = [{"SKYPILOT_NODE_RANK": str(node.rank), "JOB_DIR": str(node.folder)} for node in trial.nodes]
        what, words = f"`run` of {SKY_YAML}", ["bash", "-c", script]
        return [trial.command(node, what, words, told | each) for node, each in zip(trial.nodes, own, strict=True)]


def _sky_yaml(job: ExportJob) -> str:
    import yaml

    up, home = _home(job)
    mounts = {f"~/{home}": "."}
    if up or job.store.path.startswith("/"):
        mounts[_seen_there(job.store.path, home)] = job.store.path.rstrip("/")
    resources: dict[str, Any] = {
        "cpus": f"{rank_cores(job) * job.procs_per_node}+",
        "memory": f"{trainer_gib(job)}+",
        "disk_size": max(_LEAST_DISK_GIB, in_gib(job.store.nbytes) + _DISK_GIB),
    }
    if job.gpus_per_node:
        resources["accelerators"] = {name: job.gpus_per_node for name in _GPUS}
    resources |= job.options.get("resources", {})

    def written(part: dict[str, Any]) -> str:
        return yaml.safe_dump(part, sort_keys=False, width=1000).rstrip("\n")

    return render(
        SKY_YAML,
        job,
        home=home,
        head=written({"name": job.name, "num_nodes": job.nodes}),
        resources=written({"resources": resources}),
        mounts=written({"file_mounts": mounts}),
    )


def _home(job: ExportJob) -> tuple[int, str]:
    """Returns how often the store's path leads up, and a place below a home for the job's directory from which it leads to the store."""
    up = 0 if job.store.path.startswith("/") else posixpath.normpath(job.store.path).split("/").count("..")
    return up, posixpath.join(_BASE, *["above"] * (up - 1), _DIRECTORY)


def _seen_there(path: str, home: str) -> str:
    return path.rstrip("/") if path.startswith("/") else f"~/{posixpath.normpath(posixpath.join(home, path))}"


def _run_of(file: Path) -> tuple[str, dict[str, str]]:
    import yaml

    try:
        task = yaml.safe_load(read_text(file))
        return str(task["run"]), {str(name): str(value) for name, value in (task.get("envs") or {}).items()}
    except (OSError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        raise PlanError(f"{file.name} cannot be used: {error}", "export the job again") from error
