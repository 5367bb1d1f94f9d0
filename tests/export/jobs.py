"""Jobs to write launch files for, and their files as they would lie in an exported directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnkit.export.job import ExportJob, Instructions, JobStore
from gnnkit.export.launchers.base import launcher_of
from gnnkit.plan import Placement

STORE = JobStore("tiny", "../a store", "0123abcd", 2, 3 * 2**30)
LAUNCHERS = ("torchrun", "slurm", "pbs", "kubernetes", "skypilot", "trainjob")
OPTIONS: dict[str, Any] = {
    "name": "tiny",
    "nodes": 2,
    "procs_per_node": 2,
    "storage_nodes": 0,
    "servers_per_node": 1,
    "interface": None,
    "backend": "Colocated",
    "workers_per_server": 1,
    "threads_per_worker": 1,
    "sampling_threads": 1,
    "gpus_per_node": 0,
    "placement": Placement(((0,), (1,))),
    "store": STORE,
    "batch_bytes": 10**7,
    "num_steps": 100,
    "num_nodes": 10**6,
    "file_bytes": {"plan.json": 2000, "train.py": 3000},
    "gnnkit": "1.2.3",
}
SERVED: dict[str, Any] = {"backend": "GraphStore", "storage_nodes": 2, "servers_per_node": 2, "sampling_threads": 0}

ODD: dict[str, Any] = {
    "nodes": 1,
    "procs_per_node": 1,
    "interface": "ib0.100",
    "backend": "InProcess",
    "sampling_threads": None,
    "gpus_per_node": 1,
    "placement": Placement(((0, 1),)),
    "store": JobStore("tiny", "/data/what's in $HOME", "0123abcd", 2, 10),
}
VARIANTS: dict[str, dict[str, Any]] = {"colocated": {}, "served": SERVED, "odd": ODD, "odd-served": {**ODD, **SERVED, "storage_nodes": 1}}


def job(launcher: str, **options: Any) -> ExportJob:
    """A job of two nodes with two ranks each, on a store of two parts."""
    return ExportJob(launcher=launcher, **{**OPTIONS, **options})


def launcher_files(job: ExportJob) -> dict[str, str]:
    """The files of a job's launcher."""
    return launcher_of(job.launcher).files(job)


def launcher_instructions(job: ExportJob) -> Instructions:
    """What a job's launcher says in the README."""
    return launcher_of(job.launcher).instructions(job)


def write_files(job: ExportJob, folder: Path) -> Path:
    """Writes a job's launch files into a folder; scripts can be run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in launcher_files(job).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755 if name.endswith(".sh") else 0o644)
    return folder
