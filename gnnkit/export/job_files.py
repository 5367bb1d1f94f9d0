"""The files of a job beside its launch files: its README, its requirements, a program to start from; and how its store is cut."""

from __future__ import annotations

import ast
import json
import platform
import shlex
import sys
from collections.abc import Collection, Iterable
from importlib import metadata
from pathlib import Path

import numpy as np
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gnnkit.errors import PlanError
from gnnkit.export.code import distributions_of
from gnnkit.export.job import README, RECORD, ExportJob
from gnnkit.export.launchers.base import Launcher
from gnnkit.export.launchers.common import chapters_of, filled, render, steps_of
from gnnkit.host import installed_version
from gnnkit.plan import InputLinks, InputNodes, LoaderPlan, PPRSampling, WalkSampling
from gnnkit.schema import NodeType
from gnnkit.splits import find_split, split_index_of
from gnnkit.storage.arrays import num_classes
from gnnkit.storage.layout import FEATURE_NAME, LABEL_NAME, BuildOptions
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.store import Store
from gnnkit.units import format_bytes


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
    return filled("links.py", num_layers=num_layers)


def _none(why: str) -> PlanError:
    return PlanError(f"there is no template for this plan: {why}", "write one: export(..., train=train), with def train(loader, ctx): ...")


def _for_nodes(inputs: InputNodes, num_layers: int, path: Path, manifest: Manifest) -> str:
    schema, node_type = manifest.schema, inputs.node_type
    if LABEL_NAME not in schema.node_types[node_type].arrays:
        raise _none(f"nodes of type {node_type!r} have no labels y")
    classes, is_multi = _classes(path, manifest, node_type)
    valid = find_split("valid", manifest.splits.get(node_type, {}), split_index_of(inputs.split))
    valid = None if inputs.split == valid or inputs.time is not None else valid
    if schema.is_homogeneous:
        _check_features(manifest, node_type)
    kind = "nodes.py" if schema.is_homogeneous else "typed_nodes.py"
    return filled(kind, target=node_type, num_classes=classes, num_layers=num_layers, multi_label=is_multi, valid=valid)


def _check_features(manifest: Manifest, node_type: NodeType) -> None:
    if FEATURE_NAME not in manifest.schema.node_types[node_type].arrays:
        raise _none(f"nodes of type {node_type!r} have no features x")


def _classes(path: Path, manifest: Manifest, node_type: NodeType) -> tuple[int, bool]:
    """Returns the number of classes, and whether a node may have several of them."""
    try:
        classes = num_classes(Store.open(path).arrays(), node_type, manifest.metadata)
    except PlanError as error:
        raise _none(error.message) from error
    if not classes:
        raise _none(f"no node of type {node_type!r} has a label")
    return classes, int(np.prod(manifest.schema.node_types[node_type].arrays[LABEL_NAME].row_shape)) > 1


_OWN = "gnnkit"
# What gnnkit uses in notebooks alone: a job is not pinned to it, nor to what it brings along.
_OF_NOTEBOOKS = "ipywidgets"
_CARRIED = "gnnkit comes from this folder, and no index has to have it; pip looks from where it runs: cd to this folder first"
_WHEEL = "build it there with `python -m build --wheel`, and install with `pip install --find-links FOLDER -r requirements.txt`"


def requirements_text(source: str, wheel: str, more: Iterable[str] = ()) -> str:
    """The text of ``requirements.txt``.

    Args:
        source: That of ``train.py``, and of what lies beside it.
        wheel: The name of gnnkit's wheel, which lies beside it.
        more: What the job needs beside it, as far as it is installed here.
    """
    found: dict[str, Requirement | None] = {}
    names = [_OWN, *(name for name in more if installed_version(name) is not None), *imported_distributions(source)]
    waiting: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in names]
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
            if installed_version(key) is not None:
                # Where it is needed on some systems only, others must be able to go without it.
                found[key] = needed if key not in found and needed.marker is not None and name == _OWN else found.get(key)
                waiting.append((key, frozenset(needed.extras)))
    lines = [f"# The versions that gnnkit and train.py had where this was exported: Python {platform.python_version()} on {sys.platform}."]
    for name in sorted(found):
        lines += [f"# {_CARRIED}", f"./{wheel}"] if name == _OWN else _pinned(name, found[name])
    return "\n".join(lines) + "\n"


def imported_distributions(source: str) -> list[str]:
    """The distributions that a program imports, by their normalised names; Python's own modules have none."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    packages = {module.partition(".")[0] for module in modules}
    return sorted({str(canonicalize_name(name)) for package in packages for name in distributions_of().get(package, [])[:1]})


def _needs(name: str, extras: frozenset[str]) -> list[Requirement]:
    environments: list[dict[str, str]] = [{**default_environment(), "extra": extra} for extra in extras or {""}]  # type: ignore[dict-item]
    needs = [Requirement(text) for text in metadata.distribution(name).requires or []]
    return [need for need in needs if need.marker is None or any(need.marker.evaluate(each) for each in environments)]


def _pinned(name: str, needed: Requirement | None) -> list[str]:
    """Returns the line of a distribution, and above it what has to be said of that."""
    version = installed_version(name) or ""
    public, _, local = version.partition("+")
    marker = f"; {needed.marker}" if needed is not None and needed.marker is not None else ""
    line = f"{name}=={public}{marker}"
    origin = metadata.distribution(name).read_text("direct_url.json")
    if origin is not None and "url" in (told := json.loads(origin)):
        what = "a checkout" if told.get("dir_info", {}).get("editable") else "a file or repository"
        return [f"# {name} was installed from {what}: {_WHEEL}", line]
    if local:
        return [f"# {name} was {version}; an index of such builds is chosen with pip's --extra-index-url", line]
    return [line]


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


# Of the parts that no rule before has named.
_WITHOUT_FEATURES = " '--exclude=/part*/nodes/*/x.npy' '--exclude=/part*/edges/*/edge_attr.npy' '--exclude=/part*/cache/'"


def _store_copies(job: ExportJob) -> list[str]:
    """Returns the commands that copy the store to each node that holds it."""
    if job.store.is_fetched:
        return []
    source, kind = shlex.quote(_seen(job.store.path).rstrip("/") + "/"), "storage" if job.num_servers else "node"
    target = shlex.quote(job.store.path) if job.store.path.startswith("/") else f'"$JOB"/{shlex.quote(job.store.path)}'
    commands, every, hosts = [], set(range(job.store.num_parts)), job.placement.hosts
    for node, parts in list(enumerate(hosts))[:_SHOWN]:
        left_out = "".join(f" --exclude=/part{part}/" for part in sorted(every - set(parts)))
        if job.placement.whole_structure:
            left_out = "".join(f" '--include=/part{part}/***'" for part in parts) + _WITHOUT_FEATURES
        commands.append(f"rsync -a --mkpath{left_out} {source} {kind}{node}:{target}/")
    if len(hosts) > _SHOWN:
        rest = "the same" if job.placement.is_replicated else "each without the parts of the others"
        commands.append(f"# ... to {kind}{len(hosts) - 1}: {rest}")
    return commands


def readme_text(job: ExportJob, launcher: Launcher, files: Collection[str], cut_command: str | None) -> str:
    """The README's text.

    Args:
        job: The job.
        launcher: Its launcher.
        files: The names of the directory's other files.
        cut_command: What ``stage.sh`` runs; None where there is none.
    """
    instructions, python = launcher.instructions(job), ".".join(platform.python_version_tuple()[:2])
    values = {"launcher": launcher, "cut_command": cut_command, "python": python, "format_bytes": format_bytes}
    own = chapters_of(render("steps.md", job, store_copies=_store_copies(job), **values))
    steps = [*steps_of(own["prepare"]), *instructions.before_copies]
    steps += [*([] if launcher.brings_files else steps_of(own["bring"])), *instructions.start]
    return render(README, job, launcher=launcher, files=[*files, RECORD], steps=steps, instructions=instructions)
