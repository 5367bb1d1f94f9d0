"""The trials of ``gnnkit doctor``, in a process of their own: a crash or a hang there is a finding and does not end the doctor.

``python -m gnnkit.cli.trial NAME...`` makes the trials in turn and writes a line of JSON for each: ``{"name", "ok", "value"}``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

_NUM_NODES, _NUM_PARTS, _NUM_WORKERS, _NUM_SERVERS = 64, 2, 2, 2
# What one wait of a loader may take; the process as a whole has a deadline of the doctor's.
WAIT_S = 60.0


@cache
def graph() -> Any:
    """Every node points to its next, its fifth and its thirteenth neighbour on a ring, and has its own number as feature."""
    import torch
    from torch_geometric.data import Data

    nodes = torch.arange(_NUM_NODES)
    edges = torch.cat([torch.stack([nodes, (nodes + step) % _NUM_NODES]) for step in (1, 5, 13)], dim=1)
    return Data(x=nodes.float().view(-1, 1), y=nodes % 7, edge_index=edges)


def options(backend: Any) -> dict[str, Any]:
    """Returns the options that the loader of every trial has beside its graph."""
    limits = {"start_timeout_s": WAIT_S, "batch_timeout_s": WAIT_S, "progress": False, "rank": 0, "world_size": 1}
    return {"num_neighbors": [2, 2], "batch_size": 16, "shuffle": True, "backend": backend, **limits}


@cache
def batches_here() -> list[Any]:
    """An epoch's batches, sampled by threads of this process and checked against the graph."""
    from gnnkit.backends.inprocess import InProcess
    from gnnkit.graph_loader import GraphLoader

    with GraphLoader.from_pyg(graph(), **options(InProcess(num_threads=1))) as loader:
        batches = list(loader)
    _check(batches)
    return batches


def _check(batches: list[Any]) -> None:
    """Compares batches with the graph: features, edges, and every node a seed once."""
    import torch

    for batch in batches:
        ends = batch.n_id[batch.edge_index]
        steps = (ends[1] - ends[0]) % _NUM_NODES
        if not torch.equal(batch.x.view(-1).long(), batch.n_id) or not torch.isin(steps, torch.tensor([1, 5, 13])).all():
            raise RuntimeError("a batch holds features or edges that the graph does not have")
    seeds = torch.cat([batch.n_id[: batch.batch_size] for batch in batches])
    if sorted(seeds.tolist()) != list(range(_NUM_NODES)):
        raise RuntimeError("an epoch does not have every node as a seed once")


def try_in_process() -> str:
    """Samples an epoch by threads of this process."""
    return f"{len(batches_here())} batches sampled and checked"


def try_colocated() -> str:
    """Samples the same epoch from a store in parts by background processes, and compares."""
    from gnnkit.backends.colocated import Colocated

    return compare(Colocated(num_workers=_NUM_WORKERS), f"{_NUM_WORKERS} processes", batches_here())


def try_graph_store() -> str:
    """Samples it by servers of its own, and compares."""
    from gnnkit.backends.graph_store import GraphStore

    return compare(GraphStore(num_servers=_NUM_SERVERS), f"{_NUM_SERVERS} servers", batches_here())


def compare(backend: Any, whose: str, batches: list[Any]) -> str:
    """Compares the batches of a backend, from a store in parts, with those of InProcess.

    Raises:
        RuntimeError: They are others.
    """
    from gnnkit.graph_loader import GraphLoader
    from gnnkit.loader.inspection import batches_digest
    from gnnkit.partitioning import partition

    digest = batches_digest(batches)
    with tempfile.TemporaryDirectory() as folder:
        store = partition(graph(), _NUM_PARTS, out=Path(folder) / "store")
        with GraphLoader.from_store(store.path, input_nodes=None, **options(backend)) as loader:
            found = batches_digest(loader)
    if found != digest:
        raise RuntimeError(f"its batches are not those of InProcess (digests {found} and {digest})")
    return f"{len(batches)} batches from {whose} and {_NUM_PARTS} parts, the same as InProcess's"


def try_hosts() -> str:
    """Samples the same epoch on two hosts."""
    from gnnkit.cli import trial_hosts

    return trial_hosts.try_hosts()


def try_glt() -> str:
    """Has graphlearn-torch sample an epoch, whose draws are its own, and checks it against the graph."""
    from gnnkit.backends.glt.options import Glt
    from gnnkit.graph_loader import GraphLoader

    with GraphLoader.from_pyg(graph(), **options(Glt(num_workers=1))) as loader:
        batches = list(loader)
    _check(batches)
    return f"{len(batches)} batches drawn by graphlearn-torch and checked"


TRIALS: dict[str, Callable[[], str]] = {
    "InProcess": try_in_process,
    "Colocated": try_colocated,
    "several hosts": try_hosts,
    "Glt": try_glt,
    "GraphStore": try_graph_store,
}


def main(trials: Mapping[str, Callable[[], str]]) -> None:
    """Makes some trials."""
    # Whatever else is written to standard output must not get between the lines.
    with os.fdopen(os.dup(1), "w") as lines:
        os.dup2(2, 1)
        for name, trial in trials.items():
            try:
                outcome = {"name": name, "ok": True, "value": trial()}
            except Exception as error:  # whatever it is: the answer is no, and this is the reason
                reason = str(error).splitlines()[0] if str(error) else ""
                outcome = {"name": name, "ok": False, "value": f"{type(error).__name__}: {reason}"}
            lines.write(json.dumps(outcome) + "\n")
            lines.flush()


if __name__ == "__main__":
    main({name: TRIALS[name] for name in sys.argv[1:]})
