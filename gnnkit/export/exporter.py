"""Exporting: a plan, a train function and a place to run become a directory of files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gnnkit.bounds import check_choice, is_whole, keep_whole_number
from gnnkit.errors import PlanError, interruptible, near_matches
from gnnkit.export.job import PLAN, README, RECORD, REQUIREMENTS, SIZES, STAGE, TRAIN, ExportJob, JobPlan, SizedJob, job_plan
from gnnkit.export.job_files import partition_command, readme_text, requirements_text, template_source
from gnnkit.export.launchers.base import Launcher, launcher_of
from gnnkit.export.launchers.common import OPTION, render
from gnnkit.export.source import file_source, function_source, sampler_files
from gnnkit.export.verify import VerifyReport, verify_export
from gnnkit.export.wheel import own_wheel
from gnnkit.export.writer import write_directory
from gnnkit.files import user_path
from gnnkit.plan import InputLinks, LoaderPlan, NeighborSampling, PlacementWord
from gnnkit.plan.config import CONFIG, check_config
from gnnkit.plan.sampling import BatchSize, most
from gnnkit.rendering import Shown
from gnnkit.ui.cards import Card
from gnnkit.ui.kernel import running_shell
from gnnkit.urls import packages_for
from gnnkit.version import __version__

_ABOUT = "Training, as it was exported; edit it as you like."
_NAME = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 40
_INTERFACE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
# Of a batch of which fan-outs do not say how large it becomes.
_UNKNOWN_BATCH_BYTES = 1 << 30


@dataclass(frozen=True)
class JobOptions(SizedJob):
    """The launcher, size and placement of a job: the keywords of ``GraphLoader.export``, which describes them."""

    interface: str | None = None
    placement: PlacementWord | None = None
    gpus_per_node: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", check_config(self.config))
        for name, least in SIZES.items():
            keep_whole_number(self, name, least)
        if self.placement is not None:
            check_choice("placement", self.placement, PlacementWord)
        if self.gpus_per_node is not None:
            keep_whole_number(self, "gpus_per_node")
            if 0 < self.gpus_per_node < self.procs_per_node:
                raise PlanError(
                    f"gpus_per_node={self.gpus_per_node}, and each of the {self.procs_per_node} ranks of a node trains on one of its own",
                    f"gpus_per_node={self.procs_per_node}, or 0 to train on processors",
                )
        if self.interface is not None and (not isinstance(self.interface, str) or not _INTERFACE.fullmatch(self.interface)):
            raise PlanError(
                f"interface={self.interface!r} is neither the name nor the address of an interface", "for example interface='eth1'"
            )


@dataclass(frozen=True, repr=False)
class Exported(Shown):
    """A directory that was exported.

    Attributes:
        directory: Where it is.
        files: The names of its files.
        commands: What is done next, on the nodes: the README says more.
        report: What verifying it has shown; None where that was not asked for.
        asks: Which GPUs it asks for, in words.
    """

    directory: Path
    files: tuple[str, ...]
    commands: tuple[str, ...]
    report: VerifyReport | None = None
    asks: str = ""

    def _card(self) -> Card:
        rows = [("directory", str(self.directory)), ("files", ", ".join(self.files)), ("next", f"{README} says how it is started")]
        rows += [("", command) for command in self.commands]
        rows.append(("asks for", self.asks))
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
    launcher, target = launcher_of(options.launcher), user_path(directory)
    options = replace(options, options=_checked(launcher, options.options))
    made = job_plan(plan, options.nodes, options.storage_nodes, options.interface, options.placement)
    source, (wheel, wheel_bytes) = _source(train, made), own_wheel()
    files = {PLAN: made.text(target), TRAIN: source} | (modules := sampler_files(plan.sampling))
    if options.config:
        files[CONFIG] = json.dumps(options.config, indent=1) + "\n"
    job = _job(made, target, options, {name: len(text.encode()) for name, text in files.items()})
    sources = [source, *modules.values(), *(f"import {module}" for module in plan.sampling.modules)]
    files[REQUIREMENTS] = requirements_text("\n".join(sources), wheel, packages_for(job.store.path) if job.store.is_fetched else ())
    files |= launcher.files(job)
    cut_command = None if made.cut is None else partition_command(job, made.cut)
    if cut_command is not None:
        files[STAGE] = render(STAGE, job, cut_command=cut_command)
    files[README] = readme_text(job, launcher, [*files, wheel], cut_command)
    record = job.sizes() | {
        "interface": job.interface,
        "backend": job.backend,
        "gpus_per_proc": int(job.gpus_per_node > 0),
        "placement": job.placement.word,
        "cut_from": job.store.cut_from,
    }
    contents = {name: text.encode() for name, text in files.items()} | {wheel: wheel_bytes}
    write_directory(target, contents, record, overwrite=overwrite)
    report = verify_export(target) if verify else None
    instructions = launcher.instructions(job)
    commands = [] if made.cut is None else [f"./{STAGE}"]
    commands += [line for step in (*instructions.before_copies, *instructions.start) for line in step.commands]
    return Exported(target, tuple(sorted([*contents, RECORD])), tuple(commands), report, job.gpu_words)


def _job_name(target: Path) -> str:
    """A directory's name as clusters take it: a DNS-1035 label, short enough for what they make of it."""
    name = _NAME.sub("-", target.name.lower()).strip("-") or "gnnkit"
    return (name if name[0].isalpha() else f"job-{name}")[:_LONGEST_NAME].strip("-")


def _job(made: JobPlan, target: Path, options: JobOptions, file_bytes: Mapping[str, int]) -> ExportJob:
    backend = made.plan.backend
    return ExportJob(
        name=_job_name(target),
        **options.sizes(),
        interface=options.interface,
        backend=backend["kind"],
        workers_per_server=backend.get("workers_per_server", 1),
        threads_per_worker=backend.get("threads_per_worker", 1),
        sampling_threads=_sampling_threads(backend),
        gpus_per_node=options.procs_per_node * (backend.get("device") == "cuda" or wants_gpus())
        if options.gpus_per_node is None
        else options.gpus_per_node,
        placement=made.placement,
        store=made.job_store(target),
        batch_bytes=_batch_bytes(made),
        num_steps=max(1, -(-_num_inputs(made) // (made.plan.batching.batch_size * options.nodes * options.procs_per_node))),
        num_nodes=made.manifest.schema.num_nodes,
        file_bytes=file_bytes,
        gnnkit=__version__,
        options=options.options,
        config=options.config,
    )


def _checked(launcher: Launcher, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a launcher as its files write them."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in launcher.options:
            has = ", ".join(f"{known} ({meaning})" for known, meaning in launcher.options.items())
            near = "" if name in launcher.elsewhere else near_matches(name, list(launcher.options), 0.7)
            hint = launcher.elsewhere.get(
                name, f"it has {has}" if has else f"it has none; {README} of the job names the variables that it reads"
            )
            raise PlanError(f"{launcher.title} has no option {name!r}{near}", hint)
        if name in launcher.mappings:
            if not isinstance(value, Mapping) or not _is_json(value):
                hint = f"its form is {name}={{'field': 'value'}}, on the command line --option '{name}={{field: value}}'"
                raise PlanError(f"the option {name}={value!r} of {launcher.title} is no mapping of what JSON can hold", hint)
            found[name] = value
        else:
            text = str(value) if is_whole(value, 0) else value
            if not isinstance(text, str) or not OPTION.fullmatch(text):
                raise PlanError(f"the option {name}={value!r} of {launcher.title} is of no use", "a text without blanks: partition='gpu'")
            found[name] = launcher.written(name, text)
    return found


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(part) for key, part in value.items())
    return all(map(_is_json, value)) if isinstance(value, list) else value is None or isinstance(value, (str, int, float))


def _sampling_threads(backend: Any) -> int | None:
    """Threads that sample for one rank; None where they are "auto"."""
    if backend["kind"] == "GraphStore":
        return 0
    if backend["kind"] == "OnDevice":
        return 1
    count = backend["num_threads"] if backend["kind"] == "InProcess" else backend["num_workers"]
    return count * backend.get("threads_per_worker", 1) if isinstance(count, int) else None


@cache
def wants_gpus() -> bool:
    """Whether ranks train on GPUs where nothing says so: as here, or as the person says who exports where there is none, asked once."""
    import torch

    # A question is seen and answered in a terminal, or in a notebook.
    is_attended = running_shell() is not None or (sys.stdin is not None and sys.stdin.isatty())
    if torch.cuda.is_available() or not is_attended:
        return torch.cuda.is_available()
    try:
        return input("This machine has no GPU. Shall the job ask for one for each rank? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, OSError, RuntimeError):  # a notebook that runs by itself asks in vain
        return False


def _num_inputs(made: JobPlan) -> int:
    """Nodes or links that an epoch starts from; of a split of links, at most."""
    inputs, manifest = made.plan.inputs, made.manifest
    if isinstance(inputs, InputLinks):
        given = inputs.edge_label_index
        return manifest.schema.edge_types[inputs.edge_type].num_edges if given is None else given.shape[1]
    if inputs.split is not None:
        return manifest.splits[inputs.node_type][inputs.split]
    return manifest.schema.node_types[inputs.node_type].num_nodes if inputs.ids is None else len(inputs.ids)


def _batch_bytes(made: JobPlan) -> int:
    """Bytes of a batch, at most on average; of samplers that draw in another way those of the whole graph, as far as a batch is likely."""
    plan, schema, sampling = made.plan, made.manifest.schema, made.plan.sampling
    seeds = min(plan.batching.batch_size, max(1, _num_inputs(made)))
    whole = BatchSize({t: s.num_nodes for t, s in schema.node_types.items()}, {t: s.num_edges for t, s in schema.edge_types.items()}, "")
    most_bytes = whole.nbytes(schema, seeds, sampling.with_edge)
    if not isinstance(sampling, NeighborSampling):
        return min(most_bytes, _UNKNOWN_BATCH_BYTES)
    links = isinstance(plan.inputs, InputLinks)
    seed_type = plan.inputs.edge_type[0] if isinstance(plan.inputs, InputLinks) else plan.inputs.node_type
    counts = schema.counts
    # All neighbours: as many as a node has on average.
    degrees = {t: -(-counts[t] // max(1, min(counts[t[0]], counts[t[2]]))) for t in sampling.num_neighbors}
    fan_outs = {t: [degrees[t] if count < 0 else count for count in fan] for t, fan in sampling.num_neighbors.items()}
    size = most(schema, fan_outs, seed_type, seeds * (2 if links else 1), made.manifest.options.edge_dir)
    if sampling.has_roots:  # a node is there once for each seed that reaches it
        widest = max(schema.node_types, key=lambda node_type: sum(spec.row_nbytes for spec in schema.node_types[node_type].arrays.values()))
        return replace(size, nodes={**size.nodes, widest: seeds + size.num_edges}).nbytes(schema, seeds, sampling.with_edge)
    return min(most_bytes, size.nbytes(schema, seeds, sampling.with_edge))


def _source(train: Callable[..., Any] | str | Path | None, made: JobPlan) -> str:
    if train is None:
        return template_source(made.plan, made.path, made.manifest)
    return file_source(user_path(train)) if isinstance(train, (str, Path)) else function_source(train, _ABOUT)
