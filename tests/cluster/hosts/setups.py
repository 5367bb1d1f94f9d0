"""Hosts for tests: each a directory with the parts that it holds, and a trainer that does what it is told."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from gnnkit import GraphLoader, Store
from gnnkit.storage.layout import MANIFEST_NAME, is_held
from tests.distributed.ranks import TORCHRUN_VARIABLES
from tests.helpers.batches import digests
from tests.helpers.graphs import ArraySource, built, homogeneous_source, random_edges
from tests.helpers.machine import ROOT
from tests.helpers.namespaces import NamespaceHost
from tests.helpers.waiting import is_readable, wait_until

TOKEN = "a secret of these tests only"
OPTIONS: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 8, "input_nodes": "train", "shuffle": True, "seed": 3}
# Starting a trainer takes as long as importing torch on a busy machine.
ANSWER_S = 120.0


@cache
def source(num_nodes: int = 120) -> ArraySource:
    """Homogeneous: features, labels, edge features, a split of 57 nodes: 8 batches of 8, the last one short."""
    rng = np.random.default_rng(2)
    edges = random_edges(rng, num_nodes, num_nodes, 900)
    return homogeneous_source(
        edges,
        num_nodes,
        edge_arrays={"edge_attr": rng.standard_normal((900, 2)).astype(np.float32)},
        splits={"train": rng.permutation(num_nodes)[:57], "valid": np.arange(20)},
        x=rng.standard_normal((num_nodes, 5)).astype(np.float32),
        y=rng.integers(0, 4, num_nodes),
    )


def build(folder: Path, num_parts: int, **options: Any) -> Store:
    """The store of ``source`` in random parts."""
    return built(source(), folder / "whole", num_parts=num_parts, partition="random", with_edge=True, **options)


def stage(store: Store, folder: Path, parts: Sequence[int], *, whole_structure: bool = False) -> Path:
    """A host's own directory: what every host has, and the files of its parts, and perhaps the structure of the others."""
    for name in [MANIFEST_NAME, *(name for name in store.manifest.files if is_held(name, parts, whole_structure))]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(store.path / name, folder / name)
    return folder


def expected(store: Store, epochs: int = 1, **options: Any) -> list[list[str]]:
    """The digests of an epoch's batches, sampled in this process from the whole store."""
    with GraphLoader.from_store(store.path, backend="inprocess", progress=False, **{**OPTIONS, **options}) as loader:
        return [digests(loader) for _ in range(epochs)]


class Nursery:
    """Starts trainers quickly; see ``tests.cluster.hosts.nursery``."""

    def __init__(self) -> None:
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore::DeprecationWarning",
            "-m",
            "tests.cluster.hosts.nursery",
            str(theirs.fileno()),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        self._end.settimeout(ANSWER_S)

    def start(self, fds: list[int], environment: dict[str, str], pid: int | None) -> int:
        """Starts a trainer; its pid."""
        socket.send_fds(self._end, [json.dumps({"environment": environment, "pid": pid}).encode()], fds)
        return int(json.loads(self._end.recv(100)))

    def collect(self, pid: int) -> int:
        """The exit status of a trainer that has ended."""
        self._end.send(json.dumps({"wait": pid}).encode())
        return int(json.loads(self._end.recv(100)))

    def close(self) -> None:
        """Ends it."""
        self._end.close()
        self._process.wait(60)


@cache
def nursery() -> Nursery:
    """The nursery of this test session; the fixture ``stores`` closes it."""
    return Nursery()


class Host:
    """A trainer's process.

    Args:
        log: File that its errors go to.
        space: The namespace that it is in; None for this one.
        **environment: Its own variables.
    """

    def __init__(self, log: Path, space: NamespaceHost | None = None, **environment: str) -> None:
        clean = {name: value for name, value in os.environ.items() if name not in TORCHRUN_VARIABLES}
        self.log, self.status = log, None
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        with log.open("ab") as errors:
            fds, words = [theirs_in, theirs_out, errors.fileno()], {**clean, **environment}
            self.pid = nursery().start(fds, words, None if space is None else space.pid)
        os.close(theirs_in)
        os.close(theirs_out)
        self._ended = os.pidfd_open(self.pid)
        self._input, self._output = os.fdopen(ours_in, "w"), os.fdopen(ours_out)

    def poll(self) -> int | None:
        """The exit status, or None while the trainer runs."""
        if self.status is None and self._ended >= 0 and is_readable(self._ended, 0):
            self.status = nursery().collect(self.pid)
        return self.status

    def wait(self, timeout_s: float) -> int | None:
        """Waits for the trainer's end; its exit status."""
        wait_until(lambda: self.poll() is not None, timeout_s)
        return self.status

    def ask(self, do: str, **arguments: Any) -> None:
        """Tells the trainer to do something."""
        self._input.write(json.dumps({"do": do, **arguments}) + "\n")
        self._input.flush()

    def reply(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """What came of it."""
        ready = is_readable(self._output.fileno(), timeout_s)
        line = self._output.readline() if ready else ""
        assert line, f"no answer within {timeout_s} s; its log:\n{self.log.read_text()[-6000:]}"
        return dict(json.loads(line))

    def answer(self, timeout_s: float = ANSWER_S) -> Any:
        """The same, where it must not be an error."""
        reply = self.reply(timeout_s)
        assert "error" not in reply, f"{reply['error']}: {reply['message']}\n{self.log.read_text()[-4000:]}"
        return reply["answer"]

    def do(self, what: str, **arguments: Any) -> Any:
        """Tells and waits."""
        self.ask(what, **arguments)
        return self.answer()

    def finish(self) -> None:
        """Lets the trainer come to its end, without waiting for it."""
        self._input.close()

    def pids(self) -> set[int]:
        """The trainer and everything that it has started."""
        try:
            trainer = psutil.Process(self.pid)
            if trainer.status() == psutil.STATUS_ZOMBIE:
                return set()
            return {trainer.pid, *(child.pid for child in trainer.children(recursive=True))}
        except psutil.NoSuchProcess:
            return set()

    def kill(self) -> set[int]:
        """Ends everything of this host at once, as a power cut does; the pids that there were."""
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.wait(10) is not None
        return pids

    def close(self) -> None:
        """Ends everything, and gives the pipes back."""
        self.kill()
        for pipe in (self._input, self._output):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        if self._ended >= 0:
            os.close(self._ended)
            self._ended = -1


@contextlib.contextmanager
def ended(hosts: Sequence[Host]) -> Iterator[None]:
    """Nothing of the hosts outlives the block."""
    try:
        yield
    finally:
        for host in hosts:
            host.close()
