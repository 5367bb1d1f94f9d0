"""The base class of launchers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from gnnkit.export.job import ExportJob, Instructions
from gnnkit.export.proof.trial import Command, JobTrial
from gnnkit.plugins import find_plugin


class Launcher(ABC):
    """A way to start an exported job: the files that it writes for one, the README's words about them, and how they run on trial.

    A class whose constructor needs no arguments, named by an entry point of the group ``gnnkit.launchers``; ``docs/launchers.md`` has an
    example.

    Attributes:
        title: Its name in sentences: "Slurm".
        about_trial: What starts the job when it is verified, and what takes the place of a cluster, for the report.
        about_files: What the README says of its files, ``{file name: a few words}``.
        brings_files: Whether what starts the job brings environment, directory and store to the nodes, as its instructions say; else the
            README says how to install and to copy.
        options: The names of what ``export(options=)`` takes for it, with their meaning; a job has the given ones in ``job.options``.
        mappings: Those of them that are mappings of anything that JSON can hold. The others are whole numbers, or texts without blanks.
        elsewhere: What does the work of an option that other programs call so: ``{name: what to write}``.
    """

    title: ClassVar[str]
    about_trial: ClassVar[str]
    about_files: ClassVar[Mapping[str, str]]
    brings_files: ClassVar[bool] = False
    options: ClassVar[Mapping[str, str]] = {}
    mappings: ClassVar[frozenset[str]] = frozenset()
    elsewhere: ClassVar[Mapping[str, str]] = {}

    def written(self, name: str, value: str) -> str:
        """Returns the value of an option that is no mapping as what starts the job reads it.

        Args:
            name: One of ``options``.
            value: What the user says.

        Raises:
            PlanError: It is none.
        """
        return value

    @abstractmethod
    def files(self, job: ExportJob) -> dict[str, str]:
        """Returns the files that start a job, ``{file name: text}``; those that end in ``.sh`` become executable.

        Args:
            job: The job: its plan's backend and store, its nodes, ranks, servers and GPUs.

        Raises:
            PlanError: The launcher cannot start such a job.
        """

    @abstractmethod
    def instructions(self, job: ExportJob) -> Instructions:
        """Returns the text for the README: steps, restarts, ports and settings.

        Args:
            job: The job.
        """

    @abstractmethod
    def commands(self, trial: JobTrial) -> list[Command]:
        """Returns the commands that start the job on this machine, from its written files, for ``gnnkit export --verify``.

        Args:
            trial: The job's nodes on this machine: a folder with the files for each, its address, its variables.

        Raises:
            PlanError: A file of the job cannot be used.
        """


def launcher_of(name: object) -> Launcher:
    """Returns the launcher of exported jobs that has a name; see ``find_plugin``."""
    return find_plugin(name, Launcher, "launcher")  # type: ignore[type-abstract]
