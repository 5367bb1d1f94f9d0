"""The proof that an exported job is the notebook's pipeline: it runs on this machine, and every batch of an epoch is compared."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gnnkit.arguments import checks_calls
from gnnkit.backends.inprocess import InProcess
from gnnkit.bounds import whole_number
from gnnkit.cluster import namespaces
from gnnkit.errors import BatchTimeout, PlanError, StartTimeout, WorkerDied
from gnnkit.events import Stage, ignore_events
from gnnkit.export.job import PLAN, STAGE
from gnnkit.export.launchers.base import launcher_of
from gnnkit.export.proof.trial import Command, JobTrial, TrialRun, TrialSize, fitting, last_lines, read_job, running, set_up, stage_command
from gnnkit.export.recording import RecordedBatch, count_recorded, limit_steps, read_configs, read_record, recorded
from gnnkit.export.writer import changed_files
from gnnkit.files import user_path
from gnnkit.loader.inspection import ValueDigest
from gnnkit.loader.pipeline import open_plan
from gnnkit.plan import LoaderPlan
from gnnkit.plan.config import read_config
from gnnkit.plan.files import path_in
from gnnkit.rendering import Shown
from gnnkit.runtime.runs import runs_root, sweep
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.store import Store
from gnnkit.ui.cards import Card, Table
from gnnkit.ui.progress import make_sink
from gnnkit.units import format_count, format_duration
from gnnkit.urls import is_url
from gnnkit.waiting import Deadline


@dataclass(frozen=True)
class Difference:
    """One attribute of one batch that is not the same.

    Attributes:
        batch_index: The batch, in the epoch's list.
        rank: Whose it is.
        step: Which of the rank's.
        tensor: The attribute: ``"x"``, ``"paper.x"``; empty where the whole batch is missing, too many or another one.
        what: How it differs, in words.
    """

    batch_index: int
    rank: int
    step: int
    tensor: str
    what: str

    def __str__(self) -> str:
        tensor = f", {self.tensor}" if self.tensor else ""
        return f"batch {self.batch_index} (rank {self.rank}, step {self.step}){tensor}: {self.what}"


def compare(wanted: Sequence[RecordedBatch], found: Iterable[RecordedBatch]) -> tuple[Difference, ...]:
    """Compares what every rank should have been given, step by step, with what it was given.

    Args:
        wanted: Every batch of every rank.
        found: The same of the job.

    Returns:
        Every difference, in the order of the epoch's list of batches.
    """
    came = {(batch.rank, batch.step): batch for batch in found}
    # Of equal ones the first.
    places = {frozenset(batch.values.items()): batch.batch_index for batch in reversed(wanted)}
    differences = [each for batch in wanted for each in _differences(batch, came.pop((batch.rank, batch.step), None), places)]
    differences += [Difference(batch.batch_index, batch.rank, batch.step, "", "more than the epoch has") for batch in came.values()]
    differences.sort(key=lambda one: (one.batch_index, one.rank, one.step))
    return tuple(differences)


def _differences(
    wanted: RecordedBatch, found: RecordedBatch | None, places: Mapping[frozenset[tuple[str, ValueDigest]], int]
) -> list[Difference]:
    """Returns the differences of one batch from the expected one.

    Args:
        wanted: The expected batch.
        found: The recorded one; None where there is none.
        places: Where in the epoch a batch of some content belongs.
    """

    def difference(tensor: str, what: str) -> Difference:
        return Difference(wanted.batch_index, wanted.rank, wanted.step, tensor, what)

    if found is None:
        return [difference("", "did not come")]
    if found.values == wanted.values:
        return []
    place = places.get(frozenset(found.values.items()))
    if place is not None:
        return [difference("", f"batch {place} came in its place")]
    pairs = [(name, wanted.values[name], found.values[name]) for name in wanted.values if name in found.values]
    return [
        *(difference(name, "is missing") for name in wanted.values if name not in found.values),
        *(difference(name, "is in the job's batches only") for name in found.values if name not in wanted.values),
        *(difference(name, _what(before, after)) for name, before, after in pairs if before != after),
    ]


def _what(wanted: ValueDigest, found: ValueDigest) -> str:
    kind = wanted.kind.removeprefix("torch.")
    if wanted.kind != found.kind:
        return f"{found.kind.removeprefix('torch.')} instead of {kind}"
    return f"{kind} of other values"


_MOST_SHOWN = 20


@dataclass(frozen=True, repr=False)
class VerifyReport(Shown):
    """Whether an exported job gives the notebook's batches.

    Attributes:
        name: The job's name.
        launcher: What started it.
        nodes: Nodes that it ran on.
        procs_per_node: Ranks of each.
        batches: Batches that were compared, over all ranks.
        epoch_batches: Batches of the whole epoch, over all ranks.
        values: Tensors and other attributes that were compared.
        notes: What was other than it will be on the cluster, a sentence each.
        differences: Every tensor that is not the same, in the order of the epoch's batches.
        elapsed_s: Seconds that it took.
    """

    name: str
    launcher: str
    nodes: int
    procs_per_node: int
    batches: int
    epoch_batches: int
    values: int
    notes: tuple[str, ...]
    differences: tuple[Difference, ...]
    elapsed_s: float

    @property
    def equal(self) -> bool:
        """Whether every tensor of every batch was the same, on every rank at every step."""
        return not self.differences

    @property
    def ranks(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.procs_per_node

    def _card(self) -> Card:
        compared = f"{format_count(self.batches)} of an epoch's {format_count(self.epoch_batches)}"
        compared = f"all {format_count(self.batches)} of an epoch" if self.batches == self.epoch_batches else compared
        rows = [
            ("batches", f"{compared}, {format_count(self.values)} tensors and other attributes: {self._verdict()}"),
            ("ranks", f"{self.nodes} x {self.procs_per_node}, started by {self.launcher}"),
            ("time", format_duration(self.elapsed_s)),
            *(("note", note) for note in self.notes),
        ]
        notice = None if self.equal else f"first difference: {self.differences[0]}"
        shown = self.differences[:_MOST_SHOWN]
        table = Table(
            ("batch", "rank", "step", "tensor", "what"),
            [(str(one.batch_index), str(one.rank), str(one.step), one.tensor, one.what) for one in shown],
        )
        more = f", the first {len(shown)} of {format_count(len(self.differences))}" if len(self.differences) > len(shown) else ""
        sections = [] if self.equal else [(f"differences{more}", table)]
        return Card(f"export check {self.name}", "ok" if self.equal else "failed", rows, notice, sections)

    def _verdict(self) -> str:
        if self.equal:
            return "equal, to the last bit"
        batches = len({(one.rank, one.step) for one in self.differences})
        return f"{format_count(batches)} batch{'es' if batches != 1 else ''} differ{'s' if batches == 1 else ''}"


_LOOK_S = 0.2


class JobCheck:
    """One check of a job.

    Args:
        stage: Where progress goes.
        folder: For everything that is written meanwhile; removed with the processes if this process is killed.
        timeout_s: Seconds that it may take.

    Attributes:
        folder: See above.
        timeout_s: See above.
    """

    def __init__(self, stage: Stage, folder: Path, timeout_s: float) -> None:
        self.folder, self.timeout_s = folder, timeout_s
        self._stage, self._deadline = stage, Deadline(timeout_s)

    def finish(self, command: Command) -> None:
        """Runs a command to its end.

        Raises:
            WorkerDied: It has failed.
            StartTimeout: It took too long.
        """
        with running([command], 0, command.log.parent, self.folder) as job:
            self._await(job, command.log.parent)

    def run(
        self, trial: JobTrial, commands: Sequence[Command], reference: LoaderPlan, num_batches: int | None
    ) -> tuple[list[RecordedBatch], list[RecordedBatch], int]:
        """Runs a job, and samples the same batches here meanwhile.

        Args:
            trial: The job's nodes.
            commands: What starts it.
            reference: Its plan, for this process.
            num_batches: Batches after which every rank stops, over all of them; None: those of the epoch.

        Returns:
            The batches that every rank should have been given, those that it was given, and how many the whole epoch has.

        Raises:
            WorkerDied: A command has failed, or a rank has recorded nothing.
            StartTimeout: No batch came in time.
            BatchTimeout: Not all batches came in time.
        """
        plan, world_size = self.folder / PLAN, trial.job.world_size
        reference.save(plan)
        steps = None if num_batches is None else -(-num_batches // world_size)
        if steps is not None:
            limit_steps(trial.records, steps)
        wanted: list[RecordedBatch] = []
        with running(commands, trial.num_hosts, trial.folder, self.folder) as job:
            of_epoch = 0
            for rank in range(world_size):
                with open_plan(plan, rank=rank, world_size=world_size, events=ignore_events) as loader:
                    of_epoch += len(loader)
                    for batch in recorded(loader, rank, steps):
                        wanted.append(batch)
                        self._look(job, trial.records, 0.0)
            self._stage.total = len(wanted)
            self._await(job, trial.records)
            found = [batch for rank in range(world_size) for batch in _recorded_by(rank, trial, commands)]
        return wanted, found, of_epoch

    def _await(self, job: TrialRun, records: Path) -> None:
        while not self._look(job, records, _LOOK_S):
            pass
        self._stage.update(count_recorded(records))

    def _look(self, job: TrialRun, records: Path, wait_s: float) -> bool:
        """Shows how far a job is; whether it has ended."""
        if job.look(wait_s):
            return True
        done = count_recorded(records)
        if done != self._stage.done:
            self._stage.update(done)
        if self._deadline.has_passed:
            what = f"after {self.timeout_s:g} s {done or 'no'} batches have come" + "".join(
                f"\n{command.name}{last_lines(command.log, 10)}" for command in job.commands
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


_STAGE = "export check"


@checks_calls()
def verify_export(
    directory: str | Path,
    *,
    store: str | Path | None = None,
    num_batches: int | None = None,
    timeout_s: float = 600.0,
    progress: bool | str = "auto",
) -> VerifyReport:
    """Runs an exported job on this machine, and compares every batch of an epoch with the notebook's.

    The job is started by its own files, with a network namespace for each node where this machine can have them. Its ranks iterate epoch 0
    in place of training; each tensor's dtype, shape and bytes are compared with those that a loader of the same plan samples in this
    process from the whole store. A job that is too large for this machine runs with 2 nodes of 2 ranks; the report says so.

    Args:
        directory: The exported directory.
        store: The notebook's store; None is the one that the job's was cut from, or else the job's own.
        num_batches: How many batches of the epoch, at most, over all ranks, rounded up to whole steps; None: all.
        timeout_s: Seconds that it may take.
        progress: How progress is shown; False shows nothing.

    Raises:
        PlanError: The directory was not exported, or a value is unusable.
        StoreError: A store is missing or damaged, or of another graph.
        WorkerDied: A file of the job, or a rank, has failed; the message ends with its last lines.
        StartTimeout: No batch came within ``timeout_s``.
        BatchTimeout: Not all batches came within it.
    """
    began, folder = time.monotonic(), user_path(directory)
    _check_words(num_batches, timeout_s)
    whole, plan = read_job(folder), LoaderPlan.load(folder / PLAN)
    if plan.store is None:
        raise PlanError("the plan's graph was only in memory", "export a loader of a store")
    launcher, (job, notes) = launcher_of(whole.launcher), fitting(whole)
    notes += _changed(folder)
    with make_sink(progress) as events, Stage(events, _STAGE, label=whole.name, unit="batches") as stage, _scratch() as scratch:
        check = JobCheck(stage, scratch, timeout_s)
        notes += _cut_store(check, folder, plan)
        # A part that is not there is missed here, by its place, and not by a node with a copy of the rest.
        here = replace(plan.store, path=str(Store.open(plan.store.path).path))
        plan = replace(plan, store=here)
        trial, how = _trial(job, folder, plan, check)
        # The notebook's store: the one that was named, the one that the job's is cut from, or the job's own.
        path = here.path if whole.cut_from is None else path_in(folder, whole.cut_from)
        path = path if store is None else str(user_path(store))
        reference = replace(plan, store=replace(here, path=path), backend=InProcess().to_json(), placement=None)
        reference = replace(reference, runtime=replace(plan.runtime, feature_cache=0))
        wanted, found, of_epoch = check.run(trial, launcher.commands(trial), reference, num_batches)
        given = sorted(read_configs(trial.records).items())
    config = read_config(folder / PLAN)
    others = [Difference(0, rank, 0, "ctx.config", f"{value} instead of {config}") for rank, value in given if value != config]
    return VerifyReport(
        name=whole.name,
        launcher=launcher.about_trial,
        nodes=job.nodes,
        procs_per_node=job.procs_per_node,
        batches=len(wanted),
        epoch_batches=of_epoch,
        values=sum(len(batch.values) for batch in wanted),
        notes=(*notes, *how),
        differences=(*compare(wanted, found), *others),
        elapsed_s=time.monotonic() - began,
    )


def _check_words(num_batches: int | None, timeout_s: float) -> None:
    if sys.platform != "linux":
        raise PlanError(f"an exported job runs on Linux, and this is {sys.platform}", "check it where it is to run")
    if num_batches is not None:
        num_batches = whole_number("num_batches", num_batches, 1)
    if not timeout_s > 0:
        raise PlanError(f"timeout_s must be a positive number of seconds, got {timeout_s!r}")


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for everything that a job writes; what its processes have left elsewhere is removed with it."""
    folder = Path(tempfile.mkdtemp(prefix="gnnkit-check-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        sweep(runs_root())


def _changed(directory: Path) -> list[str]:
    """Returns a note of the files edited since the export: an edited plan is compared with itself, no longer with the notebook's."""
    names = changed_files(directory)
    if not names:
        return []
    than = (
        ", so that its batches need not be the notebook's: they are compared with those of the plan that is there" if PLAN in names else ""
    )
    return [f"changed since the export: {', '.join(names)}{than}"]


def _cut_store(check: JobCheck, directory: Path, plan: LoaderPlan) -> list[str]:
    """Cuts the job's store where that has yet to be done: the step that the job's README names; what to say of it."""
    assert plan.store is not None
    if is_url(plan.store.path) or (Path(plan.store.path) / MANIFEST_NAME).exists() or not (directory / STAGE).exists():
        return []
    check.finish(stage_command(directory, check.folder / "stage"))
    return [f"{STAGE} has cut the store, which is in {plan.store.path}"]


def _trial(job: TrialSize, directory: Path, plan: LoaderPlan, check: JobCheck) -> tuple[JobTrial, list[str]]:
    """The job's nodes, and what they are."""
    import torch

    reason = namespaces.why_not() if job.num_hosts > 1 else None
    in_namespaces = job.num_hosts > 1 and reason is None
    gpus = torch.cuda.device_count()
    has_few = 1 < gpus < job.procs_per_node  # ranks share one GPU, or have one each
    if plan.backend["kind"] == "OnDevice" and (has_few or not gpus):
        plan = replace(plan, backend={**plan.backend, "device": "cpu"})
    trial = set_up(job, directory, plan, check.folder / "job", in_namespaces=in_namespaces, timeout_s=check.timeout_s)
    notes = []
    if job.num_hosts > 1:
        notes.append("each node is a network namespace" if in_namespaces else f"each node is a process group on loopback: {reason}")
    if has_few:
        trial = replace(trial, environment={**trial.environment, "CUDA_VISIBLE_DEVICES": ""})
        notes.append(f"ranks ran on the CPU: {job.procs_per_node} of them are on a node, and there are {gpus} GPUs")
    return trial, notes
