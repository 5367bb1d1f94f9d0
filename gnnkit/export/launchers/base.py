"""The base class of launchers, and how one is found by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar, TypeVar

from gnnkit.errors import PlanError, near_matches
from gnnkit.export.job import ExportJob, Instructions
from gnnkit.export.proof.trial import Command, JobTrial

# The group of entry points in which an installed package names its launchers.
GROUP = "gnnkit.launchers"
_HERE = "gnnkit.export.launchers"
# gnnkit's own, which are there in a checkout that nobody has installed, too.
_OWN = {
    "torchrun": f"{_HERE}.torchrun:Torchrun",
    "slurm": f"{_HERE}.slurm:Slurm",
    "kubernetes": f"{_HERE}.kubernetes:Kubernetes",
    "trainjob": f"{_HERE}.kubernetes:TrainJob",
    "skypilot": f"{_HERE}.skypilot:SkyPilot",
    "ray": "gnnkit.ray.options:RayTrain",
}

_Kind = TypeVar("_Kind")


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
    """

    title: ClassVar[str]
    about_trial: ClassVar[str]
    about_files: ClassVar[Mapping[str, str]]
    brings_files: ClassVar[bool] = False

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
    """Returns the launcher of exported jobs that has a name; see ``find_launcher``."""
    return find_launcher(name, Launcher, "launcher")  # type: ignore[type-abstract]


def find_launcher(name: object, kind: type[_Kind], option: str) -> _Kind:
    """Returns what an entry point of the group ``gnnkit.launchers`` names.

    Args:
        name: The entry point's name.
        kind: What it has to be able to do: ``Launcher``, or another base class.
        option: The user's option, for messages.

    Raises:
        PlanError: There is none of that name and kind, two packages offer one, or it cannot be imported.
    """
    found = _entry_points()
    points = found.get(name, []) if isinstance(name, str) else []
    if len(points) > 1:
        offers = ", ".join(sorted(point.value for point in points))
        raise PlanError(f"{option}={name!r} is offered several times: {offers}", "uninstall all but one of the packages")
    if points:
        made = _loaded(points[0])
        if isinstance(made, type) and issubclass(made, kind):
            return made()
    names = [known for known, points in found.items() if _can(points[0], kind)]
    raise PlanError(
        f"{option} must be one of {names}, got {name!r}{near_matches(str(name), names)}",
        f"packages add others by an entry point of the group {GROUP!r}",
    )


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Entry points by name, gnnkit's own first; several where packages differ about a name."""
    found = {name: [EntryPoint(name, value, GROUP)] for name, value in _OWN.items()}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        points = found.setdefault(point.name, [])
        if point.value not in [other.value for other in points]:  # a package may be seen twice
            points.append(point)
    return found


def _loaded(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:
        raise PlanError(
            f"the launcher {point.name!r}, {point.value}, cannot be imported: {type(error).__name__}: {error}",
            "mend or uninstall the package that offers it",
        ) from error


def _can(point: EntryPoint, kind: type[_Kind]) -> bool:
    try:
        made = point.load()
    except Exception:  # it is not what was asked for
        return False
    return isinstance(made, type) and issubclass(made, kind)
