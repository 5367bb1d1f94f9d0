"""Measurements of servers that hold the graph; run by ``gnnkit.bench.tasks``."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice, zip_longest
from operator import add
from pathlib import Path
from typing import Any

from gnnkit.bench.host_tasks import interface_bytes
from gnnkit.bench.kinds import make_loader, time_epochs
from gnnkit.bench.process import children_running, footprint

_SPLITS = ("train", "valid", "test")
# Memory for batches of each client of `server_memory`: with their own default, eight of them would take all that a machine has.
_CLIENT_MEMORY = "1GB"
_CLIENT_BATCHES = 4
_PORT = 7000
_END_S = 600.0


def serve(options: argparse.Namespace) -> dict[str, Any]:
    """Starts servers and joins them, until the first batch."""
    import torch_geometric.data  # noqa: F401 - what every user has imported before the clock starts

    import gnnkit
    import gnnkit.sampling.kinds

    gnnkit.sampling.kinds.warm()
    start = time.perf_counter()
    with gnnkit.serve(options.path, options.servers, progress=False) as servers, _joined(options, servers.address) as loader:
        next(iter(loader))
        return {"first_batch_s": time.perf_counter() - start}


def _joined(options: argparse.Namespace, address: str, **more: Any) -> Any:
    """A loader on servers that run already; a token is looked for where users keep it."""
    from gnnkit.backends.graph_store import GraphStore

    return make_loader(options, backend=GraphStore(address=address, channel_size=more.pop("channel_size", None)), **more)


def splits(options: argparse.Namespace) -> dict[str, Any]:
    """Three loaders on the same servers, with as many seeds each: an epoch of one after another's, or a batch of each in turn."""
    from gnnkit.storage.store import Store

    (found,) = Store.open(options.path).splits.values()
    count = min(len(found[name]) for name in _SPLITS)
    with ExitStack() as stack:
        first = stack.enter_context(make_loader(options, input_nodes=found[_SPLITS[0]][:count]))
        rest = [first.for_split(found[name][:count], shuffle=True) for name in _SPLITS[1:]]
        loaders = [first, *(stack.enter_context(loader) for loader in rest)]
        start = time.perf_counter()
        go_through(loaders, alternate=options.alternate)  # every loader has its memory after that
        while time.perf_counter() - start < options.settle:
            go_through(loaders, alternate=options.alternate)
        start, batches = time.perf_counter(), [0] * len(loaders)
        for _ in range(options.epochs):
            batches = list(map(add, batches, go_through(loaders, alternate=options.alternate)))
        elapsed = time.perf_counter() - start
        workers = {pid for loader in loaders for pid in loader.status().details["pids"].values()}
    return {"seeds_per_s": sum(batches) * options.batch_size / elapsed, "batches": batches, "workers": len(workers)}


def go_through(loaders: Sequence[Iterable[Any]], *, alternate: bool) -> list[int]:
    """Takes an epoch of every loader, one after the other or a batch of each in turn; the batches of each."""
    if not alternate:
        return [sum(1 for _ in loader) for loader in loaders]
    counts = [0] * len(loaders)
    for batches in zip_longest(*loaders):
        counts = [count + (batch is not None) for count, batch in zip(counts, batches, strict=True)]
    return counts


def server_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Measures the memory of servers while a number of clients are registered, each of which has received batches."""
    import gnnkit

    with gnnkit.serve(options.path, options.servers, progress=False) as servers, ExitStack() as stack:
        clients = [stack.enter_context(_client(options, servers.address)) for _ in range(options.clients)]
        for client in clients:
            assert client.stdout is not None
            if client.stdout.readline() != "registered\n":
                raise RuntimeError(f"a client ended with code {client.wait(_END_S)}")
        pids = children_running("gnnkit.cluster.serving") + children_running("gnnkit.cluster.worker")
        sizes = footprint(pids, Path(options.path))
    return {**sizes, "server_bytes": sizes["graph_bytes"] + sizes["own_bytes"]}


@contextmanager
def _client(options: argparse.Namespace, address: str) -> Iterator[subprocess.Popen[str]]:
    sizes = ["--batch-size", str(options.batch_size), "--fanout", *map(str, options.fanout)]
    command = [sys.executable, "-m", "gnnkit.bench.tasks", "client", str(options.path), "--address", address, *sizes]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def client(options: argparse.Namespace) -> dict[str, Any]:
    """Joins servers, takes batches, says so, and stays until its standard input ends."""
    with _joined(options, options.address, channel_size=_CLIENT_MEMORY) as loader:
        for _batch in islice(loader, _CLIENT_BATCHES):
            pass
        sys.stdout.write("registered\n")
        sys.stdout.flush()
        sys.stdin.read()
    return {}


def wire(options: argparse.Namespace) -> dict[str, Any]:
    """On the first of two hosts a trainer, on the second the servers that it samples with."""
    if os.environ["RANK"] == "1":
        return _serve_the_other(options)
    import torch_geometric.data  # noqa: F401

    with _joined(options, f"{options.address}:{_PORT}") as loader, socket.create_connection((options.address, _PORT - 1), _END_S):
        for _ in loader:  # the servers' copy of the graph in huge pages is in use after that
            pass
        before, counted = interface_bytes(), _counted(loader)
        batches, elapsed = time_epochs(loader, options)
        seen, said = interface_bytes() - before, _counted(loader) - counted
        nbytes = loader.stats().nbytes * options.epochs
    return {
        "seeds_per_s": batches * options.batch_size / elapsed,
        "wire_bytes_per_batch": seen / batches,
        "counted_bytes_per_batch": said / batches,
        "batch_bytes": nbytes / batches,
        "wire_share": seen / nbytes,
    }


def _serve_the_other(options: argparse.Namespace) -> dict[str, Any]:
    """Serves until the trainer has come and gone."""
    import gnnkit
    import gnnkit.sampling.kinds

    gnnkit.sampling.kinds.warm()
    address = f"{options.address}:{_PORT}"
    # The trainer's connection ends with the trainer, however that comes; who may join the servers at what time is none of its concern.
    with (
        socket.create_server((options.address, _PORT - 1)) as ends,
        gnnkit.serve(options.path, options.servers, address=address, progress=False) as servers,
    ):
        servers.wait()
        ends.settimeout(_END_S)
        trainer = ends.accept()[0]
        with trainer:
            trainer.settimeout(_END_S)
            trainer.recv(1)
    return {"seeds_per_s": 0.0}


def _counted(loader: Any) -> int:
    """Bytes of messages, as the loader's status says."""
    return sum(loader.status().details["wire"].values())
