"""The files of a job beside its launch files: its README, its requirements, the script that cuts its store, a program to start from."""

from __future__ import annotations

import ast
import json
import platform
import re
import shlex
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

import numpy as np
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gnnkit.errors import PlanError
from gnnkit.export.code import distributions_of
from gnnkit.export.job import PLAN, RECORD, REQUIREMENTS, STAGE, TRAIN, ExportJob, Instructions, InstructionStep, Port
from gnnkit.export.launchers.base import Launcher
from gnnkit.plan import InputLinks, InputNodes, LoaderPlan, PPRSampling, WalkSampling
from gnnkit.plan.config import CONFIG
from gnnkit.schema import NodeType
from gnnkit.storage.layout import FEATURE_NAME, BuildOptions, node_file
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.store import Store
from gnnkit.units import format_bytes

_LABELS = "y"
# Read at a time, so that an interrupt waits for no more.
_ROWS = 1 << 20


def template_source(plan: LoaderPlan, path: Path, manifest: Manifest) -> str:
    """A file that defines ``train``, fit for a plan.

    Args:
        plan: The plan.
        path: A store of its graph.
        manifest: That store's manifest.

    Raises:
        PlanError: There is no template for this kind of batch, or the graph lacks what it needs.
    """
    inputs, schema = plan.inputs, manifest.schema
    if plan.batching.remainder == "uneven":
        raise _none("remainder='uneven' gives ranks different numbers of batches, and DDP waits for all of them")
    if isinstance(plan.sampling, PPRSampling):
        raise _none("batches of personalised PageRank have no layers of edges to convolve along")
    if isinstance(plan.sampling, WalkSampling):
        raise _none("batches of walks have no edges to convolve along")
    num_layers = max(1, plan.sampling.num_hops)
    if isinstance(inputs, InputNodes):
        return _for_nodes(inputs, num_layers, path, manifest)
    if not isinstance(inputs, InputLinks):
        raise _none("batches of anchors")
    if not schema.is_homogeneous:
        raise _none("links of typed graphs")
    if inputs.neg_sampling is None and inputs.edge_label is None:
        raise _none("these links have neither negatives nor labels (neg_sampling='binary' draws some), so nothing can be told apart")
    if inputs.edge_label is not None and inputs.edge_label.ndim != 1:
        raise _none(f"links with {inputs.edge_label.ndim}-dimensional labels")
    _check_features(manifest, next(iter(schema.node_types)))
    return _filled("links", {"NUM_LAYERS": num_layers})


def _none(why: str) -> PlanError:
    return PlanError(f"there is no template for this plan: {why}", "write one: export(..., train=train), with def train(loader, ctx): ...")


def _for_nodes(inputs: InputNodes, num_layers: int, path: Path, manifest: Manifest) -> str:
    schema, node_type = manifest.schema, inputs.node_type
    labels = schema.node_types[node_type].arrays.get(_LABELS)
    if labels is None:
        raise _none(f"nodes of type {node_type!r} have no labels y")
    classes, is_multi = _classes(path, manifest, node_type)
    splits = manifest.splits.get(node_type, {})
    valid = "valid" if "valid" in splits and inputs.split != "valid" and inputs.time is None else None
    values: dict[str, object] = {"NUM_CLASSES": classes, "NUM_LAYERS": num_layers, "MULTI_LABEL": is_multi, "VALID": valid}
    if schema.is_homogeneous:
        _check_features(manifest, node_type)
        return _filled("nodes", values)
    return _filled("typed_nodes", {"TARGET": node_type, **values})


def _check_features(manifest: Manifest, node_type: NodeType) -> None:
    if FEATURE_NAME not in manifest.schema.node_types[node_type].arrays:
        raise _none(f"nodes of type {node_type!r} have no features x")


def _classes(path: Path, manifest: Manifest, node_type: NodeType) -> tuple[int, bool]:
    """Returns the number of classes, and whether a node may have several of them."""
    spec = manifest.schema.node_types[node_type].arrays[_LABELS]
    width = int(np.prod(spec.row_shape, dtype=np.int64))
    if width > 1:
        return width, True
    if spec.numpy_dtype.kind not in "iu" and manifest.metadata.get("num_classes") is None:
        raise _none(f"the labels y of {node_type!r} are of {spec.dtype}, and classes are whole numbers")
    known = int(manifest.metadata.get("num_classes") or 0)
    return known or _largest_label(path, manifest, node_type) + 1, False


def _largest_label(path: Path, manifest: Manifest, node_type: NodeType) -> int:
    store, largest = Store.open(path), -1
    for part in range(manifest.num_parts):
        labels = store.file(node_file(part, node_type, _LABELS))
        for first in range(0, len(labels), _ROWS):
            largest = max(largest, int(labels[first : first + _ROWS].max()))
    if largest < 0:
        raise _none(f"no node of type {node_type!r} has a label")
    return largest


def _filled(name: str, values: dict[str, object]) -> str:
    """A template with its constants replaced."""
    text = resources.files("gnnkit.export").joinpath("templates").joinpath(f"{name}.py").read_text(encoding="utf-8")
    for constant, value in values.items():
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
        line = f"{constant} = {shown}".replace("\\", r"\\")
        text, count = re.subn(rf"^{constant} = [^ \n]+", line, text, flags=re.MULTILINE)
        assert count == 1, constant
    return text


_OWN = "gnnkit"
# What gnnkit uses in notebooks alone: a job is not pinned to it, nor to what it brings along.
_OF_NOTEBOOKS = "ipywidgets"
_CARRIED = "gnnkit comes from this folder, and no index has to have it; pip looks from where it runs: cd to this folder first"
_WHEEL = "build it there with `python -m build --wheel`, and install with `pip install --find-links FOLDER -r requirements.txt`"


@dataclass(frozen=True)
class _Pin:
    """One line of the file, with what has to be said above it."""

    line: str
    note: str | None = None


def requirements_text(source: str, wheel: str, more: Iterable[str] = ()) -> str:
    """The text of ``requirements.txt``.

    Args:
        source: That of ``train.py``.
        wheel: The name of gnnkit's wheel, which lies beside it.
        more: What the job needs beside it, as far as it is installed here.
    """
    found: dict[str, Requirement | None] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(_OWN, frozenset()), *((name, frozenset()) for name in more if _version(name) is not None)]
    waiting += [(name, frozenset()) for name in imported_distributions(source)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.setdefault(name, None)
        for needed in _needs(name, extras):
            key = canonicalize_name(needed.name)
            if (name, key) == (_OWN, _OF_NOTEBOOKS):
                continue
            if _version(key) is not None:
                # Where it is needed on some systems only, others must be able to go without it.
                found[key] = needed if key not in found and needed.marker is not None and name == _OWN else found.get(key)
                waiting.append((key, frozenset(needed.extras)))
    lines = [f"# The versions that gnnkit and train.py had where this was exported: Python {platform.python_version()} on {sys.platform}."]
    for name in sorted(found):
        pin = _Pin(f"./{wheel}", _CARRIED) if name == _OWN else _pin(name, found[name])
        lines += [f"# {pin.note}"] if pin.note else []
        lines.append(pin.line)
    return "\n".join(lines) + "\n"


def imported_distributions(source: str) -> list[str]:
    """The distributions that a program imports, by their normalised names; Python's own modules have none."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    if any(f"{module}.".startswith("gnnkit.distributed.") for module in modules):
        modules.add("graphlearn_torch")  # of whose classes some of those are
    packages = {module.partition(".")[0] for module in modules}
    found = {str(canonicalize_name(name)) for package in packages for name in distributions_of().get(package, [])[:1]}
    return sorted(found)


def _needs(name: str, extras: frozenset[str]) -> list[Requirement]:
    environments: list[dict[str, str]] = [{**default_environment(), "extra": extra} for extra in extras or {""}]  # type: ignore[dict-item]
    needs = [Requirement(text) for text in metadata.distribution(name).requires or []]
    return [need for need in needs if need.marker is None or any(need.marker.evaluate(each) for each in environments)]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _pin(name: str, needed: Requirement | None) -> _Pin:
    version = _version(name) or ""
    public, _, local = version.partition("+")
    marker = f"; {needed.marker}" if needed is not None and needed.marker is not None else ""
    line = f"{name}=={public}{marker}"
    origin = metadata.distribution(name).read_text("direct_url.json")
    if origin is not None and "url" in (told := json.loads(origin)):
        what = "a checkout" if told.get("dir_info", {}).get("editable") else "a file or repository"
        return _Pin(line, f"{name} was installed from {what}: {_WHEEL}")
    if local:
        return _Pin(line, f"{name} was {version}; an index of such builds is chosen with pip's --extra-index-url")
    return _Pin(line)


# Nodes whose commands are written out.
_SHOWN = 4


def partition_command(job: ExportJob, options: BuildOptions) -> str:
    """The ``gnnkit partition`` command that makes the job's store, with these options, of the one that there is."""
    store = job.store
    assert store.cut_from is not None
    words = ["gnnkit", "partition", _seen(store.cut_from), str(options.num_parts), "--partition", options.partition]
    if options.cache_ratio:
        words += ["--cache-ratio", repr(options.cache_ratio)]
    if options.order != "dataset":
        words += ["--order", options.order]
    return shlex.join([*words, "--out", _seen(store.path)])


def _seen(path: str) -> str:
    """A path that cannot be taken for the name of a dataset."""
    return path if "/" in path else f"./{path}"


def stage_script(job: ExportJob, cut_command: str) -> str:
    """The text of ``stage.sh``."""
    holders = "storage nodes" if job.num_servers else "nodes"
    why = f"{job.store.num_parts} parts, because {len(job.placement.hosts)} {holders} hold it"
    return f"""#!/usr/bin/env bash
# Cuts the store into {why}. Run it once before the first start, on a
# machine that has the store. Where it has run before there is nothing to do; one that was broken off starts anew.
set -euo pipefail
cd "$(dirname "$0")"

# In place of this script, so that signals reach it.
exec {cut_command}
"""


def staging_text(job: ExportJob) -> tuple[str, tuple[str, ...]]:
    """Returns the README's text about the store's way to the nodes that hold it: text, and commands.

    Kubernetes' volume is filled by a step of its launcher.
    """
    store, holders = job.store, "storage node" if job.num_servers else "node"
    if store.is_fetched:
        whose = "the whole store" if job.placement.is_replicated else "its parts of the store"
        text = (
            f"Every {holders} fetches {whose} {store.name} ({format_bytes(store.nbytes)} in all) from {store.path} when it starts for the"
            " first time, into `$GNNKIT_HOME` or the user's cache folder. Credentials are those that fsspec finds in the environment of"
            " the node; no file of this directory holds any."
        )
        return text, _copies_of_files(job)
    place = f"at `{store.path}`" + ("" if store.path.startswith("/") else ", as seen from this directory")
    if len(job.placement.hosts) == 1:
        return f"The {holders} needs the store {store.name} ({format_bytes(store.nbytes)}) {place}. {_OTHER_WAYS}", _copies(job)
    if job.placement.is_replicated:
        text = f"Every {holders} needs the whole store {store.name} ({format_bytes(store.nbytes)}) {place}."
        return f"{text} {_OTHER_WAYS}", _copies(job)
    each = f"about {format_bytes(job.store_bytes_per_node)} of {format_bytes(store.nbytes)}"
    missing = "the features in the others' `part<i>/`" if job.placement.whole_structure else "the others' `part<i>/`"
    text = (
        f"Every {holders} needs its parts of the store {store.name} ({each}) {place}, with the manifest, `splits/` and `book/`; only"
        f" {missing} may be missing. {_OTHER_WAYS}"
    )
    return text, _copies(job)


_OTHER_WAYS = "A shared file system needs no copies. From an object store, fetch the same files, leaving out the same folders."


def _copies_of_files(job: ExportJob) -> tuple[str, ...]:
    """Returns the commands that copy this directory to each node."""
    words = " ".join([*(f"node{node}" for node in range(job.nodes)), *(f"storage{node}" for node in range(job.storage_nodes))])
    return (
        "JOB=/jobs/" + job.name + "   # where this directory is to be on the nodes",
        f'for node in {words}; do rsync -a --mkpath --exclude=/run/ --exclude=/env/ ./ "$node:$JOB/"; done',
    )


# Of the parts that no rule before has named.
_WITHOUT_FEATURES = " '--exclude=/part*/nodes/*/x.npy' '--exclude=/part*/edges/*/edge_attr.npy' '--exclude=/part*/cache/'"


def _copies(job: ExportJob) -> tuple[str, ...]:
    """Returns the commands that copy this directory and the store to each node."""
    source, kind = shlex.quote(_seen(job.store.path).rstrip("/") + "/"), "storage" if job.num_servers else "node"
    target = shlex.quote(job.store.path) if job.store.path.startswith("/") else f'"$JOB"/{shlex.quote(job.store.path)}'
    commands, every, hosts = [*_copies_of_files(job)], set(range(job.store.num_parts)), job.placement.hosts
    for node, parts in list(enumerate(hosts))[:_SHOWN]:
        left_out = "".join(f" --exclude=/part{part}/" for part in sorted(every - set(parts)))
        if job.placement.whole_structure:
            left_out = "".join(f" '--include=/part{part}/***'" for part in parts) + _WITHOUT_FEATURES
        commands.append(f"rsync -a --mkpath{left_out} {source} {kind}{node}:{target}/")
    if len(hosts) > _SHOWN:
        rest = "the same" if job.placement.is_replicated else "each without the parts of the others"
        commands.append(f"# ... to {kind}{len(hosts) - 1}: {rest}")
    return tuple(commands)


# About the files of every job, before and after what the launcher says of its own.
_BEFORE = {
    PLAN: "what is sampled: the graph, its inputs, fan-outs, batches and seed",
    TRAIN: "`train(loader, ctx)`, which every rank calls: edit it",
    CONFIG: "hyper-parameters, `ctx.config`: edit it; `--set lr=0.01` behind a script that starts ranks does the same for one run",
    STAGE: "cuts the store into as many parts as the job needs",
}
_AFTER = {
    REQUIREMENTS: "the versions of gnnkit, of the packages that it names and of those that `train.py` imports",
    RECORD: "how it was exported, to notice changes and to verify it",
}


def readme_text(job: ExportJob, launcher: Launcher, files: Collection[str], cut_command: str | None) -> str:
    """The README's text.

    Args:
        job: The job.
        launcher: Its launcher.
        files: The names of the directory's other files.
        cut_command: What ``stage.sh`` runs; None where there is none.
    """
    wheels = {name: f"gnnkit itself, which `{REQUIREMENTS}` names" for name in files if name.endswith(".whl")}
    instructions, about = launcher.instructions(job), {**_BEFORE, **launcher.about_files, **_AFTER, **wheels}
    rows = "\n".join(f"| `{name}` | {text} |" for name, text in about.items() if name in {*files, RECORD})
    blocks = [
        f"# {job.name}\n\n{_summary(job, launcher)}",
        f"| file | |\n|---|---|\n{rows}",
        *(_step(number, step) for number, step in enumerate(_steps(job, launcher, instructions, cut_command), start=1)),
        _step(None, instructions.watch),
        _step(None, instructions.restart),
        "## Resume\n\n`ctx.save(...)` in `train.py` writes a checkpoint of the model, the optimizer and the loader into"
        f" {instructions.checkpoints}, and `ctx.restore(...)` takes the newest whole one. What is started again continues with exactly the"
        " batches that were left, also with another number of ranks or nodes. Rank 0 writes and reads it. To start afresh, remove"
        f" {instructions.checkpoints}.",
        "## Verify\n\nThis runs the job on one machine, with its real launcher, and compares every tensor of every batch of an epoch with"
        " what the plan gives in one process.\n\n```bash\ngnnkit export --verify .\n```",
        _ports(instructions.ports),
        _settings(instructions.settings),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _summary(job: ExportJob, launcher: Launcher) -> str:
    nodes = f"{job.nodes} node{'s' if job.nodes > 1 else ''} with {job.procs_per_node} rank{'s' if job.procs_per_node > 1 else ''}"
    where = {
        "InProcess": "Each rank samples in threads of its own.",
        "OnDevice": "Each rank has the graph on its own GPU and samples there.",
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


def _ports(ports: Iterable[Port]) -> str:
    rows = [f"| {port.who} | {port.where} | {port.number} | {_kind(port)} |" for port in ports]
    if not rows:
        return "## Ports\n\nNothing listens: one rank on one node."
    head = (
        "Nodes must reach each other on these. Where it says ephemeral, the system picks a free port anew for each run. Traffic is not"
        " encrypted: use a network that you trust."
    )
    return f"## Ports\n\n{head}\n\n| what listens | where | port | |\n|---|---|---|---|\n" + "\n".join(rows)


def _kind(port: Port) -> str:
    return ("ephemeral" if port.ephemeral else "fixed") + (f"; {port.change}" if port.change else "")


def _settings(settings: dict[str, str]) -> str:
    if not settings:
        return ""
    rows = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in settings.items())
    return f"## Settings\n\nVariables that override what is written.\n\n| | |\n|---|---|\n{rows}"
