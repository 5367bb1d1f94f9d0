"""Launchers of jobs and engines that train and build elsewhere, which installed packages add, found by their names."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from gnnkit.errors import PlanError, near_matches

# The group of entry points in which an installed package names its launchers.
GROUP = "gnnkit.launchers"
_HERE = "gnnkit.export.launchers"
# gnnkit's own, which are there in a checkout that is not installed, too.
OWN = {
    "torchrun": f"{_HERE}.torchrun:Torchrun",
    "slurm": f"{_HERE}.slurm:Slurm",
    "pbs": f"{_HERE}.pbs:Pbs",
    "kubernetes": f"{_HERE}.kubernetes:Kubernetes",
    "trainjob": f"{_HERE}.kubernetes:TrainJob",
    "skypilot": f"{_HERE}.skypilot:SkyPilot",
    "ray": "gnnkit.ray.options:RayTrain",
}

_Kind = TypeVar("_Kind")


def find_plugin(name: object, kind: type[_Kind], option: str) -> _Kind:
    """Returns what an entry point of the group ``gnnkit.launchers`` names.

    Args:
        name: The entry point's name.
        kind: What it has to be able to do: a base class, or a protocol.
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
    found = {name: [EntryPoint(name, value, GROUP)] for name, value in OWN.items()}
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
