"""The README of a job: what a person has to know to start it, in the order in which it is needed."""

from __future__ import annotations

import platform
from collections.abc import Iterable

from gnnkit.export.job import PLAN, RECORD, REQUIREMENTS, STAGE, TRAIN, ExportJob, Instructions, InstructionStep, Port
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.staging import staging_text

# About the files of every job, before and after what the launcher says of its own.
_BEFORE = {
    PLAN: "what is sampled: the graph, its inputs, fan-outs, batches and seed",
    TRAIN: "`train(loader, ctx)`, which every rank calls: edit it",
    STAGE: "cuts the store into as many parts as the job needs",
}
_AFTER = {
    REQUIREMENTS: "the versions of everything that it was exported with",
    RECORD: "how it was exported, to notice changes and to verify it",
}


def readme_text(job: ExportJob, launcher: Launcher, files: Iterable[str], cut_command: str | None) -> str:
    """The README's text.

    Args:
        job: The job.
        launcher: Its launcher.
        files: The names of the directory's other files.
        cut_command: What ``stage.sh`` runs; None where there is none.
    """
    instructions, about = launcher.instructions(job), {**_BEFORE, **launcher.about_files, **_AFTER}
    rows = "\n".join(f"| `{name}` | {text} |" for name, text in about.items() if name in {*files, RECORD})
    blocks = [
        f"# {job.name}\n\n{_summary(job, launcher)}",
        f"| file | |\n|---|---|\n{rows}",
        *(_step(number, step) for number, step in enumerate(_steps(job, launcher, instructions, cut_command), start=1)),
        _step(None, instructions.watch),
        _step(None, instructions.restart),
        _resume(instructions.checkpoints),
        _verify(),
        _ports(instructions.ports),
        _settings(instructions.settings),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _summary(job: ExportJob, launcher: Launcher) -> str:
    nodes = f"{job.nodes} node{'s' if job.nodes > 1 else ''} with {job.procs_per_node} rank{'s' if job.procs_per_node > 1 else ''}"
    where = {
        "InProcess": "Each rank samples in threads of its own.",
        "Colocated": "Each rank samples in processes beside it.",
        "GraphStore": f"Beside them, {job.num_servers} storage server(s) on {job.storage_nodes} node(s) hold the graph and sample it.",
    }[job.backend]
    return (
        f"Training on {job.store.name}, exported by gnnkit {job.gnnkit}: {nodes}{' each' if job.nodes > 1 else ''},"
        f" started with {launcher.title}."
        f" {where} It asks for {job.gpu_words}. Batches are those of the notebook, bit for bit, however many ranks share them."
    )


def _steps(job: ExportJob, launcher: Launcher, instructions: Instructions, cut_command: str | None) -> list[InstructionStep]:
    steps = []
    if not launcher.brings_files:
        version = ".".join(platform.python_version_tuple()[:2])
        commands = (f"python{version} -m venv env", f"env/bin/pip install -r {REQUIREMENTS}", "source env/bin/activate")
        text = (
            "On every node, in this directory once it is there, or once on a shared file system. The scripts activate `env/`; a line in"
            " each of them names it. For a GPU choose torch's index for its CUDA version with `--extra-index-url`."
        )
        steps.append(InstructionStep("Install", text, commands))
    alone = "The same program runs alone, on a machine that has the store; `--dir` is where its checkpoints go."
    tried = InstructionStep("Try it on one machine", alone, (f"gnnkit run {PLAN} --train {TRAIN} --dir /tmp/{job.name}",))
    if cut_command is not None:
        parts = f"{job.store.num_parts} parts"
        text = f"The store has fewer parts than nodes are to hold it. This makes one of {parts}, once, where the first one is."
        text += " Batches stay the same."
        together = ("# or by all nodes at once, on a shared file system; on node <k>:", f"{cut_command} --part <k>")
        steps.append(InstructionStep(f"Cut the store into {parts}", text, (f"./{STAGE}", *together)))
    steps += [tried, *instructions.before_copies]
    if not launcher.brings_files:
        steps.append(InstructionStep("Bring this directory and the store to the nodes", *staging_text(job)))
    return [*steps, *instructions.start]


def _step(number: int | None, step: InstructionStep) -> str:
    title = f"## {step.title}" if number is None else f"## {number}. {step.title}"
    commands = "" if not step.commands else "```bash\n" + "\n".join(step.commands) + "\n```"
    return "\n\n".join(part for part in (title, step.text, commands) if part)


def _resume(place: str) -> str:
    return (
        f"## Resume\n\n`ctx.save(...)` in `train.py` writes a checkpoint of the model, the optimizer and the loader into {place}, and"
        " `ctx.restore(...)` takes the newest whole one. What is started again continues with exactly the batches that were left, also with"
        f" another number of ranks or nodes. Rank 0 writes and reads it. To start afresh, remove {place}."
    )


def _verify() -> str:
    return (
        "## Verify\n\nThis runs the job on one machine, with its real launcher, and compares every tensor of every batch of an epoch with"
        " what the plan gives in one process.\n\n```bash\ngnnkit export --verify .\n```"
    )


def _ports(ports: Iterable[Port]) -> str:
    rows = [f"| {port.who} | {port.where} | {port.number} | {_kind(port)} |" for port in ports]
    if not rows:
        return "## Ports\n\nNothing listens: one rank on one node."
    head = (
        "Nodes must reach each other on these. The system picks an ephemeral one anew for each run. Traffic is not encrypted: use a network"
        " that you trust."
    )
    return f"## Ports\n\n{head}\n\n| what listens | where | port | |\n|---|---|---|---|\n" + "\n".join(rows)


def _kind(port: Port) -> str:
    return ("ephemeral" if port.ephemeral else "fixed") + (f"; {port.change}" if port.change else "")


def _settings(settings: dict[str, str]) -> str:
    if not settings:
        return ""
    rows = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in settings.items())
    return f"## Settings\n\nVariables that override what is written.\n\n| | |\n|---|---|\n{rows}"
