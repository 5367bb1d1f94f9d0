"""What a job survives, with the launch files of an export and torchrun on hosts that are network namespaces: after every loss
the job that goes on has exactly the batches that the newest checkpoint had left."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import torch

from gnnkit import Store
from gnnkit.jobs.context import Checkpoints
from tests.cluster.hosts.setups import build, expected
from tests.export.test_launchers_real import ONE_PER_HOST, export, script
from tests.helpers.machine import in_time
from tests.helpers.namespaces import NamespaceHost, network
from tests.helpers.waiting import wait_until
from tests.jobs.setups import Steps

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.timeout(900)]
DEADLINE_S = 400
# What is promised for a host that ranks meet at and that falls silent.
SILENCE_S = 60
# How long nodes wait for each other; for one that does not come back, in vain.
JOIN_S = 60
EPOCHS, SAVE_EVERY = 4, 3
# Writes down where it starts, and every batch before it trains on it. At the steps of "orders.json" it does what is written there, once.
TRAIN = f"""
import json
import os
import re
import signal
import time

import torch
import torch.distributed as dist
from tests.helpers.batches import digest as batches_digest


{inspect.getsource(Steps)}

def train(loader, ctx):
    torch.manual_seed(ctx.rank)
    model, steps = ctx.ddp(torch.nn.Linear(5, 4)), Steps()
    optimizer = torch.optim.Adam(model.parameters())
    ctx.restore(model=model, optimizer=optimizer, steps=steps)
    shared = ctx.directory.parent
    with open(shared / f"rank-{{ctx.rank}}.jsonl", "a") as file:
        print(json.dumps([steps.done, ctx.node_rank]), file=file, flush=True)
        for _ in ctx.epochs({EPOCHS}):
            for batch in loader:
                print(json.dumps(batches_digest([batch])), file=file, flush=True)
                obey(shared, ctx, steps.done)
                loss = torch.nn.functional.cross_entropy(model(batch.x)[: batch.batch_size], batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps.done += 1
                if steps.done % {SAVE_EVERY} == 0:
                    ctx.save(model=model, optimizer=optimizer, steps=steps)
    ctx.save(model=model, optimizer=optimizer, steps=steps)


def obey(shared, ctx, step):
    order = json.loads((shared / "orders.json").read_text()).get(str(step))
    if order == "kill" and not (shared / "killed").exists():
        dist.barrier()  # every rank has written down this batch
        if ctx.rank == ctx.world_size - 1:
            (shared / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if order == "wait" and not (shared / f"after-{{step}}").exists():
        (shared / f"at-{{step}}-{{ctx.rank}}").touch()
        while not (shared / f"after-{{step}}").exists():
            time.sleep(0.05)
            if ctx.world_size > 1:
                dist.barrier()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return build(tmp_path_factory.mktemp("store"), 2)


def runs(folder: Path, rank: int) -> list[tuple[int, int, list[str]]]:
    """The step that each process of a rank has started at, its node, and its batches."""
    found: list[tuple[int, int, list[str]]] = []
    for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines():
        said = json.loads(line)
        if isinstance(said, list):
            found.append((*said, []))
        else:
            found[-1][2].append(said)
    return found


def check(store: Store, folder: Path, world_size: int, ends: list[int]) -> None:
    """Every process was on its rank's node, started at the newest checkpoint of the one before, and had its rank's batches from there on.

    Args:
        store: The store.
        folder: The exported directory.
        world_size: Ranks, one on each node.
        ends: The step that each start of the ranks came to, the last one's aside.
    """
    starts = [0, *(end - end % SAVE_EVERY for end in ends)]
    for rank in range(world_size):
        whole = [digest for epoch in expected(store, EPOCHS, rank=rank, world_size=world_size) for digest in epoch]
        wanted = [(start, rank, whole[start : end + 1]) for start, end in zip(starts, [*ends, len(whole)], strict=True)]
        assert runs(folder, rank) == wanted, f"rank {rank}"
    model, steps = torch.nn.Linear(5, 4), Steps()
    assert Checkpoints(folder / "run").restore({"model": model, "optimizer": torch.optim.Adam(model.parameters()), "steps": steps})
    assert steps.done == len(whole), "no step is missing from the weights, and none is in them twice"


class Nodes:
    """The nodes of a job, each a host that runs ``launch.sh``."""

    def __init__(self, folder: Path, logs: Path, spaces: list[NamespaceHost], running: ExitStack) -> None:
        self.spaces, self._folder, self._running = spaces, folder, running
        self._logs = [logs / f"node{index}.log" for index in range(len(spaces))]
        self._scripts: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *indices: int) -> None:
        """The command of each node, the same each time."""
        for index in indices:
            told = {"NODE_RANK": str(index), "MASTER_ADDR": self.spaces[0].address, "JOIN_TIMEOUT_S": str(JOIN_S)}
            self._scripts[index] = self._running.enter_context(
                script(self.spaces[index], self._folder / "launch.sh", self._logs[index], **told)
            )

    def kill(self, index: int) -> None:
        """Ends everything on a host, as a power cut does."""
        kill(self.spaces[index])
        self.wait(index)

    def wait(self, index: int) -> int:
        """The exit status of a node's script. Nothing outlives it."""
        code = self._scripts[index].wait(DEADLINE_S)
        assert wait_until(lambda: not self.spaces[index].pids()), self.said()
        return code

    def wait_for_step(self, step: int) -> None:
        """Until every rank waits before it trains on this step's batch."""
        assert wait_until(lambda: is_at(self._folder, step, len(self.spaces)), DEADLINE_S), self.said()

    def said(self) -> str:
        return "\n".join(log.read_text()[-6000:] for log in self._logs)


def is_at(folder: Path, step: int, world_size: int) -> bool:
    return all((folder / f"at-{step}-{rank}").exists() for rank in range(world_size))


def go_on(folder: Path, step: int) -> None:
    (folder / f"after-{step}").touch()


def kill(space: NamespaceHost) -> None:
    for pid in space.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow(seconds=240)
def test_a_job_loses_a_rank_a_node_and_the_host_that_ranks_meet_at(store: Store, tmp_path: Path) -> None:
    """Between losses it is started again: by torchrun, by hand on the one node, and twice as a whole; always by the same commands."""
    folder = tmp_path / "job"
    export(store, folder, TRAIN, launcher="torchrun", procs_per_node=1, placement=ONE_PER_HOST)
    (folder / "orders.json").write_text(json.dumps({4: "kill", 7: "wait", 10: "wait", 13: "wait"}))
    with network(2) as spaces, ExitStack() as running:
        nodes = Nodes(folder, tmp_path, spaces, running)
        nodes.start(1, 0)
        nodes.wait_for_step(7)
        assert (folder / "killed").exists(), "torchrun has started the ranks again"

        nodes.kill(1)
        go_on(folder, 7)
        nodes.start(1)
        nodes.wait_for_step(10)

        spaces[1].cut()
        assert nodes.wait(1) != 0 and nodes.wait(0) != 0, "nobody has come back"
        spaces[1].heal()
        go_on(folder, 10)
        nodes.start(0, 1)
        nodes.wait_for_step(13)

        lost_s, log = time.monotonic(), tmp_path / "node1.log"
        said_before = len(log.read_text())
        spaces[0].cut()
        nodes.kill(0)
        assert nodes.wait(1) != 0
        assert in_time(time.monotonic() - lost_s, SILENCE_S)
        # Its rank says so, and torchrun, which could start the rank again and would never be told where, ends with it.
        assert re.search(rf"rank 0 \({spaces[0].address}\).* of this job (is|are) gone", log.read_text()[said_before:]), nodes.said()
        spaces[0].heal()
        go_on(folder, 13)
        nodes.start(1, 0)
        assert [nodes.wait(index) for index in range(2)] == [0, 0], nodes.said()
    check(store, folder, 2, [4, 7, 10, 13])


@pytest.mark.slow(seconds=30)
def test_a_storage_node_is_rebooted(store: Store, tmp_path: Path) -> None:
    """It falls silent and comes back, and its server later, with the same address and token. torchrun starts the rank that missed it."""
    folder, log = tmp_path / "job", tmp_path / "node.log"
    export(store, folder, TRAIN, launcher="torchrun", nodes=1, procs_per_node=1, storage_nodes=1, placement=ONE_PER_HOST)
    (folder / "orders.json").write_text(json.dumps({4: "wait"}))
    (folder / "token").write_text("a secret of this test only")
    (folder / "token").chmod(0o600)
    with network(2) as (trainer, storage), ExitStack() as running:
        told = {"STORAGE_ADDRS": storage.address}

        def serve() -> None:
            running.enter_context(script(storage, folder / "serve.sh", tmp_path / "storage.log", STORAGE_RANK="0", **told))

        serve()
        node = running.enter_context(script(trainer, folder / "launch.sh", log, **told))
        assert wait_until(lambda: is_at(folder, 4, 1), DEADLINE_S), log.read_text()
        storage.cut()
        kill(storage)
        go_on(folder, 4)
        storage.heal()
        assert wait_until(lambda: f"error: server 0 ({storage.address}:7000) is gone" in log.read_text(), DEADLINE_S), log.read_text()
        serve()
        assert node.wait(DEADLINE_S) == 0, log.read_text()
    *missed, _ = runs(folder, 0)
    assert missed, "the rank was started again"
    check(store, folder, 1, [start + len(batches) - 1 for start, _, batches in missed])
