"""What ``gnnkit.launch`` returns."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gnnkit.errors import GnnkitError, PlanError, interruptible
from gnnkit.jobs.launching.job import Job
from gnnkit.jobs.launching.packing import unpack_result
from gnnkit.jobs.launching.rank_state import RunState, RunStatus
from gnnkit.rendering import Shown

if TYPE_CHECKING:
    from gnnkit.ui.cards import Card

# Between two looks: whatever changes wakes at once.
_SLICE_S = 0.2


class RunHandle(Shown):
    """A run of ranks; made by ``gnnkit.launch``. All methods may be called from any thread.

    Nothing depends on it: the run goes on when it is dropped, until it is done or this process ends.

    Args:
        job: The ranks.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._values: dict[int, Any] = {}

    @property
    def status(self) -> RunStatus:
        """What the run and each rank are doing now."""
        return self._job.status()

    @property
    def state(self) -> RunState:
        """Says "starting", "running", "restarting", "done", "failed" or "stopped"."""
        return self._job.status().state

    @property
    def error(self) -> GnnkitError | None:
        """What it has failed of; None where it has not."""
        with self._job.changed:
            return self._job.error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the run has ended, well or not. An interrupt ends the wait, and the run goes on.

        Args:
            timeout_s: Most seconds to wait; None waits for as long as it runs.

        Returns:
            Whether it has ended.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        job = self._job
        with interruptible(f"the wait for the run {job.folder.path.name}"), job.changed:
            while not job.has_ended:
                left_s = _SLICE_S if deadline is None else min(_SLICE_S, deadline - time.monotonic())
                if left_s <= 0:
                    return False
                job.changed.wait(left_s)
        return True

    def result(self) -> Any:
        """What the function has returned on rank 0; waits for it. An interrupt ends the wait, and the run goes on.

        Raises:
            TrainingFailed: The function has raised; the rank's traceback is ``__cause__``.
            WorkerDied: A rank has died.
            WorkerStopped: Somebody has stopped the run.
            StartTimeout: A rank did not come to its function in time, or could not be started.
            GnnkitError: Whatever else a rank has raised first.
        """
        return self._value(0)

    def results(self) -> list[Any]:
        """What the function has returned on each rank, by rank; see ``result``."""
        return [self._value(rank) for rank in range(self._job.spec.num_procs)]

    def logs(self, rank: int) -> str:
        """What a rank has written: its function's output, and its error.

        Args:
            rank: The rank.

        Raises:
            PlanError: There is no such rank.
        """
        count = self._job.spec.num_procs
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < count:
            raise PlanError(f"there is no rank {rank!r}", f"ranks are 0 to {count - 1}")
        return self._job.log(rank)

    def stop(self) -> None:
        """Ends all ranks, and what they have started; returns once they are gone. Safe to call twice."""
        self._job.stop()

    def __enter__(self) -> RunHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _value(self, rank: int) -> Any:
        self.wait()
        job = self._job
        with job.changed:
            error, packed = job.error, job.results.get(rank)
        if error is not None:
            raise error
        if rank not in self._values:  # unpacking may take long: nobody waits for the lock meanwhile
            assert packed is not None, "a run that has ended well has every rank's result"
            self._values.setdefault(rank, unpack_result(packed))
        return self._values[rank]

    def _card(self) -> Card:
        from gnnkit.jobs.launching.card import launch_card

        return launch_card(self._job.spec.title, self._job.status(), None if self.error is None else _trace(self.error))


def _trace(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))
