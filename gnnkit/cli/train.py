"""``gnnkit run``: one rank of a job, or all of them on a Ray cluster."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import typer

from gnnkit.cli.output import ERROR, WARNING, show_error, show_line
from gnnkit.distributed.life_cycle import initialize
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, WorkerDied
from gnnkit.export.job import PLAN, TRAIN
from gnnkit.export.recording import VARIABLE, recorder
from gnnkit.graph_loader import GraphLoader
from gnnkit.host import without_collections
from gnnkit.jobs.context import LogLines, TrainContext
from gnnkit.jobs.environment import find_node, find_place
from gnnkit.jobs.meeting import keep_meeting
from gnnkit.jobs.ownership import made_directory
from gnnkit.jobs.running import find_plan_role, load_train, run_training
from gnnkit.jobs.running import prepare as prepare_node
from gnnkit.plan import LoaderPlan
from gnnkit.plan.config import read_config
from gnnkit.runtime.entry import die_with_parent
from gnnkit.sampling.collate import load_batch_classes
from gnnkit.ui.progress import make_sink


def run(
    plan: Path = typer.Argument(help="The plan's file, which loader.plan.save() wrote."),
    train: Path | None = typer.Option(None, help="The file with def train(loader, ctx)."),
    directory: Path | None = typer.Option(None, "--dir", help="Folder for checkpoints; by default 'run' beside the plan."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:<index>; auto is this local rank's GPU, or the CPU."),
    prepare: bool = typer.Option(False, "--prepare", help="Only compile kernels and look at the store: once on each node."),
    settings: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="A hyper-parameter, ctx.config[NAME]; may be given several times."
    ),
    take_over: bool = typer.Option(False, "--take-over", help="Go on from a checkpoint that was made with other hyper-parameters."),
    meet: int | None = typer.Option(None, "--meet", metavar="PORT", help="Only keep the place where the torchruns of all nodes meet."),
    ray_workers: int | None = typer.Option(None, help="Run so many ranks on a Ray cluster: that of RAY_ADDRESS, or one of this host."),
    cpus_per_worker: int = typer.Option(1, help="Processors that Ray reserves for each rank."),
    max_restarts: int = typer.Option(0, help="How often Ray starts ranks again that have failed."),
) -> None:
    """Train as one rank of a job: torchrun's, Slurm's, an indexed Job's, or alone; with --ray-workers, as all ranks on a Ray cluster.

    With GNNKIT_ROLE=server it serves the plan's store instead, and with GNNKIT_RECORD=FOLDER it writes down what the batches are.
    """
    if plan.is_dir():
        hint = f"gnnkit run {plan / PLAN} --train {plan / TRAIN}; README.md of an exported job says what starts its ranks"
        raise PlanError(f"{str(plan)!r} is a folder, and a plan is a file", hint)
    if prepare:
        show_line(prepare_node(plan, *find_node(), make_sink("auto")))
        return
    if meet is not None:
        keep_meeting(meet)
        return
    if find_plan_role(LoaderPlan.load(plan)).kind == "server":
        initialize(plan)  # never returns
    record = os.environ.get(VARIABLE)
    if train is None and not record:
        raise typer.BadParameter("give the file with the train function: --train train.py", param_hint="--train")
    directory = plan.absolute().parent / "run" if directory is None else directory
    config = read_config(plan, settings)
    if ray_workers is not None:
        from gnnkit.cli.train_on_ray import train_on_ray  # heavy

        options: dict[str, Any] = {"directory": made_directory(directory), "device": device, "max_restarts": max_restarts}
        train_on_ray(plan, train, record, config, ray_workers, cpus_per_worker, **options)
    else:
        _train(plan, train, record, directory=directory, device=device, config=config, takes_over=take_over)


def _train(plan: Path, train: Path | None, record: str | None, **options: Any) -> None:
    with without_collections():  # what the train function's file would load itself
        load_batch_classes()
    place = find_place()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun gives ranks sessions of their own: one that is killed would leave them behind
        die_with_parent(os.getppid())
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # there is nothing to save yet
    lines, code = LogLines(show_line), ERROR  # it could not run, so far
    try:
        function = recorder(Path(record)) if record else load_train(train or Path())

        def entered(loader: GraphLoader, ctx: TrainContext) -> Any:
            nonlocal code
            code = WARNING
            signal.signal(signal.SIGUSR1, lambda number, frame: ctx.save_soon())
            return function(loader, ctx)

        run_training(plan, entered, place, report=lines if place.rank == 0 else lambda logged: None, **options)
        lines.flush()
    except Exception as error:
        # As after a traceback: who waits at the end of a process for other hosts sees that this one has failed, and does not.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        of = f"rank {place.rank} of {place.world_size}: " if place.world_size > 1 else ""
        if isinstance(error, GnnkitError):
            show_error(of + error.message, error.hint)
        else:
            traceback.print_exception(type(error), error, _from_file(error.__traceback__, train))
            show_error(f"{of}{type(error).__name__}: {error}", None)
        if isinstance(error, (StartTimeout, WorkerDied, PlanError)):  # another start may mend all but the last
            code = ERROR if isinstance(error, PlanError) else WARNING
        if code == ERROR and (refused := os.environ.get("GNNKIT_REFUSED")):  # of launch.sh, to which torchrun does not say so
            Path(refused).touch()
        raise typer.Exit(code) from None


def _from_file(trace: TracebackType | None, path: Path | None) -> TracebackType | None:
    """A traceback from where the user's file comes up in it; all of it where it does not."""
    shorter, names = trace, () if path is None else (str(path), str(path.absolute()))
    while shorter is not None and shorter.tb_frame.f_code.co_filename not in names:
        shorter = shorter.tb_next
    return shorter or trace
