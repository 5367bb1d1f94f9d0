"""The launchers of an exported job: the files for torchrun, Slurm and Kubernetes, and their text for its README."""

from __future__ import annotations

import re

from gnnkit.errors import PlanError
from gnnkit.export.job import ExportJob, Instructions

__all__ = ["launcher_files", "launcher_instructions"]

_INTERFACE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def launcher_files(job: ExportJob) -> dict[str, str]:
    """The files that start a job.

    Args:
        job: The job.

    Returns:
        ``{file name: text}``; those that end in ``.sh`` are to be executable.

    Raises:
        PlanError: The interface is no name or address of one.
    """
    if job.interface is not None and not _INTERFACE.fullmatch(job.interface):
        raise PlanError(f"interface={job.interface!r} is neither the name nor the address of an interface", "for example interface='eth1'")
    if job.launcher == "torchrun":
        from gnnkit.export.launchers.torchrun import torchrun_files as files
    elif job.launcher == "slurm":
        from gnnkit.export.launchers.slurm import slurm_files as files
    else:
        from gnnkit.export.launchers.kubernetes import kubernetes_files as files
    return files(job)


def launcher_instructions(job: ExportJob) -> Instructions:
    """Returns the launcher's text for the README of a job: steps, restarts, ports and settings.

    Args:
        job: The job.
    """
    if job.launcher == "torchrun":
        from gnnkit.export.launchers.torchrun import torchrun_instructions as instructions
    elif job.launcher == "slurm":
        from gnnkit.export.launchers.slurm import slurm_instructions as instructions
    else:
        from gnnkit.export.launchers.kubernetes import kubernetes_instructions as instructions
    return instructions(job)
