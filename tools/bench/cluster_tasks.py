"""Measurements of several processes: hosts, servers, launches and exported jobs, and single nodes as a service asks for them.

Run by ``tools.bench.tasks``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice, zip_longest
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.namespaces import INTERFACE
from gnnkit.loader.inspection import batches_digest
from tools.bench.kinds import make_loader, time_epochs
from tools.bench.process import ProcessorWatch, children_running, footprint

if TYPE_CHECKING:
    from gnnkit.export.verify import VerifyReport


def host_epoch(options: argparse.Namespace) -> dict[str, Any]:
    """Runs ``epoch`` with ``options.placement``, and measures how busy that keeps the processors and the cable."""
    import torch.distributed as dist
    import torch_geometric.data  # noqa: F401

    import gnnkit.sampling.kinds

    gnnkit.sampling.kinds.warm()
    dist.init_process_group("gloo")
    with make_loader(options, placement=options.placement) as loader:
        for _ in loader:  # its copy of the graph in huge pages is in use after that
            pass
        dist.barrier()
        watch, crossed, begin = ProcessorWatch(), interface_bytes(), time.perf_counter()
        batches, _ = time_epochs(loader, options)
        dist.barrier()
        elapsed, shares, crossed = time.perf_counter() - begin, watch.shares(), interface_bytes() - crossed
        check_batches(loader, options)
    dist.destroy_process_group()
    return {"seeds_per_s": batches * options.batch_size / elapsed, **shares, "cable_bytes_per_s": crossed / elapsed}


def interface_bytes() -> int:
    """Bytes that have come and gone through this host's cable, headers included: see proc_net(5)."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            fields = numbers.split()
            return int(fields[0]) + int(fields[8])
    raise RuntimeError(f"no interface {INTERFACE} on this host")


def check_batches(loader: Any, options: argparse.Namespace) -> None:
    """Compares a batch with what this process samples from all parts, which here it can read: a wrong batch has no speed.

    Raises:
        RuntimeError: They differ.
    """
    from gnnkit.loader.inspection import batches_digest

    whole = argparse.Namespace(**{**vars(options), "workers": 0, "servers": 0})
    with make_loader(whole, placement="replicate", memory_budget=0) as reference:
        reference.set_epoch(loader.epoch + 1)
        if batches_digest([loader.peek()]) != batches_digest([reference.peek()]):
            raise RuntimeError("a batch of this host is not the one that a single process samples")


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
    command = [sys.executable, "-m", "tools.bench.tasks", "client", str(options.path), "--address", address, *sizes]
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


RANKS = 2
# Batches of the verified job's epoch.
BATCHES = 100


def launched(options: argparse.Namespace) -> dict[str, Any]:
    """Launches ranks that train GraphSAGE, and takes the time to the end of the first step of the last of them."""
    from gnnkit.jobs.launching import launch

    hops = len(options.fanout)

    def train(loader: Any, ctx: Any) -> float:
        import time

        import torch
        from torch_geometric.nn import GraphSAGE

        model = ctx.ddp(GraphSAGE(loader.num_features, 64, num_layers=hops, out_channels=64))
        optimizer = torch.optim.Adam(model.parameters())
        batch = next(iter(loader))
        loss = model(batch.x, batch.edge_index)[: batch.batch_size].square().mean()
        loss.backward()
        optimizer.step()
        return time.monotonic()  # the same clock in all processes of a host

    with make_loader(options) as loader:
        begin = time.monotonic()
        with launch(train, loader, RANKS, device="cpu", progress=False) as run:
            returned = time.monotonic()
            steps = run.results()
    return {"returned_s": returned - begin, "first_step_s": max(steps) - begin}


def verified(options: argparse.Namespace) -> dict[str, Any]:
    """Exports a job for torchrun, each of whose nodes holds a part, and verifies an epoch of ``BATCHES`` batches of it."""
    from gnnkit.export.verify import verify_export
    from gnnkit.storage.store import Store

    (found,) = Store.open(options.path).splits.values()
    seeds = found["train"]
    size = max(1, min(options.batch_size, len(seeds) // BATCHES))  # a small graph has 100 batches, too
    with tempfile.TemporaryDirectory(prefix="gnnkit-bench-") as folder:
        with make_loader(options, input_nodes=seeds[: BATCHES * size], batch_size=size) as loader:
            job = loader.export(Path(folder) / "job", nodes=options.nodes, procs_per_node=options.procs_per_node)
        begin = time.perf_counter()
        report = verify_export(job.directory, progress=False)
        elapsed = time.perf_counter() - begin
    check_equal(report)
    return {"verify_s": elapsed, "batches": report.batches, "batch_size": size, "ranks": report.ranks, "notes": list(report.notes)}


def check_equal(report: VerifyReport) -> None:
    """Raises ``RuntimeError`` where a job has not given ``BATCHES`` equal batches: a wrong batch has no speed."""
    if not report.equal or report.batches != BATCHES:
        raise RuntimeError(f"the job was to give {BATCHES} equal batches:\n{report}")


# Threads that ask.
CALLERS = 8
_MICRO = 1e6


def serving(options: argparse.Namespace) -> dict[str, Any]:
    """Latency and throughput of ``loader.sample([id])`` in ``CALLERS`` threads.

    Latency is that of an open loop: requests come ``options.rate`` times a second in all, at random times (a Poisson process) and whether
    or not those before have been answered, and each counts from the time at which it came. Throughput is that of a closed loop: each
    thread asks as soon as it is answered. Every answer of the open loop is compared with what one thread alone gets.

    Raises:
        RuntimeError: An answer is another one.
    """
    rng = np.random.default_rng(0)
    with make_loader(options) as loader:
        (nodes,) = loader.schema.node_types.values()
        count = max(CALLERS, int(options.rate * options.seconds))
        ids = rng.integers(nodes.num_nodes, size=count)
        times = np.cumsum(rng.exponential(1 / options.rate, count))

        def ask(number: int) -> Any:
            return loader.sample([int(ids[number % count])], index=number % count)

        _ask_at_most(ask, options.settle)  # the copy of the graph in huge pages is in use after that
        answered, elapsed = _ask_at_most(ask, options.seconds)
        took, alone = ask_at(ask, times)
    p50, p99, longest = (float(value) * _MICRO for value in np.quantile(took, (0.5, 0.99, 1.0)))
    return {
        "p50_us": p50,
        "p99_us": p99,
        "longest_us": longest,
        "alone_p50_us": float(np.median(alone)) * _MICRO,
        "answers": count,
        "answers_per_s": answered / elapsed,
    }


def _ask_at_most(ask: Callable[[int], Any], seconds: float) -> tuple[int, float]:
    """Has every caller ask as soon as it is answered; how many answers there were, and in how many seconds."""
    numbers, begin = itertools.count(), time.perf_counter()

    def call() -> int:
        answered = 0
        while time.perf_counter() - begin < seconds:
            ask(next(numbers))
            answered += 1
        return answered

    return sum(_in_callers(call)), time.perf_counter() - begin


def ask_at(ask: Callable[[int], Any], times: Iterable[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Has callers ask at the given times, and one thread alone afterwards.

    Args:
        ask: Returns the batch that answers a question's number.
        times: When each is due, in seconds from now.

    Returns:
        An answer's seconds since it was due, and the seconds that it takes alone, by number.

    Raises:
        RuntimeError: Alone, an answer is another one.
    """
    due, lock, begin = list(times), threading.Lock(), time.perf_counter()
    numbers = iter(range(len(due)))
    took, digests = np.empty(len(due)), [""] * len(due)

    def call() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            asked = begin + due[number]
            time.sleep(max(0.0, asked - time.perf_counter()))
            answer = ask(number)
            took[number] = time.perf_counter() - asked
            digests[number] = batches_digest([answer])

    _in_callers(call)
    alone = np.empty(len(due))
    for number, digest in enumerate(digests):
        begin = time.perf_counter()
        answer = ask(number)
        alone[number] = time.perf_counter() - begin
        if batches_digest([answer]) != digest:
            raise RuntimeError(f"the answer to question {number} is another one where {CALLERS} threads ask")
    return took, alone


def _in_callers(call: Callable[[], Any]) -> list[Any]:
    """Returns what a function gives in each of the threads that ask."""
    with ThreadPoolExecutor(CALLERS) as pool:
        return [future.result() for future in [pool.submit(call) for _ in range(CALLERS)]]
