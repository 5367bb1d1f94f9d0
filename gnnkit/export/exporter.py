"""Exporting: a plan, a train function and a place to run become a directory of files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.backends.base import check_count
from gnnkit.errors import PlanError, interruptible, near_matches
from gnnkit.export.checks import file_source
from gnnkit.export.job import LAUNCHERS, PLAN, README, RECORD, REQUIREMENTS, STAGE, TRAIN, ExportJob, Launcher
from gnnkit.export.plans import JobPlan, PlacementChoice, job_plan
from gnnkit.export.readme import readme_text
from gnnkit.export.requirements import requirements_text
from gnnkit.export.source import function_source
from gnnkit.export.staging import partition_command, stage_script
from gnnkit.export.template import template_source
from gnnkit.export.writer import write_directory
from gnnkit.plan import LoaderPlan
from gnnkit.rendering import Shown
from gnnkit.version import __version__

if TYPE_CHECKING:
    from gnnkit.export.proof.report import VerifyReport
    from gnnkit.ui.cards import Card

_ABOUT = "Training, as it was exported; edit it as you like."
_NAME = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 40


@dataclass(frozen=True)
class JobOptions:
    """The launcher, size and placement of a job: the keywords of ``GraphLoader.export``, which describes them."""

    launcher: Launcher = "torchrun"
    nodes: int = 1
    procs_per_node: int = 1
    storage_nodes: int = 0
    servers_per_node: int = 1
    interface: str | None = None
    placement: PlacementChoice | None = None
    gpus_per_proc: int | None = None

    def __post_init__(self) -> None:
        if self.launcher not in LAUNCHERS:
            raise PlanError(
                f"launcher must be one of {list(LAUNCHERS)}, got {self.launcher!r}{near_matches(str(self.launcher), list(LAUNCHERS))}"
            )
        for name, least in (("nodes", 1), ("procs_per_node", 1), ("storage_nodes", 0), ("servers_per_node", 1)):
            check_count(name, getattr(self, name), least)
        if self.placement not in (None, "replicate", "partition"):
            raise PlanError(f"placement must be 'replicate' or 'partition', got {self.placement!r}")
        if self.gpus_per_proc not in (None, 0, 1):
            raise PlanError(f"gpus_per_proc must be 0 or 1, got {self.gpus_per_proc!r}", "a rank trains on one GPU, or on none")
        if self.interface is not None and (not isinstance(self.interface, str) or not self.interface):
            raise PlanError(f"interface must be the name or address of an interface, got {self.interface!r}")


@dataclass(frozen=True, repr=False)
class Exported(Shown):
    """A directory that was exported.

    Attributes:
        directory: Where it is.
        files: The names of its files.
        commands: What is done next, on the nodes: the README says more.
        report: What verifying it has shown; None where that was not asked for.
    """

    directory: Path
    files: tuple[str, ...]
    commands: tuple[str, ...]
    report: VerifyReport | None = None

    def _card(self) -> Card:
        from gnnkit.ui.cards import Card

        rows = [("directory", str(self.directory)), ("files", ", ".join(self.files)), ("next", f"{README} says how it is started")]
        rows += [("", command) for command in self.commands]
        if self.report is not None:
            rows.append(("verified", "equal, to the last bit" if self.report.equal else f"first difference: {self.report.differences[0]}"))
        state = "ok" if self.report is None or self.report.equal else "failed"
        return Card(f"exported {self.directory.name}", state, rows, None, [])


@interruptible("export()")
def export_plan(
    plan: LoaderPlan,
    directory: str | Path,
    options: JobOptions,
    *,
    train: Callable[..., Any] | str | Path | None = None,
    overwrite: bool = False,
    verify: bool = False,
) -> Exported:
    """Writes a plan as the files of a job; ``GraphLoader.export`` describes the arguments.

    Raises:
        PlanError: See ``GraphLoader.export``.
        StoreError: The store is missing or damaged.
    """
    from gnnkit.export.launchers import launcher_files, launcher_instructions

    target = Path(directory).expanduser().absolute()
    made = job_plan(plan, options.nodes, options.storage_nodes, options.interface, options.placement)
    job = _job(made, target, options)
    source = _source(train, made)
    files = {
        PLAN: made.text(target),
        TRAIN: source,
        REQUIREMENTS: requirements_text(source),
        **launcher_files(job),
    }
    instructions = launcher_instructions(job)
    cut_command = None if made.cut is None else partition_command(job, made.cut)
    if cut_command is not None:
        files[STAGE] = stage_script(job, cut_command)
    files[README] = readme_text(job, instructions, files, cut_command)
    record = {
        name: getattr(job, name) for name in ("launcher", "nodes", "procs_per_node", "storage_nodes", "servers_per_node", "interface")
    }
    record |= {"backend": job.backend, "gpus_per_proc": job.gpus_per_proc, "placement": job.placement_word, "cut_from": job.store.cut_from}
    write_directory(target, files, record, overwrite=overwrite)
    report = None
    if verify:
        from gnnkit.export.verify import verify_export

        report = verify_export(target)
    commands = [] if made.cut is None else [f"./{STAGE}"]
    commands += [line for step in (*instructions.before_copies, *instructions.start) for line in step.commands]
    return Exported(target, tuple(sorted([*files, RECORD])), tuple(commands), report)


def _job(made: JobPlan, target: Path, options: JobOptions) -> ExportJob:
    backend = made.plan.backend
    return ExportJob(
        name=_NAME.sub("-", target.name.lower()).strip("-")[:_LONGEST_NAME].strip("-") or "gnnkit",
        launcher=options.launcher,
        nodes=options.nodes,
        procs_per_node=options.procs_per_node,
        storage_nodes=options.storage_nodes,
        servers_per_node=options.servers_per_node,
        interface=options.interface,
        backend=backend["kind"],
        workers_per_server=backend.get("workers_per_server", 1),
        threads_per_worker=backend.get("threads_per_worker", 1),
        sampling_threads=_sampling_threads(backend),
        gpus_per_proc=_gpus() if options.gpus_per_proc is None else options.gpus_per_proc,
        placement=made.placement,
        store=made.job_store(target),
        gnnkit=__version__,
    )


def _sampling_threads(backend: Any) -> int | None:
    """Threads that sample for one rank; None where they are "auto"."""
    if backend["kind"] == "GraphStore":
        return 0
    count = backend["num_threads"] if backend["kind"] == "InProcess" else backend["num_workers"]
    return count * backend.get("threads_per_worker", 1) if isinstance(count, int) else None


def _gpus() -> int:
    import torch

    return int(torch.cuda.is_available())


def _source(train: Callable[..., Any] | str | Path | None, made: JobPlan) -> str:
    if train is None:
        return template_source(made.plan, made.path, made.manifest)
    return file_source(Path(train).expanduser()) if isinstance(train, (str, Path)) else function_source(train, _ABOUT)
