"""The store's way to the nodes: the script that cuts it anew, and the README's text about copying it."""

from __future__ import annotations

import shlex

from gnnkit.export.job import ExportJob
from gnnkit.storage.options import BuildOptions
from gnnkit.units import format_bytes

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
    """A path that nobody takes for the name of a dataset."""
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
    text = (
        f"Every {holders} needs its parts of the store {store.name} ({each}) {place}, with the manifest, `splits/` and `book/`; only the"
        f" others' `part<i>/` may be missing. {_OTHER_WAYS}"
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


def _copies(job: ExportJob) -> tuple[str, ...]:
    """Returns the commands that copy this directory and the store to each node."""
    source, kind = shlex.quote(_seen(job.store.path).rstrip("/") + "/"), "storage" if job.num_servers else "node"
    target = shlex.quote(job.store.path) if job.store.path.startswith("/") else f'"$JOB"/{shlex.quote(job.store.path)}'
    commands, every, hosts = [*_copies_of_files(job)], set(range(job.store.num_parts)), job.placement.hosts
    for node, parts in list(enumerate(hosts))[:_SHOWN]:
        left_out = "".join(f" --exclude=/part{part}/" for part in sorted(every - set(parts)))
        commands.append(f"rsync -a --mkpath{left_out} {source} {kind}{node}:{target}/")
    if len(hosts) > _SHOWN:
        rest = "the same" if job.placement.is_replicated else "each without the parts of the others"
        commands.append(f"# ... to {kind}{len(hosts) - 1}: {rest}")
    return tuple(commands)
