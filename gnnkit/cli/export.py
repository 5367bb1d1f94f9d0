"""``gnnkit export``: a plan as the files of a cluster's job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import typer

from gnnkit.cli.output import WARNING, show_line
from gnnkit.errors import PlanError
from gnnkit.export.exporter import JobOptions, export_plan
from gnnkit.export.verify import verify_export
from gnnkit.plan import LoaderPlan
from gnnkit.plan.config import with_settings
from gnnkit.plugins import OWN


def export(
    plan: Path = typer.Argument(
        metavar="PLAN", help="The plan's file, which loader.plan.save() wrote; with --verify alone, an exported directory."
    ),
    directory: Path | None = typer.Argument(None, metavar="[DIR]", help="Where the job's files go."),
    launcher: str = typer.Option("torchrun", help=f"{', '.join(OWN)}, or a name that a package adds."),
    nodes: int = typer.Option(1, help="Nodes with trainers."),
    procs_per_node: int = typer.Option(1, help="Trainers (ranks) on each."),
    storage_nodes: int = typer.Option(0, help="Nodes with storage servers, for a plan with GraphStore."),
    servers_per_node: int = typer.Option(1, help="Storage servers on each of those."),
    interface: str | None = typer.Option(
        None, help="Interface that nodes talk to each other on; by default the one that leads to the first."
    ),
    train: Path | None = typer.Option(None, help="Python file with def train(loader, ctx); by default a template."),
    placement: str | None = typer.Option(
        None, help="partition: a node holds its share; features: and the structure of all; replicate: all."
    ),
    gpus_per_node: int | None = typer.Option(
        None, help="GPUs to ask for on each node: one for each rank or more, or 0; by default one for each if this machine has any."
    ),
    settings: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="A hyper-parameter, ctx.config[NAME] of the job."),
    options: list[str] = typer.Option(
        [],
        "--option",
        metavar="NAME=VALUE",
        help="An option of the launcher: partition=gpu, labels=NAME=VALUE, 'pod={nodeSelector: {gpu: a100}}'.",
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Write over exported files that were changed since."),
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
    sizes = nodes, procs_per_node, storage_nodes, servers_per_node
    config = with_settings({}, settings)
    job = JobOptions(launcher, *sizes, interface, cast(Any, placement), gpus_per_node, config, _options_of(options))
    show_line(str(export_plan(LoaderPlan.load(plan), directory, job, train=train, overwrite=overwrite)))
    if verify:
        _verify(directory, store, num_batches, timeout_s)


def _options_of(texts: list[str]) -> dict[str, Any]:
    """``{option: value}``; ``name=label=value`` stands for ``{label: value}``, as ``name={...}`` does, and several of them are one."""
    import yaml

    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise PlanError(f"--option {text!r} is no name with a value", "for example --option partition=gpu")
        label, equals, inner = value.partition("=")
        given: Any = {label: inner} if equals else value
        if value.startswith("{"):
            try:
                given = yaml.safe_load(value)
            except yaml.YAMLError as error:
                raise PlanError(
                    f"--option {text!r} is no YAML: {error}", "for example --option 'pod={nodeSelector: {gpu: a100}}'"
                ) from error
        before = options.get(name)
        options[name] = {**before, **given} if isinstance(before, dict) and isinstance(given, dict) else given
    return options


def _verify(directory: Path, store: Path | None, num_batches: int | None, timeout_s: float) -> None:
    sys.path.append(str(directory))  # where a job has the sampler that its plan names
    report = verify_export(directory, store=store, num_batches=num_batches, timeout_s=timeout_s)
    show_line(str(report))
    if not report.equal:
        raise typer.Exit(WARNING)
