"""The trials of ``gnnkit doctor``, in a process of their own: a crash or a hang there is a finding and does not end the doctor.

``python -m gnnkit.cli.trial NAME...`` makes the trials in turn and writes a line of JSON for each: ``{"name", "ok", "value"}``.
``python -m gnnkit.cli.trial --host STORE ADDRESS ADDRESS`` is the second of two hosts that each hold one part and answer each other, on
addresses of loopback; ``GNNKIT_HOST`` says which it is.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from gnnkit.backends.colocated import Colocated
from gnnkit.backends.glt.options import Glt
from gnnkit.backends.graph_store import GraphStore
from gnnkit.backends.inprocess import InProcess
from gnnkit.backends.on_device import OnDevice
from gnnkit.graph_loader import GraphLoader
from gnnkit.loader.inspection import batches_digest
from gnnkit.partitioning import partition

_NUM_NODES, _NUM_PARTS = 64, 2
_HOST, _ADDRESSES = "--host", ("127.0.0.2", "127.0.0.3")
# What one wait of a loader may take; the process as a whole has a deadline of the doctor's.
_WAIT_S = 60.0


@cache
def _graph() -> Any:
    """Every node points to its next, its fifth and its thirteenth neighbour on a ring, and has its own number as feature."""
    nodes = torch.arange(_NUM_NODES)
    edges = torch.cat([torch.stack([nodes, (nodes + step) % _NUM_NODES]) for step in (1, 5, 13)], dim=1)
    return Data(x=nodes.float().view(-1, 1), y=nodes % 7, edge_index=edges)


def _options(backend: Any) -> dict[str, Any]:
    """Returns the options that the loader of every trial has beside its graph."""
    limits = {"start_timeout_s": _WAIT_S, "batch_timeout_s": _WAIT_S, "progress": False, "rank": 0, "world_size": 1}
    return {"num_neighbors": [2, 2], "batch_size": 16, "shuffle": True, "backend": backend, **limits}


@cache
def batches_here() -> list[Any]:
    """An epoch's batches, sampled by threads of this process and checked against the graph."""
    return checked_batches(InProcess(num_threads=1))


def checked_batches(backend: Any) -> list[Any]:
    """An epoch's batches of a backend, compared with the graph: features, edges, and every node a seed once."""
    with GraphLoader.from_pyg(_graph(), **_options(backend)) as loader:
        batches = list(loader)
    for batch in batches:
        ends = batch.n_id[batch.edge_index]
        steps = (ends[1] - ends[0]) % _NUM_NODES
        if not torch.equal(batch.x.view(-1).long(), batch.n_id) or not torch.isin(steps, torch.tensor([1, 5, 13])).all():
            raise RuntimeError("a batch holds features or edges that the graph does not have")
    seeds = torch.cat([batch.n_id[: batch.batch_size] for batch in batches])
    if sorted(seeds.tolist()) != list(range(_NUM_NODES)):
        raise RuntimeError("an epoch does not have every node as a seed once")
    return batches


def compare(backend: Any, whose: str, batches: list[Any]) -> str:
    """Compares the batches of a backend, from a store in parts, with those of InProcess.

    Raises:
        RuntimeError: They are others.
    """
    digest = batches_digest(batches)
    with tempfile.TemporaryDirectory() as folder:
        store = partition(_graph(), _NUM_PARTS, out=Path(folder) / "store")
        with GraphLoader.from_store(store.path, input_nodes=None, **_options(backend)) as loader:
            found = batches_digest(batch.cpu() for batch in loader)
    if found != digest:
        raise RuntimeError(f"its batches are not those of InProcess (digests {found} and {digest})")
    return f"{len(batches)} batches from {whose} and {_NUM_PARTS} parts, the same as InProcess's"


def try_hosts() -> str:
    """Samples an epoch on two hosts, and compares each one's share of it."""
    batches = batches_here()
    wanted = [batches_digest(batches[rank :: len(_ADDRESSES)]) for rank in range(len(_ADDRESSES))]
    with tempfile.TemporaryDirectory() as folder:
        store = partition(_graph(), len(_ADDRESSES), out=Path(folder) / "store").path
        addresses = [f"{address}:{_free_port(address)}" for address in _ADDRESSES]
        # This process was started for the trials and is one of the hosts: its environment is its own.
        os.environ |= {"GNNKIT_TOKEN": secrets.token_hex(16), "GNNKIT_HOST": "0"}
        command = [sys.executable, "-m", "gnnkit.cli.trial", _HOST, str(store), *addresses]
        environment = {**os.environ, "GNNKIT_HOST": "1"}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment) as other:
            try:
                found = [_share(store, addresses, 0)]
                found += other.communicate(timeout=_WAIT_S)[0].split()[-1:]
            finally:
                other.kill()
    if found != wanted:
        raise RuntimeError(f"their batches are not those of InProcess (digests {found} and {wanted})")
    return f"{len(batches)} batches from two hosts on loopback with a part each, the same as InProcess's"


def _share(store: str | Path, addresses: Sequence[str], rank: int) -> str:
    """The digest of one host's share of an epoch."""
    backend = Colocated(num_workers=1, hosts=tuple(addresses))
    own = {**_options(backend), "rank": rank, "world_size": len(addresses), "placement": "partition", "remainder": "uneven"}
    with GraphLoader.from_store(store, input_nodes=None, **own) as loader:
        return batches_digest(loader)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRIALS: dict[str, Callable[[], str]] = {
    "InProcess": lambda: f"{len(batches_here())} batches sampled and checked",
    "OnDevice": lambda: compare(OnDevice(_DEVICE), f"the device {_DEVICE}", batches_here()),
    "Colocated": lambda: compare(Colocated(num_workers=2), "2 processes", batches_here()),
    "several hosts": try_hosts,
    # Its draws are its own.
    "Glt": lambda: f"{len(checked_batches(Glt(num_workers=1)))} batches drawn by graphlearn-torch and checked",
    "GraphStore": lambda: compare(GraphStore(num_servers=2), "2 servers", batches_here()),
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
    if sys.argv[1] == _HOST:
        sys.stdout.write(_share(sys.argv[2], sys.argv[3:], int(os.environ["GNNKIT_HOST"])) + "\n")
    else:
        main({name: TRIALS[name] for name in sys.argv[1:]})
