"""A job for SkyPilot: ``sky.yaml``, which brings this directory and the store to machines of a cloud and runs ``launch.sh`` on each."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.export.job import REQUIREMENTS, ExportJob, Instructions, InstructionStep, Port
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import (
    LAUNCH,
    MASTER_PORT,
    MAX_RESTARTS,
    RANK_THREADS,
    between_ranks,
    common_settings,
    in_gib,
    rank_cores,
    render,
    trainer_gib,
)
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
        return {SKY_YAML: _sky_yaml(job), LAUNCH: render(LAUNCH, job, where="machines")}

    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text about ``sky launch``."""
        store = "; ranks fetch the store" if job.store.is_fetched else _WITH_THE_STORE
        start = (InstructionStep("Start it", _START.format(yaml=SKY_YAML, store=store), (f"sky launch -c {job.name} {SKY_YAML}",)),)
        watch = InstructionStep(
            "Watch it, end it",
            "The machines cost money until they are down.",
            (f"sky logs {job.name}", f"sky cancel {job.name} --all", f"sky down {job.name}"),
        )
        restart = InstructionStep("When something fails", _RESTART.format(restarts=MAX_RESTARTS, job=job, yaml=SKY_YAML))
        change = f"`MASTER_PORT` under `envs` of `{SKY_YAML}`"
        meeting = Port(
            "torchrun's meeting point (MASTER_PORT), on every interface", "node 0", str(MASTER_PORT), ephemeral=False, change=change
        )
        ports = (meeting, Port("store of the ranks", "node 0", "any free one", ephemeral=True), *between_ranks(job))
        settings = common_settings(job) | {"MASTER_PORT": f"where nodes meet; {MASTER_PORT}", "OMP_NUM_THREADS": RANK_THREADS}
        settings = {name: f"{meaning} (under `envs` of `{SKY_YAML}`)" for name, meaning in settings.items()}
        return Instructions(start, restart, watch, ports, settings, checkpoints="`run/` of node 0")

    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns ``run`` of ``sky.yaml`` for each node, with the variables that SkyPilot sets.

        Raises:
            PlanError: The file cannot be used.
        """
        script, envs = _run_of(trial.nodes[0].folder / SKY_YAML)
        addresses = "\n".join(node.address for node in trial.nodes)
        made = []
        for node in trial.nodes:
            variables = {"SKYPILOT_NODE_RANK": str(node.rank), "SKYPILOT_NODE_IPS": addresses, "SKYPILOT_NUM_NODES": str(len(trial.nodes))}
            own = {name: value for name, value in envs.items() if name not in trial.environment}
            made.append(
                trial.command(node, f"`run` of {SKY_YAML}", ["bash", "-c", script], {**own, **variables, "JOB_DIR": str(node.folder)})
            )
        return made


_START = """\
In this directory, with [SkyPilot](https://docs.skypilot.co) and a cloud or cluster that `sky check` knows. Look at `resources` in
`{yaml}` first: cores, memory and disk are estimates from the store and the batches. `file_mounts` brings this directory
to every node{store}."""

_WITH_THE_STORE = ", and the store; where that lies in a bucket, name the bucket there"

_RESTART = """\
* A rank fails or is killed: torchrun starts all ranks again, {restarts} times in all, and they continue from the last checkpoint.
* A node is gone: the job has failed. `sky launch -c {job.name} {yaml}` starts it again; it continues from the last checkpoint where node 0
  still has its disk.
* Machines that may be taken away (`use_spot: true`), or a start that SkyPilot repeats by itself: `sky jobs launch {yaml}`, with `run/` in a
  bucket. `{yaml}` has the lines for that."""


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
    parts = {
        "HEAD": {"name": job.name, "num_nodes": job.nodes},
        "RESOURCES": {"resources": resources},
        "MOUNTS": {"file_mounts": mounts},
    }
    comment = (_FETCHED if job.store.is_fetched else _BROUGHT).format(name=posixpath.basename(job.store.path), path=job.store.path)
    written = {name: yaml.safe_dump(part, sort_keys=False, width=1000).rstrip("\n") for name, part in parts.items()}
    return _TEMPLATE.format(job=job, requirements=REQUIREMENTS, launch=LAUNCH, home=home, STORE=comment, **written)


def _home(job: ExportJob) -> tuple[int, str]:
    """Returns how often the store's path leads up, and a place below a home for the job's directory from which it leads to the store."""
    up = 0 if job.store.path.startswith("/") else posixpath.normpath(job.store.path).split("/").count("..")
    return up, posixpath.join(_BASE, *["above"] * (up - 1), _DIRECTORY)


def _seen_there(path: str, home: str) -> str:
    return path.rstrip("/") if path.startswith("/") else f"~/{posixpath.normpath(posixpath.join(home, path))}"


_BROUGHT = """\
# Every node gets this directory and the whole store. In place of the store's path may stand a bucket that holds the same files:
#   {{source: s3://bucket/{name}, mode: COPY}}"""

_FETCHED = """\
# Every node gets this directory, and fetches its parts of the store from {path}."""

_TEMPLATE = """\
# {job.name}: {job.nodes} x {job.procs_per_node} ranks. README.md says more: sky launch -c {job.name} sky.yaml
{HEAD}
# Estimates from the store and the batches. It asks for {job.gpu_words}.
# Name the GPUs, clouds and regions that you may use; SkyPilot takes the cheapest that there is.
{RESOURCES}
{STORE}
# Checkpoints that outlive the machines, for sky jobs launch:
#   ~/{home}/run: {{source: s3://bucket/{job.name}-run, mode: MOUNT_CACHED}}
{MOUNTS}
envs:
  JOB_DIR: {home} # from the home directory
setup: |
  set -euo pipefail
  cd ~
  cd "$JOB_DIR"
  python3 -m venv env
  env/bin/pip install -q -r {requirements}
run: |
  set -euo pipefail
  cd ~
  cd "$JOB_DIR"
  MASTER_ADDR="$(head -n1 <<<"$SKYPILOT_NODE_IPS")"
  export MASTER_ADDR NODE_RANK="$SKYPILOT_NODE_RANK"
  exec ./{launch}
"""


def _run_of(file: Path) -> tuple[str, dict[str, str]]:
    import yaml

    try:
        task = yaml.safe_load(read_text(file))
        return str(task["run"]), {str(name): str(value) for name, value in (task.get("envs") or {}).items()}
    except (OSError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        raise PlanError(f"{file.name} cannot be used: {error}", "export the job again") from error
