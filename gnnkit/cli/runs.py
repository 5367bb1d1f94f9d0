"""``gnnkit run | serve | export | ps | logs | stop | cleanup``: jobs, servers, and what this user has running on this host."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import typer

from gnnkit.cli.output import ERROR, WARNING, show_error, show_json, show_line, show_table
from gnnkit.errors import PlanError
from gnnkit.files import user_path

if TYPE_CHECKING:
    from gnnkit.graph_loader import GraphLoader
    from gnnkit.jobs.context import Logged, TrainContext
    from gnnkit.jobs.running import Train
    from gnnkit.ray.options import Ray
    from gnnkit.runtime.runs import Run


# For a place on a busy cluster.
_RAY_TIMEOUT_S = 1800.0


def run(
    plan: Path = typer.Argument(help="The plan's file, which loader.plan.save() wrote."),
    train: Path | None = typer.Option(None, help="The file with def train(loader, ctx)."),
    directory: Path | None = typer.Option(None, "--dir", help="Folder for checkpoints; by default 'run' beside the plan."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:<index>; auto is this local rank's GPU, or the CPU."),
    prepare: bool = typer.Option(False, "--prepare", help="Only compile kernels and look at the store: once on each node."),
    ray_workers: int | None = typer.Option(None, help="Run so many ranks on a Ray cluster: that of RAY_ADDRESS, or one of this host."),
    cpus_per_worker: int = typer.Option(1, help="Processors that Ray reserves for each rank."),
    max_restarts: int = typer.Option(0, help="How often Ray starts ranks again that have failed."),
) -> None:
    """Train as one rank of a job: torchrun's, Slurm's, an indexed Job's, or alone; or, with --ray-workers, as all ranks on a Ray cluster.

    With GNNKIT_ROLE=server it serves the plan's store instead, and with GNNKIT_RECORD=FOLDER it writes down what the batches are.
    """
    from gnnkit.host import without_collections

    with without_collections():
        from gnnkit.export.recording import VARIABLE
        from gnnkit.jobs.running import find_plan_role
        from gnnkit.plan import LoaderPlan

    if prepare:
        _prepare(plan)
        return
    if find_plan_role(LoaderPlan.load(plan)).kind == "server":
        from gnnkit.distributed.life_cycle import initialize

        initialize(plan)  # never returns
    record = os.environ.get(VARIABLE)
    if train is None and not record:
        raise typer.BadParameter("give the file with the train function: --train train.py", param_hint="--train")
    directory = plan.absolute().parent / "run" if directory is None else directory
    if ray_workers is not None:
        from gnnkit.ray.options import Ray

        _train_on_ray(plan, train, directory, device, record, Ray(ray_workers, cpus_per_worker=cpus_per_worker), max_restarts)
    else:
        _train(plan, train, directory, device, record)


def _prepare(plan: Path) -> None:
    from gnnkit.jobs.environment import find_node
    from gnnkit.jobs.running import prepare
    from gnnkit.ui.progress import make_sink

    show_line(prepare(plan, *find_node(), make_sink("auto")))


def _train(plan: Path, train: Path | None, directory: Path, device: str, record: str | None) -> None:
    from gnnkit.errors import GnnkitError
    from gnnkit.host import without_collections
    from gnnkit.jobs.context import LogLines
    from gnnkit.jobs.environment import find_place
    from gnnkit.jobs.running import load_train, run_training
    from gnnkit.runtime.entry import die_with_parent
    from gnnkit.sampling.collate import load_batch_classes

    with without_collections():  # what the train function's file would load itself
        load_batch_classes()
    place = find_place()
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun gives ranks sessions of their own: one that is killed would leave them behind
        die_with_parent(os.getppid())
    lines, code = LogLines(show_line), ERROR  # it could not run, so far
    try:
        function = _recorder(Path(record)) if record else load_train(train or Path())

        def entered(loader: GraphLoader, ctx: TrainContext) -> Any:
            nonlocal code
            code = WARNING
            return function(loader, ctx)

        run_training(plan, entered, place, directory=directory, report=lines if place.rank == 0 else _silent, device=device)
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
        raise typer.Exit(code) from None


def _train_on_ray(plan: Path, train: Path | None, directory: Path, device: str, record: str | None, engine: Ray, max_restarts: int) -> None:
    import cloudpickle

    from gnnkit.errors import GnnkitError, TrainingFailed
    from gnnkit.jobs.launching.engine import RunHandle
    from gnnkit.jobs.launching.job import LaunchSpec, fair_threads, made_directory
    from gnnkit.jobs.launching.packing import pack_code
    from gnnkit.jobs.running import load_train
    from gnnkit.ray.job import PlanInputs
    from gnnkit.ui.progress import make_sink

    try:
        function = _recorder(Path(record)) if record else load_train(train or Path())
        if not record:  # nobody else can import it
            cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        spec = LaunchSpec(
            title="train",
            code=pack_code(function, None, None),
            num_procs=engine.num_workers,
            device=device,
            directory=made_directory(directory),
            max_restarts=max_restarts,
            threads=fair_threads(engine.num_workers),
            start_timeout_s=_RAY_TIMEOUT_S,
        )
        with RunHandle(engine.start(spec, PlanInputs(plan), make_sink("auto"))) as handle:
            handle.results()
    except GnnkitError as error:
        if error.__cause__ is not None:
            show_line(str(error.__cause__).strip())
        show_error(error.message, error.hint)
        raise typer.Exit(WARNING if isinstance(error, TrainingFailed) else ERROR) from None


def _from_file(trace: TracebackType | None, path: Path | None) -> TracebackType | None:
    """A traceback from where the user's file comes up in it; all of it where it does not."""
    shorter, names = trace, () if path is None else (str(path), str(path.absolute()))
    while shorter is not None and shorter.tb_frame.f_code.co_filename not in names:
        shorter = shorter.tb_next
    return shorter or trace


def _silent(logged: Logged) -> None:
    """Ignores what ranks other than rank 0 log."""


def _recorder(folder: Path) -> Train:
    from gnnkit.export.recording import record

    return lambda loader, ctx: record(loader.pipeline, ctx.rank, folder)


def serve(
    store: str = typer.Option(..., help="The store's folder or URL."),
    num_servers: int = typer.Option(2, help="Servers of the run, those on other machines included."),
    workers_per_server: int = typer.Option(1, help="Sampling processes of each."),
    threads_per_worker: int = typer.Option(1, help="Sampling threads of each of those."),
    rank: int | None = typer.Option(None, help="The one server to start here; by default all of them."),
    address: str | None = typer.Option(None, help="Where server 0 listens, ip:port, or the addresses of all with commas; or unix:/folder."),
    interface: str | None = typer.Option(None, help="Interface to listen on; by default the one that leads to server 0."),
    placement: str = typer.Option("auto", help="auto, replicate or partition."),
    token_file: Path | None = typer.Option(None, help="File of mode 0600 that holds the token."),
    tls_cert: Path | None = typer.Option(None, help="File of a certificate, to encrypt connections."),
    tls_key: Path | None = typer.Option(None, help="File of its key."),
    max_restarts: int = typer.Option(0, help="How often, in all, a process that has died is started again."),
    stop_with_last_client: bool = typer.Option(False, "--stop-with-last-client", help="End once a client has come and none is left."),
    join_timeout_s: float = typer.Option(600.0, help="Seconds that servers wait for each other."),
    log_dir: Path | None = typer.Option(None, help="Folder for logs."),
) -> None:
    """Hold a store and sample it for trainers, until Ctrl-C.

    Without --token-file the token comes from $GNNKIT_TOKEN or $GNNKIT_TOKEN_FILE, or one is made and its file is named.
    """
    from gnnkit.cluster.serving.spec import read_token
    from gnnkit.serving import run_in_foreground
    from gnnkit.serving import serve as start

    servers = start(
        store,
        num_servers,
        workers_per_server=workers_per_server,
        threads_per_worker=threads_per_worker,
        rank=rank,
        address=address,
        interface=interface,
        placement=placement,  # type: ignore[arg-type]
        token=None if token_file is None else read_token(user_path(token_file)),
        tls_cert=tls_cert,
        tls_key=tls_key,
        max_restarts=max_restarts,
        stop_with_last_client=stop_with_last_client,
        join_timeout_s=join_timeout_s,
        log_dir=log_dir,
    )
    run_in_foreground(servers, show_line)


def export(
    plan: Path = typer.Argument(
        metavar="PLAN", help="The plan's file, which loader.plan.save() wrote; with --verify alone, an exported directory."
    ),
    directory: Path | None = typer.Argument(None, metavar="[DIR]", help="Where the job's files go."),
    launcher: str = typer.Option("torchrun", help="torchrun, slurm, kubernetes, skypilot, trainjob, or a name that a package adds."),
    nodes: int = typer.Option(1, help="Nodes with trainers."),
    procs_per_node: int = typer.Option(1, help="Trainers (ranks) on each."),
    storage_nodes: int = typer.Option(0, help="Nodes with storage servers, for a plan with GraphStore."),
    servers_per_node: int = typer.Option(1, help="Storage servers on each of those."),
    interface: str | None = typer.Option(
        None, help="Interface that nodes talk to each other on; by default the one that leads to the first."
    ),
    train: Path | None = typer.Option(None, help="Python file with def train(loader, ctx); by default a template."),
    placement: str | None = typer.Option(None, help="partition: a node holds its share of the parts; replicate: all of them."),
    gpus_per_node: int | None = typer.Option(
        None, help="GPUs to ask for on each node: one for each rank or more, or 0; by default one for each if this machine has any."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Write over exported files that somebody has changed."),
    verify: bool = typer.Option(False, "--verify", help="Run the job on this machine and compare its batches with the plan's."),
    num_batches: int | None = typer.Option(None, help="With --verify: the most batches to compare; by default a whole epoch."),
    timeout_s: float = typer.Option(600.0, help="With --verify: seconds that it may take."),
    store: Path | None = typer.Option(None, help="With --verify: the store to compare with; by default that which the job's was cut from."),
) -> None:
    """Write a plan as a job for torchrun, Slurm, Kubernetes or another launcher, or verify one that was written."""
    if directory is None:
        if not verify:
            raise PlanError("there is no directory to write to", "gnnkit export PLAN DIR; or gnnkit export --verify DIR")
        _verify(plan, store, num_batches, timeout_s)
        return
    from gnnkit.export.exporter import JobOptions, export_plan
    from gnnkit.plan import LoaderPlan

    options = JobOptions(launcher, nodes, procs_per_node, storage_nodes, servers_per_node, interface, cast(Any, placement), gpus_per_node)
    show_line(str(export_plan(LoaderPlan.load(plan), directory, options, train=train, overwrite=overwrite)))
    if verify:
        _verify(directory, store, num_batches, timeout_s)


def _verify(directory: Path, store: Path | None, num_batches: int | None, timeout_s: float) -> None:
    from gnnkit.export.verify import verify_export

    report = verify_export(directory, store=store, num_batches=num_batches, timeout_s=timeout_s)
    show_line(str(report))
    if not report.equal:
        raise typer.Exit(WARNING)


_STYLES = {"running": "green", "ended": "red", "stale": "yellow", "failed": "bold red", "elsewhere": "dim"}
_FOLDERS = typer.Option([], "--log-dir", help="Look in this folder of logs only; may be given several times.")
_JSON = typer.Option(False, "--json", help="Write JSON.")


def _roots(folders: list[Path]) -> list[Path] | None:
    from gnnkit.runtime.runs import own_folders

    if not folders:
        return None
    missing = [str(folder) for folder in folders if not own_folders([user_path(folder)])]
    if missing:
        raise PlanError(f"there is no folder of yours at {missing[0]!r}", "name the folder that was given as log_dir=...")
    return own_folders(map(user_path, folders))


def _found(wanted: list[str], folders: list[Path]) -> list[Run]:
    """The runs that words mean, each once."""
    from gnnkit.runtime.runs import find_runs, select

    runs = find_runs(_roots(folders))
    return list({run.path: run for word in wanted for run in select(runs, word)}.values())


def ps(
    processes: bool = typer.Option(False, "--processes", "-p", help="List the processes of each run too."),
    log_dir: list[Path] = _FOLDERS,
    as_json: bool = _JSON,
) -> None:
    """List runs: processes that sample for notebooks and scripts, servers, and what runs that are gone have left.

    Exit code 1 if a run was left behind: `gnnkit cleanup` removes it.
    """
    from gnnkit.runtime.runs import find_runs
    from gnnkit.ui.runs import attention, run_facts, runs_processes, runs_table, staying

    runs = find_runs(_roots(log_dir))
    left = attention(runs)
    if as_json:
        show_json({"attention": left, "runs": [run_facts(run) for run in runs]})
    elif not runs:
        show_line("no runs")
    else:
        table = runs_table(runs)
        show_table(table.columns, table.rows, right=("age",), styles=_STYLES)
        if processes:
            table = runs_processes(runs)
            show_line("")
            show_table(table.columns, table.rows, right=("pid", "processor", "memory"))
        if left:
            show_line(left, "yellow")
        if stays := staying(runs):
            show_line(stays, "dim")
    if left:
        raise typer.Exit(WARNING)


def logs(
    run: str | None = typer.Argument(
        None, help="A run as `gnnkit ps` lists it, its beginning, or a pid; by default the newest one that runs."
    ),
    rank: int | None = typer.Option(None, help="Only the process of this number."),
    lines: int = typer.Option(60, "--lines", "-n", min=1, help="The most lines of each log."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Stay, and show what is written, until the processes end or Ctrl-C."),
    log_dir: list[Path] = _FOLDERS,
    as_json: bool = _JSON,
) -> None:
    """Show what the processes of a run have written."""
    from gnnkit.runtime.runs import find_runs, logs_of, newest
    from gnnkit.runtime.runs import follow as watch

    if follow and as_json:
        raise PlanError("--follow writes text, as it comes", "leave --json or --follow out")
    runs = [newest(find_runs(_roots(log_dir)))] if run is None else _found([run], log_dir)
    if follow and len(runs) > 1:
        raise PlanError(f"{run} means {len(runs)} runs", f"follow one of them: {', '.join(each.id for each in runs)}")
    news = watch(runs[0], rank) if follow else ()
    found = [(each, name, path, text) for each in runs for name, path, text in logs_of(each, rank, lines)]
    if as_json:
        facts = [{"run": each.id, "process": name, "path": str(path), "text": text} for each, name, path, text in found]
        show_json({"logs": facts})
        return
    for each, name, path, text in found:
        show_line(f"--- {each.id}, {name}, {path}", "dim")
        if text:
            show_line(_lines(text))
    if not found:
        show_line(f"{', '.join(each.id for each in runs)}: no logs")
    for name, text in news:
        show_line(f"--- {name}", "dim")
        show_line(_lines(text))


def _lines(text: str) -> str:
    """Of a log, the lines as they were written: progress that goes back to the line's beginning to write it anew is a line each time."""
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")


def stop(
    runs: list[str] | None = typer.Argument(None, help="Runs as `gnnkit ps` lists them, their beginnings, or pids."),
    all_: bool = typer.Option(False, "--all", help="Every run that has processes."),
    timeout_s: float = typer.Option(15.0, min=0.1, help="Seconds to try, for each."),
    log_dir: list[Path] = _FOLDERS,
) -> None:
    """End the processes of runs; notebooks and scripts that use them go on, and get an error that says so.

    Exit code 1 if a process is still there.
    """
    from gnnkit.runtime.runs import find_runs, stop_run
    from gnnkit.ui.runs import stopped_line

    if bool(runs) == all_:
        raise PlanError("which runs are to be stopped?", "name them, as gnnkit ps lists them, or say --all")
    found = [run for run in find_runs(_roots(log_dir)) if run.alive] if all_ else _found(runs or [], log_dir)
    done = [stop_run(run, timeout_s) for run in found]
    for stopped in done:
        if stopped.left:
            show_error(stopped_line(stopped), None)
        else:
            show_line(stopped_line(stopped))
    if not done:
        show_line("no run has processes")
    if any(stopped.left for stopped in done):
        raise typer.Exit(WARNING)


def cleanup(
    failed: bool = typer.Option(False, "--failed", help="Remove the logs of runs that failed too; they go by themselves after a week."),
    elsewhere: bool = typer.Option(
        False, "--elsewhere", help="Remove what other boots, hosts and containers have left, which may run there."
    ),
    log_dir: list[Path] = _FOLDERS,
    as_json: bool = _JSON,
) -> None:
    """Remove what runs that nobody has any more have left, and end their processes; what runs is left alone.

    Exit code 1 if something cannot be removed.
    """
    from gnnkit.runtime.runs import clean_up, find_runs
    from gnnkit.ui.runs import cleaned_line, run_facts, staying

    done = clean_up(_roots(log_dir), failed=failed, elsewhere=elsewhere)
    kept = [cleaned for cleaned in done if cleaned.kept]
    if as_json:
        show_json({"runs": [{**run_facts(each.run), "ended": each.ended, "removed": each.removed} for each in done]})
    else:
        for cleaned in done:
            show_line(cleaned_line(cleaned))
        if not done:
            show_line("nothing to clean up")
        if stays := staying(find_runs(_roots(log_dir))):
            show_line(stays, "dim")
    if kept:
        raise typer.Exit(WARNING)
