"""Engines: what starts the ranks of ``gnnkit.launch``, on this machine or elsewhere."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gnnkit.errors import GnnkitError
from gnnkit.events import EventSink
from gnnkit.jobs.environment import check_present
from gnnkit.jobs.launching.job import Job, LaunchInputs, LaunchSpec, RunStatus, made_directory


class LaunchedRanks(Protocol):
    """The ranks that an engine has started: what a ``RunHandle`` asks for. They run until they are done, or ``stop``.

    Attributes:
        spec: What was launched.
        changed: Held for every look at what follows, and notified of every change.
    """

    spec: LaunchSpec
    changed: threading.Condition

    @property
    def has_ended(self) -> bool:
        """Whether nothing runs any more."""

    @property
    def error(self) -> GnnkitError | None:
        """The error that the run has failed with; None where it has not failed."""

    @property
    def results(self) -> Mapping[int, bytes]:
        """``{rank: what its function returned}``, as ``packing.pack_result`` packs it, once the run has ended well."""

    def status(self) -> RunStatus:
        """Returns the state of the run and of its ranks."""

    def log(self, rank: int) -> str:
        """Returns a rank's output so far."""

    def stop(self) -> None:
        """Ends the ranks, and returns once they are gone; safe to call twice."""


class Engine(ABC):
    """A way to start ranks: ``launch(engine=)`` takes an object of it, or the name of an entry point of ``gnnkit.launchers``."""

    @property
    def num_procs(self) -> int | None:
        """The number of ranks that it starts; None where ``launch`` says it."""
        return None

    def directory(self, given: str | Path | None) -> str | None:
        """Returns the job's folder, made where it is not there, as ``start`` is to get it; None is one that goes with the run.

        Args:
            given: What ``launch`` was given.

        Raises:
            PlanError: It cannot be made.
        """
        return made_directory(given)

    @abstractmethod
    def start(self, spec: LaunchSpec, inputs: LaunchInputs, events: EventSink) -> LaunchedRanks:
        """Starts ranks, and returns at once.

        Args:
            spec: The function, packed, the number of ranks, and how they are to run.
            inputs: Their plan and graph: ``inputs.make(folder, events)`` writes them, ``inputs.remove()`` removes them.
            events: Shows how far they are.

        Raises:
            PlanError: A value is unusable here.
        """


class LocalEngine(Engine):
    """The ranks as processes of this machine, children of this process: what ``launch`` does by itself."""

    def start(self, spec: LaunchSpec, inputs: LaunchInputs, events: EventSink) -> LaunchedRanks:
        """Starts a process for each rank."""
        check_present(spec.device)
        return Job(spec, inputs, events)
