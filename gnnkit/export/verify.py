"""The proof that an exported job is the notebook's pipeline: it runs on this machine, and every batch of an epoch is compared."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gnnkit.backends.base import check_count
from gnnkit.backends.inprocess import InProcess
from gnnkit.cluster import namespaces
from gnnkit.errors import PlanError
from gnnkit.events import Stage
from gnnkit.export.job import PLAN, STAGE
from gnnkit.export.launchers.base import launcher_of
from gnnkit.export.proof.checking import JobCheck
from gnnkit.export.proof.report import VerifyReport, compare
from gnnkit.export.proof.trial import JobTrial, TrialSize, fitting, read_job, set_up, stage_command
from gnnkit.export.writer import changed_files
from gnnkit.plan import LoaderPlan
from gnnkit.plan.files import path_in
from gnnkit.runtime.runs import runs_root, sweep
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.store import Store
from gnnkit.urls import is_url

_STAGE = "export check"


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
    from gnnkit.ui.progress import make_sink

    began, folder = time.monotonic(), Path(directory).expanduser().absolute()
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
        if num_batches is not None:
            check.limit(trial, num_batches)
        path = _original(folder, whole, here.path, store)
        reference = replace(plan, store=replace(here, path=path), backend=InProcess().to_json(), placement=None)
        reference = replace(reference, runtime=replace(plan.runtime, feature_cache=0))
        wanted, found, of_epoch = check.run(trial, launcher.commands(trial), reference)
    came = compare(wanted, found)
    return VerifyReport(
        name=whole.name,
        launcher=launcher.about_trial,
        nodes=job.nodes,
        procs_per_node=job.procs_per_node,
        batches=came.batches,
        epoch_batches=of_epoch,
        values=came.values,
        notes=(*notes, *how),
        differences=came.differences,
        elapsed_s=time.monotonic() - began,
    )


def _check_words(num_batches: int | None, timeout_s: float) -> None:
    if sys.platform != "linux":
        raise PlanError(f"an exported job runs on Linux, and this is {sys.platform}", "check it where it is to run")
    if num_batches is not None:
        check_count("num_batches", num_batches, 1)
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
    folder = check.new_folder("stage")
    check.finish([stage_command(directory, folder)], folder)
    return [f"{STAGE} has cut the store, which is in {plan.store.path}"]


def _trial(job: TrialSize, directory: Path, plan: LoaderPlan, check: JobCheck) -> tuple[JobTrial, list[str]]:
    """The job's nodes, and what they are."""
    assert plan.store is not None
    reason = namespaces.why_not() if job.num_hosts > 1 else None
    in_namespaces = job.num_hosts > 1 and reason is None
    trial = set_up(job, directory, plan, check.new_folder("job"), in_namespaces=in_namespaces, timeout_s=check.timeout_s)
    notes = []
    if job.num_hosts > 1:
        notes.append("each node is a network namespace" if in_namespaces else f"each node is a process group on loopback: {reason}")
    gpus = _num_gpus()
    if 1 < gpus < job.procs_per_node:  # ranks share one GPU, or have one each
        trial = replace(trial, environment={**trial.environment, "CUDA_VISIBLE_DEVICES": ""})
        notes.append(f"ranks ran on the CPU: {job.procs_per_node} of them are on a node, and there are {gpus} GPUs")
    return trial, notes


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _original(directory: Path, job: TrialSize, path: str, store: str | Path | None) -> str:
    """The notebook's store: the one that was named, the one that the job's is cut from, or the job's own."""
    if store is not None:
        return str(Path(store).expanduser().absolute())
    return path if job.cut_from is None else path_in(directory, job.cut_from)
