"""A job that runs on trial, beside a loader of this process that samples what it should be given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gnnkit.errors import BatchTimeout, StartTimeout, WorkerDied
from gnnkit.events import Stage, ignore_events
from gnnkit.export.job import PLAN
from gnnkit.export.proof.run import Command, TrialRun, last_lines, running
from gnnkit.export.proof.trial import JobTrial
from gnnkit.export.recording import RecordedBatch, count_recorded, limit_steps, read_record, recorded
from gnnkit.plan import LoaderPlan
from gnnkit.waiting import Deadline

_LOOK_S = 0.2


class JobCheck:
    """One check of a job.

    Args:
        stage: Where progress goes.
        folder: For everything that is written meanwhile; removed with the processes if this process is killed.
        timeout_s: Seconds that it may take.

    Attributes:
        timeout_s: See above.
    """

    def __init__(self, stage: Stage, folder: Path, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._stage, self._folder, self._deadline = stage, folder, Deadline(timeout_s)
        self._steps: int | None = None

    def new_folder(self, name: str) -> Path:
        """Makes a folder."""
        folder = self._folder / name
        folder.mkdir()
        return folder

    def limit(self, trial: JobTrial, num_batches: int) -> None:
        """Has every rank stop once so many batches have come, over all of them."""
        self._steps = -(-num_batches // trial.job.world_size)
        limit_steps(trial.records, self._steps)

    def finish(self, commands: Sequence[Command], folder: Path) -> None:
        """Runs commands to their end.

        Args:
            commands: The commands.
            folder: What they write.

        Raises:
            WorkerDied: One has failed.
            StartTimeout: They took too long.
        """
        with running(commands, 0, folder, self._folder) as job:
            self._await(job, commands, lambda: 0)

    def run(
        self, trial: JobTrial, commands: Sequence[Command], reference: LoaderPlan
    ) -> tuple[list[RecordedBatch], list[RecordedBatch], int]:
        """Runs a job, and samples the same batches here meanwhile.

        Args:
            trial: The job's nodes.
            commands: What starts it.
            reference: Its plan, for this process.

        Returns:
            The batches that every rank should have been given, those that it was given, and how many the whole epoch has.

        Raises:
            WorkerDied: A command has failed, or a rank has recorded nothing.
            StartTimeout: No batch came in time.
            BatchTimeout: Not all batches came in time.
        """
        from gnnkit.loader.opening import open_plan  # torch_geometric

        plan, world_size = self._folder / PLAN, trial.job.world_size
        reference.save(plan)
        wanted: list[RecordedBatch] = []

        def count() -> int:
            return count_recorded(trial.records)

        with running(commands, trial.num_hosts, trial.folder, self._folder) as job:
            of_epoch = 0
            for rank in range(world_size):
                with open_plan(plan, rank=rank, world_size=world_size, events=ignore_events) as loader:
                    of_epoch += len(loader)
                    for batch in recorded(loader, rank, self._steps):
                        wanted.append(batch)
                        self._look(job, commands, 0.0, count)
            self._stage.total = len(wanted)
            self._await(job, commands, count)
            found = [batch for rank in range(world_size) for batch in _recorded_by(rank, trial, commands)]
        return wanted, found, of_epoch

    def _await(self, job: TrialRun, commands: Sequence[Command], count: Callable[[], int]) -> None:
        while not self._look(job, commands, _LOOK_S, count):
            pass
        self._stage.update(count())

    def _look(self, job: TrialRun, commands: Sequence[Command], wait_s: float, count: Callable[[], int]) -> bool:
        """Shows how far a job is; whether it has ended."""
        if job.look(wait_s):
            return True
        done = count()
        if done != self._stage.done:
            self._stage.update(done)
        if self._deadline.has_passed:
            what = f"after {self.timeout_s:g} s {done or 'no'} batches have come" + "".join(
                f"\n{command.name}{last_lines(command.log, 10)}" for command in commands
            )
            raise (BatchTimeout if done else StartTimeout)(
                what, "give it longer with timeout_s=..., or look at fewer batches with num_batches=..."
            )
        return False


def _recorded_by(rank: int, trial: JobTrial, commands: Sequence[Command]) -> list[RecordedBatch]:
    batches = read_record(trial.records, rank)
    if batches is None:
        ends = "".join(f"\n{command.name}{last_lines(command.log)}" for command in commands)
        raise WorkerDied(
            f"rank {rank} was given no batches, although the job has ended without an error{ends}", "it has to call `gnnkit run`"
        )
    return batches
